"""Implements the commands that start daemons: the resource manager, an executor, or a whole local
cluster.

The daemons' flags are generated from the keys of the configuration, at the moment when one of these
commands is used. This module does not import gRPC: an executor must start its helper before it
loads gRPC.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup

from finegrain.errors import InvalidArgument
from finegrain.units import parse_bytes, parse_duration_ms
from finegrain_cli.common import (
    ConfigOption,
    OutputOption,
    enter_command,
    need_modules,
    reporting_errors,
)
from finegrain_cli.context import current, warn_of
from finegrain_cli.text.output import OutputFormat, say

if TYPE_CHECKING:
    from finegrain_cli.local.scale import Scale

RM_SECTIONS = ("rm", "fairness", "log")
EXECUTOR_SECTIONS = ("executor", "log")


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    app.command()(reporting_errors(up))
    for name, help_, group in (
        ("rm", "Run the resource manager as a daemon.", _ResourceManagerGroup),
        ("executor", "Run a task executor as a daemon.", _ExecutorGroup),
    ):
        app.add_typer(typer.Typer(no_args_is_help=True), name=name, help=help_, cls=group)


def up(
    executors: Annotated[
        int | None,
        typer.Option(
            "--executors",
            metavar="N",
            min=1,
            max=64,
            help="Number of executors that share this host.",
            show_default="1",
        ),
    ] = None,
    scale: Annotated[
        int | None,
        typer.Option(
            "--scale",
            metavar="MAX",
            min=1,
            max=64,
            help="Start without executors; start up to MAX of them on demand.",
        ),
    ] = None,
    idle_timeout: Annotated[
        str,
        typer.Option(
            "--idle-timeout",
            metavar="DURATION",
            help="With --scale: stop an executor that has had no slots for this time; default: 1m.",
        ),
    ] = "",
    state_dir: Annotated[
        str,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            help="Directory that keeps state, certificates and logs; default: a temporary "
            "directory.",
        ),
    ] = "",
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Address for calls; port 0: any free port."
        ),
    ] = "127.0.0.1:0",
    cpus: Annotated[
        str, typer.Option("--cpus", metavar="LIST", help="Use only these cpus, such as 0-3.")
    ] = "",
    memory: Annotated[
        str,
        typer.Option(
            "--memory", metavar="SIZE", help="Use only this amount of memory, such as 8G."
        ),
    ] = "",
    isolation: Annotated[
        str,
        typer.Option(
            "--isolation",
            metavar="auto|none",
            help="auto: enforce limits as far as this host allows; none: enforce no limits.",
        ),
    ] = "auto",
    fake_gpus: Annotated[
        str,
        typer.Option(
            "--fake-gpus",
            metavar="MACHINE",
            help="Pretend to have the GPUs of this machine, such as dgx-a100.",
        ),
    ] = "",
    task_user: Annotated[
        str,
        typer.Option(
            "--task-user",
            metavar="USER",
            help="User that runs tasks, as root; default: who called sudo, or executor.task_user.",
        ),
    ] = "",
    revocation: Annotated[
        str,
        typer.Option(
            "--revocation",
            metavar="on|off",
            help="Take revocable slots back for requests that fit on no executor; default: "
            "rm.revocation (off).",
        ),
    ] = "",
    show_logs: Annotated[
        bool, typer.Option("--show-logs", help="Also print the logs of the daemons.")
    ] = False,
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level",
            metavar="LEVEL",
            help="Lowest level of the daemons' logs: debug, info, warning or error.",
        ),
    ] = "info",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Run a cluster on this host in the foreground, until Ctrl-C.

    The cluster has one resource manager and one executor. With --executors N, it has N executors
    that divide this host. Other commands of the same user find the cluster without options.

    With --scale MAX, the cluster starts without executors. When requests wait, the resource
    manager starts up to MAX executors, each with an equal part of this host. It stops an executor
    that is idle.

    `up` is for tests and for work on one host. At the end, `up` removes all its files except
    --state-dir. From the configuration, it uses only the section `fairness`, rm.revocation and
    rm.revocation_grace, and as root the keys task_user and allow_root_tasks of the section
    `executor`.

    If this command runs as root, tasks run as the user who called sudo. Without sudo, they run as
    `executor.task_user` (nobody). With --task-user root they have all privileges. Without root,
    tasks run as your own user and can read the keys of the daemons.

    \b
    Examples:
      finegrain up
      finegrain up --executors 2 --state-dir ~/my-cluster
      finegrain up --fake-gpus dgx-a100
    """
    enter_command(output, config_file=config)
    from finegrain.options import LogOptions
    from finegrain_cli.config.daemon_options import fairness_options
    from finegrain_cli.local.cluster import LocalCluster
    from finegrain_cli.local.foreground import run_in_foreground
    from finegrain_cli.local.task_user import choose_task_user

    settings = current().configuration().settings
    own = settings.executor
    cluster = LocalCluster(
        executors or 1,
        scale=_scale(scale, executors, idle_timeout),
        state_dir=Path(state_dir) if state_dir else None,
        listen=listen,
        cpus=cpus,
        memory_bytes=parse_bytes("--memory", memory) if memory else None,
        isolation=isolation,
        fake_gpus=_machine(fake_gpus, scale),
        task_user=choose_task_user(task_user, own.task_user, allow_root=own.allow_root_tasks),
        fairness=fairness_options(settings),
        revocation=_revocation(revocation or settings.rm.revocation),
        revocation_grace_ms=settings.rm.revocation_grace,
        log=LogOptions(level=log_level, format="auto" if show_logs else "json"),
        show_logs=show_logs,
    )
    run_in_foreground(cluster, output)


