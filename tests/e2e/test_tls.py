"""A cluster beyond loopback, with certificates made by openssl: real daemons, real command line.

They live in a network namespace of their own, with an address that others could reach.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.driving import FINEGRAIN, Cli, Outcome, eventually, unique
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.needs("root", "openssl", "network-namespace"), pytest.mark.slow]

HOST = "198.51.100.7"  # of the block for documentation (RFC 5737): no host has it
SERVED = f"{HOST}:7170"


CALLER = """
import sys, grpc
from pathlib import Path
from finegrain.options import TlsOptions
from finegrain.rpc.channels import open_blocking_channel
from finegrain.v1 import cluster_pb2, cluster_pb2_grpc
tls = TlsOptions(*map(Path, sys.argv[2:]))
with open_blocking_channel(sys.argv[1], tls=tls, token="not-the-token-of-this-cluster") as channel:
    try: cluster_pb2_grpc.ClusterServiceStub(channel).GetCluster(cluster_pb2.GetClusterRequest())
    except grpc.RpcError as error: print(error.code().name)
"""


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)


def authority(folder: Path, name: str) -> None:
    """`name.pem` and `name.key` of a certificate authority."""
    openssl(folder, "req", "-x509", *KEY, *out(name), "-subj", f"/CN={name}")


KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def out(name: str) -> tuple[str, ...]:
    return ("-keyout", f"{name}.key", "-out", f"{name}.pem")


def certificate(folder: Path, name: str, ca: str, names: str) -> None:
    """`name.pem` and `name.key`, signed by `ca`, for the subject names."""
    openssl(folder, "req", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=x")
    (folder / "names").write_text(f"subjectAltName={names}")
    signing = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial")
    openssl(
        *(folder, "x509", "-req", "-in", f"{name}.csr", *signing),
        *("-extfile", "names", "-out", f"{name}.pem"),
    )


@dataclass
class Network:
    """Processes in it see one loopback device with one more address."""

    folder: Path
    inside: Sequence[str]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def cli(self) -> Cli:
        token = self.folder / "rm" / "user.token"
        return Cli(self.folder, SERVED, token, extra={"FINEGRAIN_CONFIG": str(self.empty_config())})

    def empty_config(self) -> Path:
        path = self.folder / "empty.toml"
        path.touch()
        return path

    def tls(self, name: str, ca: str = "ca", prefix: str = "tls") -> dict[str, str]:
        place = self.folder
        files = {"ca": place / f"{ca}.pem", "certificate": place / f"{name}.pem"}
        files["key"] = place / f"{name}.key"
        return {f"{prefix}_{part}": str(path) for part, path in files.items()}

    def config(self, name: str, **sections: dict[str, str]) -> Path:
        lines = []
        for section, values in sections.items():
            lines += [f"[{section}]", *(f'{key} = "{value}"' for key, value in values.items())]
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(lines))
        return path

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.inside, *FINEGRAIN, *command],
                env=self.cli.environment(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        self.daemons.append(process)
        return process

    def call(self, *command: str) -> Outcome:
        return self._done(*FINEGRAIN, *command)

    def program(self, text: str, *arguments: str) -> Outcome:
        return self._done(FINEGRAIN[0], "-c", text, *arguments)

    def _done(self, *command: str) -> Outcome:
        done = subprocess.run(
            [*self.inside, *command],
            env=self.cli.environment(),
            cwd=self.folder,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr.decode())

    def run(self, config: Path, *command: str) -> Outcome:
        small = ("--cpu", "0.1", "--memory", "32M", "--wait-timeout", f"{PATIENCE_S:.0f}s")
        return self.call("run", "--config", str(config), *small, "--", *command)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


def _ended(process: subprocess.Popen[bytes]) -> int:
    process.terminate()  # nothing happens to one that has ended
    return process.wait(PATIENCE_S)


@contextmanager
def network(folder: Path) -> Iterator[Network]:
    script = f"ip link set lo up && ip addr add {HOST}/32 dev lo && echo up && exec cat"
    holding = ["unshare", "-n", "sh", "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(holding, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        # The open file keeps the namespace, and names it, whatever becomes of any process in it.
        with open(f"/proc/{holder.pid}/ns/net", "rb") as namespace:
            here = f"/proc/{os.getpid()}/fd/{namespace.fileno()}"
            made = Network(folder, ("nsenter", f"--net={here}"))
            try:
                yield made
            finally:
                codes = [_ended(process) for process in reversed(made.daemons)]
            assert not any(codes), (codes, (folder / "executor.log").read_text()[-2000:])


@pytest.fixture(scope="module")
def secured() -> Iterator[Network]:
    """RM and executor with certificates that both sides check."""
    with tempfile.TemporaryDirectory(prefix="fg-tls-") as name, network(Path(name)) as made:
        folder = made.folder
        authority(folder, "ca")
        authority(folder, "other-ca")
        for who in ("rm", "executor"):
            certificate(folder, who, "ca", f"IP:{HOST}")
        certificate(folder, "client", "ca", "DNS:client")
        certificate(folder, "stranger", "other-ca", f"IP:{HOST}")
        served = {"state_dir": str(folder / "rm"), "listen": SERVED, "metrics_listen": "none"}
        share = {"listen": f"{HOST}:0", "metrics_listen": "none", "executor_id": unique("tls")}
        share |= {"state_dir": str(folder / "executor"), "run_dir": str(folder / "run")}
        share |= {"manager": SERVED, "cpu": "1", "memory": "256M", "task_user": "self"}
        share |= made.tls("executor") | made.tls("executor", prefix="manager_tls")
        rm = served | made.tls("rm")
        made.start("rm", "serve", "--config", str(made.config("rm", rm=rm)))
        eventually((folder / "rm" / "endpoint.json").exists, "the RM serves")
        config = made.config("executor", executor=share, rm=rm)
        more = ("--allow-root-tasks", "--stop-tasks-on-exit")
        made.start("executor", "serve", "--config", str(config), *more)
        eventually(lambda: "registered" in made.log("executor"), "the executor registers")
        yield made


def test_a_command_runs_across_both_connections(secured: Network) -> None:
    config = secured.config("client", client=secured.tls("client"))
    done = secured.run(config, "sh", "-c", "echo 42; exit 7")
    assert (done.stdout, done.code) == (b"42\n", 7), done.stderr


@pytest.mark.parametrize(
    ("shown", "ca"),
    [
        pytest.param("", "ca", id="no certificate of its own"),
        pytest.param("stranger", "ca", id="a certificate of another authority"),
        pytest.param("client", "other-ca", id="it does not know the server's authority"),
    ],
)
def test_a_client_that_is_not_of_this_cluster_is_cut_off(
    secured: Network, shown: str, ca: str
) -> None:
    place = secured.folder
    files = [str(place / f"{ca}.pem")] + [
        str(place / f"{shown}.{part}") for part in ("pem", "key") if shown
    ]
    done = secured.program(CALLER, SERVED, *files)
    assert done.text == "UNAVAILABLE\n", done.stderr


def test_the_same_caller_is_let_in_with_the_right_files(secured: Network) -> None:
    files = [str(secured.folder / name) for name in ("ca.pem", "client.pem", "client.key")]
    assert secured.program(CALLER, SERVED, *files).text == "UNAUTHENTICATED\n"


def test_a_client_without_tls_does_not_send_its_token(secured: Network) -> None:
    done = secured.call("executors")
    assert done.code != 0
    assert "without encryption" in done.stderr
    assert "--insecure" in done.stderr


def test_an_executor_of_another_authority_is_not_let_in(secured: Network) -> None:
    share = {"listen": "127.0.0.1:0", "metrics_listen": "none", "manager": SERVED}
    share |= {"executor_id": unique("stranger"), "cpu": "1", "memory": "64M"}
    share |= {"state_dir": str(secured.folder / "s2"), "run_dir": str(secured.folder / "run2")}
    share |= secured.tls("stranger", prefix="manager_tls") | {"isolation": "none"}
    token = str(secured.folder / "rm" / "cluster.token")
    config = secured.config("stranger", executor=share | {"cluster_token_file": token})
    process = secured.start("executor", "serve", "--config", str(config), "--stop-tasks-on-exit")
    eventually(lambda: "manager_not_reached" in secured.log("executor"), "it is cut off")
    client = secured.config("client", client=secured.tls("client"))
    listed = secured.call("executors", "--config", str(client), "-o", "json")
    assert share["executor_id"] not in listed.text
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def test_executors_are_checked_against_an_authority_of_their_own() -> None:
    """The RM demands no client certificates, so `tls_ca` is not there to check executors with."""
    with tempfile.TemporaryDirectory(prefix="fg-tls-") as name, network(Path(name)) as made:
        folder = made.folder
        authority(folder, "ca")
        certificate(folder, "host", "ca", f"IP:{HOST}")
        ca, own = str(folder / "ca.pem"), made.tls("host")
        del own["tls_ca"]
        rm = {"state_dir": str(folder / "rm"), "listen": SERVED, "metrics_listen": "none"} | own
        share = {"listen": f"{HOST}:0", "metrics_listen": "none", "executor_id": unique("tls")}
        share |= {"state_dir": str(folder / "executor"), "run_dir": str(folder / "run")}
        share |= {"manager": SERVED, "cpu": "1", "memory": "256M", "isolation": "none"}
        share |= own | {"manager_tls_ca": ca, "task_user": "self"}
        config = made.config("executor", executor=share, rm=rm)
        client = made.config("client", client={"tls_ca": ca})
        more = ("--allow-root-tasks", "--stop-tasks-on-exit")

        manager = made.start("rm", "serve", "--config", str(made.config("rm", rm=rm)))
        eventually((folder / "rm" / "endpoint.json").exists, "the RM serves")
        made.start("executor", "serve", "--config", str(config), *more)
        eventually(lambda: "registered" in made.log("executor"), "the executor registers")
        small = ("--cpu", "0.1", "--memory", "32M", "--wait-timeout", "3s")
        assert made.call("run", "--config", str(client), *small, "--", "true").code != 0
        assert "executor_not_reached" in made.log("rm")
        assert "rm.executor_tls_ca" in made.log("rm")

        manager.terminate()
        assert manager.wait(PATIENCE_S) == 0
        told = made.config("rm", rm=rm | {"executor_tls_ca": ca})
        made.start("rm", "serve", "--config", str(told))
        done = made.run(client, "echo", "42")
        assert (done.stdout, done.code) == (b"42\n", 0), done.stderr


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("rm", "serve", "--listen", "0.0.0.0:0"), id="RM on all interfaces"),
        pytest.param(("rm", "serve", "--listen", f"{HOST}:0"), id="RM on one of them"),
        pytest.param(("rm", "serve", "--listen", "[::]:0"), id="RM on all of IPv6"),
        pytest.param(("executor", "serve", "--listen", "0.0.0.0:0"), id="executor on all"),
        pytest.param(("executor", "serve", "--manager", SERVED), id="executor to such an RM"),
    ],
)
def test_nothing_listens_or_calls_in_clear_beyond_loopback(
    secured: Network, tmp_path: Path, command: tuple[str, ...]
) -> None:
    state = ("--state-dir", str(tmp_path / "state"), "--metrics-listen", "none")
    token = ("--cluster-token-file", str(secured.folder / "rm" / "cluster.token"))
    run_dir = ("--run-dir", str(tmp_path / "run")) if command[0] == "executor" else ()
    done = secured.call(*command, *state, *token, *run_dir)
    assert done.code != 0, done.stderr
    assert "insecure" in done.stderr
    assert "Traceback" not in done.stderr
    eventually(lambda: not list(tmp_path.glob("run/*")), "its helper has gone")
