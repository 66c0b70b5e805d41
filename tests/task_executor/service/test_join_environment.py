"""What an executor reads from its environment: the cluster's token, and its shape."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from finegrain.errors import ConfigurationError, InvalidArgument
from task_executor.join_environment import cluster_token, provided_as, take_join_token
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    CLUSTER_TOKEN,
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
)

TOKEN = "a-token-of-16-characters-or-more"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.token"
    path.write_text("token-of-the-file-0001\n")
    path.chmod(0o600)
    return path


def test_the_token_leaves_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEGRAIN_JOIN_TOKEN", TOKEN)
    assert take_join_token() == TOKEN
    assert "FINEGRAIN_JOIN_TOKEN" not in os.environ
    assert take_join_token() == ""


def test_what_cannot_be_a_token_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEGRAIN_JOIN_TOKEN", "hunter2")
    with pytest.raises(ConfigurationError, match="FINEGRAIN_JOIN_TOKEN is not a token") as refused:
        take_join_token()
    assert "hunter2" not in str(refused.value)
    assert "FINEGRAIN_JOIN_TOKEN" not in os.environ


def test_a_file_that_was_named_goes_first_and_the_usual_one_last(
    file: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    assert cluster_token(TOKEN, file, missing) == "token-of-the-file-0001"
    assert cluster_token(TOKEN, None, file) == TOKEN
    assert cluster_token(TOKEN, missing, file) == TOKEN
    assert cluster_token(TOKEN, tmp_path / ("x" * 300), file) == TOKEN  # we cannot even look
    assert cluster_token("", None, file) == "token-of-the-file-0001"
    with pytest.raises(ConfigurationError, match=f"no token file {missing}"):
        cluster_token("", missing, file)


def test_a_shape_by_option_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert provided_as("") == ""
    monkeypatch.setenv("FINEGRAIN_PROVIDED_AS", "small")
    assert provided_as("") == "small"
    assert provided_as("large") == "large"
    with pytest.raises(InvalidArgument, match="provided_as"):
        provided_as("no name")


@pytest.mark.slow
async def test_it_joins_by_the_token_alone_and_nothing_that_it_starts_has_it(
    rm: ScriptedRM, process: ExecutorProcess
) -> None:
    process.environment = {
        "FINEGRAIN_JOIN_TOKEN": CLUSTER_TOKEN,
        "FINEGRAIN_PROVIDED_AS": "small",
    }
    process.start(cluster_token_file=None)
    await eventually(lambda: rm.reports or process.exit_code is not None, "it reports")
    assert process.exit_code is None, process.log
    assert rm.registered.provided_as == "small"
    await rm.allocate(allocation())  # so its own service knows the token, too
    job_master = JobMaster(rm.executor_address)
    await job_master.submit("env")
    seen = await job_master.watch()
    assert b"FINEGRAIN_TASK_ID=task" in seen.stdout
    helper = Path(f"/proc/{process.helper_pid()}/environ").read_bytes()
    assert b"PATH=" in helper
    for text in (seen.stdout, helper, process.log.encode()):
        assert CLUSTER_TOKEN.encode() not in text
