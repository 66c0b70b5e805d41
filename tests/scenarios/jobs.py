"""Commands of job masters: jobs, requests, gangs, and slots that are resized or released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from finegrain.resources import MIB, ResourceProfile
from finegrain.values.dependencies import JobDependency
from finegrain.values.states import GangPlacement, JobCondition
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from tests.scenarios import devices, render
from tests.scenarios.commands import Commands
from tests.scenarios.cpus import cpu_policy
from tests.scenarios.words import Words


class JobCommands(Commands):
    """Part of the language; `language.py` joins the parts."""

    def do_job(self, words: Words) -> Iterator[str]:
        lease_ms = None if words.flag("detached") else words.number("lease", 30) * 1_000
        group = words.values.pop("group", "default").replace("none", "")
        owner = words.values.pop("owner", "operator/ann")
        after = [each.partition(":") for each in words.values.pop("after", "").split(",") if each]
        depends_on = tuple(
            JobDependency(name, JobCondition(how.upper() or "OK")) for name, _, how in after
        )
        self.cluster.job(
            *words.subjects,
            group=group,
            lease_ms=lease_ms,
            depends_on=depends_on,
            owner=owner,
            labels=words.labels(),
            priority=words.number("priority"),
        )
        yield from self._effects()

    def do_jobs(self, words: Words) -> Iterator[str]:
        """Prints all jobs: for which jobs they wait, or how they ended."""
        for job in self.cluster.state.jobs.values():
            awaited = self.cluster.state.dependencies.awaited(job.job_id)
            waits = ", ".join(f"{name} ({how})" for name, how in awaited.items())
            waits = f" waits for {waits}" if waits else ""
            ended = f" {job.end_reason} {job.outcome}" if job.outcome else ""
            group = "" if job.group == "default" else f" in {job.group}"
            yield f"{job.job_id} {job.state}{ended}{waits}{group}"

    def do_request(self, words: Words) -> Iterator[str]:
        cpu, mem = words.number("cpu"), words.number("mem")
        job_id, extended = words.job(), words.extended()
        common = RequestSpec(
            "",
            None
            if not cpu
            else ResourceProfile(
                cpu, mem * MIB, extended=extended, devices=devices.requests(words)
            ),
            cpu_limit_milli=words.number("cpu_limit"),
            required_labels=words.labels(),
            allow_pending=words.flag("allow_pending"),
            restart_on_loss=words.flag("restart"),
            cpu_policy=cpu_policy(words),
            time_limit_ms=words.time_limit_ms(),
            wait_timeout_ms=words.wait_timeout_ms(),
            expected_run_time_ms=words.expected_ms(),
            priority=words.number("priority"),
            revocable=words.flag("revocable"),
        )
        requests = [replace(common, allocation_id=name) for name in words.subjects]
        yield from self._items(self.cluster.submit(*requests, job=job_id))

    def do_gang(self, words: Words) -> Iterator[str]:
        """Submits a gang in one call. NAME:CPU:MEM is a member with its own amounts."""
        timeout = words.values.pop("timeout", "")
        allow_pending, restart = words.flag("allow_pending"), words.flag("restart")
        revocable = words.flag("revocable")
        gang_id, *names = words.subjects
        gang = GangSpec(
            gang_id,
            GangPlacement(words.values.pop("placement", "ANYWHERE")),
            words.values.pop("label", ""),
            words.milliseconds(timeout) if timeout else None,
        )
        common = RequestSpec(
            "",
            None,
            required_labels=words.labels(),
            allow_pending=allow_pending,
            restart_on_loss=restart,
            gang_id=gang_id,
            cpu_policy=cpu_policy(words),
            time_limit_ms=words.time_limit_ms(),
            expected_run_time_ms=words.expected_ms(),
            priority=words.number("priority"),
            revocable=revocable,
        )
        cpu, mem = words.number("cpu"), words.number("mem")
        of_devices = devices.requests(words)
        requests = []
        for name in names:
            allocation_id, *own = name.split(":")
            amounts = [int(amount) for amount in own] or [cpu, mem]
            profile = ResourceProfile(amounts[0], amounts[1] * MIB) if amounts[0] else None
            if profile is not None:
                profile = replace(profile, devices=of_devices)
            requests.append(replace(common, allocation_id=allocation_id, profile=profile))
        yield from self._items(self.cluster.submit(*requests, gang, job=words.job()))

    def do_request_mixed(self, words: Words) -> Iterator[str]:
        known, unknown = words.subjects
        requests = (
            RequestSpec(known, ResourceProfile(1_000, 256 * MIB)),
            RequestSpec(unknown, None),
        )
        yield from self._items(self.cluster.submit(*requests))

    def do_cancel(self, words: Words) -> Iterator[str]:
        job_id = words.job()
        yield from self._items(self.cluster.cancel(*words.subjects, job=job_id))

    def do_release(self, words: Words) -> Iterator[str]:
        job_id, generation = words.job_or_operator(), words.number("generation")
        outcomes = self.cluster.release(*words.subjects, job=job_id, generation=generation)
        yield from self._items(outcomes)

    def do_resize(self, words: Words) -> Iterator[str]:
        """Resizes a slot to these amounts; prints the change."""
        job_id, wait = words.job_or_operator(), words.flag("wait")
        extended, its_devices = words.extended(), devices.requests(words)
        cpu_milli, memory_bytes = words.number("cpu"), words.number("mem") * MIB
        slot = self.cluster.resize(
            words.subjects[0],
            ResourceProfile(cpu_milli, memory_bytes, extended=extended, devices=its_devices),
            job=job_id,
            generation=words.number("generation"),
            number=words.number("number"),
            cpu_limit_milli=words.number("cpu_limit"),
            wait_for_use=wait,
        )
        yield f"change {slot.resize_number}{render.changes(slot)}"
        yield from self._effects()

    def do_end(self, words: Words) -> Iterator[str]:
        outcome = "FAILED" if words.flag("failed") else "SUCCEEDED"
        self.cluster.end_job(words.subjects[0], outcome=outcome)
        yield from self._effects()