def _revocation(text: str) -> bool:
    if text not in ("on", "off"):
        raise InvalidArgument("--revocation", text, "on or off")
    return text == "on"


def _machine(fake_gpus: str, scale: int | None) -> str:
    """Returns the name of the machine whose GPUs the executors pretend to have.

    Raises:
        InvalidArgument: there is no such machine, or `scale` is given.
    """
    if not fake_gpus:
        return ""
    from task_executor.host.gpu_profiles import profile_names

    if fake_gpus not in profile_names():
        raise InvalidArgument("--fake-gpus", fake_gpus, "one of " + ", ".join(profile_names()))
    if scale is not None:
        raise InvalidArgument("--fake-gpus", fake_gpus, "no --scale beside it")
    return fake_gpus


def _scale(executors_max: int | None, executors: int | None, idle_timeout: str) -> Scale | None:
    from finegrain_cli.local.scale import IDLE_TIMEOUT_MS, Scale

    if executors_max is None:
        if idle_timeout:
            raise InvalidArgument("--idle-timeout", idle_timeout, "--scale MAX as well")
        return None
    if executors is not None:
        raise InvalidArgument(
            "--executors",
            executors,
            "no --scale, because --scale starts without executors",
        )
    idle_ms = parse_duration_ms("--idle-timeout", idle_timeout) if idle_timeout else IDLE_TIMEOUT_MS
    return Scale(executors_max, idle_ms)


def serve_resource_manager(config: ConfigOption = "", **given: Any) -> None:
    """Run the resource manager until SIGTERM.

    \b
    Examples:
      finegrain rm serve
      finegrain rm serve --standby --database postgresql://finegrain@db/finegrain
    """
    enter_command(OutputFormat.TABLE, config_file=config)
    from finegrain_cli.config.daemon_options import resource_manager_options
    from finegrain_cli.config.flags import flags_given
    from finegrain_cli.config.load import load_configuration

    loaded = load_configuration(config, flags=flags_given(RM_SECTIONS, given))
    warn_of(loaded)
    options = resource_manager_options(loaded.settings)
    need_modules("resource-manager", "cryptography", "sqlalchemy", "structlog", "grpc")
    from finegrain_cli.web.serving import serve_web
    from resource_manager.main import run

    if options.web_address:
        need_modules("resource-manager", "starlette", "uvicorn")
    raise typer.Exit(run(options, serve_web))


