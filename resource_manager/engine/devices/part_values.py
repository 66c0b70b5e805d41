"""What parts of a GPU are worth to later requests: the rank of devices and hosts is made from it.

The value of a part is a number from 0 to 1000, by its size in hundredths of a GPU. A whole GPU has
the value 1000. A placement *strands* value if the rest of a GPU is worth less than the GPU was
before, minus what the slot got.

Without knowledge of the requests, the value of a part is its size to the power of 1.5. So the rest
of a GPU is worth less than its size: it serves fewer requests. A share then strands least where
least is left.

Example: half of a GPU is worth 353. A slot that needs 30 hundredths could get them from a GPU with
50 left, whose rest is then worth 89, or from a whole GPU, whose rest is worth 585. The first one
loses 264, the second one 415.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Final

from finegrain.devices.device import WHOLE

WHOLE_VALUE: Final = 1_000

PartValues = tuple[int, ...]
"""The value of a part, by its size from 0 to 100 hundredths; never falling."""

# Computed with integers: the same on every machine.
DEFAULT_VALUES: Final[PartValues] = tuple(isqrt(size**3) for size in range(WHOLE + 1))


def loss(values: Sequence[int], left: int, part: int) -> int:
    """Returns how much value a GPU loses.

    Args:
        values: by size.
        left: what is left of the GPU, in hundredths.
        part: what a slot gets of it, at most `left`.
    """
    return values[left] - values[left - part]
