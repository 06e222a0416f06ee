"""What traces say of a training, by hand-made traces with known answers."""

import math
from pathlib import Path

import pytest

from distbench.analysis.traces.differences import cause_changes
from distbench.analysis.traces.job_trace import JobTrace, read_job, trace_files
from distbench.analysis.traces.rank_trace import RankTrace
from distbench.analysis.traces.work import Work, find_work
from distbench.core.errors import UsageError
from distbench.report.trace_work_tables import kernels_table, operators_table
from distbench.traces.chrome_file import read_file
from distbench.traces.trace import read_trace
from support.chrome_traces import BACKWARD_THREAD, ChromeTrace, training_step

MS = 1e-3


def read(tmp_path: Path, *traces: ChromeTrace) -> JobTrace:
    return read_job([trace.write(tmp_path / f"{i}.json") for i, trace in enumerate(traces)])


def read_one(tmp_path: Path, trace: ChromeTrace) -> RankTrace:
    (rank,) = read(tmp_path, trace).ranks
    return rank


def work_of(tmp_path: Path, trace: ChromeTrace) -> list[Work]:
    return find_work(read_trace(read_file(trace.write(tmp_path / "0.json")).events))


def parts_of_first_step(rank: RankTrace) -> dict[str, float]:
    return {key: round(seconds / MS, 3) for key, seconds in rank.steps[0].parts.items() if key != "idle"}


def sum_of_parts(parts: dict[str, float]) -> float:
    return math.fsum(parts.get(kind, 0.0) for kind in ("compute", "communication", "copy", "idle"))


def test_the_parts_of_a_step_are_those_worked_out_by_hand_and_add_up_to_it(tmp_path):
    rank = read_one(tmp_path, training_step())
    assert rank.step_marks == "ProfilerStep"
    assert [(step.name, round(step.seconds / MS, 3)) for step in rank.steps] == [("0", 100), ("1", 10)]
    assert parts_of_first_step(rank) == {
        "compute": 40,
        "communication": 20,
        "copy": 10,
        "idle synchronisation": 10,
        "idle launch": 15,
        "idle host": 5,
    }
    assert math.isclose(sum_of_parts(rank.steps[0].parts), 100 * MS)


def test_losses_have_bounds_causes_and_the_line_of_the_script_that_synchronises(tmp_path):
    job = read(tmp_path, training_step())
    losses = {(loss.kind, loss.name): round(loss.seconds / MS, 3) for loss in job.losses}
    # mean over the two steps
    assert losses == {
        ("exposed communication", "all_reduce of 0,1"): 10,
        ("idle", "launched, but not begun"): 7.5,
        ("exposed copy", "Memcpy HtoD (Pageable -> Device)"): 5,
        ("idle", "synchronisation at train.py(12): main"): 5,
        ("idle", "host late"): 2.5,
    }
    assert [loss.seconds for loss in job.losses] == sorted((x.seconds for x in job.losses), reverse=True)
    late = next(loss for loss in job.losses if loss.name == "host late")
    assert late.following == ("aten::zero_",)


def test_a_step_ends_where_the_work_of_the_next_one_begins_and_earlier_work_belongs_to_none(tmp_path):
    trace = training_step()
    # what was launched before the trace began has no launch in it
    trace.event("kernel", "earlier", 1, 9, 7, correlation=77, device=0)
    assert [s.interval for s in read_one(tmp_path, trace).steps] == [
        pytest.approx((0.010, 0.110)),
        pytest.approx((0.110, 0.120)),
    ]


def test_steps_without_marks_are_those_between_updates_else_the_whole_trace(tmp_path):
    trace = ChromeTrace()
    for begin in (0, 10, 20):
        trace.kernel("gemm", begin + 1, begin + 2, begin + 5)
        trace.event("user_annotation", "Optimizer.step#AdamW.step", begin + 8, begin + 9)
        # of a GAN, whose other model is updated more often
        trace.event("user_annotation", "Optimizer.step#SGD.step", begin + 7, begin + 7.5)
        trace.event("user_annotation", "Optimizer.step#SGD.step", begin + 7.5, begin + 8)
    rank = read_one(tmp_path, trace)
    assert rank.step_marks == "ends of the optimizer's updates"
    assert len(rank.steps) == 2
    rank = read_one(tmp_path, ChromeTrace().kernel("gemm", 1, 2, 5))
    assert rank.step_marks.startswith("the whole trace")
    assert [step.interval for step in rank.steps] == [pytest.approx((0.001, 0.004))]


