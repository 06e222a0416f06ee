"""One step on a timeline: what is kept of a trace, and what a reader makes of it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from distbench.analysis.step_timeline import Activity, RankStep, rank_steps
from distbench.metrics.profile.kineto import read_kineto
from distbench.metrics.profile.step_timeline import (
    MAX_INTERVALS,
    CollectiveInterval,
    ProfiledStepTimes,
    select_step,
    timeline_rows,
)
from distbench.record import Record
from distbench.views.charts.timeline import MAX_ACTIVITIES, TimelineCase, timeline_figure
from distbench.views.timeline import TimelineView
from support.profiler_events import Events, cpu_step
from support.records import case, measured, run_of

MS = 1e-3
DDP = case("ddp")


def kept(events: Events, *collectives: CollectiveInterval, late: float = 0.0) -> list[dict[str, Any]]:
    """Return the rows of the only step of *events*, as rank 0 leaves them in a record."""
    trace = read_kineto(events.found)
    (step,) = trace.marks["step"]
    return [{"rank": 0, **row} for row in timeline_rows(trace, step, collectives, 0, late)]


def record(*rows: dict[str, Any]) -> Record:
    return replace(measured(DDP), tables={"timeline": [*rows]})


def in_ms(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["name"], *(round(row[key] / MS, 3) for key in ("begin_s", "end_s", "busy_s"))


ALL_REDUCE = CollectiveInterval("all_reduce", "0,1", (45 * MS, 85 * MS), (45 * MS, 55 * MS))


def test_a_step_is_kept_by_part_and_by_collective_from_the_begin_of_the_first_rank():
    whole, *pieces = kept(cpu_step(), ALL_REDUCE, late=2 * MS)
    assert in_ms(whole) == ("", 2, 102, 91)
    assert [in_ms(row) for row in sorted(pieces, key=lambda row: (row["begin_s"], row["kind"]))] == [
        ("data", 2, 7, 5),
        ("forward", 8, 36, 28),
        # asking for the collective is no computation
        ("backward", 38, 46, 8),
        ("all_reduce", 47, 87, 40),
        ("backward", 47, 72, 25),
        ("optimizer", 88, 98, 10),
    ]
    (moved,) = [row for row in pieces if row["kind"] == "communication"]
    assert (moved["group"], round(moved["wait_s"] / MS), round(moved["exposed_s"] / MS)) == ("0,1", 10, 15)


def test_a_gpu_shows_its_kernels_where_they_ran_by_where_they_were_launched_and_its_copies():
    events = Events().mark("step", 0, 100).mark("forward", 4, 10).mark("backward", 10, 20)
    events.kernel("sgemm", 5, 20, 40).kernel("flash_bwd", 12, 40, 70)
    events.copy("Memcpy HtoD (Pinned -> Device)", 6, 10, 18)
    _, *pieces = kept(events)
    assert [(row["kind"], *in_ms(row)[:3]) for row in pieces] == [
        ("copy", "Memcpy HtoD (Pinned -> Device)", 10, 18),
        ("compute", "forward", 20, 40),
        ("compute", "backward", 40, 70),
    ]


def test_an_update_inside_of_the_backward_pass_stands_in_a_gap_of_it():
    events = (
        Events().mark("step", 0, 20).mark("backward", 2, 18).mark("optimizer", 5, 7).op("aten::mm", 2, 18)
    )
    _, *pieces = kept(events)
    assert [in_ms(row) for row in pieces] == [
        ("backward", 2, 5, 3),
        ("optimizer", 5, 7, 2),
        ("backward", 7, 18, 11),
    ]


def test_thousands_of_operations_fit_and_their_sum_stays_what_it_was():
    events = Events().mark("step", 0, 1000).mark("forward", 0, 1000)
    for i in range(400):
        events.op("aten::mm", 2.5 * i, 2.5 * i + 1.2)
    whole, *pieces = kept(events)
    assert len(pieces) <= MAX_INTERVALS
    assert sum(row["busy_s"] for row in pieces) == pytest.approx(whole["busy_s"]) == pytest.approx(0.48)
    assert whole["bridged_s"] >= 1.3 * MS, "and the record says which gaps it no longer shows"


def timeline_text(*seconds: float, work: float = 1.0, began: int = 0) -> ProfiledStepTimes:
    return ProfiledStepTimes([*seconds], [work] * len(seconds), [began] * len(seconds))


def test_the_step_is_the_median_one_of_the_slowest_rank_and_ranks_are_placed_on_their_nodes_clock():
    choice = select_step(
        [timeline_text(1, 9, 3), timeline_text(2, 1, 4, began=5_000_000), timeline_text(1, 1, 1, began=7)],
        [0, 0, 1],
    )
    assert choice is not None
    # slowest: 2, 9, 4; another node's clock says nothing here
    assert (choice.step, choice.offsets) == (2, {0: 0.0, 1: 5 * MS, 2: 0.0})
    assert select_step([timeline_text(), timeline_text(1)], [0, 0]) is None


def test_of_many_ranks_the_first_the_last_the_busiest_and_the_idlest_are_kept():
    ranks = [timeline_text(1, work=1 + rank / 100) for rank in range(64)]
    ranks[20], ranks[40] = timeline_text(1, work=0.2), timeline_text(1, work=9)
    choice = select_step(ranks, [0] * 64)
    assert choice is not None
    assert [*choice.offsets] == [0, 20, 40, 63]


def test_a_reader_finds_what_is_idle_and_what_stands_beside_it():
    (step,) = rank_steps(record(*kept(cpu_step(), ALL_REDUCE)))
    assert step.idle == pytest.approx(9 * MS)
    assert [(round(gap.seconds / MS), gap.previous, gap.following) for gap in step.idle_gaps()][:2] == [
        (4, "optimizer", ""),
        (2, "forward", "backward"),
    ]


def test_of_activities_that_end_at_once_the_longest_is_named_before_the_gap():
    pieces = (
        Activity("communication", "all_reduce", "0,1", 0, 20, 20),
        Activity("compute", "forward", "", 10, 20, 10),
    )
    step = RankStep(0, 0, 30, 20, 0.1, "", pieces)
    assert [(gap.begin, gap.end, gap.previous) for gap in step.idle_gaps()] == [(20, 30, "all_reduce")]


def test_a_coarser_step_has_fewer_pieces_and_the_same_sums():
    events = Events().mark("step", 0, 100).mark("forward", 0, 50).mark("backward", 50, 100)
    for begin in range(100):
        events.op("aten::mm", begin, begin + 0.4)
    (step,) = rank_steps(record(*kept(events)))
    coarse = step.merged_to(10)
    assert len(coarse.activities) <= 10 < len(step.activities)
    for name in ("forward", "backward"):
        sums = [sum(piece.busy for piece in each.activities_of("compute", name)) for each in (step, coarse)]
        assert sums == pytest.approx([20 * MS] * 2, rel=1e-4)
    assert len(step.merged_to(1).activities) == 2, "one for each part"


@pytest.mark.parametrize(
    "change",
    [
        {"begin_s": None},
        {"end_s": float("inf")},
        {"end_s": -1.0},
        {"kind": "step", "end_s": -1.0},
        {"kind": "other"},
        {"rank": None},
    ],
)
def test_a_row_that_no_step_has_is_left_out(change):
    whole, first, *rest = kept(cpu_step())
    (step,) = rank_steps(record(whole, {**first, **change}, *rest))
    assert [piece.name for piece in step.activities] == [row["name"] for row in rest]


def test_a_page_of_many_cases_has_no_more_pieces_than_it_can_hold():
    events = Events().mark("step", 0, 1000).mark("forward", 0, 1000)
    for i in range(200):
        begin = 1.5 * i + 0.015 * i**2
        events.op("aten::mm", begin, begin + 1)
    (step,) = rank_steps(record(*kept(events)))
    cases = [
        TimelineCase(str(i), f"case {i}", [replace(step, rank=rank) for rank in range(4)]) for i in range(40)
    ]
    made = timeline_figure(cases, [3, 7])
    assert 1_000 < sum(len(trace["x"]) for trace in made["data"]) <= MAX_ACTIVITIES
    assert made["layout"]["pair"]["chosen"] == [3, 7]
    assert made["layout"]["pair"]["cases"][0]["axis"]["ticktext"] == [
        f"rank {rank} compute" for rank in range(4)
    ]


def test_a_rank_that_talks_in_several_groups_has_a_lane_for_each():
    groups = [
        CollectiveInterval("all_gather", "0,1", (0, 9 * MS)),
        CollectiveInterval("all_reduce", "0,2", (5 * MS, 20 * MS)),
    ]
    (step,) = rank_steps(record(*kept(Events().mark("step", 0, 30), *groups)))
    made = timeline_figure([TimelineCase("a", "hybrid", [step])], [0])
    assert made["layout"]["pair"]["cases"][0]["axis"]["ticktext"] == ["rank 0 comm 0,1", "rank 0 comm 0,2"]
    assert [(trace["name"], trace["y"]) for trace in made["data"]] == [
        ("all_gather", [0]),
        ("all_reduce", [1]),
    ]


def test_of_messages_at_once_the_view_counts_the_time_once():
    """A message lasts until somebody waits for it: two of 20 ms are 25 ms of a step."""
    messages = (
        CollectiveInterval("send", "0,1", (0, 20 * MS)),
        CollectiveInterval("recv", "0,1", (5 * MS, 25 * MS)),
    )
    rows = kept(Events().mark("step", 0, 30), *messages)
    told = replace(record(*rows), samples={"comm_s": [[25 * MS]], "comm_exposed_s": [[25 * MS]]})
    (row,) = TimelineView().table(run_of(told)).rows
    assert [round(row.value(name) / MS) for name in ("communication_s", "exposed_s")] == [25, 25]


def test_the_view_says_what_a_rank_did_what_it_waited_for_and_where_its_trace_is():
    whole, *pieces = kept(cpu_step(), ALL_REDUCE)
    run = run_of(record({**whole, "trace": "rank0.trace.json.gz"}, *pieces))
    sheet = TimelineView().table(run)
    (row,) = json.loads(json.dumps(sheet.to_json()))["rows"]
    found = {
        key: round(row[f"{key}_s"] / MS, 1) for key in ("step", "forward", "communication", "wait", "idle")
    }
    assert found == {"step": 100, "forward": 28, "communication": 40, "wait": 10, "idle": 9}
    assert "copies" not in sheet.headings, "a CPU copies by operations"
    gap, traces = sheet.notes
    assert gap == "ddp, rank 0: idle for 4 ms at 96 ms, between optimizer and its end."
    assert f"trials/ddp-ws2-mb4-fp32-{DDP.id}/0/rank0.trace.json.gz" in traces
    assert "No profiled step was recorded" in TimelineView().table(run_of(measured(DDP))).notes[0]
