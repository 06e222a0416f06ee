"""The bubble of a pipeline: by its order, by a trace, as it is drawn, and of stages that sleep."""

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from distbench.analysis.pipeline import pipeline_passes as passes_of
from distbench.analysis.pipeline import rank_waits
from distbench.metrics.profile import pipeline
from distbench.metrics.profile.breakdown import clip_to_wait
from distbench.metrics.profile.collective_wait import CollectiveTiming, shortest_seconds
from distbench.metrics.profile.kineto import read_kineto
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.strategies.pp import order
from distbench.traces.trace import ProfilerEvent
from distbench.views.charts.pipeline import ScheduleCase, schedule_figure
from distbench.views.pipeline import PipelineView
from support.profiler_events import Events
from support.records import case, measured, run_of

MS = 1e-3

ONE_F_ONE_B = {0: ["0F0", "0F1", None, "0B0", "0B1"], 1: ["1F0", "1B0", "1F1", "1B1", "1REDUCE_GRAD"]}
SPLIT_BACKWARD = {
    0: ["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"],
    1: ["1F0", "1I0", "1F1", "1W0", "1I1", "1W1"],
}


def schedule_order(written: dict[int, list[str | None]]) -> dict[int, order.RankOrder]:
    return {rank: order.parse_order(of) for rank, of in written.items()}


def test_an_order_says_how_long_its_ranks_wait_and_what_they_keep():
    assert order.parse_order(
        [None, "12F3", "(0F4;7B1)OVERLAP_F_B", "3SEND_F1", "2UNSHARD", "1REDUCE_GRAD"]
    ) == [[(12, "F", 3)], [(0, "F", 4), (7, "B", 1)]]
    # (p - 1) / (m + p - 1)
    assert order.simulate_bubble(schedule_order(ONE_F_ONE_B)) == pytest.approx(1 / 3)
    # of 8 units each rank works 6: rank 0 waits from 2 to 3 and from 5 to 6, rank 1 before 1 and from 7 on
    assert order.simulate_bubble(schedule_order(SPLIT_BACKWARD)) == pytest.approx(1 / 4)
    assert [order.max_in_flight(each) for each in schedule_order(ONE_F_ONE_B).values()] == [{0: 2}, {1: 1}]
    # what the weights' half needs is kept until then
    assert order.max_in_flight(order.parse_order(["0F0", "0I0", "0F1", "0W0", "0B1"])) == {0: 2}
    with pytest.raises(ValueError, match="no rank can continue"):
        order.simulate_bubble(schedule_order({0: ["0B0", "0F0"], 1: ["1F0", "1B0"]}))


def test_what_a_pair_has_made_is_sent_when_both_have_ended():
    rank = ["0F0", "0F1", "0B0", "0B1"]
    assert order.simulate_bubble(schedule_order({0: rank, 1: ["1F0", "1F1", "1B0", "1B1"]})) == pytest.approx(
        1 - 12 / 18
    )
    # rank 0 has the first gradient two units later
    late = ["1F0", "1F1", "(1B0;1B1)OVERLAP_F_B"]
    assert order.simulate_bubble(schedule_order({0: rank, 1: late})) == pytest.approx(1 - 12 / 22)


def test_with_fewer_micro_batches_than_ranks_several_stages_a_rank_wait_as_their_order_says():
    # 0 runs its two stages one after the other for one micro-batch, and waits for 1 in between
    alone = {0: ["0F0", "2F0", "2B0", "0B0"], 1: ["1F0", "3F0", "3B0", "1B0"]}
    told = order.schedule_theory("Interleaved1F1B", 2, 1, 2, alone)
    assert told["bubble_theory"] == pytest.approx(1 / 2), "by the formula for full rounds 1/3"
    assert order.schedule_theory("LoopedBFS", 2, 1, 2, alone)["bubble_theory"] == pytest.approx(1 / 2)


def test_theory_is_by_formula_where_there_is_one_and_else_by_the_order():
    told = order.schedule_theory("1F1B", 4, 8, 1, {})
    assert told == {"bubble_theory": 3 / 11, "in_flight_theory": [4, 3, 2, 1]}
    assert order.schedule_theory("LoopedBFS", 2, 3, 2, {})["in_flight_theory"] == [3, 3, 3, 3]
    told = order.schedule_theory("InterleavedZeroBubble", 2, 2, 1, SPLIT_BACKWARD)
    assert told == {"bubble_theory": pytest.approx(1 / 4), "in_flight_theory": [2, 2]}


