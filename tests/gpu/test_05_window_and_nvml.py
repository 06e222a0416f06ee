"""What NVML says of a long window agrees with what its steps say, and it is the GPU that trained."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from gpu_runs import measured, strategies, work

from distbench.record import Record
from distbench.system.machine import gpu_index
from support.gpu_report import Check, Report

pytestmark = pytest.mark.cuda
HEAD = f"{work()}strategies: [single]\nprecision: bf16\n"
WINDOW_S = 10.0


@pytest.fixture(scope="module")
def ran(gpu_report: Report, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A trial whose window is about ``WINDOW_S`` long."""
    folders = [tmp_path_factory.mktemp(name) for name in ("short", "long")]
    short = measured(folders[0], f"{HEAD}measure: {{steps: 20, trials: 1}}\n", gpu_report)["single"]
    steps = math.ceil(WINDOW_S / short.values["step_s"])
    return measured(folders[1], f"{HEAD}measure: {{steps: {steps}, trials: 1}}\n", gpu_report)["single"]


@pytest.mark.minutes(4)
def test_energy_is_power_times_the_sum_of_the_steps(ran: Record, check: Check) -> None:
    values, window_s = ran.values, length(ran)
    tokens = values["tokens_per_s"] * window_s
    joules = values["energy_per_token"] * tokens
    check.figure("sum of the steps", window_s, "s")
    check.figure("phase time by the wall", ran.phases["time"][0], "s")
    check.figure("energy", joules, "J")
    check.figure("power", values["gpu_power"], "W")
    check.figure("energy over power times seconds", joules / (values["gpu_power"] * window_s))
    assert joules == pytest.approx(values["gpu_power"] * window_s, rel=0.1)


@pytest.mark.minutes(4)
def test_it_is_the_gpu_that_trained(ran: Record, check: Check) -> None:
    values = ran.values
    for name in ("gpu_utilisation", "gpu_sm_clock", "gpu_temperature", "gpu_throttle", "gpu_power_cap"):
        check.figure(name, values.get(name, ran.absent.get(name, "")))
    assert values["gpu_utilisation"] > 0.5
    assert 20 < values["gpu_temperature"] < 110
    assert values["gpu_memory_used"] > values["memory_reserved_peak"]
    outside = values["memory_device_peak"] - values["memory_reserved_peak"]
    check.figure("outside of torch's allocator, by CUDA", outside, "B")
    assert 0 < outside < 4e9
    own = values.get("gpu_memory_own")
    check.figure("gpu_memory_own", own or ran.absent["gpu_memory_own"], "B" * bool(own))
    # in a container with its own process ids NVML can't say which processes are ours, and that is told
    assert own is not None or "process namespace" in ran.absent["gpu_memory_own"]
    if own:
        check.figure("outside of torch's allocator, by NVML", own - values["memory_reserved_peak"], "B")
        assert own > values["memory_reserved_peak"]


@pytest.mark.minutes(3)
def test_a_gpu_named_by_its_uuid_is_found(
    ran: Record, check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    device = ran.devices[0]
    assert device and device.uuid and gpu_index(device.uuid) == device.index
    suite = (
        f"{work()}{strategies('single', '{zero: {stage: 1}}')}precision: bf16\nlauncher: local\n"
        "measure: {steps: 5, trials: 1}\n"
    )
    by_uuid = measured(tmp_path, suite, gpu_report, CUDA_VISIBLE_DEVICES=device.uuid)
    told = {label: f"{record.status}: {record.reason}" for label, record in by_uuid.items()}
    check.figure("CUDA_VISIBLE_DEVICES before", os.environ.get("CUDA_VISIBLE_DEVICES", "not set"))
    assert {record.status.value for record in by_uuid.values()} == {"measured"}, told
    assert [record.devices for record in by_uuid.values()] == [[device]] * len(by_uuid)


def length(record: Record) -> float:
    """Sum of the timed steps."""
    return math.fsum(step for step in record.samples["step_s"][0] if step is not None)
