"""The program. FAKE_CUDA_FOLDER is replaced when the program is written. The program uses only the
standard library.

There may be a profile of the driver for tests. Then a process that is checkpointed leaves the list
of processes of its GPU. A process that is restored is on a list again: on that of the GPU that the
device map names.
"""

import os
import sys
import time
from pathlib import Path

FOLDER = Path("FAKE_CUDA_FOLDER")
PROFILE = FOLDER / "profile"
STEPS = {
    "lock": ("running", "locked"),
    "checkpoint": ("locked", "checkpointed"),
    "restore": ("checkpointed", "locked"),
    "unlock": ("locked", "running"),
}


def write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)


def leave_gpu(pid: str) -> None:
    lines = PROFILE.read_text().splitlines(keepends=True)
    its = [line for line in lines if line.split()[:1] == ["process"] and line.split()[2] == pid]
    write(FOLDER / "parked" / pid, "".join(its))
    write(PROFILE, "".join(line for line in lines if line not in its))


def return_to_gpu(pid: str, moves: dict[str, str]) -> None:
    lines = PROFILE.read_text().splitlines(keepends=True)
    gpus = {line.split()[2]: line.split()[1] for line in lines if line.startswith("gpu ")}
    numbers = {gpus[old]: gpus[new] for old, new in moves.items()}
    its = []
    for line in (FOLDER / "parked" / pid).read_text().splitlines():
        word, number, *rest = line.split()
        its.append(" ".join([word, numbers.get(number, number), *rest]) + "\n")
    write(PROFILE, "".join([*lines, *its]))


def main(arguments: list[str]) -> int | str:
    given = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    pid = given["--pid"]
    state = FOLDER / "processes" / pid
    if not state.exists():
        return "CUDA is not in use in this process"
    now = state.read_text().strip()
    if "--get-state" in given:
        sys.stdout.write(f"{now}\n")
        return 0
    action = given["--action"]
    with (FOLDER / "log").open("a") as log:
        log.write(f"{action} {pid} {given.get('--device-map', '')}".strip() + "\n")
    while (FOLDER / f"hold-{action}").exists():
        time.sleep(0.02)
    if (FOLDER / f"fail-{action}").exists():
        return '"operation not supported"'
    before, after = STEPS[action]
    if now != before:
        return f'"illegal state" {now}'
    if PROFILE.exists() and action == "checkpoint":
        leave_gpu(pid)
    if PROFILE.exists() and action == "restore":
        pairs = (each.split("=") for each in given.get("--device-map", "").split(",") if each)
        return_to_gpu(pid, dict(pairs))
    write(state, after)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
