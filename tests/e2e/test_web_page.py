"""The page in a real browser, on real daemons."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.driving import Daemons, eventually, finish, read_until, unique
from tests.support.browser import Browser, browsing
from tests.support.identities import credentials_file
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium")]

MARKUP = "<img src=x onerror=document.title='hacked'>"


@pytest.fixture
def browser() -> Iterator[Browser]:
    with browsing() as made:
        yield made


def test_from_a_waiting_request_to_its_reason_and_a_drained_host(
    daemons: Daemons, browser: Browser
) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    daemons.executor(name := unique("web")).start()
    daemons.await_executors(name)
    run = daemons.cli.start("run", "--cpu", "0.8", "--", "sleep", "600")
    eventually(lambda: daemons.cli.items("slots"), "the first command has its slot")
    waits = daemons.cli.start("run", "--cpu", "0.8", "--name", MARKUP, "--", "true")
    page = daemons.cli.start("web", "--no-browser")
    address = read_until(page, b"\n").decode().strip()

    browser.open(address)
    browser.shows("operator/root", name, "1 slot of 2 jobs", "WAITING_CAPACITY")
    browser.click("nav a", "Requests")
    browser.shows(MARKUP, "WAITING_CAPACITY")
    request = daemons.cli.items("requests")[1]["allocation_id"]
    browser.click("td a", request[-8:])
    browser.shows("Request", "asked 0.8, free 0.2")

    browser.click("nav a", "Cluster")
    browser.click("a", name)
    browser.click("button", "Drain")
    browser.click("button.danger", "Drain")
    browser.shows("draining: drained on the web page")
    (executor,) = daemons.cli.items("executors")
    assert executor["draining"]

    daemons.manager.kill()
    browser.shows("Not up to date")
    daemons.manager.start()
    daemons.manager.endpoint()
    eventually(lambda: "Not up to date" not in browser.text, "the page is up to date again")
    browser.click("button", "Undrain")
    browser.click("button.danger", "Undrain")
    eventually(lambda: not daemons.cli.items("executors")[0]["draining"], "it is undrained")

    assert browser.driver.title == "finegrain"
    assert browser.errors() == []
    for process in (run, waits, page):
        process.send_signal(signal.SIGINT)
    assert finish(page).code == 0
    for process in (run, waits):
        process.wait(PATIENCE_S)


def test_the_owner_of_a_job_sees_its_output_as_it_is_written(
    daemons: Daemons, browser: Browser
) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    daemons.executor(name := unique("web")).start()
    daemons.await_executors(name)
    alice = replace(daemons.cli, credentials_file=credentials_file(daemons.folder, "user/alice"))
    lines = "i=0; while true; do i=$((i+1)); echo line $i; echo bad $i >&2; sleep 0.2; done"
    run = alice.start("run", "--cpu", "0.2", "--name", MARKUP, "--", "sh", "-c", lines)
    (slot,) = eventually(lambda: daemons.cli.items("slots"), "the command has its slot")
    page = alice.start("web", "--no-browser")
    address = read_until(page, b"\n").decode().strip()

    host, _, code = address.partition("#")
    browser.open(f"{host}executors/{name}?slot={slot['allocation_id']}#{code}")
    browser.shows("user/alice", "Tasks of this slot", "sh -c", "Cpus")
    task = browser.run("return document.querySelector('.panel td button').innerText")
    browser.click("td button", task)
    browser.shows("line 3", "bad 3")
    browser.shows("line 12")
    (listed,) = daemons.cli.items("slots")
    shown = browser.run("return document.querySelector('.panel h2').innerText")
    assert shown.startswith(f"Slot {listed['allocation_id']}")

    run.send_signal(signal.SIGINT)
    run.wait(PATIENCE_S)
    browser.shows("This executor has no slots.")
    assert browser.errors() == []
    page.send_signal(signal.SIGINT)
    outcome = finish(page)
    assert (outcome.code, "Traceback" in outcome.stderr) == (0, False)


GRAPH = """
schema_version = 1
[job]
name = "two"
mode = "batch"
[[operator]]
name = "first"
parallelism = 2
program = ["sh", "-c", "until [ -e $FOLDER/first ]; do sleep 0.05; done"]
resources = { cpu = 0.1, task_heap_memory = "32M" }
[[operator]]
name = "second"
parallelism = 2
program = ["sh", "-c", "until [ -e $FOLDER/second ]; do sleep 0.05; done"]
resources = { cpu = 0.1, task_heap_memory = "32M" }
[[edge]]
from = "first"
to = "second"
exchange = "blocking"
pattern = "all-to-all"
"""


def test_a_job_graph_is_followed_while_it_runs(
    daemons: Daemons, browser: Browser, tmp_path: Path
) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    daemons.executor(name := unique("web")).start()
    daemons.await_executors(name)
    (tmp_path / "two.toml").write_text(GRAPH)
    options = ("--state", str(tmp_path / "state.job"), "--env", f"FOLDER={tmp_path}")
    run = daemons.cli.start("job", "run", str(tmp_path / "two.toml"), *options)
    eventually(lambda: len(daemons.cli.items("slots")) == 2, "the first region has its slots")
    (job,) = daemons.cli.items("jobs")
    page = daemons.cli.start("web", "--no-browser")
    host, _, code = read_until(page, b"\n").decode().strip().partition("#")

    def labels() -> list[str]:
        script = "return [...document.querySelectorAll('.graph a')].map((each) => each.ariaLabel)"
        found: list[str] = browser.run(script)
        return found

    browser.open(f"{host}jobs/{job['job_id']}?chain=first#{code}")
    browser.shows("2 tasks, 2 running", "2 subtasks")
    assert labels() == [
        "first, 2 of 2 running, group region-1; gives data to second",
        "second, planned, 2 subtasks, group not known; gets data from first",
    ]
    browser.visit(f"/jobs/{job['job_id']}?chain=second")
    browser.shows("No task of this chain is known.")
    (tmp_path / "first").touch()
    browser.shows("4 tasks, 2 running")
    assert labels() == [
        "first, finished, 2 of 2 ended, group region-1; gives data to second",
        "second, 2 of 2 running, group region-2; gets data from first",
    ]
    task = browser.run("return document.querySelector('.panel td a').innerText")
    browser.click(".panel td a", task)
    browser.shows("Output of task", "until [ -e $FOLDER/second ]")
    (tmp_path / "second").touch()
    assert finish(run).code == 0
    assert browser.errors() == []
    page.send_signal(signal.SIGINT)
    assert finish(page).code == 0


def test_a_group_shows_what_its_slots_really_use(daemons: Daemons, browser: Browser) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    daemons.executor(name := unique("web")).start()
    daemons.await_executors(name)
    run = daemons.cli.start("run", "--cpu", "0.5", "--", "sh", "-c", "while true; do :; done")
    page = daemons.cli.start("web", "--no-browser")
    host, _, code = read_until(page, b"\n").decode().strip().partition("#")

    def measured() -> dict[str, int] | None:
        (group,) = [
            each for each in daemons.cli.json("groups")["groups"] if each["name"] == "default"
        ]
        return group["measured"] if group["measured"].get("cpu_milli", 0) > 0 else None

    eventually(measured, "the use of the group is measured")  # the next sample of groups
    browser.open(f"{host}groups?group=default#{code}")
    browser.shows("uses cpu 0.", "cpu: used 0.", "allocated 0.5", "share by weight")

    def agree() -> bool:
        """Whether page, list, history and text have the same sample: there is one each minute."""
        used = measured()
        if used is None:
            return False
        samples = daemons.cli.json("usage", "--group", "default")["samples"]
        text = daemons.cli("usage", "--group", "default").stdout.decode()
        cores = f"{used['cpu_milli'] / 1000:g}"
        return all(
            (
                samples[-1]["measured_cpu_milli"] == used["cpu_milli"],
                samples[-1]["measured_memory_bytes"] == used["memory_bytes"],
                f"{cores} used, 0.5 allocated" in text,
                f"uses cpu {cores}, memory" in browser.text,
            )
        )

    eventually(agree, "the page and the commands show the same use")
    browser.has(".chart canvas")
    assert browser.errors() == []
    for process in (run, page):
        process.send_signal(signal.SIGINT)
        finish(process)


def test_an_administrator_changes_a_policy_and_limits_after_a_preview(
    daemons: Daemons, browser: Browser
) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    daemons.executor(name := unique("web")).start()
    daemons.await_executors(name)
    page = daemons.cli.start("web", "--no-browser")
    host, _, code = read_until(page, b"\n").decode().strip().partition("#")
    browser.open(f"{host}executors/{name}#{code}")
    browser.shows("Set for this host")
    browser.run(
        "const one = [...document.querySelectorAll('fieldset label')]"
        ".find((each) => each.innerText.startsWith('alignment')).querySelector('select');"
        "one.value = 'BEST_EFFORT'; one.dispatchEvent(new Event('change', { bubbles: true }))"
    )
    options = ("--alignment", "BestEffort", "--dry-run")
    preview = daemons.cli.json("executors", "set", name, *options)
    browser.click("button", "Change policy")
    browser.shows(preview["summary"], "on 1 executor: alignment None to BestEffort")
    browser.click("button.danger", "Change policy")
    browser.lacks("dialog")
    assert daemons.cli.json("executors", "policy", name)["effective"]["alignment"] == "BestEffort"

    browser.visit("/")
    browser.click("button", "▸ Cpu policy of all hosts")
    browser.shows("Set for all hosts")
    browser.run(
        "const one = [...document.querySelectorAll('fieldset label')]"
        ".find((each) => each.innerText.startsWith('bind')).querySelector('select');"
        "one.value = 'SPREAD_BY_PCPUS'; one.dispatchEvent(new Event('change', { bubbles: true }))"
    )
    browser.click("button", "Change policy")
    browser.shows("on 1 executor: bind None to SpreadByPCPUs")
    browser.click("button.danger", "Change policy")
    browser.lacks("dialog")
    assert daemons.cli.json("executors", "policy", "--defaults")["set"]["bind"] == "SpreadByPCPUs"

    browser.visit("/groups?group=default")
    browser.shows("Minimum (reserved)")
    browser.run("document.querySelector('fieldset input').focus()")
    browser.press("2")
    browser.click("button", "Change")
    browser.shows("no share changes now; below the new minimum: cpu")
    browser.click("button.danger", "Change")
    browser.lacks("dialog")
    (group,) = [each for each in daemons.cli.json("groups")["groups"] if each["name"] == "default"]
    assert group["minimum"] == {"cpu_milli": 2000}
    assert browser.errors() == []
    page.send_signal(signal.SIGINT)
    finish(page)
