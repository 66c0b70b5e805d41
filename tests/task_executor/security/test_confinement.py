"""What a task of an unprivileged user can reach on the host, tested on the real kernel.

Tasks of one user are not separated: they can signal and trace each other, and read each other's
scratch and environment (see the last test).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from finegrain.errors import FinegrainError, Reason
from tests.support.patience import PATIENCE_S
from tests.task_executor.helper.conftest import alive, eventually
from tests.task_executor.security.conftest import DAEMON_SECRET, HostOfNobody

pytestmark = [pytest.mark.needs("nobody-user"), pytest.mark.slow, pytest.mark.full]

STATUS = (
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Uid",
    "Gid",
    "Groups",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "Umask",
)


async def test_a_task_begins_with_nothing_but_what_it_was_given(nobody: HostOfNobody) -> None:
    await nobody.slot()
    record = await nobody.run(
        "cat /proc/self/status; ls /proc/self/fd; ulimit -c; cat /proc/self/oom_score_adj; echo end"
    )
    assert record.exit_code == 0
    text = nobody.output()
    status = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    found = {name: status[name].split() for name in STATUS}
    none, users = ["0" * 16], ["65534"] * 4
    assert found == {
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), none),
        **dict.fromkeys(("SigBlk", "SigIgn", "SigCgt"), none),
        "NoNewPrivs": ["1"],
        "Uid": users,
        "Gid": users,
        "Groups": [],
        "Umask": ["0022"],
    }
    assert text.splitlines()[-6:] == ["1", "2", "3", "0", "0", "end"]  # 3: of ls


async def test_a_task_has_a_session_of_its_own_and_no_terminal(nobody: HostOfNobody) -> None:
    await nobody.slot()
    program = (
        "import os\n"
        "print(os.getsid(0) == os.getpgid(0) == os.getpid())\n"
        "try: os.open('/dev/tty', os.O_RDWR)\n"
        "except OSError as error: print(error.errno)\n"
        "print(sorted(os.environ))\n"
    )
    await nobody.python(program)
    await nobody.exit_of()
    assert nobody.output().splitlines() == ["True", "6", "['LC_CTYPE', 'PATH']"]


async def test_what_the_daemon_keeps_is_closed_to_tasks(nobody: HostOfNobody) -> None:
    await nobody.slot()
    await nobody.slot("other")
    script = "echo secret; sleep 1000"
    victim = await nobody.start(script, "victim", allocation_id="other", stdin=True)
    await eventually(lambda: nobody.output("victim"), "it has its log")
    supervisor = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[1])
    kept, journals = nobody.directory("victim"), nobody.state / "supervisors"
    (control,) = (path for path in journals.iterdir() if path.is_socket())
    groups = [
        f"/sys/fs/cgroup/{line.split(':')[1]}{line.split(':')[2]}"
        for line in Path(f"/proc/{victim}/cgroup").read_text().splitlines()
        if line.split(":")[1] in ("memory", "pids", "cpuset", "freezer")
    ]
    closed = [
        *(str(kept / name) for name in ("stdout.log", ".")),
        *(str(path) for path in (journals, *journals.glob("*.journal"))),
        str(nobody.state / "helper.json"),
        str(nobody.state / "slots"),
        *(
            f"/proc/{pid}/{name}"
            for pid in (supervisor, nobody.pid)
            for name in ("environ", "fd", "mem")
        ),
        *(f"{group}/cgroup.procs" for group in groups),
        *(f"{group}/memory.limit_in_bytes" for group in groups if "/memory/" in group),
    ]
    program = f"""
import os, socket
for path in {closed!r}:
    for flags in (os.O_WRONLY, os.O_RDONLY):
        if flags == os.O_RDONLY and path.startswith("/sys/"):
            continue  # limits are no secret
        try:
            fd = os.open(path, flags)
            os.read(fd, 1) if flags == os.O_RDONLY else os.write(fd, b"0")
        except OSError: pass
        else: print("open:", path)
for path in ({str(control)!r}, {nobody.config.socket_path!r}):
    try: socket.socket(socket.AF_UNIX).connect(path)
    except OSError as error: pass
    else: print("connected:", path)
