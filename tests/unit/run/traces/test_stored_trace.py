"""Traces that were read, kept as a run: what its record says, and what it leaves open."""

import pytest

from distbench.api.traces import TraceReport, trace
from distbench.core.errors import UsageError
from distbench.query.tables import TABLES
from distbench.record import Record
from distbench.run.traces.stored_trace import ReadTrace, trace_record
from distbench.run.traces.trace_rows import table_name
from support.chrome_traces import ChromeTrace

MS = 1e-3


def traced(rank: int, **about: object) -> ChromeTrace:
    """Two steps of 50 ms: 20 of computation, an all-reduce of 4000 bytes, and an idle rest."""
    made = ChromeTrace(rank=rank)
    for step in (0, 1):
        begin = 50.0 * step
        made.step(step, begin, begin + 49).op("aten::mm", begin + 0.5, begin + 1)
        made.kernel("gemm", begin + 0.6, begin + 1, begin + 21)
        made.collective(begin + 2, begin + 21, begin + 31, **about)
        made.memory(begin + 1, 500, 9000, reserved=12_000).memory(begin + 2, -500, 8500, reserved=12_000)
    # a step ends where the work of the next one begins, and the last with its own
    return made.kernel("last", 89, 99, 101)


def read(folder, *traces: ChromeTrace) -> TraceReport:
    return trace([each.write(folder / f"{i}.json") for i, each in enumerate(traces)])


def recorded(report: TraceReport) -> Record:
    tables = {name: make() for name, make in report.makers.items()}
    return trace_record(ReadTrace(report.job, tables, report.notes), "0123abcd")


def test_a_record_has_the_numbers_of_the_trace_by_the_definitions_of_measured_trials(tmp_path):
    record = recorded(read(tmp_path, traced(0), traced(1)))
    assert (record.case.name, record.case.device) == ("trace/ws2", "cuda")
    assert [device.kind for device in record.devices if device] == ["cuda"] * 2
    assert record.samples["step_s"] == [pytest.approx([50 * MS, 50 * MS])] * 2
    assert record.samples["profile_idle_s"][0] == pytest.approx([20 * MS, 18 * MS])
    for name in ("comm_s", "comm_exposed_s", "comm_transfer_s"):
        assert record.values[name] == pytest.approx(10 * MS), name
    assert (record.values["comm_calls"], record.values["comm_bytes"]) == (1, 4000)
    assert record.values["work_s"] == pytest.approx(50 * MS) and record.values["imbalance"] == 1
    assert (record.values["memory_peak"], record.values["memory_reserved_peak"]) == (9000, 12_000)
    assert "profiler" in record.columns["step_s"]["doc"]


def test_waiting_for_a_late_rank_is_no_work(tmp_path):
    record = recorded(read(tmp_path, traced(0), traced(1)))
    late = ChromeTrace(rank=1)
    late.events = [
        {**event, "ts": event["ts"] + 5e3, "dur": event["dur"] - 5e3} if "nccl" in event["name"] else event
        for event in traced(1).events
    ]
    waiting = recorded(read(tmp_path, traced(0), late))
    assert record.values["comm_wait_s"] == pytest.approx(0, abs=1e-9)
    assert [rank[0] for rank in waiting.samples["comm_wait_s"]] == pytest.approx([5 * MS, 0], abs=1e-9)
    assert [rank[0] for rank in waiting.samples["work_s"]] == pytest.approx([45 * MS, 50 * MS])


def test_what_traces_do_not_tell_is_absent_with_a_reason(tmp_path):
    record = recorded(read(tmp_path, traced(0), traced(1)))
    unknown = ("tokens_per_s", "final_loss", "profile_forward_s", "comm_bytes_theory", "memory_parameters")
    assert all(record.absent[name] and name not in record.values for name in unknown)
    assert not record.absent.keys() & record.values.keys()
    assert record.columns.keys() == record.absent.keys() | record.values.keys()
    bare = ChromeTrace(world_size=1).op("aten::mm", 0, 9).memory(1, 8, 8, device=None)
    host = recorded(read(tmp_path, bare))
    assert host.case.device == "cpu" and "under the profiler" in host.absent["memory_peak"]


def test_ranks_without_a_trace_have_no_numbers_and_others_keep_theirs(tmp_path):
    one = traced(1)
    one.world_size = 4
    record = recorded(read(tmp_path, one))
    assert record.case.world_size == 4 and "imbalance" not in record.values
    assert [len(rank) for rank in record.samples["step_s"]] == [0, 2, 0, 0]
    assert [device is None for device in record.devices] == [True, False, True, True]
    assert "could be matched" in record.absent["work_s"]


def test_only_steps_that_all_ranks_have_are_kept(tmp_path):
    longer = traced(1).step(2, 100, 149).kernel("gemm", 101, 120, 130)
    record = recorded(read(tmp_path, traced(0), longer))
    assert [len(rank) for rank in record.samples["step_s"]] == [2, 2]
    other = ChromeTrace(rank=1).step(7, 0, 9).kernel("gemm", 1, 2, 3)
    with pytest.raises(UsageError, match="no step is in the traces of all ranks"):
        recorded(read(tmp_path, traced(0), other))
    foreign = traced(1)
    foreign.world_size = 8
    with pytest.raises(UsageError, match=r"different world sizes \(2, 8\)"):
        recorded(read(tmp_path, traced(0), foreign))


def test_collectives_stand_among_those_of_measured_trials_if_all_of_them_are_known(tmp_path):
    record = recorded(read(tmp_path, traced(0), traced(1)))
    first = record.tables["collectives"][0]
    known = ("rank", "step", "op", "group", "group_size", "dtype", "bytes", "wire_bytes")
    assert [first[name] for name in known] == [0, 0, "all_reduce", "0,1", 2, "fp32", 4000, 4000]
    unnamed = {"Process Group Ranks": "", "Process Group Name": "7"}
    record = recorded(read(tmp_path, *(traced(rank, **unnamed) for rank in (0, 1))))
    assert "collectives" not in record.tables and record.tables["trace_collectives"]


def test_a_timeline_has_the_lanes_of_the_step_in_the_middle(tmp_path):
    rows = recorded(read(tmp_path, traced(0), traced(1))).tables["timeline"]
    assert {(row["rank"], row["kind"]) for row in rows} == {
        (rank, kind) for rank in (0, 1) for kind in ("step", "compute", "communication")
    }
    (reduction,) = (row for row in rows if row["kind"] == "communication" and row["rank"] == 0)
    assert (reduction["name"], reduction["group"], reduction["step"]) == ("all_reduce", "0,1", 0)
    assert reduction["exposed_s"] == pytest.approx(10 * MS)


def test_every_table_of_a_trace_is_kept_under_a_name_of_its_own(tmp_path):
    report = read(tmp_path, traced(0), traced(1))
    record = recorded(report)
    for name in report.tables:
        rows = report.table(name, "records")
        assert record.tables.get(table_name(name), []) == rows, name
        assert table_name(name) not in TABLES and table_name(name) in record.described_tables
    assert len(report.tables) >= 9
