"""If `finegrain run` is started before any executor, it ends when all executors are known to be too
small.
"""

from __future__ import annotations

import pytest

from tests.e2e.driving import Daemons, eventually, finish, unique

pytestmark = pytest.mark.full


def test_a_run_from_before_the_first_executor_ends_like_one_that_comes_later(
    daemons: Daemons,
) -> None:
    daemons.manager.start("--infeasible-after", "1s")
    daemons.manager.endpoint()
    run = ("run", "--cpu", "640", "--", "true")
    early = daemons.cli.start(*run)
    (request,) = eventually(lambda: daemons.cli.items("requests"), "the request waits")
    daemons.executor(unique("small")).start()
    outcome = finish(early)
    late = daemons.cli(*run)

    assert outcome.code == late.code == 125
    said = outcome.stderr.partition(f"slot request {request['allocation_id']} was rejected: ")[2]
    assert "[INFEASIBLE_NEVER]" in said
    assert "finegrain executors" in said  # the hint
    assert said == late.stderr.partition(" was rejected: ")[2]
