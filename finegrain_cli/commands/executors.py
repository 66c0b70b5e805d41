"""Implements `finegrain executors`. The command lists executors. It also shows or sets how the
hosts of executors assign cpus.

`executors ID` lists the executor with this id, except if ID is the name of a subcommand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from finegrain.errors import InvalidArgument
from finegrain_cli import completing
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    DryRunOption,
    ManagerOption,
    OutputOption,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.text.cpus import POLICY_COLUMNS, SETTINGS, policy_rows
from finegrain_cli.text.output import OutputFormat, print_object, table_lines
from finegrain_cli.text.preview import preview_text

if TYPE_CHECKING:
    from finegrain_client.types.host_policy import HostPolicyStatus

LIST = "list"
NONE = "none"

ExecutorArgument = Annotated[
    str,
    typer.Argument(
        metavar="EXECUTOR|--defaults",
        autocompletion=completing.executors,
        help="Id of the executor.",
    ),
]
DefaultsOption = Annotated[
    bool,
    typer.Option(
        "--defaults", help="Use the settings of the cluster, which apply to hosts without settings."
    ),
]


class _ListUnlessNamed(TyperGroup):
    """A group in which `executors [ID]` means `executors list [ID]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and (args[0] in self.commands or args[0] == "--help")
        if not named and not ctx.resilient_parsing:
            args = [LIST, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Suggests the commands of the group, and the executors that `executors list` shows."""
        (argument,) = (
            each for each in self.commands[LIST].params if each.param_type_name == "argument"
        )
        commands = super().shell_complete(ctx, incomplete)
        return [*commands, *argument.shell_complete(ctx, incomplete)]


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    from finegrain_cli.commands.lists import executors

    group = typer.Typer(cls=_ListUnlessNamed)
    group.command(name=LIST)(reporting_errors(executors))
    group.command(name="policy")(reporting_errors(policy))
    group.command(name="set")(reporting_errors(set_))
    app.add_typer(
        group,
        name="executors",
        help="List executors (`executors [ID]`), and set how their hosts assign cpus.",
    )


def policy(
    executor: ExecutorArgument = "",
    defaults: DefaultsOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Show how an executor's host assigns cpus to slots.

    For each setting, the table shows the value in effect, its origin, and the value that was set
    with `executors set`.

    \b
    Examples:
      finegrain executors policy host-a
      finegrain executors policy --defaults
    """
    enter_command(output, manager, credentials, config)
    name = _subject(executor, defaults=defaults)
    with open_cluster() as cluster:
        found = cluster.host_policy(name)
    _print(found, output)


def set_(
    executor: ExecutorArgument = "",
    defaults: DefaultsOption = False,
    bind_policy: Annotated[
        str,
        typer.Option(
            "--bind-policy",
            metavar="POLICY",
            help="Required bind policy of slots with dedicated cpus: FullPCPUsOnly, SpreadByPCPUs "
            "or None.",
        ),
    ] = "",
    numa_strategy: Annotated[
        str,
        typer.Option(
            "--numa-strategy",
            metavar="STRATEGY",
            help="NUMA node to use first: MostAllocated, LeastAllocated or DistributeEvenly.",
        ),
    ] = "",
    alignment: Annotated[
        str,
        typer.Option(
            "--alignment",
            metavar="POLICY",
            help="Placement on NUMA nodes: None, BestEffort, Restricted or SingleNUMANode.",
        ),
    ] = "",
    reserved_cpus: Annotated[
        str,
        typer.Option(
            "--reserved-cpus",
            metavar="LIST|none",
            help="Cpus that are not dedicated to any slot, such as 0-1.",
        ),
    ] = "",
    reserved_strict: Annotated[
        bool | None,
        typer.Option(
            "--reserved-strict/--no-reserved-strict",
            help="Whether the shared pools must not contain the reserved cpus.",
            show_default=False,
        ),
    ] = None,
    default_bind: Annotated[
        str,
        typer.Option(
            "--default-bind",
            metavar="POLICY",
            help="Bind policy of requests without one: FullPCPUs, SpreadByPCPUs or None.",
        ),
    ] = "",
    default_exclusive: Annotated[
        str,
        typer.Option(
            "--default-exclusive",
            metavar="POLICY",
            help="Exclusive policy of requests without one: PCPULevel, NUMANodeLevel or None.",
        ),
    ] = "",
    clear: Annotated[
        list[str],
        typer.Option(
            "--clear",
            metavar="SETTING",
            help="Remove a setting that was set with this command, such as bind-policy.",
        ),
    ] = [],  # noqa: B006 - typer wants the default as a list
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Set how an executor's host assigns cpus to slots.

    With --defaults, the settings apply to each host of the cluster that has no settings. A change
    applies to new slots, from the next decision on, and survives restarts. --dry-run shows which
    settings would change on how many executors, and the slots that have cpus to reserve.

    \b
    Examples:
      finegrain executors set host-a --bind-policy FullPCPUsOnly
      finegrain executors set host-a --clear bind-policy
      finegrain executors set --defaults --alignment BestEffort --dry-run
    """
    enter_command(output, manager, credentials, config)
    name = _subject(executor, defaults=defaults)
    words = {
        "bind": _word("bind-policy", bind_policy),
        "numa_strategy": _word("numa-strategy", numa_strategy),
        "alignment": _word("alignment", alignment),
        "default_bind": _word("default-bind", default_bind),
        "default_exclusive": _word("default-exclusive", default_exclusive),
    }
    cleared = [_setting(each) for each in clear]
    given = {field: word for field, word in words.items() if word is not None}
    if not (given or cleared or reserved_cpus or reserved_strict is not None):
        expected = ", ".join(f"--{each}" for each in SETTINGS)
        raise InvalidArgument("executors set", name or "--defaults", f"one of {expected}, --clear")
    with open_cluster() as cluster:
        if dry_run:
            policy = given | {
                "reserved_cpus": _cpus(reserved_cpus),
                "reserved_strict": reserved_strict,
            }
            preview = cluster.preview(
                "SET_HOST_POLICY", executor_id=name or "", policy=policy, clear=cleared
            )
            text = f"would change {name or 'the cluster'}: {preview_text(preview)}"
            print_object("Preview", preview.to_dict(), output, text)
            return
        found = cluster.set_host_policy(
            name,
            **given,
            reserved_cpus=_cpus(reserved_cpus),
            reserved_strict=reserved_strict,
            clear=cleared,
        )
    _print(found, output)


def _subject(executor: str, *, defaults: bool) -> str | None:
    """Returns the executor to change, or None for the cluster's defaults.

    Raises:
        InvalidArgument: both an executor and --defaults are given, or neither is given.
    """
    if defaults == bool(executor):
        raise InvalidArgument("EXECUTOR", executor, "either the name of an executor, or --defaults")
    return executor or None


def _word(label: str, text: str) -> str | None:
    """Returns the word in its canonical spelling, or None if the option was not given."""
    if not text:
        return None
    from finegrain.cpu_words import read_word
    from finegrain_client.admin.host_policy import NOT_FOR_HOSTS, WORDS

    return str(read_word(f"--{label}", text, WORDS[SETTINGS[label]], without=NOT_FOR_HOSTS))


def _cpus(text: str) -> str | None:
    if not text:
        return None
    from finegrain.cpuset import CpuSet

    return "" if text.casefold() == NONE else str(CpuSet.parse(text, "--reserved-cpus"))


def _setting(label: str) -> str:
    from difflib import get_close_matches

    name = SETTINGS.get(label.removeprefix("--").replace("_", "-"))
    if name is None:
        close = get_close_matches(label, SETTINGS, n=1, cutoff=0.4)
        nearest = f"; did you mean {close[0]}?" if close else ""
        raise InvalidArgument("--clear", label, f"one of {', '.join(SETTINGS)}{nearest}")
    return name


def _print(found: HostPolicyStatus, output: OutputFormat) -> None:
    data = found.to_dict()
    lines = table_lines(POLICY_COLUMNS, policy_rows(data))
    if found.followed_number is not None and found.executor_id:
        is_pending = found.followed_number < found.number
        lines += (
            [f"{found.executor_id} has not received the latest change yet"] if is_pending else []
        )
    print_object("HostPolicy", data, output, "\n".join(lines))
