"""Decides to which hosts executors may offer slots directly.

A job master chooses the address for its offers. Without a limit, a job master could make executors
connect to any host and port that the executors can reach.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from finegrain.errors import InvalidArgument
from finegrain.rpc.addresses import is_loopback, parse_address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class OfferTargets:
    """The hosts to which slots may be offered.

    Attributes:
        hosts: names of hosts, in lower case.
        networks: networks of addresses.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> OfferTargets:
        """Reads the configured list. If the list is empty, all hosts are allowed.

        Args:
            texts: host names, addresses and networks: "jobs-1.example", "10.1.2.3", "10.0.0.0/8".

        Raises:
            InvalidArgument: an entry is not a host name, an address or a network.
        """
        hosts, networks = set(), []
        for text in texts:
            try:
                networks.append(ipaddress.ip_network(text))
                continue
            except ValueError:
                hosts.add(text.lower())
            try:
                parse_address(f"{text}:1")
            except InvalidArgument:
                expected = "a host name, an address, or a network such as 10.0.0.0/8"
                raise InvalidArgument("offer_targets", text, expected) from None
        return cls(frozenset(hosts), tuple(networks))

    @property
    def is_empty(self) -> bool:
        """True if the configuration names no host."""
        return not self.hosts and not self.networks

    def allow(self, address: str) -> bool:
        """Returns True if offers may go to an address "host:port"."""
        if self.is_empty:
            return True
        host, _ = parse_address(address)
        try:
            ip = ipaddress.ip_address(host)
        except ValueError:
            return host.lower() in self.hosts
        return any(ip in network for network in self.networks)


def comes_from(address: str, peer: str) -> bool:
    """Returns True if an address "host:port" is on the host from which a call comes.

    Args:
        address: the address. If its host is a name, the result is False, except for "localhost".
        peer: the network address of the caller, as gRPC writes it.
    """
    host = host_of_peer(peer)
    if host is None:
        return False
    if host.is_loopback:
        return is_loopback(address)
    try:
        return ipaddress.ip_address(parse_address(address)[0]) == host
    except ValueError:
        return False


def host_of_peer(peer: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the IP address of a caller; None: the caller has no IP address, for example at a unix
    socket.

    Args:
        peer: the address as gRPC writes it: "ipv4:10.0.0.1:4711" or "ipv6:%5B::1%5D:4711".
    """
    family, _, address = unquote(peer).partition(":")
    if family not in ("ipv4", "ipv6"):
        return None
    try:
        host = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return None
    # A server that listens on IPv6 also gets callers with IPv4 addresses.
    return getattr(host, "ipv4_mapped", None) or host
