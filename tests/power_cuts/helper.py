"""A helper on a machine whose power is cut, as a separate process.

    python -m tests.power_cuts.helper CONFIG SYNCHRONOUS

Everything is real: supervisors, tasks and control groups. SYNCHRONOUS is `full`, as in the product,
or `normal`: then files are not synced, to show that the checks find the losses.
"""

from __future__ import annotations

import os
import sys

from task_executor.helper.__main__ import main

if __name__ == "__main__":
    if sys.argv[2] == "normal":
        os.fsync = lambda _descriptor: None  # type: ignore[assignment]
    sys.exit(main(sys.argv[1]))
