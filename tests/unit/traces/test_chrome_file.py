"""Chrome traces from files: whole, compressed, cut off, damaged, and files that are something else."""

import json
import re

import pytest

from distbench.traces.chrome_file import TraceFileError, read_file
from distbench.traces.trace import read_trace
from support.chrome_traces import ChromeTrace, training_step


@pytest.mark.parametrize("name", ["rank0.json", "rank0.pt.trace.json.gz"])
def test_a_file_has_its_rank_device_and_events(tmp_path, name):
    file = read_file(training_step().write(tmp_path / name))
    assert (file.rank, file.world_size, file.device) == (0, 2, "NVIDIA H100 80GB HBM3")
    trace = read_trace(file.events, file.origin_ns)
    assert [kernel.name for kernel in trace.kernels] == ["gemm", "elementwise", "fill"]
    assert [(copy.name[:11], round(copy.begin * 1e3, 6)) for copy in trace.copies] == [("Memcpy HtoD", 55)]
    assert [step.name for step in trace.steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    (collective,) = trace.backend_events
    assert collective.arguments["Collective name"] == "allreduce"
    assert round((collective.launched or 0) * 1e3, 6) == 15
    assert file.origin_ns == 1_000_000_000
    assert file.notes == []


def test_times_begin_where_the_clock_of_the_file_says(tmp_path):
    made = training_step().as_json() | {"baseTimeNanoseconds": 1_790_000_000_000_000_000}
    (path := tmp_path / "t.json").write_text(json.dumps(made))
    assert read_file(path).origin_ns == 1_790_000_001_000_000_000


def test_a_list_of_events_and_categories_of_old_versions_are_read(tmp_path):
    events = ChromeTrace().kernel("gemm", 1, 2, 3).events
    old = [event | {"cat": {"kernel": "Kernel", "cuda_runtime": "Runtime"}[event["cat"]]} for event in events]
    (path := tmp_path / "t.json").write_text(json.dumps(old))
    (kernel,) = read_trace(read_file(path).events).kernels
    assert kernel.name == "gemm" and kernel.launch_thread is not None


def test_what_comes_before_the_end_of_a_cut_off_file_is_used(tmp_path):
    whole = training_step().write(tmp_path / "whole.json").read_bytes()
    (path := tmp_path / "cut.json").write_bytes(whole[: whole.index(b"elementwise")])
    file = read_file(path)
    assert [event.name for event in file.events if event.kind == "kernel"] == [
        "gemm",
        "ncclDevKernel_Generic(...)",
    ]
    assert file.notes == ["the file is cut off; the events before that are used"]


def test_what_comes_before_the_end_of_a_cut_off_archive_is_used(tmp_path):
    trace = ChromeTrace()
    for i in range(20_000):
        trace.kernel(f"kernel {i * 7919 % 10007}", i, i + 0.1, i + 0.5)
    whole = trace.write(tmp_path / "whole.json.gz").read_bytes()
    (path := tmp_path / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    file = read_file(path)
    assert 5_000 < sum(event.kind == "kernel" for event in file.events) < 20_000
    assert "cut off or damaged" in file.notes[0] and len(file.notes) == 2


def test_numbers_and_bytes_that_json_does_not_allow_are_read(tmp_path):
    text = json.dumps(training_step().as_json()).replace('"stream": 7', '"occupancy": -nan, "stream": 7')
    (path := tmp_path / "t.json").write_bytes(text.encode().replace(b"elementwise", b"f\xff"))
    kernels = [event.name for event in read_file(path).events if event.kind == "kernel"]
    assert kernels[0] == "gemm" and "f\ufffd" in kernels


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"<!DOCTYPE html><html>sign in</html>", "a page of HTML or XML"),
        (b"\x80\x04\x95 a pickle", "it is not JSON"),
        (b'{"suite": "zero"}', 'it has no "traceEvents"'),
        (b'{"traceEvents": []}', "no event in it is of torch.profiler"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "browser", "ts": 1, "dur": 2}]}',
            "its kinds of events: browser",
        ),
        (b'{"traceEvents": [{"ph": "X"', "it can't be read as JSON"),
        (b'{"traceEvents": 3}', "it is no Chrome trace"),
        (b"\x1f\x8b\x08\x00garbage", "damaged"),
    ],
)
def test_a_file_that_is_no_trace_is_named_with_the_reason(tmp_path, content, words):
    (path := tmp_path / "rank0.json").write_bytes(content)
    with pytest.raises(TraceFileError, match=r"rank0\.json") as error:
        read_file(path)
    assert words in str(error.value)


def test_a_file_that_is_not_there_and_a_folder_are_errors(tmp_path):
    for path in (tmp_path / "no.json", tmp_path):
        with pytest.raises(TraceFileError, match=re.escape(str(path))):
            read_file(path)
