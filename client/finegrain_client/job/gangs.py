"""Defines gang specifications, for slots that a job master needs all together or not at all.

`GangSpec` checks only its own arguments. The resource manager decides whether the gang fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

from finegrain.errors import InvalidArgument
from finegrain.ids import check_id, new_id
from finegrain.v1 import slots_pb2
from finegrain.values.states import GangPlacement
from finegrain_client.durations import duration
from finegrain_client.specs import SlotSpec

MEMBERS_MAX = 1_000
TIMEOUT_S_MAX = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class GangSpec:
    """Slots that are granted together, or not at all.

    Attributes:
        members: one or several specs, each with a `count`, for 1 to 1,000 slots in total. All specs
            must have the same `restart_on_loss` and `restart_on_device_loss`, and no
            `target_address`.
        placement: the rule for the executors of the members. With ANYWHERE, there is no rule. With
            SAME_EXECUTOR, all members are on one executor. With SAME_LABEL, all members are on
            executors with the same value of `label`. With SPREAD, each member is on a different
            executor.
        label: name of the label; only with SAME_LABEL.
        timeout_s: after this time in seconds, a waiting gang is rejected; None means that the gang
            waits without limit.
        gang_id: id of the gang; an empty value means that the client generates an id.
    """

    members: SlotSpec | Sequence[SlotSpec]
    _: KW_ONLY
    placement: GangPlacement | str = GangPlacement.ANYWHERE
    label: str = ""
    timeout_s: float | None = None
    gang_id: str = ""

    def __post_init__(self) -> None:
        placement = self._placement()
        if (placement is GangPlacement.SAME_LABEL) != bool(self.label):
            expected = (
                "the name of a label" if not self.label else "empty, unless placement is SAME_LABEL"
            )
            raise InvalidArgument("label", self.label, expected)
        count = sum(each.count for each in self.specs)
        if not 1 <= count <= MEMBERS_MAX:
            raise InvalidArgument("members", f"{count} slots", f"1 to {MEMBERS_MAX} slots")
        for name in ("restart_on_loss", "restart_on_device_loss"):
            if len({getattr(each, name) for each in self.specs}) > 1:
                raise InvalidArgument(name, "True and False", "the same value for all members")
        for each in self.specs:
            if each.target_address:
                expected = "empty: executors do not offer slots of gangs directly"
                raise InvalidArgument("target_address", each.target_address, expected)
        if self.timeout_s is not None and not 0 < self.timeout_s <= TIMEOUT_S_MAX:
            raise InvalidArgument(
                "timeout_s", self.timeout_s, f"None, or more than 0 and at most {TIMEOUT_S_MAX:g} s"
            )
        if self.gang_id:
            check_id("gang_id", self.gang_id)

    @property
    def specs(self) -> Sequence[SlotSpec]:
        """The specs of the members, always as a sequence."""
        return (self.members,) if isinstance(self.members, SlotSpec) else self.members

    def message(self) -> slots_pb2.Gang:
        """Returns the gang as a protocol message. If `gang_id` is empty, the message gets a
        generated id.
        """
        number = slots_pb2.GangPlacement.Value(f"GANG_PLACEMENT_{self._placement()}")
        return slots_pb2.Gang(
            gang_id=self.gang_id or new_id(),
            placement=number,
            label=self.label,
            timeout=duration(self.timeout_s),
        )

    def requests(self, gang_id: str) -> Iterator[slots_pb2.SlotRequest]:
        """Yields one protocol message per member."""
        for spec in self.specs:
            for message in spec.messages():
                message.gang_id = gang_id
                yield message

    def _placement(self) -> GangPlacement:
        try:
            return GangPlacement(self.placement.upper().replace("-", "_"))
        except ValueError:
            names = ", ".join(GangPlacement)
            raise InvalidArgument("placement", self.placement, f"one of {names}") from None
