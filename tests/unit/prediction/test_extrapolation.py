"""Ratios of predicted steps on more and on fewer devices, and the cases on more, reckoned by hand."""

import dataclasses
import math
from typing import Any

import pytest

from distbench.core import registry
from distbench.core.case import Batch, Case, PluginChoice, PrecisionConfig
from distbench.prediction import NORMAL_95, PredictedValue, StepPrediction, data_sheet_step
from distbench.prediction.extrapolation import OTHER_WORK, SAME_WORK, Residual, StepRatio, step_ratio
from distbench.prediction.world_size_change import resized_case
from distbench.system.gpu_data_sheets import DATA_SHEETS, type_of_gpu
from distbench.system.gpu_types import GPU_TYPES, parse_gpu_cluster
from distbench.system.machine import described_machine, detect_machine
from support.probes import IN_STEP_S, PASS_S, UPDATE_S, probe_of, probe_rows, rate_row
from support.records import case

CLUSTER = described_machine(parse_gpu_cluster("h100-sxm:128x8"))
HERE = detect_machine("cpu")
MODEL = PluginChoice("transformer", {"preset": "1b", "seq_len": 1024})
GROWING = ["ddp", "fsdp", {"fsdp": {"sharding": "grad_op"}}, {"fsdp": {"mesh": {"tp": 2}}}]
GROWING += [{"zero": {"stage": stage}} for stage in (1, 2, 3)]
GROWING += [{"pp": {"mesh": {"dp_shard": 2}, "micro_batches": 8}}, {"cp": {"mesh": {"cp": 2}}}]


def cell(strategy: Any, world_size: int, batch: Batch, **changes: Any) -> Case:
    (name, options), *_ = strategy.items() if isinstance(strategy, dict) else [(strategy, {})]
    return case(name, world_size, strategy=PluginChoice(name, options), batch=batch, **changes)


def gpu_cell(strategy: Any, world_size: int = 8, batch: Batch | None = None, **changes: Any) -> Case:
    in_16_bits = PrecisionConfig(compute="bf16")
    settings = {"workload": MODEL, "data": PluginChoice("synthetic"), "device": "cuda"}
    return cell(
        strategy, world_size, batch or Batch(64, 8, 1), **{"precision": in_16_bits, **settings, **changes}
    )


def predicted(factor: float = 1.34, source: Any = "data sheet", **terms: float) -> StepPrediction:
    seconds = sum(terms.values())
    return StepPrediction(terms, PredictedValue(seconds, seconds / factor, seconds * factor), source)


def moved(of: Case, devices: int, scaling: Any = "weak") -> Case:
    found = resized_case(of, devices, scaling, CLUSTER if of.device == "cuda" else HERE)
    assert isinstance(found, Case), found
    return found


def ratio_of(of: Case, devices: int, scaling: Any = "weak") -> StepRatio:
    found = step_ratio(of, moved(of, devices, scaling), CLUSTER, [])
    assert isinstance(found, StepRatio), found
    return found


def test_a_ratio_names_its_terms_and_the_one_that_takes_most_device_time():
    base = predicted(compute=1.0, communication=0.1)
    target = predicted(compute=1.0, communication=0.3, bubble=0.1)
    ratio = StepRatio(base, target, doublings=2, is_same_work=True)
    assert ratio.value == pytest.approx(1.4 / 1.1)
    assert ratio.terms == {"compute": 1.0, "communication": pytest.approx(3.0), "bubble": None}
    # of each device's 1.4 s
    assert ratio.scaling_loss == ("communication", pytest.approx(0.2 / 1.4))
    # a fourth of the samples on each device: 4 x 0.1 s of communication for 0.1 s before
    strong = StepRatio(base, predicted(compute=0.25, communication=0.1), doublings=2, is_same_work=False)
    assert strong.scaling_loss == ("communication", pytest.approx(0.3 / (4 * 0.35)))
    assert StepRatio(base, base, doublings=0, is_same_work=True).scaling_loss is None


def test_an_interval_is_what_published_steps_show():
    same = predicted(compute=1.0, communication=0.1)
    weak = StepRatio(same, same, doublings=4, is_same_work=True)
    assert weak.half_log_width == pytest.approx(2 * SAME_WORK)
    strong = dataclasses.replace(weak, is_same_work=False)
    assert strong.half_log_width == pytest.approx(2 * OTHER_WORK)
    # of a generation without published steps, whose own interval is a factor of 2
    untried = predicted(2.0, compute=1.0, communication=0.1)
    wider = dataclasses.replace(weak, base=untried, target=untried)
    assert wider.half_log_width == pytest.approx(2 * SAME_WORK * math.log(2) / math.log(1.34))


def test_an_interval_is_wider_if_an_uncertain_term_gains_weight():
    base, target = predicted(compute=1.0), predicted(compute=1.0, communication=1.0)
    # half of the step has the rate of links instead of that of computing: 12 and 35 %
    expected = NORMAL_95 * math.hypot(0.5 * 0.12, 0.5 * 0.35)
    assert StepRatio(base, target, 1, is_same_work=True).half_log_width == pytest.approx(expected)


