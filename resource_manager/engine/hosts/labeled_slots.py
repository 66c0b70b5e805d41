"""Records, by job, the hosts of the slots that have labels or rules about neighbors."""

from __future__ import annotations

from finegrain.cpu_policy import CpuPolicy
from finegrain.neighbors import Level, NeighborRule


class LabeledSlots:
    """The hosts of all slots whose requests have labels or rules about neighbors.

    The methods about one request cost time in proportion to the number of policies of the job and
    to the number of their hosts. This cost is low, because a job has few different policies.

    Attributes:
        version: a number that increases with every change.
    """

    def __init__(self) -> None:
        self.version = 0
        # the number of slots on each host, by job and policy
        self._hosts: dict[str, dict[CpuPolicy, dict[str, int]]] = {}

    def add(self, host_id: str, policy: CpuPolicy) -> None:
        """Adds a slot."""
        hosts = self._hosts.setdefault(policy.neighbor_job, {}).setdefault(policy, {})
        hosts[host_id] = hosts.get(host_id, 0) + 1
        self.version += 1

    def remove(self, host_id: str, policy: CpuPolicy) -> None:
        """Removes a slot.

        Raises:
            KeyError: there is no such slot.
        """
        policies = self._hosts[policy.neighbor_job]
        hosts = policies[policy]
        hosts[host_id] -= 1
        self.version += 1
        if not hosts[host_id]:
            del hosts[host_id]
        if not hosts:
            del policies[policy]
        if not policies:
            del self._hosts[policy.neighbor_job]

    def without_neighbor(self, policy: CpuPolicy) -> tuple[NeighborRule, ...]:
        """Returns the rules `near` of a request that its slot meets without a neighbor. Such a rule
        selects the slot itself, and selects no present slot of the job.
        """
        return tuple(
            rule
            for rule in policy.neighbors
            if not rule.apart and rule.selects(policy.slot_labels) and not self.near(policy, rule)
        )

    def near(self, policy: CpuPolicy, rule: NeighborRule) -> set[str]:
        """Returns the hosts with a slot that a rule of a request selects."""
        return {
            host_id
            for other, hosts in self._hosts.get(policy.neighbor_job, {}).items()
            if rule.selects(other.slot_labels)
            for host_id in hosts
        }

    def excluded(self, policy: CpuPolicy) -> set[str]:
        """Returns the hosts that required rules `apart` at level host exclude for a request. Rules
        of the request and rules of present slots count.
        """
        found = set[str]()
        own = [rule for rule in policy.neighbors if _excludes_hosts(rule)]
        for other, hosts in self._hosts.get(policy.neighbor_job, {}).items():
            if any(rule.selects(other.slot_labels) for rule in own) or any(
                _excludes_hosts(rule) and rule.selects(policy.slot_labels)
                for rule in other.neighbors
            ):
                found.update(hosts)
        return found

    def counts(self) -> dict[tuple[str, CpuPolicy], int]:
        """Returns the number of slots by host and policy."""
        return {
            (host_id, policy): count
            for policies in self._hosts.values()
            for policy, hosts in policies.items()
            for host_id, count in hosts.items()
        }


def _excludes_hosts(rule: NeighborRule) -> bool:
    return rule.apart and rule.required and rule.level is Level.HOST


def near_rules(policy: CpuPolicy) -> tuple[NeighborRule, ...]:
    """Returns the rules `near` of a request."""
    return tuple(rule for rule in policy.neighbors if not rule.apart)
