"""Names of durable counters that more than one module knows."""

from __future__ import annotations

GENERATION_FLOOR = "generation_floor"
"""Counter that a restore of older books raises, so that no placement of theirs is taken for one of
those they have lost."""

REGISTERED_WITH = "registered_with/"
"""Prefix of counters: the report that an executor registered with last. A late copy of an earlier
registration may reach whoever takes over, and is no news there either."""

HOST_SETTING_NUMBER = "host_setting_number"
"""Number of the last change that an operator has made to the settings of any host."""

FORGOTTEN = "forgotten_registration_number"
"""Highest registration number of all executors that were forgotten."""

ARRIVAL_NUMBER = "arrival_number"
"""The last place in line that was given out, to jobs and requests alike."""