def test_steps_do_not_overlap_if_another_stream_runs_ahead(tmp_path):
    trace = ChromeTrace()
    for step, (launched, begin, end) in enumerate([(1, 10, 20), (11, 30, 40), (21, 25, 35), (31, 50, 60)]):
        trace.step(step, launched - 1, launched + 9).kernel("gemm", launched, begin, end, stream=step)
    rank = read_one(tmp_path, trace)
    assert [(step.name, step.interval) for step in rank.steps] == [
        ("0", pytest.approx((0.010, 0.025))),
        ("2", pytest.approx((0.025, 0.050))),
        ("3", pytest.approx((0.050, 0.060))),
    ]
    for step in rank.steps:
        assert sum_of_parts(step.parts) == pytest.approx(step.seconds)


def test_marks_of_steps_in_which_nothing_was_launched_mark_no_step(tmp_path):
    trace = ChromeTrace().step(0, 0, 10).step(0, 0, 10).kernel("gemm", 11, 12, 15)
    rank = read_one(tmp_path, trace)
    assert rank.step_marks.startswith("the whole trace") and len(rank.steps) == 1
    host = ChromeTrace().step(0, 0, 10).step(0, 0, 10).op("aten::mm", 1, 9).step(1, 10, 20)
    assert [step.name for step in read_one(tmp_path, host).steps] == ["0", "1"]


def test_a_trace_in_which_nothing_was_computed_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="nothing to explain"):
        read(tmp_path, ChromeTrace().call("cudaDeviceSynchronize", 1, 2))


def test_what_checkpointing_computes_again_is_recomputation_and_the_backward_pass_is_not(tmp_path):
    node = "autograd::engine::evaluate_function: MmBackward0"
    trace = (
        ChromeTrace()
        .op("aten::mm", 0, 1, **{"Sequence number": 5})
        .kernel("first", 0.5, 1, 11)
        .op(node, 20, 30, BACKWARD_THREAD, **{"Sequence number": 5})
        .op("MmBackward0", 20.1, 29.9, BACKWARD_THREAD, **{"Sequence number": 5})
        .op("aten::mm", 21, 22, BACKWARD_THREAD, **{"Sequence number": 9})
        .kernel("again", 21.5, 23, 30, tid=BACKWARD_THREAD)
        .op("aten::mm", 25, 26, BACKWARD_THREAD)
        .kernel("gradient", 25.5, 30, 34, tid=BACKWARD_THREAD)
    )
    recomputed = {work.event.name: work.is_recomputed for work in work_of(tmp_path, trace)}
    assert recomputed == {"first": False, "again": True, "gradient": False}
    assert read_one(tmp_path, trace).steps[0].parts["recomputed"] == pytest.approx(7 * MS)


def test_work_belongs_to_the_module_whose_forward_pass_made_its_node(tmp_path):
    node = "autograd::engine::evaluate_function: MmBackward0"
    trace = (
        ChromeTrace()
        .event("python_function", "nn.Module: Block_0", 0, 5)
        .event("python_function", "nn.Module: Linear_3", 1, 4)
        .op("aten::mm", 2, 3, **{"Sequence number": 5})
        .kernel("forward", 2.5, 3, 4)
        .op(node, 20, 30, BACKWARD_THREAD, **{"Sequence number": 5})
        .op("aten::mm", 25, 26, BACKWARD_THREAD)
        .kernel("backward", 25.5, 30, 34, tid=BACKWARD_THREAD)
    )
    modules = {work.event.name: work.module for work in work_of(tmp_path, trace)}
    assert modules == {"forward": "Linear_3", "backward": "Linear_3"}


def two_ranks(late_by: float) -> tuple[ChromeTrace, ChromeTrace]:
    """An all-reduce of 10 ms that rank 1 enters later."""
    first = ChromeTrace(rank=0).kernel("gemm", 1, 2, 12).collective(3, 12, 22 + late_by)
    second = ChromeTrace(rank=1).kernel("gemm", 1, 2, 12 + late_by).collective(3, 12 + late_by, 22 + late_by)
    return first, second


