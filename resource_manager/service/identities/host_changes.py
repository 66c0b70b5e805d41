"""Applies the changes of local commands (`finegrain certs`) to the running resource manager.

The commands change the files of the authority on the host of the resource manager. The resource
manager reads them again within a second, so it needs no restart. The commands also leave a note for
the audit log, because only the resource manager can write to its database.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.credentials import write_private_file
from finegrain.errors import FinegrainError
from finegrain.logs import get_logger
from resource_manager.service.audit import short_text
from resource_manager.service.identities.own import FOLDER
from resource_manager.service.identities.sharing import check_authority
from resource_manager.storage.audit_log import AuditedCall, local_actor

if TYPE_CHECKING:
    from resource_manager.wiring import Components

FOLLOW_INTERVAL_S = 1.0
NOTE_BYTES_MAX = 4 * 1024
NOTES = "audit-*.json"

_log = get_logger("finegrain.rm")


def note_change(state_dir: Path, method: str, changed: str) -> None:
    """Leaves a note about a change for the audit log. The actor is the user of this process.

    Args:
        state_dir: state directory of the resource manager.
        method: the command, for example "certs ca use".
        changed: the object that the command has changed.

    Raises:
        ConfigurationError: the note cannot be written.
    """
    note = {"actor": local_actor(), "method": method, "object": changed}
    path = state_dir / FOLDER / f"audit-{time.time_ns()}.json"
    write_private_file(path, json.dumps(note).encode())


async def follow_host_changes(components: Components) -> None:
    """Reads the authority again when its files change, and records the notes of commands.

    The function never ends. It tries again each second, and logs an error only once.
    """
    logged = ""
    while True:
        await asyncio.sleep(FOLLOW_INTERVAL_S)
        try:
            await _follow_authority(components)
            if components.leadership.refusal() is None:
                await _record_notes(components)
            logged = ""
        except FinegrainError as error:
            if error.message != logged:
                _log.error("host_change_not_followed", error=error.message)
            logged = error.message


async def _follow_authority(components: Components) -> None:
    own_files, own = components.own_files, components.own
    own_files.read_again()
    if own.credentials.authorities == own_files.authority.trusted_pem.decode():
        return
    # The database must name the signing authority before any certificate of this authority is
    # shown. Otherwise the next start would reject the authority. A standby does this when it
    # becomes the leader.
    if components.leadership.refusal() is None:
        await check_authority(components.runner, own_files)
    own.replace(await asyncio.to_thread(own_files.rm_credentials))
    if address := components.leadership.address:
        await asyncio.to_thread(own_files.write_operator, address)
    _log.info("authorities_changed", trusted=len(own_files.authority.trusted))


async def _record_notes(components: Components) -> None:
    for path in sorted((components.own_files.state_dir / FOLDER).glob(NOTES)):
        call = _call_of(path)
        if call is not None:
            await components.runner.record(call)
        path.unlink(missing_ok=True)


def _call_of(path: Path) -> AuditedCall | None:
    try:
        with path.open("rb") as file:
            note = json.loads(file.read(NOTE_BYTES_MAX))
        actor, method, changed = (str(note[key]) for key in ("actor", "method", "object"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.error("note_not_recorded", path=str(path), error=str(error))
        return None
    return AuditedCall(short_text(actor), short_text(method), short_text(changed))
