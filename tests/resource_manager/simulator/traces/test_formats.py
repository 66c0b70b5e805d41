"""Tests of logs in four formats, each cut from a real one, and of errors for broken ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from finegrain.devices.names import device_requests
from finegrain.devices.request import LabelRule
from finegrain.errors import InvalidArgument
from finegrain.resources import GIB, KIB, MIB, ResourceProfile
from resource_manager.simulator.nodes import equal_gpus
from resource_manager.simulator.traces.formats import read_workload
from resource_manager.simulator.traces.gpu_cluster import gpus
from resource_manager.simulator.traces.jobs import TraceJob, Workload
from tests.support.components import REPOSITORY

TRACES = REPOSITORY / "tests/data/traces"
NASA = TRACES / "nasa-ipsc-1993-first-500.swf.gz"
WAGAP = TRACES / "wagap-2013-cut.csv"
OPENB = TRACES / "openb-pods-cut.csv"
DLRM = TRACES / "dlrm-instances-cut.csv"

LINE = "1 10 -1 30 4 -1 2048 -1 60 1024 1 7 2 -1 1 -1 -1 -1"


def job(workload: Workload, name: str) -> TraceJob:
    return next(each for each in workload.jobs if each.name == name)


def swf(tmp_path: Path, *lines: str) -> Workload:
    path = tmp_path / "log.swf"
    path.write_text("\n".join(("; MaxProcs: 8", *lines)) + "\n")
    return read_workload(path)


def test_a_parallel_job_of_swf_is_as_many_parts_of_one_cpu() -> None:
    workload = read_workload(NASA)

    assert (workload.format, len(workload.jobs), workload.nodes) == ("swf", 500, "128x1cpu")
    assert workload.jobs[0] == TraceJob(
        name="1",
        submit_ms=0,
        run_ms=1_451_000,
        count=128,
        profile=ResourceProfile(1_000),
        owners={"user": "1", "group": "1"},
    )


def test_swf_memory_is_what_was_asked_for_per_processor_else_what_was_used(tmp_path: Path) -> None:
    used = LINE.replace("1 10", "2 11").replace(" 1024 1 7", " -1 1 7")

    workload = swf(tmp_path, LINE, used)

    assert [each.profile.memory_bytes for each in workload.jobs] == [1024 * KIB, 2048 * KIB]
    assert workload.jobs[0].submit_ms == 10_000


def test_waits_are_kept_where_the_log_records_them(tmp_path: Path) -> None:
    waited = LINE.replace("1 10 -1", "1 10 77")
    assert [each.waited_ms for each in swf(tmp_path, LINE, waited).jobs] == [None, 77_000]
    assert job(read_workload(WAGAP), "1").waited_ms == 71_000
    assert job(read_workload(OPENB), "openb-pod-0005").waited_ms == 2_000
    assert read_workload(DLRM).jobs[0].waited_ms is None


def test_swf_records_that_are_no_jobs_to_run_are_counted(tmp_path: Path) -> None:
    def changed(**fields: str) -> str:
        names = {"run": 3, "processors": 4, "requested": 7, "status": 10}
        texts = LINE.split()
        for name, text in fields.items():
            texts[names[name]] = text
        return " ".join(texts)

    workload = swf(
        tmp_path,
        changed(run="-1"),
        changed(processors="-1"),
        changed(processors="-1", requested="2"),
        changed(status="3"),
    )

    assert [each.count for each in workload.jobs] == [2]
    assert workload.left_out == {
        "no run time recorded": 1,
        "no processors recorded": 1,
        "part of a job that has a separate line": 1,
    }


def test_jobs_of_the_grid_ask_for_nodes_of_a_cluster() -> None:
    workload = read_workload(WAGAP)

    whole, parts = job(workload, "0"), job(workload, "6")
    assert whole.labels == (("cluster", "zewura"),)
    assert whole.whole_nodes
    assert (whole.count, whole.profile) == (1, ResourceProfile(64_000, 64 * GIB))
    assert (parts.count, parts.profile) == (8, ResourceProfile(8_000, 8 * GIB))
    assert parts.labels == (("cluster", "zegox"),)
    assert job(workload, "1").labels == ()
    assert workload.left_out == {"no end recorded": 2}


def test_a_grid_job_with_half_a_cpu_more_has_the_cpus_that_the_log_counts() -> None:
    assert job(read_workload(WAGAP), "133").profile.cpu_milli == 1_000


def test_a_share_of_a_gpu_is_counted_in_hundredths() -> None:
    workload = read_workload(OPENB)

    shared, none = job(workload, "openb-pod-0001"), job(workload, "openb-pod-0005")
    assert shared.profile == ResourceProfile(
        6_000, 12_288 * MIB, devices=device_requests({"gpu": 46})
    )
    assert shared.run_ms == (12_902_960 - 427_061) * 1_000
    assert none.profile.devices == ()
    assert shared.owners == {"qos": "LS"}


def test_parts_of_a_gpu_are_rounded_up_and_several_come_from_different_gpus() -> None:
    assert gpus(0) == gpus(1, 0) == ()
    assert gpus(1, 461) == device_requests({"gpu": 47})
    assert gpus(2) == device_requests({"gpu": 200})
    (several,) = gpus(2, 500)
    assert (several.count, several.is_shared) == (2, True)
    assert several.amounts == (("gpu-core", 50), ("gpu-memory-ratio", 50))


def test_a_request_that_accepts_some_gpus_goes_to_nodes_with_one_of_them(tmp_path: Path) -> None:
    text = OPENB.read_text().splitlines()
    path = tmp_path / "pods.csv"
    path.write_text("\n".join((text[0], text[1].replace(",1000,,", ",1000,V100|T4,"))))

    (request,) = read_workload(path).jobs[0].profile.devices
    assert request.selector == (LabelRule("model", ("T4", "V100")),)
    accepted = [request.accepts(equal_gpus(1, model).devices[0]) for model in ("V100", "P100", "")]
    assert accepted == [True, False, False]


def test_instances_last_from_before_the_log_and_until_its_end() -> None:
    workload = read_workload(DLRM)

    first = workload.jobs[0]
    end_ms = max(each.submit_ms + each.run_ms for each in workload.jobs)
    assert (first.submit_ms, first.run_ms) == (0, end_ms)
    assert first.profile == ResourceProfile(
        12_000,
        120 * GIB,
        extended=(("disk_gib", 640), ("rdma", 25)),
        devices=device_requests({"gpu": 100}),
    )
    assert first.owners == {"app": "0", "role": "HN"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (LINE + " 5", "broken.swf, line 2 is "),
        (LINE.replace(" 30 ", " soon "), "broken.swf, line 2, run time is 'soon'"),
        (LINE.replace("1 10", "1 -10"), "broken.swf, line 2, submit time is '-10'"),
        (LINE.replace(" 30 ", " nan "), "broken.swf, line 2, run time is 'nan'"),
        (LINE.replace(" 30 ", " 1e30 "), "broken.swf, line 2, run time is '1e30'"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_with_file_line_and_field(
    tmp_path: Path, line: str, told: str
) -> None:
    path = tmp_path / "broken.swf"
    path.write_text(f"; a comment\n{line}\n")
    with pytest.raises(InvalidArgument) as caught:
        read_workload(path)
    assert str(caught.value).startswith(told)
    assert "; expected" in str(caught.value)


def test_a_csv_record_with_too_few_fields_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text("".join(OPENB.read_text().splitlines(keepends=True)[:3]) + "a,b\n")
    with pytest.raises(InvalidArgument, match=r"pods\.csv, line 4 .* 11 fields as in the header"):
        read_workload(path)


@pytest.mark.parametrize("path", [OPENB, DLRM])
def test_what_ends_before_it_begins_is_refused(tmp_path: Path, path: Path) -> None:
    header, *records = path.read_text().splitlines()
    column = header.split(",").index("deletion_time")
    record = next(each for each in records if each.split(",")[column])
    fields = record.split(",")
    fields[column] = "1"
    fields[header.split(",").index("scheduled_time")] = "2"
    broken = tmp_path / "log.csv"
    broken.write_text(f"{header}\n{','.join(fields)}\n")
    with pytest.raises(InvalidArgument, match="line 2, deletion_time is '1'"):
        read_workload(broken)


def test_a_file_that_is_no_log_is_told_what_would_be_one(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing\n")
    with pytest.raises(InvalidArgument, match="begins like one of swf, wagap, openb, dlrm"):
        read_workload(path)
    with pytest.raises(InvalidArgument, match="--format is 'csv'; expected one of swf"):
        read_workload(path, "csv")
    with pytest.raises(InvalidArgument, match="list of nodes, which --nodes takes"):
        read_workload(TRACES / "openb-nodes-cut.csv")
    with pytest.raises(InvalidArgument, match="header with the column job"):
        read_workload(path, "wagap")


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    cut = tmp_path / "cut.swf.gz"
    cut.write_bytes(gzip.compress(f"{LINE}\n".encode() * 500)[:-12])
    with pytest.raises(InvalidArgument, match="a whole gzip file"):
        read_workload(cut)
    with pytest.raises(InvalidArgument, match="a file that can be read"):
        read_workload(tmp_path / "missing.swf")
    with pytest.raises(InvalidArgument, match="a file that can be read"):
        read_workload(tmp_path)