def test_the_rank_that_others_wait_for_is_named_with_transfer_and_waiting(tmp_path):
    job = read(tmp_path, *two_ranks(20))
    first, second = (rank.collectives[0] for rank in job.ranks)
    assert (first.op, first.group, first.group_size, first.dtype, first.bytes) == (
        "all_reduce",
        "0,1",
        2,
        "fp32",
        4000,
    )
    assert (first.late_rank, second.late_rank) == (1, 1)
    assert first.transfer_s == second.transfer_s == pytest.approx(10 * MS)
    assert first.wait_s == pytest.approx(20 * MS) and second.wait_s == pytest.approx(0, abs=1e-9)
    losses = {(loss.kind, loss.name): (round(loss.seconds / MS, 3), loss.rank) for loss in job.losses}
    # seconds are means of both ranks
    assert losses["waiting for a rank", "rank 1 late in all_reduce of 0,1"] == (10, 0)
    assert losses["exposed communication", "all_reduce of 0,1"][0] == 10
    assert not any("counterpart" in note for note in job.notes)


def test_a_rank_may_leave_a_broadcast_before_others_come_and_groups_may_have_the_same_ranks(tmp_path):
    first = ChromeTrace(rank=0).collective(1, 2, 3, op="broadcast")
    second = ChromeTrace(rank=1).collective(1, 2, 12, op="broadcast")
    # of two groups of the same ranks, each rank began another one first
    for trace, names in ((first, "ab"), (second, "ba")):
        trace.collective(13, 20, 25, **{"Process Group Name": names[0]})
        trace.collective(14, 25, 35, **{"Process Group Name": names[1]})
    job = read(tmp_path, first, second)
    found = {(call.op, call.process_group): call for call in job.ranks[0].collectives}
    assert found["broadcast", None].late_rank is None
    assert found["all_reduce", "a"].transfer_s == found["all_reduce", "b"].transfer_s == pytest.approx(0.005)
    assert (found["all_reduce", "a"].late_rank, found["all_reduce", "b"].late_rank) == (0, 1)


def test_collectives_are_matched_by_their_numbers_if_the_trace_has_them(tmp_path):
    first = ChromeTrace(rank=0).collective(1, 2, 12, Seq=7).collective(13, 14, 34, Seq=8)
    # its profiler began one collective later
    second = ChromeTrace(rank=1).collective(13, 19, 34, Seq=8)
    seventh, eighth = read(tmp_path, first, second).ranks[0].collectives
    assert (seventh.transfer_s, eighth.transfer_s) == (None, pytest.approx(15 * MS))


def test_ranks_of_groups_without_a_name_or_of_several_jobs_are_not_matched(tmp_path):
    unnamed = {"Process Group Ranks": "", "Group size": 4}
    traces = [ChromeTrace(rank=r, world_size=8).collective(1, 2, 12, **unnamed) for r in (0, 1)]
    job = read(tmp_path, *traces)
    assert [rank.collectives[0].transfer_s for rank in job.ranks] == [None, None]
    assert any("2 collectives have no counterpart" in note for note in job.notes)
    assert any("traces of 2 of 8 ranks" in note for note in job.notes)
    first, second = two_ranks(5)
    second.world_size = 4
    job = read(tmp_path, first, second)
    assert [rank.collectives[0].transfer_s for rank in job.ranks] == [None, None]
    assert "different world sizes (2, 4)" in job.notes[0]


def test_kernels_of_one_call_are_one_collective_and_old_traces_tell_it_by_the_call(tmp_path):
    trace = ChromeTrace(world_size=4).op("record_param_comms", 0, 5)
    trace.event(
        "user_annotation", "nccl:all_to_all", 0.5, 4, **{"Input Dims": [[8, 100]], "Input type": ["float"]}
    )
    for i in (1, 2, 3):
        trace.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", i, 10 * i, 10 * i + 4, stream=20)
    trace.kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 6, 50, 51, stream=20)
    exchange, reduction = read_one(tmp_path, trace).collectives
    assert (exchange.op, exchange.dtype, exchange.bytes, len(exchange.intervals)) == (
        "all_to_all",
        "fp32",
        3200,
        3,
    )
    assert exchange.seconds == pytest.approx(12 * MS)
    assert (reduction.op, reduction.group, reduction.bytes) == ("all_reduce", None, None)