def join_resource_manager(
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="TOKEN|-",
            help="Token from `finegrain token create --rm`; -: read the token from the input.",
        ),
    ],
    state_dir: Annotated[
        str,
        typer.Option(
            "--state-dir", metavar="DIR", help="State directory of the new resource manager."
        ),
    ] = "",
    config: ConfigOption = "",
) -> None:
    """Join an existing cluster as another resource manager.

    Run this command before the first start of the new resource manager. The state directory gets
    the key of the cluster's authority, which every resource manager of the cluster needs.

    \b
    Examples:
      finegrain rm join --token - < rm.token
    """
    enter_command(OutputFormat.TABLE, config_file=config)
    need_modules("resource-manager", "cryptography", "grpc")
    from finegrain_cli.config.daemon_options import rm_state_dir
    from finegrain_cli.joining_manager import join_cluster

    settings = current().configuration().settings
    path = Path(state_dir) if state_dir else rm_state_dir(settings.rm)
    cluster = join_cluster(path, sys.stdin.read() if token == "-" else token)
    say(f"{path} has the authority of cluster {cluster}; now start: finegrain rm serve --standby")


def serve_executor(config: ConfigOption = "", **given: Any) -> None:
    """Run a task executor until SIGTERM.

    The executor's tasks continue after SIGTERM, and the next start of the executor adopts them.

    \b
    Examples:
      finegrain executor serve --manager rm-1.example:7170
    """
    enter_command(OutputFormat.TABLE, config_file=config)
    from finegrain_cli.config.daemon_options import task_executor_options
    from finegrain_cli.config.flags import flags_given
    from finegrain_cli.config.load import load_configuration

    loaded = load_configuration(config, flags=flags_given(EXECUTOR_SECTIONS, given))
    warn_of(loaded)
    options = task_executor_options(loaded.settings)
    need_modules("task-executor", "cryptography", "structlog", "grpc")
    from task_executor.main import run

    raise typer.Exit(run(options))


def serve_helper(config: ConfigOption = "", **given: Any) -> None:
    """Run the privileged part of an executor as a separate daemon.

    The executor and its helper must have the same value of helper_socket.
    """
    enter_command(OutputFormat.TABLE, config_file=config)
    from finegrain_cli.config.daemon_options import task_executor_options
    from finegrain_cli.config.flags import flags_given
    from finegrain_cli.config.load import load_configuration

    loaded = load_configuration(config, flags=flags_given(EXECUTOR_SECTIONS, given))
    warn_of(loaded)
    from task_executor.helper_main import run

    raise typer.Exit(run(task_executor_options(loaded.settings)))


class _LateGroup(TyperGroup):
    """A group that creates a command only when the command is used, because the creation of the
    command's flags takes time.
    """

    sections: tuple[str, ...]
    serves: ClassVar[dict[str, Any]]

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(self.serves)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        serve = self.serves.get(cmd_name)
        if serve is join_resource_manager:
            return _plain_command(cmd_name, serve)
        return _serve_command(cmd_name, self.sections, serve) if serve else None


class _ResourceManagerGroup(_LateGroup):
    sections = RM_SECTIONS
    serves: ClassVar[dict[str, Any]] = {
        "serve": serve_resource_manager,
        "join": join_resource_manager,
    }


class _ExecutorGroup(_LateGroup):
    sections = EXECUTOR_SECTIONS
    serves: ClassVar[dict[str, Any]] = {"serve": serve_executor, "helper": serve_helper}


def _serve_command(name: str, sections: tuple[str, ...], serve: Any) -> Any:
    from finegrain_cli.config.flags import parameters

    command = reporting_errors(serve)
    config = inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default="", annotation=ConfigOption
    )
    signature = inspect.Signature([config, *parameters(*sections)])
    # Set the signature, from which typer reads the parameters. `serve` itself takes all parameters
    # as keyword arguments.
    command.__signature__ = signature  # type: ignore[attr-defined] # read by typer
    return _typer_command(name, command)


def _plain_command(name: str, function: Any) -> Any:
    return _typer_command(name, reporting_errors(function))


def _typer_command(name: str, command: Any) -> Any:
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.command(name)(command)
    return typer.main.get_command(app)
