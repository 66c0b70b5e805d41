"""Defines how valuable parts of a GPU are for later requests. Placement ranks hosts by these
values.

The value of a part is a number from 0 to 1000 that depends on its size in hundredths of a GPU. A
whole GPU has the value 1000. A placement *strands* value if the value that the GPU loses is higher
than the value of the part that the slot gets.

Later requests are unknown, so the value of a part is estimated as its size to the power of 1.5. So
half of a GPU has less than half of the value of a GPU, because fewer requests fit on it. With such
values, a share strands the least value on the GPU whose free part is the smallest that is
sufficient.

Example: half of a GPU has the value 353. A slot needs 30 hundredths. On a GPU with 50 hundredths
free, the remaining 20 have the value 89, so this GPU loses 353 - 89 = 264. On a completely free
GPU, the remaining 70 have the value 585, so this GPU loses 1000 - 585 = 415. So the GPU with 50
hundredths free is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Final

from finegrain.devices.device import WHOLE

WHOLE_VALUE: Final = 1_000

PartValues = tuple[int, ...]
"""The value of a part, by its size from 0 to 100 hundredths. Values never decrease with the
size.
"""

# The values are computed with integers, so that they are the same on every machine.
DEFAULT_VALUES: Final[PartValues] = tuple(isqrt(size**3) for size in range(WHOLE + 1))


def loss(values: Sequence[int], left: int, part: int) -> int:
    """Returns how much value a GPU loses if a slot gets a part of the GPU.

    Args:
        values: the value of parts by size.
        left: the free part of the GPU, in hundredths.
        part: the part that the slot gets, at most `left`.
    """
    return values[left] - values[left - part]