def test_bytes_of_an_all_gather_are_those_of_its_output_also_where_a_trace_tells_its_input(tmp_path):
    trace = ChromeTrace(world_size=2)
    trace.event(
        "user_annotation", "nccl:_all_gather_base", 0, 4, **{"Input Dims": [[100]], "Input type": ["float"]}
    )
    trace.kernel("ncclKernel_AllGather_RING_LL_Sum_int8_t", 1, 5, 6, stream=20)
    (gather,) = read_one(tmp_path, trace).collectives
    assert (gather.op, gather.group, gather.group_size, gather.bytes) == ("all_gather", "0,1", 2, 800)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce", "reduce"),
        ("alltoallv", "all_to_all"),
        ("send", "send"),
    ],
)
def test_names_of_torch_become_those_of_nccl_tests(tmp_path, name, op):
    rank = read_one(tmp_path, ChromeTrace().collective(1, 2, 3, op=name))
    assert rank.collectives[0].op == op


def test_matrix_products_have_flops_bytes_and_the_time_of_all_their_kernels(tmp_path):
    shapes = {"Input Dims": [[32], [64, 128], [128, 32], [], []], "Input type": ["c10::BFloat16"] * 3}
    trace = (
        ChromeTrace()
        .op("aten::addmm", 0, 2, **shapes)
        .kernel("gemm", 0.5, 1, 2)
        .kernel("split k", 0.6, 2, 2.5)
        .op("aten::bmm", 3, 4, **{"Input Dims": [[4, 2, 3], [4, 3, 5]], "Input type": ["float", "float"]})
        .kernel("batched", 3.5, 4, 6)
        .op("aten::mm", 7, 8)
        .kernel("no shapes", 7.5, 8, 9)
    )
    batched, added = read_one(tmp_path, trace).matmuls
    assert (added.shape.m, added.shape.n, added.shape.k, added.shape.dtype) == (64, 32, 128, "bf16")
    assert added.flops_per_second == pytest.approx(2 * 64 * 32 * 128 / 1.5e-3)
    assert added.bytes == 2 * (64 * 128 + 128 * 32 + 64 * 32 + 32)
    assert (batched.shape.batch, batched.shape.flops, batched.bytes) == (4, 240, 4 * 4 * (6 + 15 + 10))


def test_changes_between_two_traces_add_up_to_the_difference_of_their_steps(tmp_path):
    slower = training_step()
    slower.kernel("gemm", 102, 120, 127)
    before, after = (read(tmp_path, trace) for trace in (training_step(), slower))
    changes = cause_changes([rank.causes for rank in before.ranks], [rank.causes for rank in after.ranks])
    assert math.fsum(each.change for each in changes) == pytest.approx(after.step_s - before.step_s)
    assert after.step_s - before.step_s == pytest.approx(3.5 * MS)
    assert changes[0].change == pytest.approx(3.5 * MS) and changes[0].kind == "compute"


def test_a_trace_without_a_device_is_that_of_the_host_and_says_so(tmp_path):
    trace = ChromeTrace().op("aten::linear", 0, 10).op("aten::mm", 1, 9).op("aten::add", 12, 14)
    job = read(tmp_path, trace)
    assert parts_of_first_step(job.ranks[0]) == {"compute": 12, "idle python": 2}
    assert any("no kernel of a device" in note for note in job.notes)
    assert kernels_table(job).rows == () != operators_table(job).rows


def test_a_collective_ends_in_its_step_though_its_thread_records_the_end_later(tmp_path):
    trace = ChromeTrace().event("user_annotation", "distbench::step", 0, 20)
    trace.event("user_annotation", "distbench::step", 21, 41)
    for begin in (0, 21):
        trace.op("aten::mm", begin, begin + 10).op("c10d::allreduce_", begin + 10, begin + 11)
        trace.event("user_annotation", "gloo:all_reduce", begin + 11, begin + 23, tid=7)
    rank = read_one(tmp_path, trace)
    parts = [{kind: round(seconds / MS, 3) for kind, seconds in step.parts.items()} for step in rank.steps]
    assert parts == [{"compute": 10, "communication": 9, "idle": 1, "idle python": 1}] * 2


