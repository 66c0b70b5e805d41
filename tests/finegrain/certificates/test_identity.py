"""Identities: their URIs and DNS names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.errors import InvalidArgument
from finegrain.identity import CLUSTER_PATTERN, Identity, Role
from finegrain.texts import ID_PATTERN

CLUSTERS = st.from_regex(CLUSTER_PATTERN, fullmatch=True)
NAMES = st.from_regex(ID_PATTERN, fullmatch=True).filter(str.isascii)
IDENTITIES = st.one_of(
    st.builds(Identity, CLUSTERS, st.sampled_from([Role.RM, Role.METRICS])),
    st.builds(Identity, CLUSTERS, st.sampled_from([r for r in Role if r.is_named]), NAMES),
)


def test_the_manager_and_an_executor() -> None:
    assert Identity("c1", Role.RM).uri == "spiffe://c1/rm"
    assert Identity("c1", Role.RM).dns_name == "rm.c1.finegrain.internal"
    web = Identity("c1", Role.EXECUTOR, "web-1")
    assert web.uri == "spiffe://c1/executor/web-1"
    assert web.dns_name == "o5sweljr.executor.c1.finegrain.internal"


@given(IDENTITIES)
def test_a_uri_is_read_as_it_was_written(identity: Identity) -> None:
    assert Identity.parse(identity.uri) == identity


@given(IDENTITIES, IDENTITIES)
def test_different_identities_have_different_names(one: Identity, other: Identity) -> None:
    assert (one == other) == (one.uri == other.uri) == (one.dns_name == other.dns_name)


@given(IDENTITIES)
def test_names_fit_into_certificates(identity: Identity) -> None:
    name = identity.dns_name
    assert len(name) <= 253
    assert all(0 < len(label) <= 63 for label in name.split("."))
    assert name == name.lower()


def test_an_executor_named_like_a_role_is_not_that_role() -> None:
    assert Identity("c1", Role.EXECUTOR, "rm").dns_name != Identity("c1", Role.RM).dns_name


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "spiffe://c1",
        "spiffe://c1/",
        "spiffe://c1/rm/",
        "spiffe://c1/rm/x",
        "spiffe://c1/executor",
        "spiffe://c1/executor/",
        "spiffe://c1/executor/a/b",
        "spiffe://c1/executor/..%2frm",
        "spiffe://C1/rm",
        "spiffe:///rm",
        "spiffe://c1/root/x",
        "https://c1/rm",
        "spiffe://c1/rm ",
    ],
)
def test_other_uris_are_no_identities(uri: str) -> None:
    with pytest.raises(InvalidArgument):
        Identity.parse(uri)
