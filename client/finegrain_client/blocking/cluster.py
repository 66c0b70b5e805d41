"""The cluster for blocking callers; what it means stands with its asyncio twin."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from finegrain.cpu_policy import (
    BindPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    NumaPolicy,
    NumaStrategy,
)
from finegrain.options import TlsOptions
from finegrain_client import cluster as aio_cluster
from finegrain_client.blocking.job import Job
from finegrain_client.blocking.loop import PrivateLoop
from finegrain_client.job.job import LEASE_DEFAULT_S
from finegrain_client.retry import BUDGET_DEFAULT_S
from finegrain_client.types import status as types
from finegrain_client.types.advice import ThreadAdvice
from finegrain_client.types.explain import Explanation
from finegrain_client.types.groups import Groups, GroupStatus
from finegrain_client.types.host_policy import HostPolicy
from finegrain_client.types.providers import Providers
from finegrain_client.types.topology import TopologyReport


def connect(
    address: str | Sequence[str] | None = None,
    *,
    token_file: str | os.PathLike[str] | None = None,
    token: str | None = None,
    tls: TlsOptions | None = None,
    insecure: bool = False,
    budget_s: float = BUDGET_DEFAULT_S,
) -> Cluster:
    """See `finegrain_client.connect`."""
    cluster = aio_cluster.connect(
        address,
        token_file=token_file,
        token=token,
        tls=tls,
        insecure=insecure,
        budget_s=budget_s,
    )
    return Cluster(PrivateLoop(), cluster)


class Cluster:
    """See `finegrain_client.Cluster`. Use it in `with`, which also ends its thread."""

    def __init__(self, loop: PrivateLoop, inner: aio_cluster.Cluster) -> None:
        self.loop = loop
        self.inner = inner

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self.loop.is_closed:
            self.loop.run(self.inner.close())
            self.loop.close()

    @property
    def address(self) -> str:
        return self.inner.address

    def job(
        self,
        name: str,
        *,
        group: str = "",
        lease_s: float = LEASE_DEFAULT_S,
        detached: bool = False,
    ) -> Job:
        return Job(self.loop, self.inner.job(name, group=group, lease_s=lease_s, detached=detached))

    def attach_job(self, job_id: str, secret: str, *, lease_s: float = LEASE_DEFAULT_S) -> Job:
        return Job(self.loop, self.inner.attach_job(job_id, secret, lease_s=lease_s))

    def info(self) -> types.ClusterInfo:
        return self.loop.run(self.inner.info())

    def executors(self) -> list[types.ExecutorStatus]:
        return self.loop.run(self.inner.executors())

    def executor(self, executor_id: str) -> types.ExecutorStatus:
        return self.loop.run(self.inner.executor(executor_id))

    def topology(self, executor_id: str) -> TopologyReport:
        return self.loop.run(self.inner.topology(executor_id))

    def slots(self, *, executor_id: str = "", job_id: str = "") -> list[types.SlotStatus]:
        return self.loop.run(self.inner.slots(executor_id=executor_id, job_id=job_id))

    def requests(
        self,
        *,
        job_id: str = "",
        states: Iterable[types.RequestState | str] = (),
        allocation_ids: Sequence[str] = (),
    ) -> list[types.RequestStatus]:
        work = self.inner.requests(job_id=job_id, states=states, allocation_ids=allocation_ids)
        return self.loop.run(work)

    def jobs(self, *, include_ended: bool = False) -> list[types.JobStatus]:
        return self.loop.run(self.inner.jobs(include_ended=include_ended))

    def events(
        self,
        *,
        from_sequence: int = 0,
        subject_id: str = "",
        follow: bool = False,
        newest: int = aio_cluster.EVENTS_PAGE_SIZE,
    ) -> Iterator[types.ClusterEvent]:
        return self.loop.iterate(
            self.inner.events(
                from_sequence=from_sequence, subject_id=subject_id, follow=follow, newest=newest
            )
        )

    def explain(
        self, allocation_id: str, *, executor_id: str = "", max_executors: int = 0
    ) -> Explanation:
        work = self.inner.explain(
            allocation_id, executor_id=executor_id, max_executors=max_executors
        )
        return self.loop.run(work)

    def providers(self) -> Providers:
        return self.loop.run(self.inner.providers())

    def advise(
        self, job_id: str, *, target_s: float | None = None, quantile: float | None = None
    ) -> ThreadAdvice:
        return self.loop.run(self.inner.advise(job_id, target_s=target_s, quantile=quantile))

    def groups(self) -> Groups:
        return self.loop.run(self.inner.groups())

    def set_group(
        self,
        name: str,
        *,
        weight: float | None = None,
        parent: str | None = None,
        description: str | None = None,
        minimum: Mapping[str, int | None] | None = None,
        maximum: Mapping[str, int | None] | None = None,
    ) -> GroupStatus:
        work = self.inner.set_group(
            name,
            weight=weight,
            parent=parent,
            description=description,
            minimum=minimum,
            maximum=maximum,
        )
        return self.loop.run(work)

    def delete_group(self, name: str) -> None:
        self.loop.run(self.inner.delete_group(name))

    def drain(
        self, executor_id: str, *, reason: str = "", deadline_s: float | None = None
    ) -> types.ExecutorStatus:
        return self.loop.run(self.inner.drain(executor_id, reason=reason, deadline_s=deadline_s))

    def undrain(self, executor_id: str) -> types.ExecutorStatus:
        return self.loop.run(self.inner.undrain(executor_id))

    def forget(self, executor_id: str) -> None:
        self.loop.run(self.inner.forget(executor_id))

    def release(
        self, allocation_ids: Sequence[str], *, grace_s: float | None = None
    ) -> list[types.ItemOutcome]:
        return self.loop.run(self.inner.release(allocation_ids, grace_s=grace_s))

    def host_policy(self, executor_id: str | None) -> HostPolicy:
        return self.loop.run(self.inner.host_policy(executor_id))

    def set_host_policy(
        self,
        executor_id: str | None,
        *,
        bind: HostBindPolicy | str | None = None,
        numa_strategy: NumaStrategy | str | None = None,
        alignment: NumaPolicy | str | None = None,
        reserved_cpus: str | None = None,
        reserved_strict: bool | None = None,
        default_bind: BindPolicy | str | None = None,
        default_exclusive: ExclusivePolicy | str | None = None,
        clear: Collection[str] = (),
    ) -> HostPolicy:
        work = self.inner.set_host_policy(
            executor_id,
            bind=bind,
            numa_strategy=numa_strategy,
            alignment=alignment,
            reserved_cpus=reserved_cpus,
            reserved_strict=reserved_strict,
            default_bind=default_bind,
            default_exclusive=default_exclusive,
            clear=clear,
        )
        return self.loop.run(work)

    def resize(
        self,
        allocation_id: str,
        *,
        cpu_milli: int | None = None,
        memory_bytes: int | None = None,
        task_off_heap_memory_bytes: int | None = None,
        managed_memory_bytes: int | None = None,
        network_memory_bytes: int | None = None,
        extended: Mapping[str, int] | None = None,
        cpu_limit_milli: int | None = None,
        wait_for_use: bool = False,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> types.SlotStatus:
        work = self.inner.resize(
            allocation_id,
            cpu_milli=cpu_milli,
            memory_bytes=memory_bytes,
            task_off_heap_memory_bytes=task_off_heap_memory_bytes,
            managed_memory_bytes=managed_memory_bytes,
            network_memory_bytes=network_memory_bytes,
            extended=extended,
            cpu_limit_milli=cpu_limit_milli,
            wait_for_use=wait_for_use,
            wait=wait,
            timeout_s=timeout_s,
        )
        return self.loop.run(work)

    def withdraw_resize(self, allocation_id: str) -> types.SlotStatus:
        return self.loop.run(self.inner.withdraw_resize(allocation_id))

    def terminate_job(self, job_id: str, *, grace_s: float | None = None) -> None:
        self.loop.run(self.inner.terminate_job(job_id, grace_s=grace_s))
