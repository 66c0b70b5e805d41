"""What the gauges show of books in which somebody starves."""

from __future__ import annotations

from prometheus_client import generate_latest

from resource_manager.service.books_metrics import observe_books
from resource_manager.service.metrics import ResourceManagerMetrics
from tests.support.cpu_hosts import CpuStory, host
from tests.support.jobs_and_hosts import Story


def held(story: Story) -> dict[str, float]:
    metrics = ResourceManagerMetrics("0")
    observe_books(metrics, story.state, story.cluster.at)
    lines = generate_latest(metrics.registry).decode().splitlines()
    values = [line.split() for line in lines if not line.startswith("#")]
    names = ("reservation", "held_")
    return {each[0]: float(each[1]) for each in values if any(n in each[0] for n in names)}


def test_what_is_held_is_counted_while_it_is() -> None:
    story = Story(starvation_placements=1)
    story.host("host-0")
    story.job("small", "large")
    story.ask("small", [f"s{n}" for n in range(5)])
    story.ask("large", ["big"], cpu=4_000)
    assert set(held(story).values()) == {0.0}
    story.end("small", "s0")
    story.end("small", "s1")
    story.wait(60)
    assert held(story) == {
        "finegrain_rm_reservations": 1.0,
        "finegrain_rm_oldest_reservation_age_seconds": 60.0,
        "finegrain_rm_held_executors": 1.0,
        "finegrain_rm_held_free_cpu_cores": 1.0,
    }
    story.end("small", "s2", "s3", "s4")
    assert story.where("big")
    assert set(held(story).values()) == {0.0}


def test_the_total_of_an_executor_is_what_can_be_booked_there() -> None:
    story = CpuStory(host())
    story.see("host-a", offline_cpus="3,11")
    metrics = ResourceManagerMetrics("0")
    observe_books(metrics, story.state, story.cluster.at)
    shown = generate_latest(metrics.registry).decode()
    assert 'finegrain_cpu_cores{executor="host-a",state="total"} 14.0' in shown