def test_the_error_between_measured_numbers_of_devices_widens_with_the_doublings():
    residual = Residual(2, 8, math.log(1.05))
    assert residual.half_log_width(1) == residual.half_log_width(2) == pytest.approx(math.log(1.05))
    assert residual.half_log_width(8) == pytest.approx(4 * math.log(1.05))


@pytest.mark.parametrize("strategy", GROWING, ids=str)
def test_every_strategy_grows_and_the_same_devices_have_the_same_step(strategy):
    ranks = registry.create_plugin("strategies", gpu_cell(strategy).strategy).data_parallel_size(8)
    of = gpu_cell(strategy, batch=Batch(16 * ranks, 8, 2))
    same = ratio_of(of, 8)
    assert (same.value, same.half_log_width, same.scaling_loss) == (1.0, 0.0, None)
    widths, steps = [], []
    for devices in (16, 64, 256, 1024):
        ratio = ratio_of(of, devices)
        assert ratio.target.source == "data sheet"
        assert ratio.is_same_work
        widths.append(ratio.half_log_width)
        steps.append(ratio.value)
        assert ratio.half_log_width >= SAME_WORK * math.sqrt(ratio.doublings)
    assert widths == sorted(widths)
    # more shards have less to update, but no strategy gains much
    assert min(steps) > 0.95


def test_the_ratio_is_that_of_the_steps_on_the_same_links():
    of = gpu_cell("ddp")
    slow = dataclasses.replace(CLUSTER, between=1e9)
    base, target = of, moved(of, 16)
    fast_ratio, slow_ratio = (step_ratio(base, target, machine, []) for machine in (CLUSTER, slow))
    assert isinstance(slow_ratio, StepRatio)
    assert slow_ratio.value > 1.5 * fast_ratio.value
    assert slow_ratio.base == fast_ratio.base


def test_each_case_is_predicted_on_its_own_machine():
    slow = dataclasses.replace(described_machine(parse_gpu_cluster("h100-sxm:16x4")), between=1.25e9)
    base, target = gpu_cell("ddp"), moved(gpu_cell("ddp"), 64)
    found = step_ratio(base, target, CLUSTER, [], slow)
    steps = [data_sheet_step(base, CLUSTER), data_sheet_step(target, slow)]
    assert isinstance(found, StepRatio)
    assert [found.base, found.target] == steps
    # over one slow link of each node instead of the links inside a node
    assert found.value > 10


def probes(of: Case, *devices: int, **seconds: float) -> list:
    """Probe of *of* on each number of *devices*; passes take in proportion to the root of it."""
    found = []
    for count in devices:
        rows = probe_rows(count)
        passes = [rate_row("forward_backward", n, n * PASS_S * math.sqrt(count)) for n in (1, 8)]
        found.append(
            probe_of(moved(of, count), [*passes, *(row for row in rows if row["rate"] != "forward_backward")])
        )
    return found


def test_probes_on_both_numbers_of_devices_come_before_data_sheets():
    of = cell("ddp", 4, Batch(16, 4, 1))
    found = step_ratio(of, moved(of, 16), HERE, probes(of, 4, 16))
    assert isinstance(found, StepRatio), found
    assert found.target.source == "probe"
    assert found.terms["compute"] == pytest.approx(2.0)
    # two buckets, and an update of 1,016,960 parameters
    rest = 2 * IN_STEP_S + 4 * 1.01696 * UPDATE_S
    assert found.value == pytest.approx((16 * PASS_S + rest) / (8 * PASS_S + rest))
    assert found.half_log_width == pytest.approx(NORMAL_95 * 0.1, rel=1e-6)


def test_a_step_that_lacks_a_part_is_refused():
    of = gpu_cell({"zero": {"stage": 2, "offload_optimizer": "cpu"}}, 4)
    target = moved(of, 16)
    found = step_ratio(of, target, CLUSTER, [probe_of(of), probe_of(target)])
    assert "offload has no rate in a probe; it offloads states to CPU memory" in found


REFUSED = [
    (cell("ddp", 2, Batch(8, 4, 1)), "no probe on 16 devices; data sheets are of GPUs"),
    (gpu_cell("ddp", engine=PluginChoice("accelerate")), "engine accelerate"),
    (gpu_cell({"ddp": {"powersgd_rank": 4}}), "compresses or leaves out communication"),
    (gpu_cell({"zero": {"stage": 2, "offload_optimizer": "cpu"}}), "offloads states to CPU memory"),
    (
        gpu_cell("ddp", workload=PluginChoice("transformer", {"preset": "moe-tiny"})),
        "how evenly tokens are routed",
    ),
]