def step_with_idle_time() -> Events:
    """Stage 1 in a step of 100 ms: it waits 20 ms for a forward and 15 for a backward pass."""
    return (
        Events()
        .mark("step", 0, 100)
        .mark("data", 0, 5)
        .mark("1F0", 30, 50)
        .mark("forward", 30, 50)
        .mark("1B0", 70, 90)
        .mark("backward", 70, 90)
        # the loss belongs to no pass, and is computed all the same
        .op("aten::nll_loss", 50, 52)
        .mark("optimizer", 92, 98)
        .op("aten::_fused_adamw_", 92, 98)
    )


PENDING, MOVING = [(6, 30), (50, 72)], [(26, 30), (68, 72)]


def values_of(events: Events, pending: list[tuple[int, int]], moving: Any) -> dict[str, float | None]:
    trace = read_kineto(events.found)
    (step,) = trace.marks["step"]
    at = step[0]
    moved = moving and [(at + begin * MS, at + end * MS) for begin, end in moving]
    return pipeline.bubble_values(
        trace, step, [(at + begin * MS, at + end * MS) for begin, end in pending], moved
    )


def test_the_bubble_is_idle_waiting_without_the_messages_own_time():
    found = values_of(step_with_idle_time(), PENDING, MOVING)
    # of 6 to 30 the last 4 ms are the message; of 50 to 72 the loss has 2 ms, the message and the pass 2 each
    assert found == pytest.approx(
        {"bubble_s": 36 * MS, "pipeline_transfer_s": 6 * MS, "bubble": 0.36}, abs=1e-5
    )


def test_what_runs_between_passes_without_anything_pending_is_no_bubble():
    assert values_of(step_with_idle_time(), [], []) == {"bubble_s": 0, "pipeline_transfer_s": 0, "bubble": 0}


def test_without_the_times_of_messages_nothing_is_claimed_and_what_is_no_pipeline_has_no_such_numbers():
    assert values_of(step_with_idle_time(), PENDING, None) == {
        "bubble_s": None,
        "pipeline_transfer_s": None,
        "bubble": None,
    }
    assert values_of(Events().mark("step", 0, 9).mark("forward", 0, 9), PENDING, MOVING) == {}


def test_on_a_gpu_a_pass_lasts_as_long_as_its_kernels_and_the_host_does_not_count():
    events = Events().mark("step", 0, 100).mark("0F0", 0, 10).mark("0B0", 10, 90)
    events.kernel("sgemm", 5, 20, 40).kernel("sgemm_bwd", 12, 60, 80)
    trace = read_kineto(events.found)
    (step,) = trace.marks["step"]
    assert [in_ms(row) for row in pipeline.pipeline_rows(trace, step, 0, 0.0)] == [
        (0, "F", 0, 20, 40),
        (0, "B", 0, 60, 80),
    ]
    assert values_of(events, [(40, 60)], [(55, 60)])["bubble_s"] == pytest.approx(15 * MS)


def in_ms(row: dict[str, Any]) -> tuple[Any, ...]:
    times = [round(row[key] / MS, 3) for key in ("begin_s", "end_s")]
    return row["stage"], row["pass"], row["micro_batch"], *times


def test_passes_are_kept_with_their_numbers_and_those_of_a_second_schedule_go_on_counting():
    events = Events().mark("step", 0, 100)
    for begin in (0, 50):
        for micro_batch in (0, 1):
            events.mark(f"2I{micro_batch}", begin + 20 * micro_batch, begin + 20 * micro_batch + 8)
            events.mark(f"2W{micro_batch}", begin + 20 * micro_batch + 8, begin + 20 * micro_batch + 20)
    trace = read_kineto(events.found)
    (step,) = trace.marks["step"]
    rows = [in_ms(row) for row in pipeline.pipeline_rows(trace, step, 3, 2 * MS)]
    assert rows[:2] == [(2, "I", 0, 2, 10), (2, "W", 0, 10, 22)]
    assert [micro_batch for _, kind, micro_batch, *_ in rows if kind == "W"] == [0, 1, 2, 3]


def test_a_message_takes_no_longer_than_from_when_both_ends_are_there():
    sent, received = part(1000, 1000, 1100, "send"), part(900, 900, 1050, "recv")
    assert shortest_seconds([sent, received], one_clock=True) == pytest.approx(0.05)
    assert shortest_seconds([received, sent], one_clock=True) == pytest.approx(0.05)
    assert shortest_seconds([sent, received], one_clock=False) == pytest.approx(0.1)
    # one that lay ready before it was asked for, and a collective
    assert shortest_seconds([part(0, 0, 1, "send"), part(1000, 1000, 1002, "recv")], one_clock=True) == 0.001
    reduced = [part(begin, begin, 2000, "all_reduce") for begin in (0, 1000)]
    assert shortest_seconds(reduced, one_clock=True) == 1


