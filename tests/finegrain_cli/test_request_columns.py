"""`finegrain requests` shows the whole reason, also beside long names and ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain_cli.text.columns import REQUESTS
from finegrain_cli.text.output import OutputFormat, columns_in, table_lines
from tests.support.cli import EXPLANATION


@pytest.mark.parametrize("length", [8, 36, 64])
def test_the_reason_is_not_cut(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    request = replace(
        EXPLANATION.request,
        allocation_id="w" * length,
        job_name="j" * length,
        reason="INFEASIBLE_NOW_OFFLINE",
    )
    columns = columns_in(REQUESTS, OutputFormat.TABLE)
    lines = table_lines(columns, [request.to_dict()])

    assert max(map(len, lines)) <= 80
    assert "INFEASIBLE_NOW_OFFLINE" in lines[1]
    assert "REASON" in lines[0]
    if length <= 36:
        assert "w" * length in lines[1]
