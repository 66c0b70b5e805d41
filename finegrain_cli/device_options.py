"""Converts the options that request devices to amounts and hints. The values of the options are
texts from the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from finegrain.devices.device import WHOLE
from finegrain.errors import InvalidArgument
from finegrain.resources import DEVICE_PREFIX
from finegrain.units import parse_bytes, parse_pair

if TYPE_CHECKING:
    import finegrain_client as fg

_NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,2}0*)?|\.[0-9]{1,2}0*", re.ASCII)
_PERCENTAGE: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_FIELD: Final = re.compile(r"\bdevices(?:\[([^]]*)\])?$")
"""Finds a field about devices in the text of an error. The group has the names of amounts if the
error is only about some amounts.
"""
_OPTIONS: Final = {
    "gpu": "--gpu",
    "gpu-core": "--gpu-core",
    "gpu-memory": "--gpu-memory",
    "gpu-memory-ratio": "--gpu-memory-ratio",
    "gpu.shared": "--gpu-shared",
    "rdma": "--rdma",
    "fpga": "--fpga",
}
"""The options, by the name of the resource that each option requests."""

# Try the longest names first, because some names are the beginning of other names.
_ANY_NAME: Final = "|".join(map(re.escape, sorted(_OPTIONS, key=len, reverse=True)))
_NAME: Final = re.compile(rf"(?<![\w.-])(?:{_ANY_NAME})(?![\w.-]|\.\w)")


_PERCENT: Final = ("gpu-core", "gpu-memory-ratio")
_LIMITED_GPUS: Final = ("gpu", *_PERCENT, "gpu-memory")


def device_dimensions(name: str) -> tuple[str, ...]:
    """Returns the dimensions to which a limit with this name applies. Returns no dimensions if the
    name does not mean devices.

    `device.NAME` always names a configured device type. `extended.NAME` always names a countable
    resource.

    Raises:
        InvalidArgument: the name begins like a name of GPU amounts, but is not such a name.
    """
    kind = name.removeprefix(DEVICE_PREFIX)
    if kind.startswith("gpu") and kind not in _LIMITED_GPUS:
        expected = f"one of {', '.join(_LIMITED_GPUS)}; or extended.{kind} for a countable resource"
        raise InvalidArgument("name of a limit", name, expected)
    if kind == "gpu":
        return tuple(DEVICE_PREFIX + each for each in _PERCENT)
    known = kind in (*_PERCENT, "gpu-memory", "rdma", "fpga") or kind.startswith("mig-")
    return (DEVICE_PREFIX + kind,) if known or kind != name else ()


def device_limit(option: str, name: str, text: str) -> int:
    """Returns a limit in the unit of its dimension. `text` is in the unit that `finegrain run`
    uses.

    Raises:
        InvalidArgument: `text` is not a valid amount.
    """
    kind = name.removeprefix(DEVICE_PREFIX)
    if kind == "gpu-memory":
        return parse_bytes(option, text)
    if kind not in _PERCENT:
        return _in_hundredths(option, text)
    if not _PERCENTAGE.fullmatch(text):
        raise InvalidArgument(option, text, "a whole number, in percent of one GPU, or none")
    return int(text)


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The values of the options as the user typed them. `gpu`, `rdma`, `fpga` and `device` are
    numbers of devices.
    """

    gpu: str = ""
    gpu_core: int = 0
    gpu_memory: str = ""
    gpu_memory_ratio: int = 0
    gpu_shared: int = 0
    gpu_model: str = ""
    rdma: str = ""
    fpga: str = ""
    device: tuple[str, ...] = ()

    def amounts(self) -> dict[str, int]:
        """Returns amounts by name of the resource, in the form of `SlotSpec.devices`.

        Raises:
            InvalidArgument: a value cannot be read, or no host could ever have such devices.
        """
        from finegrain.devices.names import device_requests

        found = self.named()
        try:
            # The resource manager makes the same check. But only this code knows the options that
            # the error must name.
            requests = device_requests(found)
        except InvalidArgument as error:
            raise self.explained(error) from None
        if self.gpu_model and not any(each.type == "gpu" for each in requests):
            raise InvalidArgument("--gpu-model", self.gpu_model, "--gpu or another amount of GPUs")
        return found

    def named(self) -> dict[str, int]:
        """Returns the amounts that the user typed, by name of the resource. A resize can name only
        some amounts.

        Raises:
            InvalidArgument: a value cannot be read.
        """
        found = dict(self._counted())
        found["gpu-core"] = self.gpu_core
        found["gpu-memory-ratio"] = self.gpu_memory_ratio
        found["gpu.shared"] = self.gpu_shared
        if self.gpu_memory:
            found["gpu-memory"] = parse_bytes("--gpu-memory", self.gpu_memory)
        return {name: amount for name, amount in found.items() if amount}

    def explained(self, error: InvalidArgument) -> InvalidArgument:
        """Converts an error about named amounts to an error about the options that the user
        typed.
        """
        return _about_options(error, self._typed()) if _FIELD.search(error.field) else error

    def hints(self) -> tuple[fg.DeviceHint, ...]:
        """Returns a hint for the GPU model, and a hint that NICs must be near the GPUs."""
        import finegrain_client

        found = []
        gpus = any((self.gpu, self.gpu_core, self.gpu_memory, self.gpu_memory_ratio))
        if self.gpu_model:
            found.append(finegrain_client.DeviceHint(type="gpu", model=self.gpu_model))
        # A NIC at another PCIe switch than the GPUs would reduce the bandwidth.
        if self.rdma and gpus:
            found.append(finegrain_client.DeviceHint(type="rdma", near="gpu"))
        return tuple(found)

    def _typed(self) -> dict[str, str]:
        """Returns the values as the user typed them, by name of the resource."""
        typed = {
            "gpu": self.gpu,
            "gpu-core": str(self.gpu_core or ""),
            "gpu-memory": self.gpu_memory,
            "gpu-memory-ratio": str(self.gpu_memory_ratio or ""),
            "gpu.shared": str(self.gpu_shared or ""),
            "rdma": self.rdma,
            "fpga": self.fpga,
            **dict(parse_pair("--device", pair) for pair in self.device),
        }
        return {name: text for name, text in typed.items() if text}

    def _counted(self) -> Iterator[tuple[str, int]]:
        """Yields the name of each typed resource, and its number of devices in hundredths."""
        for name, text in (("gpu", self.gpu), ("rdma", self.rdma), ("fpga", self.fpga)):
            if text:
                yield name, _hundredths(f"--{name}", text)
        for pair in self.device:
            name, text = parse_pair("--device", pair)
            # Names of vendors count whole devices. All other names count hundredths of a device.
            amount = _hundredths(f"--device {name}", text)
            yield name, amount // 100 if name.endswith("/gpu") else amount


