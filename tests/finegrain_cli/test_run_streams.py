"""Lines of several commands never mix, whatever their output is cut into."""

from __future__ import annotations

import pytest

import finegrain_client as fg
from finegrain_cli.run.streams import LINE_BYTES_MAX, LabelledLines


def test_lines_are_labelled_whole(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = LabelledLines("[3] ")
    for data in (b"one\ntw", b"o", b"\n\nthree"):
        lines(fg.OutputChunk("stdout", 0, data))
    lines(fg.OutputChunk("stderr", 0, b"oh"))
    lines.end()
    lines.end()

    out, err = capfdbinary.readouterr()
    assert out == b"[3] one\n[3] two\n[3] \n[3] three\n"
    assert err == b"[3] oh\n"


def test_a_line_without_end_is_cut(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = LabelledLines("")
    for _ in range(5):
        lines(fg.OutputChunk("stdout", 0, b"x" * (LINE_BYTES_MAX // 2)))

    assert capfdbinary.readouterr().out == (b"x" * LINE_BYTES_MAX + b"\n") * 2
