"""Step times of cases from data sheets: every strategy has one, or a reason why not."""

import dataclasses

import pytest

from distbench import plan
from distbench.core import registry
from distbench.prediction import data_sheet_step
from distbench.suite import load_suite
from distbench.system.gpu_types import GPU_TYPES, parse_gpu_cluster
from distbench.system.machine import described_machine
from distbench.workloads.base import workload_of

BASE = """
workload: {transformer: {preset: 1b, seq_len: 1024}}
data: synthetic
batch: {per_device_batch_size: 8}
precision: bf16
"""


def cases(folder, on, strategies, more="", size=None):
    machine = described_machine(parse_gpu_cluster(on))
    file = folder / "suite.yaml"
    key = more.partition(":")[0] or "none"
    base = "".join(line for line in BASE.splitlines(keepends=True) if not line.startswith(key))
    file.write_text(f"{base}{more}\nworld_sizes: [{size or machine.devices}]\nstrategies: {strategies}\n")
    planned = plan.make_plan(load_suite(file), machine).cases
    assert [each.problem for each in planned if each.problem] == []
    return machine, [each.case for each in planned]


def steps(folder, on, strategies, more="", size=None):
    machine, found = cases(folder, on, strategies, more, size)
    return [data_sheet_step(case, machine) for case in found]


STRATEGIES = """[ddp, {ddp: {sharded_optimizer: true}}, fsdp, {fsdp: {sharding: grad_op}},
  {fsdp: {sharding: hybrid}}, {fsdp: {version: 1}}, {fsdp: {mesh: {tp: 4}, sequence_parallel: true}},
  {zero: {stage: 0}}, {zero: {stage: 1}}, {zero: {stage: 2}}, zero, {zero: {stage: 1, mesh: {pp: 2}}}, tp,
  {cp: {mesh: {cp: 4}}}, {cp: {implementation: ring, sharded: true}}, {pp: {micro_batches: 16}},
  {pp: {mesh: {dp_shard: 4}}}, {pp: {schedule: Interleaved1F1B}}, {pp: {schedule: ZBVZeroBubble}}]"""


DATA_PARALLEL = """[ddp, fsdp, {fsdp: {sharding: grad_op}}, {fsdp: {sharding: hybrid}}, {zero: {stage: 1}},
  zero, {fsdp: {mesh: {tp: 4}}}, {cp: {mesh: {cp: 4}}}, {pp: {micro_batches: 16}}]"""


def test_every_strategy_has_a_step_time(tmp_path):
    found = steps(tmp_path, "h100-sxm:8", STRATEGIES)
    assert [each for each in found if isinstance(each, str)] == []
    assert len(found) == 19
    for each in found:
        assert each.source == "data sheet"
        assert 0.01 < each.seconds.low < each.seconds.value < each.seconds.high < 60


def test_one_device_has_no_communication(tmp_path):
    (step,) = steps(tmp_path, "h100-sxm:1", "[single]")
    assert step.terms["communication"] == 0


def test_what_strategies_communicate_shows_on_a_slow_link(tmp_path):
    machine, found = cases(tmp_path, "a100-80gb:2x8", DATA_PARALLEL)
    slow = dataclasses.replace(machine, between=1e8)
    by_label = {}
    for case in found:
        fast_step, slow_step = data_sheet_step(case, machine), data_sheet_step(case, slow)
        assert slow_step.seconds.value > 1.5 * fast_step.seconds.value, case.label
        by_label[case.label] = slow_step.terms["communication"]
    # two gathers and a reduction instead of an all-reduce; a gather less; only gradients between replicas
    assert by_label["fsdp"] > 1.1 * by_label["fsdp-grad-op"]
    assert by_label["fsdp-hybrid"] < 0.6 * by_label["fsdp"]
    assert by_label["zero3"] == pytest.approx(by_label["fsdp"], rel=0.05)


THEORIES = """[ddp, {ddp: {sharded_optimizer: true}}, fsdp, {fsdp: {sharding: grad_op}},
  {fsdp: {sharding: hybrid}}, {fsdp: {mesh: {tp: 4}, sequence_parallel: true, loss_parallel: true}},
  {zero: {stage: 0}}, {zero: {stage: 1}}, {zero: {stage: 2}}, zero, {zero: {stage: 2, mesh: {tp: 2}}}, tp,
  {tp: {loss_parallel: true}}, {cp: {mesh: {cp: 4}}}, {cp: {implementation: ring, sharded: true}},
  {pp: {mesh: {dp_shard: 4}}}]"""


