"""Runs one task executor: creates its parts, and starts and stops the parts in order.

A start first recovers slots and tasks, then serves calls, then registers. A planned stop sends a
last report.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import time
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from finegrain import systemd
from finegrain.cpuset import union
from finegrain.devices.device import HostDevices
from finegrain.errors import ConfigurationError, FinegrainError, Reason
from finegrain.identity import Identity as PeerIdentity
from finegrain.logs import get_logger
from finegrain.metrics_http import MetricsServer
from finegrain.rpc.access import TASK_EXECUTOR_ACCESS
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.allocation_tokens import TokenChecker
from finegrain.rpc.offer_targets import OfferTargets
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.server import GuardedServer
from finegrain.rpc.trust import Trust
from finegrain.rpc.wire import amounts_to_proto, profile_to_proto
from finegrain.rpc.wire_devices import devices_to_topology, usages_to_proto
from finegrain.rpc.wire_topology import isolation_to_proto, topology_to_proto
from finegrain.software_version import software_version
from finegrain.v1 import resource_manager_pb2, slots_pb2, task_executor_pb2_grpc
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import CarveState
from task_executor.engine.squeeze import cpu_locations
from task_executor.host.boot_clock import boot_seconds
from task_executor.host.helper_messages import HelperInfo
from task_executor.host.host_use import HostMeter
from task_executor.service.agent import Agent
from task_executor.service.checkpoint import ENDPOINT_FILE
from task_executor.service.commands import CommandRunner
from task_executor.service.device_levels import FILES_CLOSED, DeviceEnforcement
from task_executor.service.device_limits import DeviceLimits
from task_executor.service.device_overuse import OveruseWatch
from task_executor.service.device_probe import DeviceProbe
from task_executor.service.device_shares import ShareChanges
from task_executor.service.device_watch import DeviceWatch, gpu_monitor
from task_executor.service.encoding import host_cpus_to_proto
from task_executor.service.executor_service import ExecutorService
from task_executor.service.host_sync import HostSync, recover
from task_executor.service.host_watch import HostWatch, KubeletWatch
from task_executor.service.isolation import NO_HUGETLB
from task_executor.service.manager_link import ManagerLink
from task_executor.service.metrics import ExecutorMetrics
from task_executor.service.mps import MpsDaemons, mps_problem
from task_executor.service.offers import Offers
from task_executor.service.operator_calls import OperatorCalls
from task_executor.service.parking import Parking, parking_problem, with_parking
from task_executor.service.ports import Helper
from task_executor.service.prepared import Prepared
from task_executor.service.renewal import Renewal
from task_executor.service.resizing import limit_cpu
from task_executor.service.slot_keeper import Identity, SlotKeeper
from task_executor.service.slot_sockets import SlotSockets
from task_executor.service.squeezer import Squeezer, SqueezeRule
from task_executor.service.task_runner import TaskRunner
from task_executor.service.time_limits import TimeLimits
from task_executor.service.usage import Meter

PROTOCOL_VERSION = "1.1"  # 1.1: tasks of job graphs
LAG_PROBE_S = 0.5  # pause between two measurements of the event loop's delay
SQUEEZE_CPUSET, SQUEEZE_QUOTA = "cpuset", "quota"
LAST_REPORT_S = 3.0  # maximum time for the last report of a planned stop
STOP_MARGIN_S = 10.0  # time that a stop waits for freed slots after the grace period

log = get_logger(__name__)


class Front:
    """All parts of one executor. Call `start`, then `run` until the executor must end, then `stop`.

    Args:
        prepared: the identity, capacity plan and options of this executor.
        helper: the connection to the helper.
        info: the helper's answer to `hello`: its pid, its version and its isolation report.
        kubelet: the watch of a kubelet whose state was already read; None: `start` reads the state.
    """

    def __init__(
        self,
        prepared: Prepared,
        helper: Helper,
        info: HelperInfo,
        kubelet: KubeletWatch | None = None,
    ) -> None:
        options, plan = prepared.options, prepared.plan
        self._prepared = prepared
        self._options = options
        self._helper = helper
        self._info = info
        self.address = ""
        self.metrics_address = ""
        self.own = OwnCertificate(prepared.credentials)
        # Stage 1: the slots, and all other state that must survive a restart.
        identity = Identity(prepared.saved.executor_id, prepared.saved.instance_id, info.boot_id)
        self.keeper = SlotKeeper(
            identity,
            SlotTable(plan.share),
            helper,
            prepared.directory,
            default_grace_ms=options.task_kill_grace_ms,
            page_bytes=options.managed_memory_page_bytes,
            ports=plan.ports,
            users_note=prepared.users.note,
            enforcement=DeviceEnforcement(prepared.find_nodes(plan.devices)),
        )
        self.keeper.closes_devices = info.isolation.devices == FILES_CLOSED
        # Stage 2: measurements and tasks.
        self.metrics = ExecutorMetrics(software_version())
        self.keeper.on_carve = self.metrics.carve_ended
        self.keeper.on_free = self.metrics.free_ended
        self.keeper.on_resize = self.metrics.resize_ended
        self.meter = Meter(self.keeper, HostMeter(prepared.directory.path))
        self.runner = TaskRunner(self.keeper, options, prepared.users, prepared.task_root)
        operator_calls = OperatorCalls(self.keeper, self.runner)
        self.slot_sockets = SlotSockets(self.keeper, operator_calls, prepared.slot_sockets)
        self.runner.open_socket = self.slot_sockets.open_for
        self.slot_sockets.end_task = self.runner.end_for
        self.keeper.before_shrink = self.slot_sockets.wait_given_back
        self.mps = self._mps_daemons(prepared)
        if self.mps is not None:
            self.runner.slot_environment = self.mps.environment
        self.device_limits = DeviceLimits(self.keeper)
        self.keeper.limit_devices = self.device_limits.set
        # Stage 3: the parts that watch the host and adapt the slots to changes of the host.
        table = self.keeper.table
        hugepages_unlimited = plan.offers_hugepages and info.isolation.hugepages == "none"
        self.watch = HostWatch(
            kubelet or KubeletWatch(helper.kubelet, plan.topology),
            union(cpus for _, cpus in table.cpus.host.cpus_by_pool),
            update_conditions=self.keeper.update_conditions,
            slots=lambda: table,
            notes=(NO_HUGETLB,) if hugepages_unlimited else (),
        )
        self.squeezer = Squeezer(
            table,
            cpu_locations(plan.topology),
            SqueezeRule(
                options.best_effort_squeeze_threshold,
                options.best_effort_squeeze_minimum,
                by_quota=options.best_effort_squeeze == SQUEEZE_QUOTA,
            ),
            usage=helper.usage,
            limit_cpu=partial(limit_cpu, self.keeper),
            update_conditions=self.keeper.update_conditions,
        )
        self.device_watch = DeviceWatch(
            self.keeper,
            gpu_monitor(plan.devices),
            DeviceProbe(self.keeper),
            kubelet=lambda: self.watch.kubelet.state,
            own_pids=lambda: (os.getpid(), info.pid),
            foreign_use=options.foreign_gpu_use,
            moved=self._devices_moved,
            check_use=OveruseWatch(self.keeper, self.runner, self.metrics.overuse_ended).check,
            measured_changed=self._measured_changed,
        )
        changes = ShareChanges(self.keeper, lambda: self.device_watch.measurement)
        self.keeper.refuse_shares = changes.refusal
        self.keeper.mover = Parking(self.keeper, lambda: self.device_watch.measurement)
        self.sync = HostSync(self.keeper, self.runner, self.watch.refresh, self._limit_again)
        # Stage 4: the connections to job masters and to the RM, and the gRPC server.
        self.offers = Offers(
            self.keeper,
            self.own,
            timeout_ms=options.offer_timeout_ms,
            targets=OfferTargets.parse(options.offer_targets),
        )
        link = ManagerLink(options.managers or prepared.credentials.addresses, self.own)
        self._renewal = Renewal(self.own, link, prepared.directory.path)
        self.agent = Agent(
            self.keeper,
            link,
            registration=self._registration,
            measure=self._measure,
            denied=self._end_denied_streams,
            authorities=self._renewal.follow,
            orphan_timeout_ms=options.orphan_timeout_ms,
        )
        self.commands = CommandRunner(
            self.keeper,
            pids_max=options.pids_max,
            registered=self.agent.wait_registered,
            offer=self.offers.offer,
            refresh_host=self.watch.refresh,
        )
        self._trust = Trust(
            self.own.credentials.who.cluster,
            is_denied=self._is_denied,
            own=self.own,
        )
        tokens = TokenChecker(identity.executor_id, self.own, self._is_denied)
        self._server = GuardedServer(
            options.listen,
            TASK_EXECUTOR_ACCESS,
            self.own,
            self._trust,
            observe=self.metrics.call_ended,
        )
        self._server.add(
            task_executor_pb2_grpc.add_TaskExecutorServiceServicer_to_server,
            ExecutorService(self.commands, self.runner, operator_calls, tokens),
        )
        self._metrics_server: MetricsServer | None = None
        self._background: list[asyncio.Task[None]] = []
        self._agent_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Recovers slots and tasks, binds the addresses, and begins to register.

        Raises:
            ConfigurationError: an address cannot be bound or is not allowed.
            HelperUnavailable: the connection to the helper was lost.
        """
        await self.watch.refresh()  # the cpus must be known before a slot is bound to cpus
        await self.device_watch.find_measured()
        self._take_in_measured()
        await self.device_limits.refresh()  # limits must be known before a resize is finished
        # Recover the slots before the address is bound, because a call must not find an empty slot
        # table.
        await recover(self.keeper, self._prepared.saved)
        if len(self.keeper.table):
            await self.device_limits.refresh()
        # An earlier front has possibly enforced other levels of device isolation.
        self.keeper.restate_isolation(self._info.isolation)
        await self.slot_sockets.open_all()
        await self._keep_identity()
        bound_address = await self._server.start()
        # Check the address after the bind: if port 0 is configured, the port is known only then.
        self.address = check_dialable(
            self._options.advertise_address or bound_address, "advertise_address"
        )
        self.offers.address = self.address
        if self._options.listen.metrics_address:
            await self._start_metrics()
        self._write_endpoint()
        self._log_settings()
        self._run_in_background(self.sync.follow_events())
        self._run_in_background(self.sync.sweep())
        self._run_in_background(self._probe_lag())
        self._run_in_background(self._renewal.run())
        self._run_in_background(TimeLimits(self.keeper, self.runner).run())
        if self.device_watch.has_work:
            self._run_in_background(self.device_watch.run())
        if self.mps is not None:
            self._run_in_background(self.mps.run())
        if self._options.best_effort_squeeze in (SQUEEZE_CPUSET, SQUEEZE_QUOTA):
            self._run_in_background(self.squeezer.run())
        # Register last: the RM can send commands as soon as it knows the address.
        self._agent_task = self._run_in_background(self.agent.run())
        self._run_in_background(self._watchdog())
        # Offer recovered slots again, if their job masters have not accepted them yet.
        self.offers.offer(list(self.keeper.table))
        systemd.notify("READY=1", f"STATUS=serving {self.address}")

    async def _keep_identity(self) -> None:
        """Saves the identity before the executor registers with this identity.

        If the identity was saved before, the executor starts even if the disk is full, because it
        must adopt its tasks.
        """
        try:
            await self.keeper.save()
        except OSError as error:
            path = self._prepared.directory.path
            if self._prepared.saved.starts:
                log.error("checkpoint_not_written", error=str(error), path=str(path))
                return
            raise ConfigurationError(
                f"the state directory {path} cannot be written: {error.strerror}; free some space "
                "there, or name another one (--state-dir)",
                reason=Reason.DISK_FULL if error.errno == errno.ENOSPC else None,
                details={"state_dir": path},
            ) from None

    async def run(self) -> None:
        """Runs until a part of the executor fails, and raises the error of this part. Such an error
        is always a bug.
        """
        done, _ = await asyncio.wait(self._background, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def abandon(self) -> None:
        """Cleans up after a failed start. Slots and tasks on the host are unchanged."""
        await self._server.stop(0)
        await self._close_components()

    async def stop(self) -> None:
        """Stops the executor as planned.

        Tasks, slots and the helper continue, unless `stop_tasks_on_exit` is set. If no slot and no
        task is left, the helper is stopped, too.
        """
        systemd.notify("STOPPING=1")
        # First reject new commands and tasks, then handle the slots. Serve watchers and the RM
        # until the end.
        await self._server.set_serving(False)
        await self.commands.close()
        await self.runner.close()
        if self._options.stop_tasks_on_exit:
            await self._free_everything()
        elif not len(self.keeper.table) and not self.keeper.tasks.running():
            await self._stop_helper()
        else:
            log.info(
                "tasks_continue",
                slots=len(self.keeper.table),
                tasks=self.keeper.tasks.running(),
                hint="start the executor again to adopt them, or set stop_tasks_on_exit",
            )
        await self._server.stop()
        await self._close_components()
        with contextlib.suppress(OSError):  # the disk has possibly failed
            (self._prepared.directory.path / ENDPOINT_FILE).unlink(missing_ok=True)
        log.info("stopped")

    async def _close_components(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.offers.close()
        await self.slot_sockets.close()
        await self.keeper.close()
        await self.agent.close()
        if self._metrics_server is not None:
            await self._metrics_server.stop()

    async def _free_everything(self) -> None:
        """Frees all slots, sends a last report if possible, deletes tasks, stops the helper."""
        # A slot that is still CARVING has failed. The keeper is already removing the slot's
        # remains.
        keys = [slot.key for slot in self.keeper.table if slot.state is not CarveState.CARVING]
        await self.offers.close()
        await self.keeper.free([(key, None) for key in keys], reason="TERMINATED")
        grace_s = self._options.task_kill_grace_ms / 1000
        await self.keeper.wait_freed(keys, grace_s + STOP_MARGIN_S)
        await self._await_task_ends()
        if self._agent_task is not None:  # two senders of reports must not exist at once
            self._agent_task.cancel()
            await asyncio.wait([self._agent_task])
        await self.agent.send_last_report(LAST_REPORT_S)
        if len(self.keeper.table):
            log.error("slots_left", slots=len(self.keeper.table))
        for task in list(self.keeper.tasks):
            with contextlib.suppress(FinegrainError):
                await self._helper.forget_task(task.task_id)
                self.keeper.directory.tasks.forget(task.task_id)
        await self._stop_helper()

    async def _stop_helper(self) -> None:
        if self._prepared.helper_is_ours:
            with contextlib.suppress(FinegrainError):
                await self._helper.stop()

    async def _await_task_ends(self) -> None:
        """Waits until watchers have received the ends of tasks, so that streams can be closed."""
        for task in list(self.keeper.tasks):
            with task.watched() as changed, contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    while not task.has_ended:
                        await changed.wait()
                        changed.clear()
        # The streams need a moment to deliver the last messages.
        await asyncio.sleep(0.1 if len(self.keeper.tasks) else 0)

    # -- registration, metrics, settings -------------------------------------------------------

    def _registration(
        self, report: slots_pb2.SlotReport
    ) -> resource_manager_pb2.RegisterExecutorRequest:
        plan, identity = self._prepared.plan, self.keeper.identity
        cpus = host_cpus_to_proto(
            self.keeper.table.cpus.host, plan.nodes, time_shared=plan.time_shared
        )
        topology = topology_to_proto(plan.topology)
        devices = self.keeper.table.devices.host
        announced = self.keeper.enforcement.announced(devices, self._info.isolation)
        announced = with_parking(announced, self._options.gpu_parking)
        devices_to_topology(announced, topology)
        # A resource manager of an earlier version dedicates all registered cpus, even if they are
        # time-shared.
        is_announced = not plan.time_shared or bool(plan.devices.devices)
        return resource_manager_pb2.RegisterExecutorRequest(
            executor_id=identity.executor_id,
            instance_id=identity.instance_id,
            address=self.address,
            total=amounts_to_proto(plan.share.total),
            reserved=amounts_to_proto(plan.reserved),
            default_slot_profile=profile_to_proto(plan.default_profile),
            topology=topology,
            labels=dict(self._options.labels),
            slots_max=plan.share.slots_max,
            report=report,
            protocol_version=PROTOCOL_VERSION,
            software_version=software_version(),
            boot_id=identity.boot_id,
            isolation=isolation_to_proto(self.keeper.isolation_of(self._info.isolation)),
            shared_cpus=str(plan.share.shared_cpus),
            provided_as=self._prepared.provided_as,
            # If the registration contains no cpus, the RM places no slots with dedicated cpus or
            # devices on this host.
            host_cpus=cpus if is_announced else None,
            epoch_proof=self.keeper.epoch_proof,
        )

    def _devices_moved(self, host: HostDevices) -> None:
        """Registers the devices again after a device got a new minor number or PCI address."""
        self.keeper.table.devices.replace_host(host)
        self.agent.register_again()
        self.keeper.run_in_background(self._close_moved(host))

    def _measured_changed(self) -> None:
        """Registers the new levels after a driver has started or stopped measuring processes."""
        log.warning("gpu_memory_watched", gpus=sorted(self.device_watch.measured))
        self._take_in_measured()
        self.keeper.run_in_background(self._levels_changed())

    def _take_in_measured(self) -> None:
        keeper = self.keeper
        keeper.enforcement = replace(keeper.enforcement, watched=self.device_watch.measured)

    async def _close_moved(self, host: HostDevices) -> None:
        """Finds the present files of the devices again, so that slots can open only the files of
        their own devices.
        """
        # Read the files of the driver in a thread, because reading them can block while a GPU is
        # broken.
        nodes = await asyncio.to_thread(self._prepared.find_nodes, host)
        self.keeper.enforcement = replace(self.keeper.enforcement, nodes=nodes)
        await self.sync.compare()

    def _mps_daemons(self, prepared: Prepared) -> MpsDaemons | None:
        if not prepared.options.mps:
            return None
        if problem := mps_problem(prepared.plan.devices):
            log.warning("mps_not_used", reason=problem)
            return None
        identity = prepared.saved.executor_id
        daemons = MpsDaemons(self.keeper, prepared.users.default, identity, self._levels_changed)
        self.keeper.prepare_devices = daemons.prepare
        return daemons

    async def _limit_again(self) -> None:
        """Sets the limits of devices again, because a driver, a group or a helper has possibly
        lost them.
        """
        if await self.device_limits.refresh():
            await self._levels_changed()

    async def _levels_changed(self) -> None:
        """Registers the levels of enforcement that have changed, and updates the levels of all
        slots.
        """
        self.keeper.restate_isolation(self._info.isolation)
        self.agent.register_again()
        await self.keeper.save_or_log()

    def _is_denied(self, identity: PeerIdentity, serial: str) -> bool:
        return self.keeper.denials.contains(identity, serial)

    def _end_denied_streams(self) -> None:
        self._server.end_denied_streams()

    async def _start_metrics(self) -> None:
        listen = self._options.listen
        self._metrics_server = MetricsServer(
            listen.metrics_address,
            self.metrics.registry,
            lambda: self.agent.state.registered and self.agent.state.connected,
            refresh=self._refresh_metrics,
            own=self.own,
            trust=self._trust,
        )
        self.metrics_address = await self._metrics_server.start()

    async def _measure(self) -> slots_pb2.UsageReport | None:
        report = await self.meter.report()
        if report is not None:
            report.devices.extend(usages_to_proto(self.device_watch.usages))
        return report

    async def _refresh_metrics(self) -> None:
        await self.meter.refresh()
        self.metrics.update(
            self.keeper,
            self.agent.state,
            self.meter.latest,
            reserved=self._prepared.plan.reserved,
            now=boot_seconds(),
        )
        self.metrics.certificate_end.set(self.own.credentials.not_after)
        table = self.keeper.table
        self.metrics.update_devices(
            table.devices.host.devices, table.devices.conditions, self.device_watch.usages
        )

    def _write_endpoint(self) -> None:
        path = self._prepared.directory.path / ENDPOINT_FILE
        content = {
            "executor_id": self.keeper.identity.executor_id,
            "address": self.address,
            "metrics_address": self.metrics_address,
            "pid": os.getpid(),
        }
        fresh = path.with_name(f".{path.name}.new")
        try:
            fresh.write_text(json.dumps(content) + "\n")
            fresh.replace(path)
        except OSError as error:  # the executor itself does not need this file
            log.error("endpoint_not_written", error=str(error), path=str(path))

    def _log_settings(self) -> None:
        plan, isolation = self._prepared.plan, self._info.isolation
        log.info(
            "task_executor_serving",
            executor_id=self.keeper.identity.executor_id,
            address=self.address,
            metrics_address=self.metrics_address,
            total=dict(plan.share.total),
            cpus=str(plan.share.shared_cpus),
            isolation=isolation.driver,
            task_user=self._prepared.users.default.name,
        )
        if problem := parking_problem(plan.devices, self._options.gpu_parking):
            log.warning("gpu_parking_not_used", reason=problem)
        for note in self.keeper.isolation_of(isolation).notes:
            log.warning("limit_not_enforced", note=note)
        for warning in plan.warnings:
            log.warning("host_warning", note=warning)
        if self._prepared.users.own.uid == self._info.uid:
            log.info(
                "front_and_helper_same_user",
                user=self._prepared.users.own.name,
                meaning="front and helper run as the same user: the front can be restarted "
                "separately, but the helper is not protected against it",
            )

    # -- background ----------------------------------------------------------------------------

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.append(task)
        return task

    async def _probe_lag(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_PROBE_S)
            self.metrics.loop_lag.observe(max(time.monotonic() - before - LAG_PROBE_S, 0))

    async def _watchdog(self) -> None:
        interval_s = systemd.watchdog_interval_s()
        while True:
            # Sleep even without a watchdog. This method must not return, because `run` ends when
            # one of its parts returns.
            await asyncio.sleep(interval_s or 3600)
            if interval_s is not None:
                systemd.notify("WATCHDOG=1")
