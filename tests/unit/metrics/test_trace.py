"""Arithmetic of intervals, and what a trace tells of a step: by hand, on a CPU and on a GPU."""

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distbench.metrics.base import NotAvailable, PassContext, TrialData
from distbench.metrics.communication import Communication
from distbench.metrics.communication.traffic import (
    CollectiveCall,
    CountedCollectives,
    bus_factor,
    wire_factor,
)
from distbench.metrics.profile import Profile, timeline
from distbench.metrics.profile.breakdown import STEP_PART_DOCS, match_collectives, step_parts
from distbench.metrics.profile.exchange import run_in_ranks, run_together
from distbench.metrics.profile.kineto import read_kineto
from distbench.metrics.profile.nodes import Transfer, busbw, link_values
from distbench.metrics.profile.step_timeline import timeline_rows
from distbench.metrics.profile.trace_files import read_profiler
from distbench.metrics.steptime import drift
from distbench.traces.intervals import difference, intersection, length, union
from distbench.traces.trace import starting_in
from support.chrome_traces import ChromeTrace
from support.profiler_events import Events, cpu_step
from support.records import case

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted).map(tuple), max_size=8)
MS = 1e-3


def interval_points(intervals: list[tuple[int, int]]) -> set[int]:
    return {point for begin, end in intervals for point in range(begin, end)}


@given(INTERVALS, INTERVALS)
def test_arithmetic_of_intervals_is_that_of_the_points_in_them(first, second):
    a, b = union(first), union(second)
    assert interval_points(a) == interval_points(first)
    assert interval_points(intersection(a, b)) == interval_points(first) & interval_points(second)
    assert interval_points(difference(a, b)) == interval_points(first) - interval_points(second)
    assert length(a) == len(interval_points(first))
    for made in (a, intersection(a, b), difference(a, b)):
        assert all(x[1] <= y[0] for x, y in itertools.pairwise(made)), "sorted and disjoint"


def parts_of(events: Events) -> dict[str, float]:
    trace = read_kineto(events.found)
    (step,) = trace.marks["step"]
    comm = union(each.interval for each in trace.backend_events)
    return {name: round(seconds / MS, 3) for name, seconds in step_parts(trace, step, comm).items()}


def test_exposed_communication_is_what_no_computation_of_the_rank_hides():
    assert parts_of(cpu_step()) == {
        "data": 5,
        "forward": 28,
        "backward": 33,
        "optimizer": 10,
        "exposed_comm": 15,
        "other": 0,
        "idle": 9,
    }


@dataclass
class StoppedProfiler:
    """A profiler that has stopped; before torch 2.12 its events in memory don't tell their kind."""

    written: ChromeTrace
    events_in_memory: list[Any]

    @property
    def profiler(self) -> Any:
        return SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: self.events_in_memory))

    def export_chrome_trace(self, path: str) -> None:
        self.written.write(Path(path))


def test_a_torch_that_tells_kernels_only_in_a_file_is_read_from_one(tmp_path):
    written = ChromeTrace().event("user_annotation", "distbench::step", 0, 50)
    written.kernel("gemm", 1, 2, 12).collective(3, 12, 20).event("cpu_op", "distbench::layer:3", 1, 2)
    older = StoppedProfiler(written, [SimpleNamespace(name=lambda: "gemm")])
    trace = read_profiler(older, tmp_path)
    assert [(kernel.name, round((kernel.launched or 0) / MS, 3)) for kernel in trace.kernels] == [("gemm", 1)]
    assert len(trace.backend_events) == 1
    assert [layer for layer, _ in trace.layers] == [3]
    assert [round((end - begin) / MS, 3) for begin, end in trace.marks["step"]] == [50]
    assert list(tmp_path.iterdir()) == []
    newer = StoppedProfiler(ChromeTrace(), two_steps().found)
    assert len(read_profiler(newer, tmp_path).marks["step"]) == 2


def test_updates_inside_of_the_backward_pass_are_the_optimizers():
    events = Events().mark("step", 0, 20).mark("backward", 2, 18).op("aten::mm", 2, 18)
    events.mark("optimizer", 5, 7).mark("optimizer", 12, 15).mark("optimizer", 18, 19)
    events.op("aten::_fused_adamw_", 18, 19)
    assert parts_of(events) == {
        "data": 0,
        "forward": 0,
        "backward": 11,
        "optimizer": 6,
        "exposed_comm": 0,
        "other": 0,
        "idle": 3,
    }


