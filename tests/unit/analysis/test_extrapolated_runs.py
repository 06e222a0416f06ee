"""Measured cases of runs on more devices: which of them, from what, and how far off."""

import dataclasses
import math

import pytest

from distbench.analysis.extrapolation import extrapolate_run, unusable_reason
from distbench.core.case import Batch, PluginChoice, PrecisionConfig
from distbench.prediction import data_sheet_step
from distbench.prediction.extrapolation import SAME_WORK
from distbench.record import Record
from distbench.system.gpu_types import parse_gpu_cluster
from distbench.system.machine import described_machine
from support.records import case, failed, measured, run_of

CLUSTER = described_machine(parse_gpu_cluster("h100-sxm:16x8"))
TOKENS = 1024
MODEL = PluginChoice("transformer", {"preset": "1b", "seq_len": TOKENS})


def gpu_case(label: str, devices: int, batch: Batch | None = None):
    return case(
        label,
        devices,
        workload=MODEL,
        data=PluginChoice("synthetic"),
        device="cuda",
        precision=PrecisionConfig(compute="bf16"),
        batch=batch or Batch(8 * devices, 8, 1),
    )


def trial(label: str, devices: int, step_s: float, *, round_: int = 0, batch: Batch | None = None) -> Record:
    of = gpu_case(label, devices, batch)
    return measured(of, of.batch.global_batch_size * TOKENS / step_s, round_=round_, step_s=step_s)


def extrapolated(*records: Record, to: tuple[int, ...] = (64,), suite: dict | None = None, **options):
    run = run_of(*records, **({"suite": {"name": "tiny", **suite}} if suite else {}))
    return extrapolate_run(run, to, CLUSTER, **options)


def predicted_s(label: str, devices: int, batch: Batch | None = None) -> float:
    step = data_sheet_step(gpu_case(label, devices, batch), CLUSTER)
    assert not isinstance(step, str)
    return step.seconds.value


def test_the_step_on_more_devices_is_the_measured_one_times_the_predicted_ratio():
    (series,) = extrapolated(trial("ddp", 8, 0.5))
    (point,) = series.points
    ratio = predicted_s("ddp", 64) / predicted_s("ddp", 8)
    assert point.case.batch == Batch(512, 8, 1)
    assert point.step_s.value == pytest.approx(0.5 * ratio)
    assert point.tokens_per_s.value == pytest.approx(512 * TOKENS / (0.5 * ratio))
    assert point.efficiency.value == pytest.approx(1 / ratio)
    width = SAME_WORK * math.sqrt(3)
    assert point.step_s.high == pytest.approx(point.step_s.value * math.exp(width))
    assert point.step_s.low == pytest.approx(point.step_s.value * math.exp(-width))
    assert point.efficiency.high / point.efficiency.value == pytest.approx(math.exp(width))
    assert point.fits == "yes"
    assert series.residual is None


def test_smaller_numbers_of_devices_test_the_method_and_widen_the_interval():
    right = 0.5 * predicted_s("ddp", 8) / predicted_s("ddp", 2)
    exact, off = (
        extrapolated(trial("ddp", 2, 0.5), trial("ddp", 8, step))[0] for step in (right, 1.2 * right)
    )
    assert [row.case.world_size for row in off.measured] == [2, 8]
    assert exact.residual.error == pytest.approx(0.0, abs=1e-9)
    assert (off.residual.from_devices, off.residual.to_devices) == (2, 8)
    assert off.residual.error == pytest.approx(1 / 1.2 - 1)
    (point,) = off.points
    # over 3 doublings, tested over 2
    assert point.step_s.high / point.step_s.value == pytest.approx(1.2**1.5)
    assert exact.points[0].step_s.high / exact.points[0].step_s.value == pytest.approx(
        math.exp(SAME_WORK * math.sqrt(3))
    )


def test_the_spread_of_the_trials_widens_the_interval():
    (series,) = extrapolated(*(trial("ddp", 8, 0.5 * (1 + 0.05 * i), round_=i) for i in range(3)))
    speed, (point,) = series.anchor.values["tokens_per_s"].interval, series.points
    both = math.hypot(SAME_WORK * math.sqrt(3), speed.half_log_width)
    assert point.step_s.high / point.step_s.value == pytest.approx(math.exp(both))


SCALINGS = [
    # (batches on 4 and 8 devices), batch of the suite, scaling
    ((Batch(32, 8, 1), Batch(64, 8, 1)), {}, "weak"),
    ((Batch(64, 8, 2), Batch(64, 8, 1)), {}, "strong"),
    ((Batch(64, 8, 1),), {"global_batch_size": 64, "per_device_batch_size": None}, "strong"),
    ((Batch(64, 8, 1),), {"global_batch_size": None, "per_device_batch_size": 8}, "weak"),
    ((Batch(64, 8, 1),), {}, "weak"),
]


@pytest.mark.parametrize(("batches", "batch", "scaling"), SCALINGS)
def test_scaling_is_that_of_the_run(batches, batch, scaling):
    sizes = (4, 8)[-len(batches) :]
    records = [trial("ddp", size, 0.5, batch=each) for size, each in zip(sizes, batches, strict=True)]
    (series,) = extrapolated(*records, to=(16,), suite={"batch": batch})
    assert series.scaling == scaling
    assert len(series.measured) == len(batches)
    (point,) = series.points
    assert point.case.batch.global_batch_size == (64 if scaling == "strong" else 128)


def test_the_user_may_choose_what_grows():
    (series,) = extrapolated(trial("ddp", 8, 0.5), to=(16, 256), scaling="strong")
    assert series.points[0].case.batch == Batch(64, 4, 1)
    assert not series.points[0].ratio.is_same_work
    # only half as many samples on each device, but the same update and communication
    assert 0.5 < series.points[0].step_s.value / 0.5 < 0.7


def test_strategies_are_extrapolated_from_the_most_devices_that_are_clean():
    noisy = dataclasses.replace(trial("ddp", 8, 0.5), degraded="other processes used the GPUs")
    broken = failed(gpu_case("fsdp", 8))
    records = (trial("ddp", 4, 0.4), noisy, trial("fsdp", 2, 0.6), broken)
    series = extrapolated(*records)
    reasons = [reason for row in run_of(*records).cases if (reason := unusable_reason(row))]
    assert "noisy machine; measure it again" in reasons[0]
    assert reasons[1] == "crashed: rank 1 in time: RuntimeError: no"
    assert [(each.name, each.anchor.case.world_size) for each in series] == [("ddp", 4), ("fsdp", 2)]


def test_what_is_refused_has_its_reason_and_the_rest_is_extrapolated():
    (series,) = extrapolated(trial("ddp", 8, 0.5), to=(4, 8, 16, 256))
    assert [point.case.world_size for point in series.points] == [16]
    assert series.refusals == {
        4: "it was measured on 8; --to takes more devices than that",
        8: "it was measured on 8; --to takes more devices than that",
        256: "the machine of --on has 128 GPUs",
    }


def test_a_case_that_does_not_fit_says_so():
    more = {"preset": "8b", "seq_len": TOKENS}
    of = dataclasses.replace(gpu_case("ddp", 8), workload=PluginChoice("transformer", more))
    (series,) = extrapolated(measured(of, 1e5, step_s=0.5))
    assert series.points[0].fits == "no"
