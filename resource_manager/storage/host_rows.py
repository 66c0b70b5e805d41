"""Settings of hosts to rows and back.

Decides how they are spelled in columns, in the order of `tables.py`. Refuses to know any SQL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from finegrain.cpu_policy import HostPolicy
from resource_manager.engine.model.entities import HostSetting
from resource_manager.storage import tables
from resource_manager.storage.codecs import Codec, Row
from resource_manager.storage.texts import json_text


def _encode_host_setting(setting: HostSetting) -> Row:
    policy = json_text(setting.policy.to_dict())
    return setting.executor_id, policy, setting.number, setting.set_time_ms


def _decode_host_setting(row: Sequence[Any]) -> HostSetting:
    return HostSetting(row[0], HostPolicy.from_dict(json.loads(row[1])), row[2], row[3])


HOST_SETTINGS = Codec(tables.host_settings, _encode_host_setting, _decode_host_setting)