def test_an_operation_that_waits_for_a_collective_does_not_compute_meanwhile():
    events = Events().mark("step", 0, 10).mark("backward", 0, 10).gloo("all_reduce", 0, 10, 1)
    # a norm of a DTensor is an aten operation that holds a collective and the waiting for it
    events.op("aten::linalg_vector_norm", 0, 10).op("_c10d_functional::wait_tensor", 2, 9)
    assert parts_of(events)["exposed_comm"] == 7


def test_a_message_that_shows_on_the_thread_that_asked_for_it_is_hidden_by_what_computes_there():
    events = Events().mark("step", 0, 20).mark("forward", 2, 20)
    # gloo's send lasts until somebody waits for it, on the thread of the rank itself
    events.op("c10d::send", 0, 1).gloo("send", 0, 12, 1, thread=1).op("aten::mm", 2, 10)
    assert parts_of(events) == {
        "data": 0,
        "forward": 8,
        "backward": 0,
        "optimizer": 0,
        "exposed_comm": 4,
        "other": 0,
        "idle": 8,
    }


def test_a_collective_inside_another_is_the_same_one_on_any_number_of_threads():
    events, threads = Events(), range(1, 9)
    # a functional collective calls a plain one
    for thread in threads:
        events.op("_c10d_functional::all_reduce", thread, 30 + thread, thread=thread)
    for thread in threads:
        events.op("c10d::allreduce_", 20 + thread, 25 + thread, thread=thread)
    events.op("c10d::allreduce_", 50, 51, thread=1)
    issued = [(event.thread, event.name) for event in read_kineto(events.found).host_calls]
    assert issued == [
        *((thread, "_c10d_functional::all_reduce") for thread in threads),
        (1, "c10d::allreduce_"),
    ]


def test_on_a_gpu_the_parts_are_device_time_by_where_the_work_was_launched():
    events = Events().mark("step", 0, 100).mark("data", 0, 4).mark("forward", 4, 10).mark("backward", 10, 20)
    events.mark("optimizer", 20, 25)
    # launched long before it runs: the host is far ahead of the device
    events.kernel("ampere_sgemm", 5, 10, 40).kernel("flash_bwd", 12, 40, 70)
    events.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 15, 60, 85, stream=20)
    events.kernel("multi_tensor_apply_kernel", 21, 85, 95)
    assert parts_of(events) == {
        "data": 4,
        "forward": 30,
        "backward": 30,
        "optimizer": 10,
        "exposed_comm": 15,
        "other": 0,
        "idle": 11,
    }


def test_on_a_cpu_nothing_that_is_idle_counts_to_a_part():
    events = Events().mark("step", 0, 100).mark("forward", 0, 40).mark("backward", 40, 80)
    events.mark("optimizer", 85, 100)
    # Python between operations
    events.op("aten::mm", 10, 20).op("aten::mm", 25, 30).op("aten::mm", 45, 75)
    # a hook between the backward pass and the update
    events.op("aten::norm", 80, 85).op("aten::_foreach_add_", 90, 99)
    assert parts_of(events) == {
        "data": 0,
        "forward": 15,
        "backward": 30,
        "optimizer": 9,
        "exposed_comm": 0,
        "other": 5,
        "idle": 41,
    }


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), st.sampled_from("cow")), max_size=12))
def test_a_part_of_a_step_is_as_long_in_the_breakdown_as_in_the_timeline(pieces):
    events = Events().mark("step", 0, 100).mark("data", 0, 5).mark("forward", 5, 35).mark("backward", 35, 85)
    events.mark("optimizer", 85, 95)
    for begin, end, kind in pieces:
        if kind == "c":
            events.gloo("all_reduce", min(begin, end), max(begin, end), 1)
        else:
            events.op("aten::mm", min(begin, end), max(begin, end), thread=1)
    trace = read_kineto(events.found)
    (step,) = trace.marks["step"]
    shown: dict[str, float] = {}
    for row in timeline_rows(trace, step, [], 0, 0.0):
        if row["kind"] == "compute":
            shown[row["name"]] = shown.get(row["name"], 0.0) + row["busy_s"]
    found = parts_of(events)
    for name in ("forward", "backward", "optimizer", "other"):
        assert found[name] == pytest.approx(shown.get(name, 0.0) / MS, abs=0.01)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), st.sampled_from("fbcow")), max_size=12))
