"""Implements `finegrain groups`, which shows resource groups with their shares, and sets weights
and limits.
"""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finegrain.errors import InvalidArgument
from finegrain.resources import CPU_MILLI, EXTENDED_PREFIX, MEMORY_BYTES
from finegrain.units import parse_bytes, parse_cpu_milli, parse_pair
from finegrain.values.bounds import AMOUNT_MAX
from finegrain_cli import completing
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    DryRunOption,
    ManagerOption,
    OutputOption,
    WatchOption,
    YesOption,
    confirm_operation,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.device_options import device_dimensions, device_limit
from finegrain_cli.text.output import OutputFormat, print_object
from finegrain_cli.text.preview import preview_text

if TYPE_CHECKING:
    from finegrain_client.types.groups import Groups, GroupStatus
    from finegrain_client.types.status import JobStatus

WATCH_INTERVAL_S = 1.0
CLEAR_SCREEN = "\x1b[H\x1b[2J"
NONE = "none"
ALL_USERS = "*"

_AMOUNT = re.compile(r"[0-9]{1,18}")  # the client rejects amounts that are too large

NameArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=completing.groups)]
UsersArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[USER]...", help="Users, such as alice.")
]
AllUsersOption = Annotated[bool, typer.Option("--all-users", help="All users of the cluster.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, as -o json does.")]


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    group = typer.Typer(invoke_without_command=True)
    group.callback()(reporting_errors(show))
    group.command(name="set")(reporting_errors(set_))
    group.command()(reporting_errors(allow))
    group.command()(reporting_errors(revoke))
    group.command()(reporting_errors(rules))
    group.command()(reporting_errors(delete))
    app.add_typer(
        group, name="groups", help="Show or change resource groups: shares, weights, limits, users."
    )