@pytest.mark.parametrize("accumulated", [1, 4])
def test_bytes_that_are_sent_are_those_of_the_strategies_theories(tmp_path, accumulated):
    more = f"batch: {{global_batch_size: 256, gradient_accumulation_steps: {accumulated}}}"
    machine, found = cases(tmp_path, "a100-80gb:8", THEORIES, more)
    # so slow that nothing can be hidden
    slow = dataclasses.replace(machine, inside=1e5)
    assert found
    for case in found:
        strategy = registry.create_plugin("strategies", case.strategy)
        sizes = strategy.mesh_sizes(8)
        moved = 0.0
        for each in strategy.traffic(case, workload_of(case).parameters()):
            ranks = sizes.get(each.dimension, 8)
            in_ring = {"all_reduce": 2, "send": ranks / (ranks - 1), "recv": 0}.get(each.op, 1)
            moved += in_ring * each.bytes * (ranks - 1) / ranks
        sent = data_sheet_step(case, slow).terms["communication"] * 1e5 * 0.78
        # FSDP does not gather the root again; an embedding that tensor parallelism splits is reduced, too; a
        # pipeline waits for more sends than a rank has on average. ZeRO-3 keeps the embedding live between
        # passes, as its limit is a multiple of the largest layer; a data sheet's step gathers it again
        assert 0.93 < sent / moved < (1.2 if case.label == "zero3" else 1.05), case.label


def test_micro_batches_of_a_pipeline_are_parts_of_those_of_the_suite(tmp_path):
    few, many = steps(tmp_path, "h100-sxm:8", "[{pp: {micro_batches: 8}}, {pp: {micro_batches: 32}}]")
    # the same samples with a smaller bubble
    assert many.terms["bubble"] < 0.4 * few.terms["bubble"]
    assert few.terms["compute"] == pytest.approx(many.terms["compute"], rel=0.4)


def test_a_pipeline_fills_and_drains_for_each_micro_batch_of_the_suite(tmp_path):
    one, four = (
        steps(
            tmp_path,
            "h100-sxm:8",
            "[{pp: {micro_batches: 8}}]",
            f"batch: {{global_batch_size: 64, micro_batch_size: {size}}}",
        )[0]
        for size in (64, 16)
    )
    # four bubbles, each of passes of a quarter of the samples
    assert 1 < four.terms["bubble"] / one.terms["bubble"] < 1.5


def test_compiled_layers_and_recomputation_are_those_of_the_case(tmp_path):
    seconds = {
        more: steps(tmp_path, "h100-sxm:8", "[fsdp]", more)[0].terms["compute"]
        for more in (
            "",
            "compile: true",
            "activation_checkpointing: full",
            "activation_checkpointing: selective",
        )
    }
    assert seconds["compile: true"] < seconds[""] < seconds["activation_checkpointing: full"]
    assert seconds[""] < seconds["activation_checkpointing: selective"]


def test_an_update_takes_as_long_as_its_arrays(tmp_path):
    def update(optimizer, **dtypes):
        machine, (case,) = cases(tmp_path, "h100-sxm:1", "[single]", f"optimizer: {optimizer}")
        case = dataclasses.replace(case, precision=dataclasses.replace(case.precision, **dtypes))
        return data_sheet_step(case, machine).terms["update"]

    plain = update("sgd")
    # 3 arrays; a moment is read and written, too
    assert update("{name: sgd, momentum: 0.9}") == pytest.approx(plain * 5 / 3)
    assert update("adamw") == pytest.approx(plain * 7 / 3)
    assert update("{name: adamw, kernel: loop}") == pytest.approx(3 * update("adamw"))
    # moments with half as many bytes as the parameters
    assert update("adamw", optimizer_state="bf16") == pytest.approx(plain * 5 / 3)
    assert update("sgd", optimizer_state="bf16") == pytest.approx(plain)


def test_float8_multiplies_faster(tmp_path):
    more = "workload: {transformer: {preset: 70b, seq_len: 4096}}"
    base = BASE.replace("workload: {transformer: {preset: 1b, seq_len: 1024}}", more)
    machine = described_machine(parse_gpu_cluster("h100-sxm:8x8"))
    found = {}
    for precision in ("bf16", "{compute: bf16, float8: tensorwise}"):
        file = tmp_path / "suite.yaml"
        text = base.replace("precision: bf16", f"precision: {precision}")
        file.write_text(f"{text}compile: true\nworld_sizes: [64]\nstrategies: [fsdp]\n")
        (case,) = plan.make_plan(load_suite(file), machine).cases
        found[precision] = data_sheet_step(case.case, machine).terms["compute"]
    bf16, float8 = found.values()
    assert 0.5 * bf16 < float8 < 0.85 * bf16