def test_the_parts_add_up_to_the_step_whatever_overlaps(pieces):
    events = Events().mark("step", 0, 100).mark("forward", 5, 35).mark("backward", 35, 85)
    for begin, end, kind in pieces:
        if kind == "c":
            events.gloo("all_reduce", min(begin, end), max(begin, end), 1)
        else:
            events.op("aten::mm", min(begin, end), max(begin, end), thread=ord(kind))
    found = parts_of(events)
    assert sum(found.values()) == pytest.approx(100, abs=0.01)
    assert set(found) == set(STEP_PART_DOCS)
    assert min(found.values()) >= -0.001


def collective_call(op: str, elements: int, group: str = "0,1") -> CollectiveCall:
    return CollectiveCall(op, group, 2, "float32", 4 * elements, elements)


def matched(events: Events, calls: list[CollectiveCall]) -> list[tuple[str, float]] | None:
    trace = read_kineto(events.mark("step", 0, 1000).found)
    step = trace.marks["step"][0]
    found = match_collectives(
        calls, starting_in(trace.host_calls, step), starting_in(trace.backend_events, step)
    )
    return None if found is None else [(each.event.name, round(each.event.begin / MS)) for each in found]


def test_each_collective_gets_its_own_interval_though_two_threads_run_them():
    events = Events().op("c10d::_allgather_base_", 1, 2).op("c10d::_reduce_scatter_base_", 3, 4)
    events.op("c10d::_allgather_base_", 5, 6)
    events.gloo("all_gather", 9, 12, 100, thread=7).gloo("all_reduce", 7, 20, 50, thread=8)
    events.gloo("all_gather", 8, 30, 200, thread=9)
    calls = [
        collective_call("all_gather", 100),
        collective_call("reduce_scatter", 50),
        collective_call("all_gather", 200),
    ]
    assert matched(events, calls) == [("all_gather", 9), ("all_reduce", 7), ("all_gather", 8)]


def test_a_functional_collective_and_the_plain_one_inside_it_are_one():
    events = Events().op("_c10d_functional::all_reduce", 1, 4).op("c10d::allreduce_", 2, 3)
    assert matched(events.gloo("all_reduce", 3, 9, 1), [collective_call("all_reduce", 1)]) == [
        ("all_reduce", 3)
    ]


@pytest.mark.parametrize(
    "calls", [[], [collective_call("all_reduce", 10)] * 2, [collective_call("broadcast", 10)]]
)
def test_a_trace_that_shows_other_collectives_than_were_counted_gives_no_times(calls):
    events = Events().op("c10d::allreduce_", 1, 2).gloo("all_reduce", 2, 9, 10)
    assert matched(events, calls) is None


def test_the_kernel_that_attention_ran_is_told_and_not_those_that_it_might_have():
    events = Events().op("aten::scaled_dot_product_attention", 1, 9)
    events.op("aten::_scaled_dot_product_attention_math", 2, 8).op("aten::mm", 3, 4)
    assert read_kineto(events.found).attention == {"math"}


def test_a_group_of_one_rank_for_which_nccl_runs_nothing_is_left_out():
    events = Events().op("c10d::allreduce_", 1, 2).op("c10d::_allgather_base_", 3, 4)
    events.kernel("ncclDevKernel_AllGather_RING_LL", 3, 9, 12, stream=20)
    alone = CollectiveCall("all_reduce", "0", 1, "float32", 4, 1)
    assert matched(events, [alone, collective_call("all_gather", 8)]) == [("all_gather", 9)]


def session(*, devices: int = 1, device: str = "cuda") -> PassContext:
    """That of the only process of a trial on that many devices."""
    import torch

    rest: dict[str, Any] = dict.fromkeys(("workload", "strategy", "engine", "folder"))
    of = case("ddp", devices, device=device)
    kind = torch.device(device)
    return PassContext(case=of, device=kind, rank=0, world_size=1, nodes=[0], pass_name="profile", **rest)


def analysed(context: PassContext, *told: Any) -> timeline.ProfileResult:
    """Result of the only rank."""
    return run_in_ranks(timeline.analyse_profile(context, *told), context.world_size)


def two_steps() -> Events:
    events = Events().mark("step", 0, 100).mark("forward", 4, 10).kernel("sgemm", 5, 10, 40)
    return events.mark("step", 100, 130).mark("forward", 104, 110).kernel("sgemm", 105, 110, 125)


