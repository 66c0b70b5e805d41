"""Sessions at the page of a resource manager: in a real browser, and through a reverse proxy."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from finegrain.certificates.authority import utc_now
from finegrain.certificates.keys import key_pem, new_key
from finegrain.credentials import read_credentials
from tests.e2e.driving import (
    Cli,
    Daemons,
    eventually,
    finish,
    free_address,
    read_until,
    unique,
)
from tests.support.browser import browsing
from tests.support.components import REPOSITORY
from tests.support.identities import credentials_file
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

VIEWER = "viewer/vera"
COOKIE, TOKEN = "__Host-finegrain", "x-finegrain-token"


def viewer(daemons: Daemons) -> Cli:
    """Returns the command line of a person with the role viewer."""
    file = credentials_file(daemons.folder, VIEWER, daemons.address)
    return replace(daemons.cli, credentials_file=file)


def link_of(cli: Cli) -> str:
    return str(cli.json("web", "--link")["link"])


@contextmanager
def hostile_page() -> Iterator[str]:
    """Serves a page at another port of this host, as a task may do. Yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>hostile</title>")

        def log_message(self, *_values: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


HOSTILE = """
    const [base, name, done] = arguments;
    const change = (path, headers) => fetch(base + path, {
      method: "POST", mode: "no-cors", credentials: "include", headers, body: "{}",
    }).then(() => "sent", () => "failed");
    const read = (path) => fetch(base + path, { credentials: "include" })
      .then((response) => response.text(), () => "refused");
    Promise.all([
      change(`/v1/executors/${name}/drain`, {}),
      change(`/v1/executors/${name}/drain`, { "content-type": "text/plain" }),
      read("/v1/executors"),
      read("/session"),
    ]).then(done);
"""


OWN = """
    const [path, done] = [arguments[0], arguments[1]];
    const headers = {
      "content-type": "application/json",
      "x-finegrain-token": localStorage.getItem("finegrain-token"),
    };
    fetch(path, { method: "POST", headers, body: "{}" })
      .then(async (response) => done([response.status, (await response.json()).code]));
"""


@pytest.mark.needs("chromium")
def test_a_session_in_a_browser(daemons: Daemons) -> None:
    web = free_address()
    daemons.manager.start("--web-listen", web)
    daemons.manager.endpoint()
    daemons.executor(name := unique("web")).start()
    daemons.await_executors(name)
    reader, base = viewer(daemons), f"https://{web}"
    with browsing(flags=("--ignore-certificate-errors",)) as browser:
        browser.open(base)
        browser.shows("finegrain web --link")
        browser.open("about:blank")
        browser.open(link_of(daemons.cli))
        browser.shows("operator/root", name)
        with hostile_page() as address:
            browser.open(address)
            browser.driver.set_script_timeout(30)
            answers = browser.driver.execute_async_script(HOSTILE, base, name)
        assert answers[2:] == ["refused", "refused"]
        assert not daemons.cli.items("executors")[0]["draining"]
        browser.open(f"{base}/executors/{name}")  # the session itself may drain it
        browser.click("button", "Drain")
        browser.click("button.danger", "Drain")
        browser.shows("draining: drained on the web page")

        link = link_of(reader)
        assert link.startswith(f"{base}/#")
        browser.open("about:blank")
        browser.open(link)
        browser.shows(VIEWER, name)
        browser.open("about:blank")
        browser.open(f"{base}/executors/{name}")  # another page of the same session
        browser.shows(VIEWER, name, "draining")
        (session,) = reader.items("web", "--sessions")
        assert session["identity"] == VIEWER

        assert "Undrain" not in browser.text  # the page offers no change, and none is allowed
        refused = browser.driver.execute_async_script(OWN, f"/v1/executors/{name}/undrain")
        assert refused == [403, "ROLE_MISSING"]
        assert daemons.cli.items("executors")[0]["draining"]

        browser.open(base)
        browser.shows(VIEWER, name)
        daemons.manager.kill()
        browser.shows("Not up to date")
        daemons.manager.start("--web-listen", web)
        daemons.manager.endpoint()
        browser.hides("Not up to date")

        assert daemons.cli("identity", "deny", session["serial"], "--yes").code == 0
        browser.shows("Not up to date")
        left = daemons.cli.items("web", "--sessions")
        assert [each["identity"] for each in left] == ["operator/root"]
        browser.open("about:blank")
        browser.open(base)
        browser.shows("finegrain web --link")


@pytest.mark.needs("chromium")
def test_the_page_of_a_manager_names_the_command_that_shows_the_output_of_tasks(
    daemons: Daemons,
) -> None:
    """The manager never gets commands and outputs. So its page has none, but a command for them."""
    web = free_address()
    daemons.manager.start("--web-listen", web)
    daemons.manager.endpoint()
    daemons.executor(name := unique("web")).start()
    daemons.await_executors(name)
    alice = replace(daemons.cli, credentials_file=credentials_file(daemons.folder, "user/alice"))
    loop = "while true; do echo spoken $((40 + 2)); sleep 0.2; done"
    run = alice.start("run", "--cpu", "0.2", "--", "sh", "-c", loop)
    (slot,) = eventually(lambda: daemons.cli.items("slots"), "the command has its slot")
    with browsing(flags=("--ignore-certificate-errors",)) as browser:
        browser.open(link_of(alice))
        browser.shows("user/alice", name)
        browser.visit(f"/executors/{name}?slot={slot['allocation_id']}")
        browser.shows(f"Slot {slot['allocation_id']}", "finegrain web --view")
        assert "Tasks of this slot" not in browser.text
        shown = browser.run("return document.querySelector('.panel code').innerText")
        program, *options = shlex.split(shown)
        assert program == "finegrain"

        page = alice.start(*options, "--no-browser")
        browser.open(read_until(page, b"\n").decode().strip())
        browser.shows(f"Slot {slot['allocation_id']}", "Tasks of this slot", "sh -c")
        task = browser.run("return document.querySelector('.panel td button').innerText")
        browser.click("td button", task)
        browser.shows("spoken 42")
    for process in (run, page):
        process.send_signal(signal.SIGINT)
    assert finish(page).code == 0
    run.wait(PATIENCE_S)


class Client:
    """A browser's calls through a proxy, without a browser."""

    def __init__(self, port: int, host: str) -> None:
        self._port, self._host = port, host
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self.session: dict[str, str] = {}

    def __call__(
        self, verb: str, path: str, body: str | None = None, headers: Mapping[str, str] = {}
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, context=self._context, timeout=30
        )
        own = {"Host": self._host, "Origin": f"https://{self._host}"}
        connection.request(verb, path, body, {**own, **self.session, **headers})
        return connection.getresponse()

    def begin(self, link: str) -> None:
        answer = self("POST", "/session", link.partition("#")[2])
        content = json.loads(answer.read())
        assert answer.status == 200, content
        cookie = SimpleCookie(answer.getheader("Set-Cookie"))[COOKIE].value
        self.session = {"Cookie": f"{COOKIE}={cookie}", TOKEN: content["token"]}


HOST = "finegrain.example.org"


@contextmanager
def nginx(folder: Path, web: str, authority: Path, cluster: str) -> Iterator[int]:
    """Runs nginx with the configuration of the documentation, and yields its port."""
    port = int(free_address().rpartition(":")[2])
    text = (REPOSITORY / "docs" / "http.md").read_text()
    (block,) = re.findall(r"```nginx\n(.*?)```", text, re.DOTALL)
    own_certificate(folder)
    for old, new in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        f"/etc/ssl/{HOST}.pem": str(folder / "site.pem"),
        f"/etc/ssl/private/{HOST}.key": str(folder / "site.key"),
        "127.0.0.1:7172": web,
        "/etc/finegrain/ca.pem": str(authority),
        "rm.CLUSTER": f"rm.{cluster}",
    }.items():
        assert old in block, old
        block = block.replace(old, new)
    paths = "".join(
        f"{each}_temp_path {folder}/{each};"
        for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off; user root; error_log {folder}/error.log; pid {folder}/nginx.pid;\n"
        f"events {{}}\nhttp {{ access_log off; {paths}\n{block}}}\n"
    )
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(file)])
    try:
        eventually((folder / "nginx.pid").exists, "nginx runs")
        yield port
    finally:
        process.terminate()
        process.wait()