@pytest.mark.parametrize(("of", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_neither_source_decides_is_refused(of, reason):
    machine = CLUSTER if of.device == "cuda" else HERE
    found = step_ratio(of, moved(of, 16), machine, probes(of, 2) if of.device == "cpu" else [])
    assert isinstance(found, str)
    assert reason in found


def test_unknown_links_between_nodes_are_refused():
    machine = described_machine(parse_gpu_cluster("a40:4x8"))
    of = gpu_cell("ddp")
    found = step_ratio(of, moved(of, 16), machine, [])
    assert "bandwidth between nodes is unknown; set between in the machine's file" in found


BATCHES = [
    # a device keeps its samples
    ("ddp", 2, Batch(16, 4, 2), 8, "weak", Batch(64, 4, 2)),
    ({"fsdp": {"mesh": {"tp": 2}}}, 4, Batch(16, 4, 2), 16, "weak", Batch(64, 4, 2)),
    ({"fsdp": {"mesh": {"tp": 2}}}, 4, Batch(16, 4, 2), 6, "weak", Batch(24, 4, 2)),
    # all share the same: fewer micro-batches first, then smaller ones
    ("ddp", 2, Batch(32, 4, 4), 4, "strong", Batch(32, 4, 2)),
    ("ddp", 2, Batch(32, 4, 4), 8, "strong", Batch(32, 4, 1)),
    ("ddp", 2, Batch(32, 4, 4), 32, "strong", Batch(32, 1, 1)),
    ({"fsdp": {"mesh": {"tp": 2}}}, 4, Batch(16, 4, 2), 8, "strong", Batch(16, 4, 1)),
]


@pytest.mark.parametrize(("strategy", "before", "batch", "devices", "scaling", "expected"), BATCHES)
def test_the_batch_follows_from_what_grows(strategy, before, batch, devices, scaling, expected):
    found = moved(cell(strategy, before, batch), devices, scaling)
    assert (found.world_size, found.batch) == (devices, expected)
    assert f"/ws{devices}/" in found.name


UNFIT = [
    ("ddp", 2, Batch(8, 4, 1), 16, "strong", "batch.global_batch_size = 8 is not divisible by world size 16"),
    ("ddp", 2, Batch(24, 12, 1), 16, "strong", "or --scaling weak"),
    ("single", 1, Batch(4, 4, 1), 2, "weak", "single runs on 1 only"),
    ("tp", 2, Batch(4, 4, 1), 4, "weak", "tp would grow with the devices"),
    ("pp", 2, Batch(4, 4, 1), 4, "weak", "pp would grow with the devices"),
    ({"fsdp": {"mesh": {"tp": 2}}}, 4, Batch(8, 4, 1), 7, "weak", "7 devices are no multiple of tp 2"),
    ({"fsdp": {"mesh": {"dp_replicate": 4}}}, 4, Batch(8, 2, 1), 6, "weak", "mesh: {dp_replicate: 4}"),
]


MESHES = [
    ("cp", 4, 16, {"dp_replicate": 4, "cp": 4}),
    ({"cp": {"mesh": {"cp": 2}, "sharded": True}}, 4, 16, {"dp_shard": 8, "cp": 2}),
    ({"pp": {"mesh": {"tp": 2, "dp_shard": 2}}}, 8, 32, {"pp": 2, "dp_shard": 8, "tp": 2}),
    (
        {"pp": {"mesh": {"dp_replicate": 2, "dp_shard": 2}}},
        8,
        12,
        {"pp": 2, "dp_replicate": 3, "dp_shard": 2},
    ),
    ({"zero": {"stage": 1, "mesh": {"tp": 2}}}, 4, 16, {"dp_shard": 8, "tp": 2}),
    ({"fsdp": {"mesh": {"dp_replicate": 2, "dp_shard": 2}}}, 4, 16, {"dp_replicate": 8, "dp_shard": 2}),
    ({"fsdp": {"mesh": {"dp_shard": 4}}}, 4, 16, {"dp_shard": 16}),
]


@pytest.mark.parametrize(("strategy", "before", "devices", "expected"), MESHES, ids=str)
def test_a_mesh_grows_in_a_dimension_of_data_parallelism(strategy, before, devices, expected):
    found = moved(gpu_cell(strategy, before, Batch(before * 4, 4, 1)), devices)
    assert registry.create_plugin("strategies", found.strategy).mesh_sizes(devices) == expected


@pytest.mark.parametrize(("strategy", "before", "batch", "devices", "scaling", "reason"), UNFIT)
def test_a_case_that_can_t_run_on_so_many_devices_is_refused(
    strategy, before, batch, devices, scaling, reason
):
    found = resized_case(cell(strategy, before, batch), devices, scaling, HERE)
    assert isinstance(found, str)
    assert reason in found


def test_a_type_of_gpu_follows_from_the_name_that_its_driver_reports():
    assert {type_of_gpu(sheet.driver_name) for sheet in DATA_SHEETS.values()} == {*GPU_TYPES}
    # with the links of the SXM module it would be too fast
    assert type_of_gpu("NVIDIA A100-PCIE-40GB") == ""