for pid in ({supervisor}, {nobody.pid}):
    for signum in (0, 9, 19):
        try: os.kill(pid, signum)
        except PermissionError: pass
        else: print("signalled:", pid)
print("tried", len({closed!r}))
"""
    await nobody.python(program)
    assert (await nobody.exit_of()).exit_code == 0
    assert nobody.output() == f"tried {len(closed)}\n"
    assert len(groups) > 2
    assert all(Path(path).exists() for path in closed)
    assert alive(supervisor)


async def test_a_scratch_directory_replaced_by_a_link_leads_nobody_astray(
    nobody: HostOfNobody,
) -> None:
    treasure = Path(nobody.config.state_dir).parent / "treasure"
    treasure.mkdir(0o700)
    (treasure / "gold").write_text("gold")
    await nobody.slot()
    await nobody.run(f'cd /; rmdir "$OLDPWD"; ln -s {treasure} "$OLDPWD"')
    await nobody.client.forget_task("task")
    assert (treasure / "gold").read_text() == "gold"
    assert treasure.stat().st_mode & 0o777 == 0o700


async def test_scratch_of_any_shape_is_removed(nobody: HostOfNobody) -> None:
    """The tree is deeper than the longest possible path, its owner cannot enter it, and it has
    links to other directories.
    """
    await nobody.slot()
    program = """
import os
os.symlink("/etc", "link")
os.mkfifo("pipe")
for name in ("a", "b"):
    os.mkdir(name); open(f"{name}/file", "w").close(); os.mkdir(f"{name}/x"); os.chmod(name, 0)
for _ in range(3000):
    os.mkdir("deep-directory"); os.chdir("deep-directory")
os.chmod(".", 0)
"""
    await nobody.python(program)
    assert (await nobody.exit_of()).exit_code == 0, nobody.output(stream="stderr")
    await nobody.client.forget_task("task")
    assert not list(Path(str(nobody.config.scratch_root)).iterdir())
    assert Path("/etc/passwd").exists()


REMOVE_BY_THREE = """
import os, sys
from task_executor.helper.child import remove_as
pids = [remove_as(os.getuid(), os.getgid(), sys.argv[1]) for _ in range(3)]
sys.exit(any(os.waitpid(pid, 0)[1] for pid in pids))
"""


def test_those_who_remove_the_same_tree_do_not_stop_each_other(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(300):
        (tree / f"{number}/inner/most").mkdir(parents=True)
        (tree / f"{number}/inner/file").touch()
    # In a separate process, as in the helper, because a process that has used gRPC must not fork.
    subprocess.run(
        [sys.executable, "-c", REMOVE_BY_THREE, str(tree)], check=True, timeout=PATIENCE_S
    )
    assert not tree.exists()


async def test_who_tidies_up_for_a_task_cannot_be_used_by_another(nobody: HostOfNobody) -> None:
    """The process that tidies up runs as the tasks' user outside every slot, so it must not reveal
    anything.
    """
    await nobody.slot()
    await nobody.slot("other")
    spy = """
import ctypes, os, signal, time
libc = ctypes.CDLL(None, use_errno=True)
print("ready", flush=True)
seen = {}
while not seen:
    for pid in {*filter(str.isdigit, os.listdir("/proc"))} - {str(os.getpid())}:
        try:
            lines = open(f"/proc/{pid}/status").read().splitlines()
        except OSError: continue
        mine = any(line.split()[:2] == ["Uid:", "65534"] for line in lines)
        if not mine or STATE not in open(f"/proc/{pid}/cmdline").read(): continue
        try: environ = open(f"/proc/{pid}/environ").read()
        except OSError: environ = None
        traced = libc.ptrace(16, int(pid), None, None) == 0
        # One that starts a task becomes the task between these looks, and may be traced then.
        same = STATE in open(f"/proc/{pid}/cmdline").read()
        if same: seen[pid] = (bool(environ), traced)
        if traced:
            os.waitpid(int(pid), 0)
            libc.ptrace(17, int(pid), None, None)
            os.kill(int(pid), signal.SIGCONT)  # exec may have stopped it before the attachment did