def test_a_message_takes_no_longer_than_its_receiver_waits_for_it():
    # both posted long before: the receiver computed until 500, the sender looked only at 900
    sent, received = part(100, 900, 900, "send"), part(90, 500, 502, "recv")
    assert shortest_seconds([sent, received], one_clock=True) == pytest.approx(0.002)
    # on two clocks no more is known than what either end saw
    assert shortest_seconds([sent, received], one_clock=False) == pytest.approx(0.002)


def part(posted_ms: int, began_ms: int, end_ms: int, op: str) -> CollectiveTiming:
    return CollectiveTiming(*(at * 10**6 for at in (posted_ms, began_ms, end_ms)), op)


def test_a_message_counts_from_when_it_is_waited_for():
    waits = [(50.0, 60.0), (95.0, 96.0)]
    # posted at 11 and received while the rank waited; sent at 12, and looked at when nothing was left to do
    received, sent = (
        ProfilerEvent(name, 1, *times) for name, times in {"recv": (11, 60), "send": (12, 96)}.items()
    )
    assert [clip_to_wait(each, waits).interval for each in (received, sent)] == [(50, 60), (95, 96)]
    # what the host does not say it waits for it waits for at once, as DeepSpeed does for messages
    assert clip_to_wait(replace(sent, end=94.0), waits).interval == (12, 94)
    assert clip_to_wait(ProfilerEvent("all_reduce", 7, 12, 96), waits).interval == (12, 96)
    on_device = ProfilerEvent("send_recv", 7, 12, 96, launched=11)
    assert clip_to_wait(on_device, waits) == on_device


def row(rank: int, kind: str, begin: float, **changes: Any) -> dict[str, Any]:
    place = {"rank": rank, "stage": rank, "micro_batch": 0, "step": 0}
    return {**place, "pass": kind, "begin_s": begin, "end_s": begin + 0.01, **changes}


def record_with_profile(*rows: dict[str, Any], **effective: Any) -> Record:
    shares = {"bubble": [[0.2, 0.3], [0.5, 0.5]], "bubble_s": [[0.02, 0.03], [0.05, 0.05]]}
    samples = {"profile_step_s": [[0.1, 0.1]] * 2, "pipeline_transfer_s": [[0.0, 0.01]] * 2, **shares}
    record = measured(case("pp"), bubble=0.375, bubble_theory=1 / 3)
    columns = {name: {"unit": "", "better": "lower", "over_ranks": "mean", "doc": ""} for name in samples}
    columns["bubble_theory"] = {"unit": "", "better": None, "over_ranks": "first", "doc": ""}
    return replace(
        record,
        columns={**record.columns, **columns},
        samples={**record.samples, **samples},
        tables={"pipeline": [*rows]},
        effective=effective,
    )


ROWS = (row(0, "F", 0.0), row(1, "F", 0.01), row(1, "B", 0.02), row(0, "B", 0.03))


def test_the_view_tells_of_each_rank_how_long_it_waited_beside_theory():
    record = record_with_profile(*ROWS, in_flight=[1, 1], in_flight_theory=[2, 1])
    run = run_of(record)
    sheet = PipelineView().table(run)
    told = [(each["rank"], each["stages"], each["bubble"], each["bubble_theory"]) for each in sheet.records()]
    assert told == [(0, "0", 0.25, 1 / 3), (1, "1", 0.5, 1 / 3)]
    first = sheet.records()[0]
    assert (first["in_flight"], first["in_flight_theory"], first["transfer_s"]) == ("1", "2", 0.005)
    (chart,) = PipelineView().charts(run)
    assert chart.finding == "Largest bubble: pp[a], 38% of the step (33% by theory), mean over ranks."


def test_the_schedule_is_drawn_as_it_ran_a_box_for_each_pass_in_the_lane_of_its_rank():
    record = record_with_profile(*ROWS)
    drawn = schedule_figure([ScheduleCase("id", "pp", passes_of(record))], [0])["data"]
    assert [(trace["name"], trace["base"], trace["y"], trace["text"]) for trace in drawn] == [
        ("forward", [0, 10], [0, 1], ["0.0", "1.0"]),
        ("backward", [20, 30], [1, 0], ["1.0", "0.0"]),
    ]
    assert all(width == pytest.approx(10) for trace in drawn for width in trace["x"])


