"""Properties of assignments on any host, with slots that come and go.

No cpu is promised twice, what is required holds, and what is only preferred refuses no request.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    EffectivePolicy,
    ExclusivePolicy,
    HostBindPolicy,
    NumaPolicy,
    NumaStrategy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, GIB, MEMORY_BYTES
from resource_manager.engine.cpus.assign import assign, assign_many, fits_empty, score
from resource_manager.engine.cpus.hints import SCORE_MAX
from resource_manager.engine.cpus.layout import CpuLayout, layout_of_rows
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.request import CpuBlocker, CpuRequest
from resource_manager.engine.cpus.take import holds
from resource_manager.engine.model.host_refusal import HostRefusal
from tests.support.cpu_layouts import machine
from tests.support.properties import examples

MEMORY = 8 * GIB


@st.composite
def uneven(draw: st.DrawFn) -> CpuLayout:
    """Cores of one or two threads, nodes of any number of cores."""
    widths = draw(st.lists(st.integers(1, 2), min_size=1, max_size=10))
    rows, cpu = [], 0
    for core, width in enumerate(widths):
        node = draw(st.integers(0, 2))
        for _ in range(width):
            rows.append((cpu, core, node, node // 2))
            cpu += 1
    return layout_of_rows(rows, MEMORY)


regular = st.builds(
    machine,
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(1, 2),
    st.just(MEMORY),
)
layouts = st.one_of(regular, uneven())

hosts = st.builds(
    EffectivePolicy,
    st.sampled_from(HostBindPolicy),
    st.sampled_from(NumaStrategy),
    st.sampled_from([each for each in NumaPolicy if each is not NumaPolicy.DEFAULT]),
    shared_reserved_cpus=st.sampled_from([CpuSet(), CpuSet.of(0)]),
    strictly_reserved_cpus=st.sampled_from([CpuSet(), CpuSet.of(1)]),
)


@st.composite
def wishes(draw: st.DrawFn) -> CpuRequest:
    qos = draw(st.sampled_from(QosClass))
    binds = [BindPolicy.DEFAULT, BindPolicy.NONE]
    if qos.is_pinned:
        binds += [BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS]
    elif qos is QosClass.LS:
        binds.append(BindPolicy.CONSTRAINED_BURST)
    policy = CpuPolicy(
        qos,
        draw(st.sampled_from(binds)),
        draw(st.booleans()),
        draw(st.sampled_from(ExclusivePolicy)),
        draw(st.booleans()),
        draw(st.sampled_from(NumaPolicy)),
        draw(st.booleans()),
    )
    cpus = draw(st.integers(1, 6))
    milli = cpus * 1000 if qos.is_pinned else draw(st.sampled_from([100, 500, 1500, 4000]))
    booking = {
        BEST_EFFORT_CPU_MILLI if qos is QosClass.BE else CPU_MILLI: milli,
        MEMORY_BYTES: draw(st.sampled_from([0, GIB, 3 * GIB, 10 * GIB])),
    }
    return CpuRequest.of(policy, booking, draw(st.sampled_from([0, milli, 3 * milli])))


histories = st.lists(st.one_of(wishes(), st.integers(0, 20)), max_size=12)


def lived(
    books: CpuLedger, history: list[CpuRequest | int]
) -> list[tuple[CpuRequest, CpuAssignment]]:
    """Adds slots that fit and removes others; returns the remaining ones."""
    there: dict[tuple[str, int], tuple[CpuRequest, CpuAssignment]] = {}
    for number, step in enumerate(history):
        if isinstance(step, int):
            if there:
                gone = sorted(there)[step % len(there)]
                books.remove(gone)
                del there[gone]
            continue
        found = assign(books, step)
        if isinstance(found, CpuAssignment):
            books.add(("slot", number), found)
            there["slot", number] = step, found
        assert books.problems() == []
    return list(there.values())


@settings(max_examples=examples(60))
@given(layouts, hosts, histories)
def test_nothing_is_promised_twice(
    layout: CpuLayout, policy: EffectivePolicy, history: list[CpuRequest | int]
) -> None:
    books = CpuLedger(layout, policy)
    there = lived(books, history)
    own = [found.cpus for _, found in there]
    assert sum(len(cpus) for cpus in own) == books.pinned.bit_count()
    assert not books.pinned & ~books.pinnable
    for at, node in enumerate(layout.nodes):
        memory = sum(
            dict(share.amounts).get(MEMORY_BYTES, 0)
            for _, found in there
            for share in found.numa
            if share.node == node.id
        )
        assert memory == books.used(at, MEMORY_BYTES) <= MEMORY
        promised = sum(
            dict(share.amounts).get(CPU_MILLI, 0)
            for _, found in there
            for share in found.numa
            if share.node == node.id and not found.cpus
        )
        assert promised <= (books.shared_cpus & books.pinnable & node.mask).bit_count() * 1000
    if books.shared_count:
        assert books.shared_cpus
    if books.best_effort_count:
        assert books.best_effort_cpus


@settings(max_examples=examples(60))
@given(layouts, hosts, histories, wishes())
def test_what_is_required_holds(
    layout: CpuLayout, policy: EffectivePolicy, history: list[CpuRequest | int], wish: CpuRequest
) -> None:
    books = CpuLedger(layout, policy)
    lived(books, history)
    found = assign(books, wish)
    if isinstance(found, HostRefusal):
        assert found.text
        return
    asked = wish.policy
    cpus = found.cpus.bits
    assert found.qos is asked.qos
    assert len(found.cpus) == (wish.cpu_milli // 1000 if asked.qos.is_pinned else 0)
    if asked.qos.is_pinned:
        _bind_holds(layout, policy, asked, cpus)
        _exclusive_holds(books, asked, policy, cpus)
    aligned = policy.alignment if policy.alignment.aligns else None
    if aligned is None and asked.numa_required and asked.numa.aligns:
        aligned = asked.numa
    if aligned is NumaPolicy.SINGLE_NUMA_NODE:
        assert len(found.numa) == 1
        assert not cpus & ~layout.nodes[layout.position_of_node[found.numa[0].node]].mask
    for name, amount in wish.amounts if found.memory_nodes else ():
        assert amount == sum(dict(share.amounts).get(name, 0) for share in found.numa)
    assert 0 <= score(books, wish, found) <= SCORE_MAX


def _bind_holds(layout: CpuLayout, host: EffectivePolicy, asked: CpuPolicy, cpus: int) -> None:
    demanded = {
        HostBindPolicy.NONE: BindPolicy.NONE,
        HostBindPolicy.FULL_PCPUS_ONLY: BindPolicy.FULL_PCPUS,
        HostBindPolicy.SPREAD_BY_PCPUS: BindPolicy.SPREAD_BY_PCPUS,
    }[host.bind]
    assert holds(layout, cpus, demanded)
    if asked.bind_required:
        word = host.default_bind if asked.bind is BindPolicy.DEFAULT else asked.bind
        assert holds(layout, cpus, word)


def _exclusive_holds(books: CpuLedger, asked: CpuPolicy, host: EffectivePolicy, cpus: int) -> None:
    if not asked.exclusive_required:
        return
    word = asked.exclusive
    if word is ExclusivePolicy.DEFAULT:
        word = host.default_exclusive
    if word is ExclusivePolicy.PCPU_LEVEL:
        assert not books.layout.cores_touched(cpus) & books.claimed_cores
    elif word is ExclusivePolicy.NUMA_NODE_LEVEL:
        assert not books.layout.nodes_touched(cpus) & books.claimed_nodes


@settings(max_examples=examples(60))
@given(layouts, st.sampled_from(NumaStrategy), histories, wishes())
def test_what_is_only_preferred_refuses_nobody(
    layout: CpuLayout, strategy: NumaStrategy, history: list[CpuRequest | int], wish: CpuRequest
) -> None:
    books = CpuLedger(layout, EffectivePolicy(numa_strategy=strategy))
    lived(books, history)
    lenient = replace(
        wish.policy, bind_required=False, exclusive_required=False, numa_required=False
    )
    found = assign(books, replace(wish, policy=lenient))
    if isinstance(found, CpuAssignment):
        return
    if not lenient.qos.is_pinned:
        empty = {CpuBlocker.SHARED_POOL_EMPTY, CpuBlocker.BEST_EFFORT_POOL_EMPTY}
        assert found.blocker in empty
        return
    promised = sum(-(-books.used(at, CPU_MILLI) // 1000) for at in range(len(layout.nodes)))
    bound = sum(books.used(at, BEST_EFFORT_CPU_MILLI) > 0 for at in range(len(layout.nodes)))
    kept = promised + bound + bool(books.shared_count) + bool(books.best_effort_count)
    assert books.free.bit_count() - kept < wish.cpu_milli // 1000


@settings(max_examples=examples(60))
@given(layouts, hosts, histories, st.lists(wishes(), max_size=4))
def test_the_same_holdings_give_the_same(
    layout: CpuLayout,
    policy: EffectivePolicy,
    history: list[CpuRequest | int],
    later: list[CpuRequest],
) -> None:
    books = CpuLedger(layout, policy)
    lived(books, history)
    again = CpuLedger(layout, policy)
    for key in sorted(books.holdings, reverse=True):
        again.add(key, books.holdings[key])
    version, holdings = books.version, dict(books.holdings)
    found = assign_many(books, later)
    assert found == assign_many(again, later)
    assert (books.version, books.holdings) == (version, holdings)
    for key in sorted(holdings):
        books.remove(key)
        again.remove(key)
    for each in (books, again):
        assert each.free == each.pinnable
        assert each.problems() == []


@settings(max_examples=examples(60))
@given(layouts, hosts, histories, wishes())
def test_what_fits_now_would_fit_the_empty_host(
    layout: CpuLayout, policy: EffectivePolicy, history: list[CpuRequest | int], wish: CpuRequest
) -> None:
    books = CpuLedger(layout, policy)
    lived(books, history)
    found = assign(books, wish)
    if isinstance(found, CpuAssignment):
        assert fits_empty(books, wish) is None
    elif found.lasting:
        assert fits_empty(books, wish) == found
