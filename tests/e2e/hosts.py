"""Hosts for tests: each is a network namespace with a host name, an address and directories."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.driving import FINEGRAIN, Cli, Outcome, unique
from tests.previous.code import PreviousCode
from tests.support.patience import PATIENCE_S

NETWORK = "198.51.100"  # of the block for documentation (RFC 5737): no host has it


@dataclass
class Host:
    """One host: its name, its address, and what runs on it.

    Attributes:
        code: code of the previous version that it runs; None: this version's.
        variables: further environment variables of its programs.
    """

    name: str
    address: str
    folder: Path
    inside: Sequence[str]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)
    code: PreviousCode | None = None
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        """Stands for /etc/finegrain/finegrain.toml."""
        return self.folder / "finegrain.toml"

    @property
    def join_token(self) -> Path:
        """Stands for /var/lib/finegrain/executor/join.token."""
        return self.folder / "executor" / "join.token"

    def configure(self, rm: str = "", executor: str = "") -> None:
        """Writes the configuration; the first lines replace the directories of root."""
        self.config.write_text(
            f'[rm]\nstate_dir = "{self.folder}/rm"\n{rm}\n'
            f'[executor]\nstate_dir = "{self.folder}/executor"\nrun_dir = "{self.folder}/run"\n'
            f'cpu = "1"\nmemory = "256M"\nallow_root_tasks = true\ntask_user = "self"\n{executor}\n'
        )

    def environment(self) -> dict[str, str]:
        extra = {"FINEGRAIN_CONFIG": str(self.config)}
        if self.code is not None:
            extra |= self.code.environment
        return Cli(self.folder, extra=extra | self.variables).environment()

    @property
    def cwd(self) -> Path:
        """Where its programs start; Python looks for code there first."""
        return self.folder if self.code is None else self.code.folder

    def start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.log").open("ab") as log:
            self.daemons.append(
                subprocess.Popen(
                    [*self.inside, *FINEGRAIN, *command],
                    env=self.environment(),
                    cwd=self.cwd,
                    stdout=log,
                    stderr=log,
                )
            )

    def finegrain(self, *command: str, stdin: str = "") -> Outcome:
        done = subprocess.run(
            [*self.inside, *FINEGRAIN, *command],
            env=self.environment(),
            cwd=self.cwd,
            input=stdin.encode(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr.decode())

    def shell(self, script: str) -> str:
        """Runs a line of the page as it is printed, with `finegrain` and this host's name."""
        done = subprocess.run(
            [*self.inside, "sh", "-ec", f'finegrain() {{ {" ".join(FINEGRAIN)} "$@"; }}\n{script}'],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> list[int]:
        codes = []
        for daemon in reversed(self.daemons):
            daemon.terminate()
            codes.append(daemon.wait(PATIENCE_S))
        return codes


def namespace(stack: ExitStack, kinds: str, script: str) -> tuple[int, list[str]]:
    """Starts a process in new namespaces; returns its id, and the command that enters them."""
    pipe = subprocess.PIPE
    command = ["unshare", *kinds.split(), "sh", "-ec", f"ip link set lo up; {script}; exec cat"]
    holder = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe))
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"up\n"
    return holder.pid, ["nsenter", "-t", str(holder.pid), *kinds.split()]


@contextmanager
def three_hosts() -> Iterator[list[Host]]:
    """Three hosts at one switch; nothing of finegrain runs yet."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fg-hosts-")))
        bridge = "ip link add switch type bridge; ip link set switch up; echo up"
        _, at_switch = namespace(stack, "-n", bridge)
        made = []
        for number in (1, 2, 3):
            name, address = unique(f"host{number}"), f"{NETWORK}.{number}"
            pid, inside = namespace(stack, "-n -u", f"hostname {name}; echo up")
            for line in (
                f"ip link add line{number} type veth peer name inner netns {pid}",
                f"ip link set line{number} master switch up",
            ):
                subprocess.run([*at_switch, *line.split()], check=True)
            for line in (f"ip addr add {address}/24 dev inner", "ip link set inner up"):
                subprocess.run([*inside, *line.split()], check=True)
            (folder / name).mkdir()
            made.append(Host(name, address, folder / name, inside))
        try:
            yield made
        finally:
            codes = [code for host in reversed(made) for code in host.stop()]
        assert not any(codes), codes