@pytest.mark.train
def test_the_first_step_of_a_gpu_which_pays_for_the_profiler_is_left_out():
    found = analysed(session(), None, read_kineto(two_steps().found))
    assert found.values["profile_step_s"] == [pytest.approx(0.030)]
    on_cpu = analysed(session(device="cpu"), None, read_kineto(two_steps().found))
    assert on_cpu.values["profile_step_s"] == [pytest.approx(0.100), pytest.approx(0.030)]


@pytest.mark.train
def test_a_gpu_whose_kernels_nobody_saw_is_not_taken_for_a_cpu():
    found = analysed(session(), None, read_kineto(cpu_step().found))
    assert "CUPTI" in found.unavailable_reason
    assert found.collective_rows == found.timeline_rows == found.flags == []


def test_ranks_exchange_in_one_process_as_among_themselves():
    def work(rank: int):
        every = yield rank
        again = yield [*every, rank]
        return sum(every), again

    assert (
        run_together([work(rank) for rank in range(3)]) == [(3, [[0, 1, 2, rank] for rank in range(3)])] * 3
    )
    assert run_in_ranks(work(7), 1) == (7, [[7, 7]])
    with pytest.raises(RuntimeError, match="different numbers of times"):
        run_together([work(0), iter_once(1)])


def iter_once(rank: int):
    """Work that exchanges once."""
    yield rank
    yield rank
    yield rank
    return None


@pytest.mark.train
def test_what_one_process_moves_between_its_devices_is_not_told_as_nothing():
    both = session(devices=2)
    assert "2 devices" in analysed(both, None, read_kineto(two_steps().found)).unavailable_reason
    with pytest.raises(NotAvailable, match="2 devices"):
        Communication().values(both, None)


def test_without_a_profile_its_numbers_are_absent_and_no_others():
    samples: dict[str, Any] = {"step_s": [[3.0]], "unsynced_step_s": [[1.0]]}
    found = Profile().summary(TrialData(case("ddp"), 16, samples, {}))
    assert found["comm_exposed_by_difference_s"] == 2.0
    assert isinstance(found["profile_slowdown"], NotAvailable)
    assert isinstance(found["imbalance"], NotAvailable)


@dataclass(frozen=True)
class ProcessGroup:
    """What the numbers of nodes, and those of a rank without others, ask of a session."""

    nodes: list[int]
    device: Any = field(default_factory=lambda: SimpleNamespace(type="cpu"))
    devices_per_rank: int = 1
    rank: int = 0
    world_size: int = 1
    earlier_step_times: dict[str, list[float]] = field(default_factory=dict)
    effective: dict[str, Any] = field(default_factory=dict)


def bus_bytes(nodes: list[int], *transfers: tuple[int, float, float]) -> dict[str, Any]:
    """Numbers of a step in which all-reduces of 1 MB over that many nodes ran, from and to these ms."""
    step = [
        Transfer(CollectiveCall("all_reduce", "0,1", 2, "float32", 1_000_000, 1, spanned), ran, ran)
        for spanned, begin, end in transfers
        if (ran := (begin * MS, end * MS))
    ]
    found = link_values(ProcessGroup(nodes), [step], [(0, 4 * MS)])  # type: ignore[arg-type]
    return {
        name.removeprefix("comm_"): str(value) if isinstance(value, NotAvailable) else value[0]
        for name, value in found.items()
    }


def test_what_moves_inside_nodes_is_told_from_what_moves_between_them():
    # both at once from 6 to 8 ms, and computation hides all of it until 4 ms
    found = bus_bytes([0, 0, 1, 1], (1, 2, 8), (2, 6, 10), (2, 9, 11))
    assert found == {
        "inside_s": pytest.approx(6 * MS),
        "inside_exposed_s": pytest.approx(2 * MS),
        "inside_busbw": pytest.approx(1e6 / (6 * MS)),
        "between_s": pytest.approx(5 * MS),
        "between_exposed_s": pytest.approx(5 * MS),
        "between_busbw": pytest.approx(2e6 / (5 * MS)),
    }