def show(
    context: typer.Context,
    jobs: Annotated[bool, typer.Option("--jobs", help="Also show the jobs of each group.")] = False,
    json_: JsonOption = False,
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Show resource groups as a tree: weight, shares, usage, backlog and limits.

    \b
    Examples:
      finegrain groups
      finegrain groups --watch --jobs
    """
    if context.invoked_subcommand is not None:
        return
    output = OutputFormat.JSON if json_ else output
    enter_command(output, manager, credentials, config)
    if watch and output is OutputFormat.JSON:
        raise InvalidArgument("--output", "json", "jsonl or table together with --watch")
    before: dict[str, Any] = {}
    with open_cluster() as cluster:
        while True:
            found = cluster.groups()
            listed = cluster.jobs() if jobs else []
            data = _document(found, listed, jobs=jobs)
            if data != before:
                _print(found, listed, data, output, again=bool(before))
            if not watch:
                return
            before = data
            time.sleep(WATCH_INTERVAL_S)


def set_(
    name: NameArgument,
    weight: Annotated[
        float | None,
        typer.Option(
            "--weight",
            metavar="WEIGHT",
            help="Weight relative to sibling groups: a group of weight 4 gets four times the share "
            "of a group of weight 1. Default of a new group: 1.",
        ),
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option(
            "--parent",
            metavar="NAME|none",
            autocompletion=completing.groups,
            help="Group that contains this group; none: no parent.",
        ),
    ] = None,
    description: Annotated[
        str | None,
        typer.Option(
            "--description", metavar="TEXT", help="Description, shown by `finegrain groups`."
        ),
    ] = None,
    max_cpu: Annotated[
        str,
        typer.Option(
            "--max-cpu",
            metavar="CORES|none",
            help="Maximum CPU of all slots of the group, in cores.",
        ),
    ] = "",
    min_cpu: Annotated[
        str,
        typer.Option(
            "--min-cpu", metavar="CORES|none", help="Guaranteed CPU of the group, in cores."
        ),
    ] = "",
    max_memory: Annotated[
        str,
        typer.Option(
            "--max-memory",
            metavar="SIZE|none",
            help="Maximum memory of all slots of the group, such as 64G.",
        ),
    ] = "",
    min_memory: Annotated[
        str,
        typer.Option(
            "--min-memory", metavar="SIZE|none", help="Guaranteed memory of the group, such as 8G."
        ),
    ] = "",
    max_slots: Annotated[
        str,
        typer.Option(
            "--max-slots",
            metavar="COUNT|none",
            help="Maximum number of slots of the group, whatever their size.",
        ),
    ] = "",
    min_slots: Annotated[
        str,
        typer.Option(
            "--min-slots", metavar="COUNT|none", help="Guaranteed number of slots of the group."
        ),
    ] = "",
    max_: Annotated[
        list[str],
        typer.Option(
            "--max",
            metavar="NAME=COUNT|none",
            help="Maximum of a countable resource or of devices, such as license=3 or gpu=4.",
        ),
    ] = [],  # noqa: B006 - typer wants the default as a list
    min_: Annotated[
        list[str],
        typer.Option(
            "--min",
            metavar="NAME=COUNT|none",
            help="Guaranteed amount of a countable resource or of devices, such as gpu=4.",
        ),
    ] = [],  # noqa: B006
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Create a resource group, or change an existing group.

    Settings that you do not name stay unchanged. A change applies from the next decision on. A
    change never stops running slots. The value "none" removes a limit. --dry-run shows the shares
    before and after a change of the weight or of limits of an existing group.

    \b
    Examples:
      finegrain groups set nightly --weight 4 --parent low
      finegrain groups set nightly --max-cpu 64 --max gpu=4
      finegrain groups set nightly --max-slots 100 --min-slots 10
      finegrain groups set nightly --max-cpu none
    """
    enter_command(output, manager, credentials, config)
    if name == NONE:
        raise InvalidArgument(
            "NAME", name, f"another name: --parent {NONE} means that there is no parent"
        )
    maximum = limits_from("max", max_slots, max_cpu, max_memory, max_)
    minimum = limits_from("min", min_slots, min_cpu, min_memory, min_)
    with open_cluster() as cluster:
        if dry_run:
            preview = cluster.preview(
                "SET_GROUP", group=name, weight=weight, maximum=maximum, minimum=minimum
            )
            text = f"would change {name}: {preview_text(preview)}"
            print_object("Preview", preview.to_dict(), output, text)
            return
        group = cluster.set_group(
            name,
            weight=weight,
            parent="" if parent == NONE else parent,
            description=description,
            minimum=minimum,
            maximum=maximum,
        )
    print_object("Group", group.to_dict(), output, _described(group))


def allow(
    name: NameArgument,
    users: UsersArgument = None,
    all_users: AllUsersOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Allow users to register jobs in a group and in the groups below it.

    Administrators may use every group.

    \b
    Examples:
      finegrain groups allow critical alice bob
      finegrain groups allow medium --all-users
    """
    enter_command(output, manager, credentials, config)
    named = _identities(users, all_users=all_users)
    with open_cluster() as cluster:
        group = cluster.change_group_users(name, allow=named)
    print_object("Group", group.to_dict(), output, _used_by(group))


def revoke(
    name: NameArgument,
    users: UsersArgument = None,
    all_users: AllUsersOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Revoke the right of users to register jobs in a group. Their jobs in the group continue.

    With --all-users, users that were allowed by name can still use the group.

    \b
    Examples:
      finegrain groups revoke critical bob
    """
    enter_command(output, manager, credentials, config)
    named = _identities(users, all_users=all_users)
    with open_cluster() as cluster:
        group = cluster.change_group_users(name, revoke=named)
    print_object("Group", group.to_dict(), output, _used_by(group))


def delete(
    name: NameArgument,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Delete a resource group that has no live jobs.

    \b
    Examples:
      finegrain groups delete nightly --yes
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        text = f"group {name} will be deleted, with its weight and its limits"
        confirm_operation(cluster, text, yes=yes)
        cluster.delete_group(name)
    print_object("GroupDeleted", {"name": name}, output, f"deleted {name}")


def _document(found: Groups, listed: list[JobStatus], *, jobs: bool) -> dict[str, Any]:
    data = found.to_dict()
    if jobs:
        data["jobs"] = [each.to_dict() for each in listed]
    return data


def _print(
    found: Groups,
    listed: list[JobStatus],
    data: dict[str, Any],
    output: OutputFormat,
    *,
    again: bool,
) -> None:
    from finegrain_cli.text.groups import groups_text

    text = groups_text(found, listed, wide=output is OutputFormat.WIDE)
    if again and output in (OutputFormat.TABLE, OutputFormat.WIDE):
        text = (CLEAR_SCREEN if sys.stdout.isatty() else "\n") + text
    print_object("Groups", data, output, text)
    sys.stdout.flush()


def _described(group: GroupStatus) -> str:
    from finegrain_cli.text.groups import limits_text

    parts = [f"{group.name}: weight {group.weight:.10g}"]
    parts += [f"part of {group.parent}"] if group.parent else []
    parts += [f"minimum {limits_text(group.minimum)}"] if group.minimum else []
    parts += [f"maximum {limits_text(group.maximum)}"] if group.maximum else []
    return ", ".join(parts)


def rules(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]", autocompletion=completing.groups, help="Group; default: all."
        ),
    ] = "",
    job: Annotated[
        str, typer.Option("--job", metavar="PATTERN", help="Add a rule for these names of jobs.")
    ] = "",
    user: Annotated[
        str, typer.Option("--user", metavar="PATTERN", help="Add a rule for these users.")
    ] = "",
    label: Annotated[
        list[str],
        typer.Option(
            "--label",
            metavar="KEY=PATTERN",
            help="Add a rule for jobs with this label (`run --job-label`). Repeatable.",
        ),
    ] = [],  # noqa: B006 - typer wants the default as a list
    order: Annotated[
        int,
        typer.Option(
            "--order",
            metavar="NUMBER",
            min=0,
            help="Place of the rule among the rules of all groups; 0: after all others.",
        ),
    ] = 0,
    remove: Annotated[
        list[int],
        typer.Option("--remove", metavar="NUMBER", help="Remove the rule with this order."),
    ] = [],  # noqa: B006
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Show, add or remove the rules that put jobs into groups.

    A job that names no group is compared with the rules of all groups, by their order. The first
    rule whose patterns all match decides. If no rule matches, the job is in the group default.
    Patterns have the form that shells use, so put them in quotes. A rule does not give the right to
    use the group.

    \b
    Examples:
      finegrain groups rules
      finegrain groups rules nightly --job 'etl-*' --user alice
      finegrain groups rules nightly --label team=ml --order 5
      finegrain groups rules nightly --remove 5
    """
    from finegrain.values.group_rules import GroupRule
    from finegrain_cli.text.groups import rules_text

    enter_command(output, manager, credentials, config)
    labels = tuple(sorted(parse_pair("--label", each) for each in label))
    adds = bool(job or user or labels)
    if not name and (adds or remove):
        raise InvalidArgument("NAME", name, "the group whose rules change")
    if order and not adds:
        raise InvalidArgument("--order", order, "--job, --user or --label with it")
    owner = user if not user or "/" in user else f"user/{user}"
    with open_cluster() as cluster:
        if adds or remove:
            add = [GroupRule(order, job, owner, labels)] if adds else []
            cluster.change_group_rules(name, add=add, remove=remove)
        found = [each for each in cluster.groups().groups if name in ("", each.name)]
    if not found:
        raise InvalidArgument("NAME", name, "the name of a group; `finegrain groups` lists them")
    listed = sorted(
        ({"group": each.name, **rule} for each in found for rule in each.to_dict()["rules"]),
        key=lambda rule: rule["order"],
    )
    print_object("GroupRules", {"rules": listed}, output, rules_text(listed))


def _identities(users: list[str] | None, *, all_users: bool) -> list[str]:
    if bool(users) is all_users:
        raise InvalidArgument("USER", " ".join(users or ()) or "no user", "names, or --all-users")
    if all_users:
        return [ALL_USERS]
    return [each if "/" in each else f"user/{each}" for each in users or ()]


def _used_by(group: GroupStatus) -> str:
    from finegrain_cli.text.groups import users_text

    return f"{group.name}: users {users_text(group.users)}"


def limits_from(
    what: str, slots: str, cpu: str, memory: str, others: list[str]
) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    if slots:
        found["slots"] = None if slots == NONE else limit_count(f"--{what}-slots", slots)
    if cpu:
        found[CPU_MILLI] = None if cpu == NONE else parse_cpu_milli(f"--{what}-cpu", cpu)
    if memory:
        found[MEMORY_BYTES] = None if memory == NONE else parse_bytes(f"--{what}-memory", memory)
    for each in others:
        name, text = parse_pair(f"--{what}", each)
        if dimensions := device_dimensions(name):
            amount = None if text == NONE else device_limit(f"--{what} {name}", name, text)
            found |= dict.fromkeys(dimensions, amount)
            continue
        amount = None if text == NONE else limit_count(f"--{what} {name}", text)
        found[EXTENDED_PREFIX + name.removeprefix(EXTENDED_PREFIX)] = amount
    return found


def limit_count(option: str, text: str) -> int:
    if not _AMOUNT.fullmatch(text):
        raise InvalidArgument(option, text, f"a whole number up to {AMOUNT_MAX}, or {NONE}")
    return int(text)