def _hundredths(option: str, text: str) -> int:
    """Returns a number of devices in hundredths.

    Raises:
        InvalidArgument: `text` is not a number, or it is a number above 1 that is not whole.
    """
    hundredths = _in_hundredths(option, text)
    if hundredths > WHOLE and hundredths % WHOLE:
        below = hundredths // WHOLE
        nearest = f"the nearest are {below} and {below + 1}"
        raise InvalidArgument(option, text, f"a part of one device or a whole number; {nearest}")
    return hundredths


def _in_hundredths(option: str, text: str) -> int:
    """Returns a number of devices in hundredths. The number of devices can have decimal places."""
    if not _NUMBER.fullmatch(text):
        raise InvalidArgument(option, text, "a number such as 2 or 0.5, in hundredths at the most")
    return int(Decimal(text) * WHOLE)


def _about_options(error: InvalidArgument, typed: Mapping[str, str]) -> InvalidArgument:
    """Converts an error about resources into an error about the options that the user typed.

    Args:
        error: the error.
        typed: the values that the user typed, by name of the resource.
    """
    about = _FIELD.search(error.field)
    names = about[1].split(", ") if about is not None and about[1] else list(typed)
    given = [(_OPTIONS.get(name, f"--device {name}"), typed.get(name, "")) for name in names]
    value: object = error.details["value"]
    if len(given) == 1 and given[0][1]:
        value = given[0][1]
    elif given:
        value = ", ".join(f"{option} {text}" for option, text in given)
    field = ", ".join(option for option, _ in given) or error.field
    expected = _NAME.sub(lambda name: _OPTIONS[name[0]], error.expected)
    return InvalidArgument(field, value, expected)