@pytest.mark.parametrize(
    ("nodes", "where", "reason"),
    [
        ([0, 0], "between", "all ranks are on one node"),
        ([0, 1], "inside", "each rank is on its own node"),
        ([0], "inside", "needs at least two ranks"),
    ],
)
def test_where_nothing_can_move_there_is_no_number_but_a_reason(nodes, where, reason):
    found = bus_bytes(nodes)
    assert {found[f"{where}_{what}"] for what in ("s", "exposed_s", "busbw")} == {reason}


def values_of(events: Events, calls: list[CollectiveCall]) -> dict[str, Any]:
    """Values of the profiled steps of a rank on a node of its own, which made *calls* in each."""
    session: Any = ProcessGroup([0, 1])
    return dict(analysed(session, CountedCollectives([calls], []), read_kineto(events.found)).values)


@pytest.mark.train
@given(st.lists(st.tuples(*[st.integers(0, 130)] * 4).map(sorted), min_size=1, max_size=6))
def test_no_part_of_communication_exceeds_its_whole_even_where_it_outlasts_the_step(collectives):
    events = Events().mark("step", 0, 100)
    calls = []
    for number, (asked, begin, end, _) in enumerate(sorted(each for each in collectives if each[1] < 100)):
        events.op("c10d::allreduce_", asked, asked).gloo("all_reduce", begin, end, elements=number + 1)
        calls.append(CollectiveCall("all_reduce", "0,1", 2, "float32", 4 * (number + 1), number + 1, nodes=2))
    for begin, _, _, end in collectives:
        events.op("aten::mm", begin, end)
    values = values_of(events, calls)
    (whole,), (comm,) = values["profile_step_s"], values["comm_s"]
    assert whole == pytest.approx(100 * MS) and comm <= whole
    if values["comm_transfer_s"] == [None] or isinstance(values["comm_transfer_s"], NotAvailable):
        # which collective ran when is not always known
        return
    (exposed,), (between,) = values["comm_exposed_s"], values["comm_between_s"]
    (between_exposed,) = values["comm_between_exposed_s"]
    rounding = 1e-9
    assert between_exposed <= min(exposed, between) + rounding
    assert max(exposed, between) <= comm + rounding


@pytest.mark.train
def test_bandwidth_is_that_of_the_whole_transfer_though_only_a_part_is_in_the_step():
    events = Events().mark("step", 0, 100).op("c10d::allreduce_", 90, 91)
    events.gloo("all_reduce", 95, 105, elements=250_000)
    values = values_of(
        events, [CollectiveCall("all_reduce", "0,1", 2, "float32", 1_000_000, 250_000, nodes=2)]
    )
    # the clock of these events has steps of 0.256 us
    of_step = [pytest.approx(5 * MS, abs=1e-6)]
    assert values["comm_s"] == values["comm_between_s"] == values["comm_between_exposed_s"] == of_step
    assert values["comm_between_busbw"] == [pytest.approx(1e6 / (10 * MS), rel=1e-3)]


def test_a_norm_says_nothing_of_bandwidth():
    flag = Transfer(CollectiveCall("all_reduce", "0,1", 2, "float32", 4, 1, 2), (0, MS), (0, MS))
    assert busbw([flag], "between") is None
    assert busbw([flag, replace(flag, call=replace(flag.call, bytes=10**6))], "between") == 1e6 / MS


def test_factors_are_those_of_nccl_tests():
    assert bus_factor("all_reduce", 8) == 2 * 7 / 8
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == 7 / 8
    assert bus_factor("broadcast", 8) == 1
    assert bus_factor("barrier", 8) is None
    # what travels follows what ran: a reduce-scatter that ran as an all-reduce sends twice as much
    assert wire_factor("all_reduce", 4) == 2 * wire_factor("reduce_scatter", 4)
    assert wire_factor("broadcast", 4) == wire_factor("reduce", 4) == 3 / 4


def test_a_series_that_settles_is_told_from_one_that_does_not():
    falling = [2.0, 1.8, 1.7, 1.5, 1.4, 1.2, 1.1, 1.0]
    assert drift.falling_p_value(falling) < 0.001
    assert drift.relative_change(falling) == pytest.approx(-0.7, abs=0.1)
    for settled in ([1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0], falling[::-1], [1.0] * 8):
        assert drift.falling_p_value(settled) > 0.1


@given(st.permutations(range(9)))
def test_the_trend_of_a_series_and_of_its_reverse_can_not_both_fall(series):
    values = [1.0 + each for each in series]
    assert max(drift.falling_p_value(values), drift.falling_p_value(values[::-1])) > 0.45
