"""Tests of pictures and descriptions of plans: their content, and that no plan breaks them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import assume, given

import finegrain_client as fg
from finegrain_client.graph import Drawing, describe, draw, parse_job_file
from finegrain_client.graph.compiler import compile_graph
from finegrain_client.graph.drawing.labels import OBSTACLES
from finegrain_client.graph.drawing.layout import Box, lay_out
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.plan import Plan
from finegrain_client.graph.values import GraphSpec
from tests.client.graph.graphs import graphs
from tests.support.components import REPOSITORY

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def plan() -> Plan:
    file = REPOSITORY / "examples/report.toml"
    return parse_job_file(file.read_text(encoding="utf-8"), "report.toml").compile()


def test_the_text_picture_has_a_box_for_each_region(plan: Plan) -> None:
    assert draw(plan) == (
        "+-- region 1, starts first, 4 slots\n"
        "|  read + parse x4  (group region-1)\n"
        "|    parse ==> count  blocking, all-to-all  (region 2)\n"
        "+--\n"
        "+-- region 2, after region 1, 2 slots\n"
        "|  count + sort x2  (group region-2)\n"
        "|    sort --> write  pipelined, all-to-all\n"
        "|  write x1  (group region-2)\n"
        "+--"
    )


def test_the_mermaid_diagram_has_a_subgraph_for_each_region(plan: Plan) -> None:
    assert draw(plan, "mermaid") == (
        "flowchart LR\n"
        '    subgraph r1["region 1, starts first, 4 slots"]\n'
        '        c0["read + parse x4<br>group region-1"]\n'
        "    end\n"
        '    subgraph r2["region 2, after region 1, 2 slots"]\n'
        '        c1["count + sort x2<br>group region-2"]\n'
        '        c2["write x1<br>group region-2"]\n'
        "    end\n"
        '    c0 -.->|"blocking, all-to-all"| c1\n'
        '    c1 -->|"pipelined, all-to-all"| c2\n'
    )


def test_the_svg_shows_regions_chains_and_edges(plan: Plan) -> None:
    root = ElementTree.fromstring(draw(plan, "svg"))
    kinds = [each.get("class") for each in root.iter()]
    words = {each.text for each in root.iter(f"{SVG}text")}

    assert (kinds.count("region"), kinds.count("chain")) == (2, 3)
    edges = {each.findtext(f"{SVG}title"): each.get("class") for each in root.iter(f"{SVG}path")}
    assert edges["parse -> count: blocking, all-to-all"] == "edge blocking"
    assert edges["sort -> write: pipelined, all-to-all"] == "edge"
    assert {"read + parse x4", "group region-2", "region 2, after region 1, 2 slots"} <= words


def test_names_do_not_break_the_svg() -> None:
    graph = fg.JobGraph('<"&> job')
    graph.operator("end")

    root = ElementTree.fromstring(draw(graph.compile(), Drawing.SVG))
    assert root.findtext(f"{SVG}title") == '<"&> job'


def _overlap(one: Box, two: Box) -> bool:
    return (
        one.x < two.x + two.width
        and two.x < one.x + one.width
        and one.y < two.y + two.height
        and two.y < one.y + one.height
    )


@given(graph=graphs(with_groups=True))
def test_no_boxes_overlap_and_all_lie_within_the_picture(graph: GraphSpec) -> None:
    try:
        plan = compile_graph(graph)
    except GraphError:
        assume(False)
    layout = lay_out(
        plan,
        {each.name: 20 for each in plan.chains},
        {each.number: 30 for each in plan.regions},
    )
    for boxes in (list(layout.regions.values()), list(layout.chains.values())):
        for at, box in enumerate(boxes):
            assert not any(_overlap(box, other) for other in boxes[at + 1 :])
            assert 0 <= box.x < box.x + box.width <= layout.width
            assert 0 <= box.y < box.y + box.height <= layout.height
    for chain in plan.chains:
        box, region = layout.chains[chain.name], layout.regions[chain.region]
        assert region.x <= box.x < box.x + box.width <= region.x + region.width
        assert region.y <= box.y < box.y + box.height <= region.y + region.height
    for form in Drawing:
        assert draw(plan, form)


def test_the_description_has_profiles_quotas_and_network_buffers(plan: Plan) -> None:
    lines = [" ".join(line.split()) for line in describe(plan).splitlines()]

    assert lines[0] == "job report: batch, 2 regions, 7 tasks, needs 4 slots"
    assert "region-2 2 cpu 2.25, heap 448Mi, managed 128Mi, network 928Ki" in lines
    assert "count count+sort 2 all 3/4 96Mi 17 buffers, 544Ki" in lines
    assert "sort same 2 all 1/4 32Mi same" in lines
    assert "write write 1 0 0 0 12 buffers, 384Ki" in lines
    assert "read -> parse pipelined forward yes - -" in lines
    assert "sort -> write pipelined all-to-all no: the edge is all-to-all 2 1" in lines


def test_the_description_names_chains_that_a_group_broke() -> None:
    graph = fg.JobGraph("job", "streaming")
    graph.operator("a", slot_sharing_group="heavy")
    graph.operator("b")
    graph.connect("a", "b")

    assert describe(graph.compile()).endswith(
        "not chained, because slot sharing groups differ:\n"
        "  a -> b: a is in group heavy, b in group default"
    )


def test_of_many_slots_only_some_are_listed() -> None:
    graph = fg.JobGraph("job", "streaming")
    graph.operator("wide", parallelism=30)
    graph.operator("narrow", parallelism=10)

    lines = [" ".join(line.split()) for line in describe(graph.compile()).splitlines()]
    assert "wide wide 30 all 0 0" in lines
    assert "narrow narrow 10 0,3,6,9,12,15,18,21,... 0 0" in lines


def test_a_default_slot_and_ports_are_described() -> None:
    graph = fg.JobGraph("job", "streaming")
    graph.operator("a", uses_managed_memory=True, uses_managed_on_heap_memory=True, ports=2)

    assert "default slot, managed 40 %, of it on heap 50 %, 2 ports" in describe(graph.compile())


def test_every_obstacle_to_chaining_has_words() -> None:
    from finegrain_client.graph.chains import Obstacle

    assert set(OBSTACLES) == set(Obstacle)