print(seen, flush=True)
"""
    spy = spy.replace("STATE", repr(nobody.config.state_dir))
    await nobody.python(spy, "spy", allocation_id="other")
    await eventually(lambda: "ready" in nobody.output("spy"), "the spy looks around")
    messy = "# messy\nfor i in range(3000): open(str(i), 'w').close()"
    for attempt in range(20):
        await nobody.python(messy, f"messy-{attempt}")
        await nobody.exit_of(f"messy-{attempt}")
        await asyncio.sleep(0.3)
        if len(nobody.output("spy").split()) > 1:
            break
    seen = nobody.output("spy").splitlines()[1]
    assert "True" not in seen, seen
    assert DAEMON_SECRET in Path(f"/proc/{nobody.pid}/environ").read_text()


@pytest.mark.needs("cgroup-v1")
async def test_ten_thousand_forks_stay_within_the_slot_and_end_with_it(
    nobody: HostOfNobody,
) -> None:
    await nobody.slot(pids_max=200)
    bomb = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
made = 0
for _ in range(10000):
    try: pid = os.fork()
    except OSError: continue
    made += 1
    if pid == 0:
        os.setsid()
        try: os.fork()
        except OSError: pass
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1000)
print(made, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    await nobody.python(bomb)
    await eventually(nobody.output, "the bomb is out")
    assert int(nobody.output()) < 200
    begun = asyncio.get_running_loop().time()
    await nobody.client.destroy_slot("slot", 1, grace_ms=100)
    assert asyncio.get_running_loop().time() - begun < PATIENCE_S
    assert (await nobody.exit_of()).signal == signal.SIGKILL


async def test_a_task_that_closes_everything_and_stops_itself_can_be_ended(
    nobody: HostOfNobody,
) -> None:
    await nobody.slot()
    pid = await nobody.start("exec <&- >&- 2>&-; kill -STOP $$")
    state = Path(f"/proc/{pid}/stat")
    await eventually(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "it stops")
    await nobody.client.kill_task("task", grace_ms=50)
    assert (await nobody.exit_of()).signal == signal.SIGKILL


async def test_a_program_may_take_any_name(nobody: HostOfNobody) -> None:
    """A program can choose its name, so the name must not decide whether the program counts as
    running.
    """
    await nobody.slot()
    names = "import ctypes, time\nctypes.CDLL(None).prctl(15, b'fg-before-exec', 0, 0, 0)\n"
    async with asyncio.timeout(PATIENCE_S):
        for number in range(5):
            await nobody.python(f"{names}\ntime.sleep(1000)", f"task-{number}")


async def test_a_log_that_fills_up_costs_output_only(nobody: HostOfNobody) -> None:
    await nobody.slot()
    record = await nobody.run("head -c 50000000 /dev/zero", log_limit_bytes=1000)
    assert (record.exit_code, record.stdout_bytes) == (0, 1000)
    assert record.stdout_dropped_bytes == 50_000_000 - 1000


async def test_a_directory_that_is_closed_to_the_user_is_named_also_behind_a_link(
    nobody: HostOfNobody,
) -> None:
    place = Path(nobody.config.state_dir).parent
    (place / "closed").mkdir(0o700)
    (place / "closed" / "inner").mkdir()
    (place / "link").symlink_to(place / "closed" / "inner")
    await nobody.slot()
    for cwd in (f"{place}/link", f"{place}/tmp/../closed/inner", f"{place}/closed/inner/.."):
        with pytest.raises(FinegrainError) as caught:
            await nobody.start("true", cwd=cwd)
        assert caught.value.reason is Reason.CWD_UNAVAILABLE, cwd
        assert f"cwd {cwd}" in caught.value.message


async def test_what_does_not_hold_between_tasks_of_one_user(nobody: HostOfNobody) -> None:
    """This is known and documented (docs/operations.md): tasks of one user are not protected from
    each other.
    """
    await nobody.slot()
    await nobody.slot("other")
    victim = await nobody.start("sleep 1000", "victim", allocation_id="other")
    await nobody.run(f"kill -9 {victim}")
    assert (await nobody.exit_of("victim")).signal == signal.SIGKILL
    assert os.getuid() == 0