@pytest.mark.parametrize(
    ("strategy", "more", "reason"),
    [
        ("{fsdp: {cpu_offload: true}}", "", "CPU memory"),
        ("{zero: {stage: 3, offload_optimizer: nvme, nvme_path: /tmp}}", "", "offload to disk needs"),
        ("{ddp: {powersgd_rank: 4}}", "", "ddp+powersgd4 compresses or leaves out communication"),
        ("{ddp: {local_sgd_period: 4}}", "measure: {steps: 8}", "compresses or leaves out communication"),
        ("{zero: {hpz_partition_size: 2}}", "", "hpz_partition_size"),
        ("{zero: {quantized_weights: true}}", "", "quantized communication needs a probe"),
        ("dp", "precision: fp32", "steps of dp are not predicted; those of single, ddp"),
        ("ddp", "workload: {transformer: {preset: moe-tiny}}", "how evenly tokens are routed"),
        (
            "ddp",
            "workload: {transformer: {preset: tiny, attention: sliding_window, window: 16}}",
            "a sliding window has no published rate",
        ),
        ("ddp", "workload: mlp", "operators of workload mlp are not known"),
        (
            "ddp",
            "engine: [accelerate]",
            "engine accelerate: data sheets do not give the overhead of a framework",
        ),
        ("ddp", "optimizer: muon", "optimizer.name = muon is unknown; those of adamw"),
    ],
)
def test_what_no_data_sheet_decides_has_a_reason(tmp_path, strategy, more, reason):
    key = more.partition(":")[0]
    base = "".join(line for line in BASE.splitlines(keepends=True) if not key or not line.startswith(key))
    machine = described_machine(parse_gpu_cluster("h100-sxm:4"))
    file = tmp_path / "suite.yaml"
    file.write_text(f"{base}{more}\nworld_sizes: [4]\nstrategies: [{strategy}]\n")
    if "mlp" in more:
        file.write_text(file.read_text().replace("data: synthetic\n", ""))
    (planned,) = plan.make_plan(load_suite(file), machine).cases
    found = data_sheet_step(planned.case, machine)
    assert isinstance(found, str)
    assert reason in found


def test_a_machine_without_a_data_sheet_has_a_reason(tmp_path):
    machine, (case,) = cases(tmp_path, "h100-sxm:4", "[ddp]")
    for reason, change in {
        "no data sheet of a GPU of type ours": {"gpu_type": "ours"},
        "the type of the GPUs is unknown; name it with --on": {"gpu_type": ""},
        "this case runs on CPUs": {"device": "cpu"},
    }.items():
        found = data_sheet_step(case, dataclasses.replace(machine, **change))
        assert isinstance(found, str)
        assert reason in found


@pytest.mark.parametrize("gpu", GPU_TYPES)
def test_every_type_has_steps_on_one_gpu(tmp_path, gpu):
    more = "precision: fp16\nworkload: {transformer: {preset: gpt2-small, seq_len: 512}}\ndata: synthetic\n"
    batch = "batch: {per_device_batch_size: 1}\n"
    file = tmp_path / "suite.yaml"
    file.write_text(f"{more}{batch}world_sizes: [1]\nstrategies: [single]\n")
    machine = described_machine(parse_gpu_cluster(f"{gpu}:8"))
    (planned,) = plan.make_plan(load_suite(file), machine).cases
    step = data_sheet_step(planned.case, machine)
    assert not isinstance(step, str), step
    assert 1e-3 < step.seconds.value < 1


def test_links_of_a_machine_replace_those_of_its_type(tmp_path):
    machine, (case,) = cases(tmp_path, "a100-80gb:2x8", "[ddp]")
    slower = dataclasses.replace(machine, inside=1e9, between=1e9)
    usual, slow = (data_sheet_step(case, each).terms["communication"] for each in (machine, slower))
    assert slow > 5 * usual
    # a rack of 72 is one node for NVLink
    rack, (case,) = cases(tmp_path, "gb200:2x4", "[ddp]")
    assert data_sheet_step(case, rack) == data_sheet_step(case, dataclasses.replace(rack, between=1.0))