def own_certificate(folder: Path) -> None:
    """Makes a certificate for the name of the site, as an administrator of the proxy does."""
    key, now = new_key(), utc_now()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    from cryptography.hazmat.primitives.serialization import Encoding

    (folder / "site.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "site.key").write_bytes(key_pem(key))


@pytest.mark.needs("nginx", "root")
def test_a_session_through_nginx(daemons: Daemons, tmp_path: Path) -> None:
    web = free_address()
    daemons.manager.start("--web-listen", web, "--web-advertise", f"https://{HOST}")
    daemons.manager.endpoint()
    link = link_of(daemons.cli)
    assert link.startswith(f"https://{HOST}/#")
    authority = daemons.folder / "rm" / "certificates" / "ca.pem"
    cluster = read_credentials(daemons.credentials_file).who.cluster
    with nginx(tmp_path, web, authority, cluster) as port:
        client = Client(port, HOST)
        assert client("GET", "/v1/cluster").status == 401
        assert client("GET", "/").status == 200
        client.begin(link)
        assert json.loads(client("GET", "/session").read())["identity"] == "operator/root"
        change = json.dumps({"weight": 2})
        kind = {"Content-Type": "application/json"}
        other = {"Origin": f"https://{HOST}:8443"}
        assert client("PATCH", "/v1/groups/ml", change, {**kind, **other}).status == 403
        assert client("PATCH", "/v1/groups/ml", change, kind).status == 200
        stream = client("GET", "/v1/live")
        # A proxy that buffers the stream would send nothing before the end of the stream.
        seen = [stream.readline() for _ in range(6)]
        assert b"event: snapshot\n" in seen
        stream.close()