def test_activations_are_what_a_forward_pass_leaves_times_the_micro_batches_in_flight():
    # two stages on a rank: of 100 bytes and of 10, after the batch's 7
    sizes = [("forward", 0, 107), ("forward", 0, 207), ("forward", 1, 217), ("backward", 1, 207)]
    sizes += [("forward", 1, 217), ("backward", 1, 207), ("backward", 0, 107)]
    rows = [{"rank": 0, "phase": phase, "stage": stage, "activations": of} for phase, stage, of in sizes]
    rows.insert(0, {"rank": 0, "phase": "build", "activations": 5000})
    passes = [row(0, "F", 0.0), row(0, "F", 0.01, stage=1)]
    record = record_with_profile(*passes, in_flight_theory=[2, 1])
    record = replace(record, tables={**record.tables, "memory": rows})
    record = replace(record, samples={**record.samples, "memory_activations": [[217.0], [0.0]]})
    (found,) = rank_waits(record)
    assert [each.micro_batch_bytes for each in found.stages] == [100, 10]
    assert (found.activations, found.activations_theory) == (217, 210)
    (unknown,) = rank_waits(replace(record, effective={}))
    assert unknown.activations_theory is None


@pytest.mark.parametrize(
    "change",
    [{"pass": "X"}, {"stage": None}, {"begin_s": float("nan")}, {"end_s": -1.0}, {"micro_batch": "0"}],
)
def test_a_row_that_no_pipeline_has_is_left_out(change):
    assert len(passes_of(record_with_profile({**ROWS[0], **change}, *ROWS[1:]))) == 3


SLOW_STAGES = """
workload: {{drowsy: {{depth: {depth}, seconds: {seconds}}}}}
batch: {{global_batch_size: 16, micro_batch_size: 16}}
launcher: {{kept: {{oversubscribe: true}}}}
measure: {{warmup: 1, steps: 1, trials: 1, profile_steps: 1}}
world_sizes: [{ranks}]
strategies: [{{pp: {{schedule: [{schedules}], micro_batches: {micro_batches}}}}}]
"""


@pytest.mark.train
def test_the_passes_of_a_real_pipeline_its_waiting_and_what_it_keeps_are_in_the_record(run_suite):
    suite = SLOW_STAGES.format(depth=2, seconds=0.05, ranks=2, micro_batches=2, schedules="1F1B")
    done = run_suite(suite)
    assert done.code == 0, done.errors
    (record,) = Run(done.folder).records()
    ran = {(each.rank, f"{each.stage}{each.kind}{each.micro_batch}") for each in passes_of(record)}
    assert ran == {(stage, f"{stage}{kind}{part}") for stage in (0, 1) for kind in "FB" for part in (0, 1)}
    assert record.effective["in_flight"] == record.effective["in_flight_theory"] == [2, 1]
    found = record.values
    assert found["bubble_theory"] == pytest.approx(1 / 3)
    assert {row.get("stage") for row in record.tables["memory"] if row["phase"] == "forward"} == {0, 1}
    first, last = rank_waits(record)
    for of in (first, last):
        # the batch and the loss are in one and not in the other, and here are as large
        assert of.activations and of.activations_theory
        assert 0.4 * of.activations < of.activations_theory < 1.1 * of.activations
    # rank 0 waits for at least half of the second stage's backward pass, whatever else the machine does
    waited = record.samples["bubble_s"][0][0]
    assert waited is not None and 0.05 < waited < found["profile_step_s"] - 6 * 0.05


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("depth", "schedules"),
    [
        (4, ("GPipe", "1F1B")),
        (8, ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")),
    ],
)
def test_stages_that_sleep_wait_as_long_as_their_schedule_says(depth, schedules, run_suite):
    chosen = ", ".join(schedules)
    done = run_suite(SLOW_STAGES.format(depth=depth, seconds=0.1, ranks=4, micro_batches=8, schedules=chosen))
    assert done.code == 0, done.errors
    records = {record.effective["schedule"]: record for record in Run(done.folder).records()}
    for schedule in schedules:
        record, found = records[schedule], records[schedule].values
        assert found["bubble"] == pytest.approx(found["bubble_theory"], abs=0.03), schedule
        # what is left of the step beside the passes is waiting and messages
        worked = sum(each.end - each.begin for each in passes_of(record)) / 4 / found["profile_step_s"]
        idle = found["bubble"] + found["pipeline_transfer_s"] / found["profile_step_s"]
        assert idle == pytest.approx(1 - worked, abs=0.03), schedule
        # sends that nobody waits for until the end are no communication until then
        assert found["comm_s"] < (1 - worked + 0.03) * found["profile_step_s"], schedule
        assert record.effective["in_flight"] == record.effective["in_flight_theory"], schedule


@pytest.mark.train
def test_marks_of_waits_keep_no_engine_in_memory():
    from distbench.strategies.pp import stage_facts
    from distbench.strategies.torch_engine.engine import TorchEngine

    engine = TorchEngine.__new__(TorchEngine)
    stage_facts.time_message_waits(engine)
    freed = weakref.ref(engine)
    del engine
    gc.collect()
    assert freed() is None
