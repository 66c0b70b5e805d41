"""Shows the smallest job master, without an event loop: it runs one command in one slot.

    python examples/hello.py

The program reads FINEGRAIN_MANAGER and FINEGRAIN_CREDENTIALS.
"""

from __future__ import annotations

import finegrain_client as fg


def main() -> None:
    """Gets a slot, and prints its host, executor and profile."""
    with fg.blocking.connect() as cluster, cluster.job("hello") as job:
        (request,) = job.request_slots(fg.SlotSpec(cpu_milli=100, memory_bytes=64 * fg.MIB))
        try:
            slot = request.granted(timeout_s=10)
        except fg.StillWaiting:
            print(request.explain().summary)
            slot = request.granted()
        result = slot.run(["uname", "-n"]).wait().check()
        print(f"hello from {result.stdout.decode().strip()}: {slot.executor_id}, {slot.profile}")


if __name__ == "__main__":
    main()
