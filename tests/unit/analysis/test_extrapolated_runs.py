"""Measured cases of runs on more devices: which of them, from what, and how far off."""

import dataclasses
import math

import pytest

from distbench.analysis.extrapolation import extrapolate_run, unusable_reason
from distbench.analysis.run_probes import RunProbes
from distbench.core.case import Batch, PluginChoice, PrecisionConfig
from distbench.prediction import data_sheet_step
from distbench.prediction.extrapolation import SAME_WORK
from distbench.record import Record
from distbench.system.gpu_types import parse_gpu_cluster
from distbench.system.machine import described_machine, detect_machine
from support.probes import probe_of
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


def test_the_nodes_of_the_measured_steps_are_those_of_the_run():
    slow = dataclasses.replace(described_machine(parse_gpu_cluster("h100-sxm:16x4")), between=1.25e9)
    (series,) = extrapolated(trial("ddp", 8, 0.2), on=slow)
    (point,) = series.points
    far = data_sheet_step(gpu_case("ddp", 64), slow)
    assert not isinstance(far, str)
    right = far.seconds.value / predicted_s("ddp", 8)
    assert right > 10
    assert point.step_s.value == pytest.approx(0.2 * right)
    assert point.efficiency.value == pytest.approx(1 / right)


def test_the_error_between_measured_steps_does_not_depend_on_other_nodes():
    slow = dataclasses.replace(described_machine(parse_gpu_cluster("h100-sxm:16x4")), between=1.25e9)
    records = (trial("ddp", 4, 0.20), trial("ddp", 8, 0.21))
    (own,), (other,) = extrapolated(*records), extrapolated(*records, on=slow)
    assert own.residual.error == pytest.approx(0.2 / 0.21 * predicted_s("ddp", 8) / predicted_s("ddp", 4) - 1)
    assert other.residual == own.residual


def test_an_interval_that_says_nothing_is_refused():
    right = 0.5 * predicted_s("ddp", 8) / predicted_s("ddp", 4)
    (near,), (far,) = (extrapolated(trial("ddp", 4, 0.5), trial("ddp", 8, off * right)) for off in (2.0, 2.2))
    # to 64 devices: the error of one doubling three times
    assert near.points[0].step_s.high / near.points[0].step_s.value == pytest.approx(8.0)
    assert not far.points
    assert far.refusals[64] == (
        "its interval is wider than a factor of 10 on each side, as the step on 8 devices, extrapolated from "
        "4, is so far off the measured one"
    )
    spread = (trial("ddp", 8, step, round_=i) for i, step in enumerate((0.1, 5.0, 0.2)))
    (noisy,) = extrapolated(*spread)
    assert noisy.refusals[64].endswith("on each side, as the rates or the trials are that uncertain")


@pytest.mark.parametrize("step_s", [1e308, 1e-308])
def test_a_step_that_no_machine_has_is_left_out(step_s):
    (series,) = extrapolated(trial("ddp", 4, 0.5), measured(gpu_case("ddp", 8), step_s=step_s))
    assert series.anchor.case.world_size == 4
    row = run_of(measured(gpu_case("ddp", 8), step_s=step_s)).cases[0]
    reason = f"its step_s = {step_s:g} is outside 1e-09 to 1e+09: the record is damaged"
    assert unusable_reason(row) == reason
    row = run_of(measured(gpu_case("ddp", 8), 1e308, step_s=0.5)).cases[0]
    assert unusable_reason(row).startswith("its tokens_per_s = 1e+308 is outside")


@pytest.mark.parametrize("steps", [(1e-9, 1e9), (1e9, 1e-9)])
def test_measured_steps_may_be_as_far_apart_as_they_like(steps):
    records = [measured(gpu_case("ddp", size), step_s=step) for size, step in zip((4, 8), steps, strict=True)]
    (series,) = extrapolated(*records)
    assert series.residual.error is None
    assert "is so far off the measured one" in series.refusals[64]


PROBED = Batch(8, 4, 1), Batch(16, 4, 1)
"""Of 2 and of 4 devices."""


def on_cpu(record: Record, cpu: str) -> Record:
    return dataclasses.replace(record, environment={"cpu": cpu} if cpu else {})


def probed_run(cpu: str, near: str):
    """Run on 2 ranks of *cpu*, with a probe on *near*."""
    of = case("ddp", 2, batch=PROBED[0])
    return run_of(on_cpu(measured(of, step_s=0.05), cpu), on_cpu(probe_of(of), near))


def probe_on_4(cpu: str) -> Record:
    return on_cpu(probe_of(case("ddp", 4, batch=PROBED[1])), cpu)


def test_probes_on_other_devices_than_those_of_the_run_are_left_out():
    machine = detect_machine("cpu")
    same = probed_run("AMD A", "AMD A")
    probes = RunProbes.of(same, {"rates": [probe_on_4("AMD A")]})
    (series,) = extrapolate_run(same, (4,), machine, probes=probes)
    assert series.points[0].step_s.value == pytest.approx(0.05)
    assert probes.used_text.endswith("; rates, on 4 CPU ranks of AMD A, 1 node")
    assert not probes.left_out

    far_differs = RunProbes.of(same, {"rates": [probe_on_4("Slow B")]})
    (series,) = extrapolate_run(same, (4,), machine, probes=far_differs)
    assert "no probe on 4 devices" in series.refusals[4]
    assert far_differs.mismatch("rates") == (
        "ran on 4 CPU ranks of Slow B, 1 node, and the run was measured on AMD A"
    )

    near_differs = probed_run("Slow B", "AMD A")
    probes = RunProbes.of(near_differs, {"rates": [probe_on_4("Slow B")]})
    (series,) = extrapolate_run(near_differs, (4,), machine, probes=probes)
    assert "no probe on 2 devices" in series.refusals[4]
    assert "ran on 2 CPU ranks of AMD A, 1 node" in probes.mismatch(near_differs.info.run_id)


@pytest.mark.parametrize(("cpu", "other"), [("AMD A", ""), ("", "AMD A")])
def test_a_probe_on_unknown_devices_is_not_taken_for_one_on_those_of_the_run(cpu, other):
    probes = RunProbes.of(probed_run(cpu, cpu), {"rates": [probe_on_4(other)]})
    assert "rates" not in probes.used
    assert "devices that were not recorded" in probes.mismatch("rates")


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
