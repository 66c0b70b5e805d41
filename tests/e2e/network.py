"""A separate network namespace, and real daemons and commands in it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.driving import FINEGRAIN, Cli, Outcome, eventually, unique
from tests.support.patience import PATIENCE_S

HOST = "198.51.100.7"  # of the block for documentation (RFC 5737): no host has it
SERVED = f"{HOST}:7170"


@dataclass
class Network:
    """Processes in the namespace see one loopback device with an additional address."""

    folder: Path
    inside: Sequence[str]
    name: str = field(default_factory=lambda: unique("tls"))
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def cli(self) -> Cli:
        return Cli(self.folder, extra={"FINEGRAIN_CONFIG": str(self.empty_config())})

    @property
    def operator(self) -> Path:
        return self.folder / "rm" / "operator.credentials"

    @property
    def alice(self) -> Path:
        return self.folder / "alice.credentials"

    def empty_config(self) -> Path:
        path = self.folder / "empty.toml"
        path.touch()
        return path

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.inside, *FINEGRAIN, *command],
                env=self.cli.environment(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        self.daemons[name] = process
        return process

    def start_manager(self) -> None:
        self.start(
            "rm",
            *("rm", "serve", "--state-dir", str(self.folder / "rm"), "--listen", SERVED),
            *("--metrics-listen", "none", "--lost-timeout", "60s"),
        )
        eventually(lambda: self.call("status", who=self.operator).code == 0, "the RM serves")

    def start_executor(self, name: str, token_file: Path) -> subprocess.Popen[bytes]:
        state = self.folder / name
        return self.start(
            name,
            *("executor", "serve", "--state-dir", str(state), "--run-dir", str(state / "run")),
            *("--join-token-file", str(token_file), "--listen", f"{HOST}:0"),
            *("--metrics-listen", "none", "--cpu", "1", "--memory", "256M"),
            *("--task-user", "self", "--allow-root-tasks", "--stop-tasks-on-exit"),
        )

    def stop(self, name: str) -> int:
        process = self.daemons.pop(name)
        process.terminate()
        return process.wait(PATIENCE_S)

    def call(self, *command: str, who: Path | None = None, stdin: str = "") -> Outcome:
        own = {"FINEGRAIN_CREDENTIALS": str(who)} if who else {}
        done = subprocess.run(
            [*self.inside, *FINEGRAIN, *command],
            env=self.cli.environment() | own,
            cwd=self.folder,
            input=stdin.encode(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr.decode())

    def token(self, *flags: str) -> str:
        made = self.call("token", "create", *flags, who=self.operator)
        assert made.code == 0, made.stderr
        return made.text

    def token_file(self, executor_id: str) -> Path:
        path = self.folder / f"{executor_id}.token"
        path.touch(mode=0o600)
        path.write_text(self.token("--executor", executor_id))
        return path

    def states(self) -> dict[str, str]:
        listed = self.call("executors", "list", "-o", "json", who=self.operator)
        return {each["executor_id"]: each["state"] for each in json.loads(listed.stdout)["items"]}

    def run(self, who: Path, *command: str) -> Outcome:
        small = ("--cpu", "0.1", "--memory", "32M", "--wait-timeout", f"{PATIENCE_S:.0f}s")
        return self.call("run", *small, "--", *command, who=who)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@contextmanager
def network(folder: Path) -> Iterator[Network]:
    script = f"ip link set lo up && ip addr add {HOST}/32 dev lo && echo up && exec cat"
    holding = ["unshare", "-n", "sh", "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(holding, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        # The open file keeps the namespace and identifies it, even if all processes in it end.
        with open(f"/proc/{holder.pid}/ns/net", "rb") as namespace:
            here = f"/proc/{os.getpid()}/fd/{namespace.fileno()}"
            made = Network(folder, ("nsenter", f"--net={here}"))
            try:
                yield made
            finally:
                codes = {name: made.stop(name) for name in reversed(list(made.daemons))}
            assert not any(codes.values()), codes
