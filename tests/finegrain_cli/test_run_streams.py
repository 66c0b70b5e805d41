"""Lines of several commands never mix, a file can receive both streams, and failures are errors."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain.errors import FinegrainError, InvalidArgument, Reason
from finegrain_cli.run.streams import LINE_BYTES_MAX, LabelledLines, OutputTarget


async def test_lines_are_labelled_whole(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = LabelledLines(OutputTarget(), 3)
    for data in (b"one\ntw", b"o", b"\n\nthree"):
        await lines(fg.OutputChunk("stdout", 0, data))
    await lines(fg.OutputChunk("stderr", 0, b"oh"))
    await lines.end()
    await lines.end()

    out, err = capfdbinary.readouterr()
    assert out == b"[3] one\n[3] two\n[3] \n[3] three\n"
    assert err == b"[3] oh\n"


async def test_a_line_without_end_is_cut(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = LabelledLines(OutputTarget(), 0)
    for _ in range(5):
        await lines(fg.OutputChunk("stdout", 0, b"x" * (LINE_BYTES_MAX // 2)))

    assert capfdbinary.readouterr().out == (b"[0] " + b"x" * LINE_BYTES_MAX + b"\n") * 2


async def test_a_file_takes_both_streams_in_order(tmp_path: Path) -> None:
    with closing(OutputTarget(str(tmp_path / "all"))) as target:
        for stream, data in (("stdout", b"1"), ("stderr", b"2"), ("stdout", b"3")):
            await target.write(stream, data)
    assert (tmp_path / "all").read_bytes() == b"123"


async def test_a_gap_is_marked_on_standard_error(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    await OutputTarget().pass_on(fg.OutputChunk("stdout", 500, b"rest", missing_bytes=120))
    out, err = capfdbinary.readouterr()
    assert (out, b"120 bytes of standard output are missing here [OUTPUT_LOST]" in err) == (
        b"rest",
        True,
    )


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="--output"):
        OutputTarget(str(tmp_path / "no" / "such"))


async def test_a_full_disk_at_the_caller_is_an_error() -> None:
    match = "/dev/full: No space left"
    with (
        closing(OutputTarget("/dev/full")) as target,
        pytest.raises(FinegrainError, match=match) as caught,
    ):
        await target.write("stdout", b"x")
    assert caught.value.reason is Reason.DISK_FULL