def test_how_far_the_host_runs_ahead(tmp_path):
    trace = ChromeTrace()
    for i in range(5):
        trace.kernel("gemm", i, 10 + 10 * i, 20 + 10 * i)
    trace.step(0, 0, 2.5).step(1, 2.5, 6)
    rank = read_one(tmp_path, trace)
    assert (rank.launches.queue_depth, rank.launches.delay_s) == (2, pytest.approx(28 * MS))
    # launches of 0.01 ms each at 0, 1, 2 and at 3, 4
    of_steps = [step.launches for step in rank.steps]
    assert [launches.queue_depth for launches in of_steps] == [1, 3.5]
    assert [launches.call_s for launches in of_steps] == [pytest.approx(0.03 * MS), pytest.approx(0.02 * MS)]


def test_a_device_that_waits_for_the_host_has_no_work_in_store(tmp_path):
    trace = ChromeTrace()
    for i in range(5):
        trace.kernel("gemm", i, i + 0.1, i + 0.5)
    assert read_one(tmp_path, trace).launches.queue_depth == 0


def test_memory_of_a_step_is_its_peak_and_growth_by_device(tmp_path):
    trace = ChromeTrace()
    for step in (0, 1):
        begin = 10 * step
        trace.step(step, begin, begin + 10).kernel("gemm", begin + 1, begin + 2, begin + 9)
        # 100 bytes stay, 900 are freed in the step
        for moment, change, allocated in ((3, 100, 600), (4, 900, 1500), (5, -900, 600)):
            trace.memory(begin + moment, change, allocated + 100 * step, reserved=4096)
        trace.memory(begin + 6, 8, 8, device=None)
    rank = read_one(tmp_path, trace)
    assert [(each.step, each.device, each.peak, each.reserved, each.growth) for each in rank.memory] == [
        ("0", 0, 1500, 4096, 100),
        ("1", 0, 1600, 4096, 100),
    ]
    assert not any("memory was not recorded" in note for note in rank.notes)
    assert any("memory was not recorded" in note for note in read_one(tmp_path, training_step()).notes)
    host = ChromeTrace().op("aten::mm", 0, 9).memory(3, 8, 24, device=None).memory(4, -8, 16, device=None)
    (only,) = read_one(tmp_path, host).memory
    assert (only.device, only.peak, only.reserved, only.growth) == (None, 24, None, 0)


def test_ranks_come_from_the_file_its_name_or_the_option(tmp_path):
    unknown = ChromeTrace(rank=None).kernel("gemm", 1, 2, 3)
    named, other = unknown.write(tmp_path / "rank-3.json"), unknown.write(tmp_path / "host_4711.json")
    assert [rank.rank for rank in read_job([named]).ranks] == [3]
    job = read_job([other])
    assert [rank.rank for rank in job.ranks] == [0] and "does not say its rank" in job.notes[0]
    assert [rank.rank for rank in read_job([other], rank=5).ranks] == [5]
    with pytest.raises(UsageError, match="both are of rank 3"):
        read_job([named, named])
    with pytest.raises(UsageError, match="--rank = 5"):
        read_job([named, other], rank=5)


def test_folders_stand_for_the_traces_in_them(tmp_path):
    trace = ChromeTrace().kernel("gemm", 1, 2, 3)
    (folder := tmp_path / "trial").mkdir()
    path = trace.write(folder / "rank0.trace.json.gz")
    (folder / "record.json").write_text("{}")
    assert trace_files([tmp_path]) == [path]
    path.rename(plain := folder / "rank0.json")
    (folder / "record.json").unlink()
    assert trace_files([folder]) == [plain]
    (empty := tmp_path / "empty").mkdir()
    for missing, words in ((empty, "no \\*.json"), (tmp_path / "no", "no such file")):
        with pytest.raises(UsageError, match=words):
            trace_files([missing])
