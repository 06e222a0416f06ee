"""The machine beside a trial: counters around the window, GPUs through a fake of NVML, disturbed trials."""

import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pynvml
import pytest

from distbench.analysis.case_aggregation import summarize_cases
from distbench.analysis.run import RunAnalysis
from distbench.analysis.scaling import scaling_series
from distbench.analysis.wording.findings import all_findings
from distbench.core.case import Case
from distbench.metrics.base import NotAvailable, TrialData
from distbench.metrics.telemetry import Telemetry
from distbench.metrics.telemetry.fake_nvml import FakeGpu, FakeNvml
from distbench.metrics.telemetry.gpu import GpuReader
from distbench.metrics.telemetry.host import HostReader, OtherProcesses
from distbench.metrics.telemetry.sampler import PeriodicSampler, Row
from distbench.record import Record
from distbench.report import page
from distbench.report.overview import overview_text
from distbench.report.run_export import run_json
from distbench.suite.sections import check_section
from distbench.views.base import all_views
from support.leftover_processes import busy_processes
from support.records import case, info, measured, run_of
from support.runs import QUICK

DDP, FSDP, ONE = case("ddp"), case("fsdp"), case("ddp", 1)
CUDA = case("ddp", device="cuda")
WINDOW = (10.0, 12.0)


def host(at: float, busy: float = 0.0, own: float | None = 0.0, **more: Any) -> Row:
    """Return a row of a host with two CPUs that has run since 0."""
    row = {"at": at, "busy_s": busy, "steal_s": 0.0, "total_s": 2 * at, "load": 1.0, "own_s": own}
    return {**row, "frequency_hz": None, **more}


def gpu(at: float, device: int = 0, **readings: Any) -> Row:
    return {"at": at, "device": device, **readings}


def trial(*rows: Row, of: Case = DDP, window: tuple[float, float] = WINDOW, **samples: Any) -> TrialData:
    return TrialData(
        case=of,
        tokens_per_sample=100,
        samples=samples,
        phases={},
        tables={"telemetry": list(rows)},
        window=window,
    )


def numbers(*rows: Row, **told: Any) -> Any:
    return Telemetry().summary(trial(*rows, **told))


def test_the_host_is_the_difference_between_the_samples_just_around_the_window():
    rows = [
        host(0.0),
        host(9.9, busy=5.0, own=4.0, load=2.5),
        host(11.0, busy=6.0, own=5.0),
        host(12.1, busy=8.0, own=5.9, steal_s=0.22),
        host(20.0, busy=99.0, own=6.0, steal_s=9.0),
    ]
    found = numbers(*rows)
    assert found["host_foreign_cpu"] == pytest.approx((3.0 - 1.9) / 4.4)
    assert found["host_steal"] == pytest.approx(0.22 / 4.4)
    assert found["host_load"] == 2.5


def test_a_window_between_two_samples_is_covered_by_them():
    found = numbers(host(10.0), host(10.2, busy=0.3, own=0.2), window=(10.05, 10.15))
    assert found["host_foreign_cpu"] == pytest.approx(0.1 / 0.4)


def throttled(at: float, periods: int, of_them: int) -> Row:
    return host(at, quota_periods=periods, throttled_periods=of_them)


@pytest.mark.parametrize("of", [DDP, CUDA])
def test_a_cpu_quota_that_stopped_the_ranks_marks_the_trial(of):
    rows = [throttled(1.0, 0, 0), throttled(9.9, 100, 2), throttled(12.1, 140, 12), throttled(20.0, 500, 99)]
    assert numbers(*rows)["host_quota_throttle"] == pytest.approx(10 / 40)
    said = Telemetry().degraded_reason(trial(*rows, of=of))
    assert "the CPU quota of the cgroup stopped the ranks in 25% of its periods" in said
    assert Telemetry(max_quota_throttle=0.3).degraded_reason(trial(*rows, of=of)) == ""
    unlimited = numbers(host(9.0), host(13.0))["host_quota_throttle"]
    assert str(unlimited) == "no CPU quota (cgroup) is around the command"


@pytest.mark.parametrize(
    "rows", [[], [host(11.0)], [host(1.0), host(9.0)], [host(13.0), host(14.0)]], ids=len
)
def test_without_samples_around_the_window_nothing_is_guessed(rows):
    assert isinstance(numbers(*rows)["host_foreign_cpu"], NotAvailable)


def test_where_own_processes_can_not_be_told_only_the_part_of_others_is_absent():
    found = numbers(host(9.0, own=None), host(13.0, busy=1.0, own=None))
    assert "CONFIG_PROC_CHILDREN" in str(found["host_foreign_cpu"])
    assert found["host_steal"] == 0


def test_ranks_on_another_machine_are_not_taken_for_processes_of_others():
    rows = [host(9.0), host(13.0, busy=4.0, own=0.1)]
    samples = {"step_s": [[0.1] * 10] * 2, "cpu_s": [[0.1]] * 2}
    assert "not child processes of the launcher" in str(numbers(*rows, **samples)["host_foreign_cpu"])
    rows[1]["own_s"] = 2.0
    assert numbers(*rows, **samples)["host_foreign_cpu"] == pytest.approx(2.0 / 8.0)


def test_on_cpus_the_columns_of_gpus_are_absent_with_the_reason():
    found = numbers(host(9.0), host(13.0))
    assert str(found["gpu_power"]) == str(found["energy_per_token"]) == "no GPU was used"
    assert "cpufreq" in str(found["host_frequency"])


@pytest.mark.parametrize(
    ("foreign_s", "steal_s", "told"),
    [
        (0.25, 0.0, "other processes took 3.1% of the CPU time around the timed window (limit 3.0%)"),
        (0.23, 0.0, ""),
        (0.0, 0.8, "the hypervisor took 10.0% of the CPU time around the timed window (limit 3.0%)"),
        (0.0, 0.2, ""),
    ],
)
def test_a_disturbed_trial_says_by_what_and_how_much(foreign_s, steal_s, told):
    rows = [host(9.0), host(13.0, busy=2.0 + foreign_s, own=2.0, steal_s=steal_s)]
    assert Telemetry().degraded_reason(trial(*rows)) == told


def test_limits_are_options():
    rows = [host(9.0), host(13.0, busy=0.8)]
    assert "limit 3.0%" in Telemetry().degraded_reason(trial(*rows))
    assert Telemetry(max_foreign_cpu=0.2).degraded_reason(trial(*rows)) == ""
    assert Telemetry(effect=0.2).degraded_reason(trial(*rows)) == ""
    assert "limit 5.0%" in Telemetry(max_foreign_cpu=0.05).degraded_reason(trial(*rows))
    _, findings = check_section(Telemetry, {"interval_s": 0.01}, ())
    assert [finding.path for finding in findings] == [("interval_s",)]


def test_a_trial_that_is_not_marked_was_not_slowed_by_more_than_the_effect_that_matters():
    """A neighbour of up to one core beside two ranks that are always busy, as the kernel shares it out."""
    effect, rng = 0.05, np.random.default_rng(7)
    stayed = []
    for wanted in rng.uniform(0, 1, 1000):
        taken = min(wanted, 0.5)
        rows = [host(9.0), host(13.0, busy=8.0, own=8.0 - 4 * taken)]
        if not Telemetry(effect=effect).degraded_reason(trial(*rows)):
            stayed.append(1 / (1 - taken) - 1)
    assert 30 < len(stayed) < 90, "ticks are not sure of less than half a percent of two CPUs"
    assert max(stayed) < effect * 1.3
    assert np.mean(stayed) < effect / 1.5


def disturbance_text(
    ddp: list[float], fsdp: list[float], effect: float | None = None, degraded: str = ""
) -> str:
    """What the key findings say of how noisy trials are, two cases in as many rounds."""
    speeds = [(DDP, ddp), (FSDP, fsdp)]
    records = [measured(of, 1000 * speed, round_=i) for of, every in speeds for i, speed in enumerate(every)]
    marked = [replace(record, degraded=degraded) for record in records]
    suite = {} if effect is None else {"metrics": [{"step_time": {}}, {"telemetry": {"effect": effect}}]}
    run = RunAnalysis(replace(info(DDP, FSDP), suite=suite), marked)
    return next((line for line in all_findings(run) if "although no interference was detected" in line), "")


APART, CLOSE = ([0.91, 1, 1.09], [1.09, 1, 0.91]), ([0.98, 1, 1.02], [1.02, 1, 0.98])


def test_trials_that_differ_although_none_is_marked_show_that_the_machine_is_not_quiet():
    assert disturbance_text(*APART).startswith("Trials vary within their round by 12.8% on 2 devices (")
    assert disturbance_text(*CLOSE) == ""
    assert disturbance_text(*APART, degraded="others computed") == ""


def test_the_effect_that_matters_to_the_suite_is_what_is_called_noisy():
    assert disturbance_text(*APART, effect=0.2) == ""
    assert disturbance_text(*CLOSE, effect=0.02) != ""


def test_what_a_round_does_to_all_cases_alike_is_no_noise_as_in_the_choice():
    together = [0.91, 1, 1.09]
    assert disturbance_text(together, together) == ""


def nodes_of(*rows: Row, of: Case = DDP, **samples: Any) -> TrialData:
    """A trial of a rank on each of two nodes."""
    return replace(trial(*rows, of=of, **samples), nodes={"near": [0], "far": [1]})


def samples_on(node: str, *rows: Row) -> list[Row]:
    return [{"node": node, **row} for row in rows]


def test_of_several_nodes_the_worst_counts_and_the_one_that_disturbs_is_named():
    near = samples_on("near", host(9.0, frequency_hz=3e9), host(13.0, busy=4.0, own=4.0, frequency_hz=3e9))
    last = host(13.0, busy=8.0, own=4.0, steal_s=0.4, frequency_hz=2e9)
    far = samples_on("far", host(9.0, load=3.0, frequency_hz=2e9), last)
    # in no order, as they come
    made = nodes_of(*far, *near, cpu_s=[[1.0], [1.0]], step_s=[[0.5] * 4] * 2)
    found = Telemetry().summary(made)
    assert (found["host_foreign_cpu"], found["host_steal"]) == (0.5, 0.05)
    assert (found["host_load"], found["host_frequency"]) == (3.0, 2e9)
    told = Telemetry().degraded_reason(made).split("; ")
    assert [each.partition(" took")[0] for each in told] == ["far: other processes", "far: the hypervisor"]


def test_a_node_that_gave_no_samples_is_named_and_the_other_does_not_stand_for_it():
    rows = samples_on("near", host(9.0), host(13.0, busy=8.0))
    found = Telemetry().summary(nodes_of(*rows))
    assert str(found["host_steal"]) == "far: not in any sample"
    assert Telemetry().degraded_reason(nodes_of(*rows)).startswith("near: other processes took 100.0%")
    assert str(Telemetry().summary(nodes_of())["host_steal"]) == "not in any sample"


def test_cpu_time_is_held_against_that_of_the_ranks_of_the_same_node():
    rows = [
        *samples_on("near", host(9.0), host(13.0, own=1.0)),
        *samples_on("far", host(9.0), host(13.0, own=1.0)),
    ]
    made = nodes_of(*rows, cpu_s=[[0.25], [0.75]], step_s=[[0.5] * 4] * 2)
    assert str(Telemetry().summary(made)["host_foreign_cpu"]).startswith("far: the CPU time of the ranks is")


def test_gpus_of_several_nodes_are_told_apart_though_each_numbers_its_own_from_0():
    near = samples_on("near", *read(FakeNvml(FakeGpu(power_mw=300_000, temperature_c=50, utilisation=100))))
    hot = FakeGpu(power_mw=500_000, temperature_c=80, utilisation=50, sm_clock_mhz=900, reasons=0x20)
    far = samples_on("far", *read(FakeNvml(hot)))
    found = Telemetry().summary(nodes_of(*near, *far, of=CUDA))
    assert (found["gpu_power"], found["gpu_temperature"], found["gpu_sm_clock"]) == (800, 80, 9e8)
    assert (found["gpu_throttle"], found["gpu_utilisation"]) == (1, pytest.approx(0.75))
    assert (
        Telemetry()
        .degraded_reason(nodes_of(*near, *far, of=CUDA))
        .startswith("far: a GPU lowered its clocks")
    )
    blind = samples_on(
        "far", *PeriodicSampler([GpuReader(FakeNvml(init_error="Driver Not Loaded"), 1, {})], 1).stop()
    )
    found = Telemetry().summary(nodes_of(*near, *blind, of=CUDA))
    assert str(found["gpu_power"]) == "far: NVML: Driver Not Loaded"


def test_energy_of_several_nodes_is_their_sum_over_all_tokens():
    near = samples_on("near", gpu(9.0, energy_j=100.0), gpu(13.0, energy_j=500.0))
    far = samples_on("far", gpu(9.0, energy_j=0.0), gpu(13.0, energy_j=600.0))
    found = Telemetry().summary(nodes_of(*near, *far, of=CUDA, step_s=[[0.5] * 4] * 2))
    tokens = 4 * DDP.batch.global_batch_size * 100
    assert found["energy_per_token"] == pytest.approx((200 + 300) / tokens)


def test_a_busy_host_does_not_disturb_ranks_on_gpus():
    assert Telemetry().degraded_reason(trial(host(9.0), host(13.0, busy=8.0), of=CUDA)) == ""


def proc_files(folder: Path, cpus: dict[str, str], processes: dict[int, str] | None = None) -> Path:
    """Write a /proc with the ticks of *cpus* and with processes, by id their ticks as ``utime stime``."""
    (folder / "stat").write_text("".join(f"{cpu} {ticks} 0 0\n" for cpu, ticks in cpus.items()))
    (folder / "loadavg").write_text("1.25 0.50 0.25 2/90 1234\n")
    for pid, ticks in {os.getpid(): "0 0", **(processes or {})}.items():
        (folder / f"{pid}/task/{pid}").mkdir(parents=True, exist_ok=True)
        (folder / f"{pid}/task/{pid}/children").write_text("")
        (folder / f"{pid}/stat").write_text(f"{pid} (a) b) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 20 0 1 0 7 0\n")
    return folder


def test_only_the_cpus_that_may_be_used_are_counted(tmp_path):
    mine = f"cpu{min(os.sched_getaffinity(0))}"
    fake = proc_files(
        tmp_path, {"cpu": "9 9 9 9 9 9 9 9", mine: "10 20 30 400 50 6 7 8", "cpu9999": "5 5 5 5 5 5 5 5"}
    )
    (row,) = HostReader(fake).read()
    assert (row["busy_s"], row["steal_s"], row["total_s"]) == (0.73, 0.08, 5.31)
    assert row["load"] == 1.25


def test_another_agent_of_the_run_on_the_host_is_no_stranger_and_may_end(tmp_path):
    fake = proc_files(tmp_path, {}, {4242: "300 200", 4343: "900 0"})
    assert (
        HostReader(fake, siblings=[4242, 5555]).read()[0]["own_s"]
        == HostReader(fake).read()[0]["own_s"] + 5.0
    )
    others = OtherProcesses(fake, siblings=[4242])
    others.read()
    proc_files(tmp_path, {}, {4242: "5000 5000", 4343: "5000 0"})
    assert others.close()[0]["others_busy"] == 1


def test_the_clock_is_the_mean_over_cpus_that_tell_one(tmp_path):
    file = tmp_path / f"cpu{min(os.sched_getaffinity(0))}/cpufreq/scaling_cur_freq"
    file.parent.mkdir(parents=True)
    file.write_text("2400000\n")
    (row,) = HostReader(cpus=tmp_path).read()
    assert row["frequency_hz"] == 2.4e9


def test_a_system_without_proc_has_no_host_and_says_so(tmp_path):
    rows = PeriodicSampler([HostReader(tmp_path)], 1).stop()
    assert [row["absent"] for row in rows] == ["host"]
    assert "No such file" in str(numbers(*rows)["host_steal"])


def test_cpu_time_of_a_child_is_own_while_it_lives_and_when_it_has_ended():
    burn = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    before = HostReader().read()[0]["own_s"]
    child = subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        child.stdout.readline()  # type: ignore[union-attr]
        alive = HostReader().read()[0]["own_s"]
    assert alive - before > 0.3
    assert HostReader().read()[0]["own_s"] - before > 0.3


def test_busy_processes_of_others_are_counted_and_nothing_else_is_kept(tmp_path):
    others = OtherProcesses(proc_files(tmp_path, {}, {4242: "0 0", 4343: "0 0"}))
    others.read()
    proc_files(tmp_path, {}, {4242: "5000 5000", 4343: "0 0", 4444: "5000 0", os.getpid(): "9000 0"})
    (row,) = others.close()
    assert set(row) == {"others_busy", "others_most"}
    assert row["others_busy"] == 2


class HangingSensor:
    """A source whose driver hangs until ``go`` is set."""

    name = "stuck"

    def __init__(self) -> None:
        self.go = threading.Event()

    def read(self) -> list[Row]:
        self.go.wait()
        return []

    def close(self) -> list[Row]:
        return []


def sampling() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "telemetry"]


def test_the_thread_samples_at_both_ends_and_ends():
    rows = PeriodicSampler([HostReader()], 1).stop()
    assert len(rows) == 2
    assert rows[0]["at"] <= rows[1]["at"]
    assert not sampling()


def test_a_driver_that_hangs_does_not_hold_up_the_run():
    stuck = HangingSensor()
    rows = PeriodicSampler([HostReader(), stuck], 1, timeout_s=0.2).stop()
    assert "busy_s" in rows[0]
    stuck.go.set()
    for thread in sampling():
        thread.join()


def read(nvml: Any, world_size: int = 1, **environment: str) -> list[Row]:
    """Return rows of the GPUs at the begin and at the end of the window."""
    gpus = GpuReader(nvml, world_size, environment)
    return [{"at": moment, **row} for moment in WINDOW for row in gpus.read()]


def test_readings_of_nvml_come_in_units_of_si():
    found = numbers(*read(FakeNvml(FakeGpu(), FakeGpu(power_mw=350_000)), world_size=2), of=CUDA)
    assert found["gpu_utilisation"] == pytest.approx(0.97)
    assert found["gpu_power"] == 1000
    assert found["gpu_sm_clock"] == 1.755e9
    assert found["gpu_temperature"] == 64
    assert found["gpu_memory_used"] == 30 << 30
    assert found["gpu_throttle"] == found["gpu_power_cap"] == 0


def test_what_one_gpu_does_not_support_makes_that_column_alone_absent():
    found = numbers(*read(FakeNvml(FakeGpu(temperature_c=None))), of=CUDA)
    assert str(found["gpu_temperature"]) == "GPU 0: NVML: Not Supported"
    assert found["gpu_power"] == 650


def test_energy_per_token_is_that_of_the_window_of_all_gpus_over_all_tokens():
    rows = [gpu(9.0, d, energy_j=100.0) for d in (0, 1)] + [gpu(13.0, d, energy_j=500.0 + d) for d in (0, 1)]
    tokens = 4 * DDP.batch.global_batch_size * 100
    found = numbers(*rows, of=CUDA, step_s=[[0.5] * 4] * 2)
    assert found["energy_per_token"] == pytest.approx((200 + 200.5) / tokens)


@pytest.mark.parametrize(
    ("rows", "steps", "window", "told"),
    [
        ([gpu(9.0, energy_j=1.0), gpu(13.0, energy_j=2.0)], 4, (10.0, 10.5), "too short"),
        ([gpu(9.0, energy_j=1.0), gpu(11.0, energy_j=2.0)], 4, WINDOW, "do not cover"),
        ([gpu(9.0, energy_j=1.0), gpu(13.0, energy_j=2.0)], 0, WINDOW, "tokens"),
        (read(FakeNvml(FakeGpu(energy=False))), 4, WINDOW, "Not Supported"),
    ],
)
def test_energy_that_was_not_counted_is_not_guessed(rows, steps, window, told):
    found = numbers(*rows, of=CUDA, window=window, step_s=[[0.5] * steps])
    assert told in str(found["energy_per_token"])


@pytest.mark.parametrize(
    ("reasons", "throttle", "cap"), [(0x01, 0, 0), (0x04, 0, 1), (0x08, 1, 0), (0x20, 1, 0), (0x44, 1, 1)]
)
@pytest.mark.parametrize("old_driver", [False, True])
def test_what_saves_the_gpu_is_told_apart_from_the_power_limit(reasons, throttle, cap, old_driver):
    rows = read(FakeNvml(FakeGpu(reasons=reasons), old_driver=old_driver))
    found = numbers(*rows, of=CUDA)
    assert (found["gpu_throttle"], found["gpu_power_cap"]) == (throttle, cap)
    assert ("heat" in Telemetry().degraded_reason(trial(*rows, of=CUDA))) is bool(throttle)


def test_memory_of_own_processes_is_told_and_others_on_the_gpu_disturb():
    rows = read(FakeNvml(FakeGpu(processes={os.getpid(): 5 << 30, 1: 1 << 30})))
    assert numbers(*rows, of=CUDA)["gpu_memory_own"] == 5 << 30
    assert "1 other processes computed" in Telemetry().degraded_reason(trial(*rows, of=CUDA))
    rows = read(FakeNvml(FakeGpu(processes={1: 1 << 30})))
    assert "no process of this trial" in str(numbers(*rows, of=CUDA)["gpu_other_processes"])


TWO_GPUS = FakeNvml(FakeGpu(uuid="GPU-aaaa", power_mw=1000), FakeGpu(uuid="GPU-bbbb", power_mw=2000))


@pytest.mark.parametrize(
    ("visible", "watts"), [("0", 1), ("1", 2), ("1,0", 2), ("GPU-bbbb", 2), ("GPU-b,GPU-a", 2), ("0,1", 1)]
)
def test_the_gpus_of_a_trial_are_those_that_cuda_numbers_first(visible, watts):
    assert numbers(*read(TWO_GPUS, CUDA_VISIBLE_DEVICES=visible), of=CUDA)["gpu_power"] == watts


@pytest.mark.parametrize(
    ("nvml", "world_size", "environment", "told"),
    [
        (TWO_GPUS, 4, {}, "4 ranks, but NVML sees only 2 GPUs"),
        (TWO_GPUS, 1, {"CUDA_VISIBLE_DEVICES": "MIG-GPU-aaaa/1/0"}, "MIG instances"),
        (FakeNvml(FakeGpu(mig=True)), 1, {}, "MIG"),
        (TWO_GPUS, 1, {"CUDA_VISIBLE_DEVICES": "GPU-"}, "names 2 of the 2"),
        (TWO_GPUS, 1, {"CUDA_VISIBLE_DEVICES": "7"}, "names 0 of the 2"),
        (FakeNvml(FakeGpu("A"), FakeGpu("B")), 1, {}, "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (FakeNvml(init_error="Driver Not Loaded"), 1, {}, "NVML: Driver Not Loaded"),
    ],
)
def test_where_nvml_and_cuda_may_mean_different_gpus_there_is_no_number(nvml, world_size, environment, told):
    rows = PeriodicSampler([GpuReader(nvml, world_size, environment)], 1).stop()
    assert told in str(numbers(*rows, of=CUDA)["gpu_power"])


def test_gpus_of_several_kinds_are_told_apart_when_cuda_numbers_them_by_bus():
    nvml = FakeNvml(FakeGpu("A", power_mw=1000), FakeGpu("B", power_mw=2000))
    rows = read(nvml, CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="1")
    assert numbers(*rows, of=CUDA)["gpu_power"] == 2


class FailingNvml(FakeNvml):
    """An NVML that breaks in a way of its own once it runs."""

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:  # noqa: N802
        raise OSError("the driver went away")


def test_a_driver_that_breaks_costs_the_columns_of_the_gpus_and_no_more():
    rows = PeriodicSampler([GpuReader(FailingNvml(FakeGpu()), 1, {}), HostReader()], 1).stop()
    assert "the driver went away" in str(numbers(*rows, of=CUDA)["gpu_power"])
    assert sum("busy_s" in row for row in rows) == 2


def test_the_fake_has_nothing_that_the_real_library_has_not():
    assert [name for name in vars(FakeNvml) if name[:4].lower() == "nvml" and not hasattr(pynvml, name)] == []
    assert FakeNvml.NVML_CLOCK_SM == pynvml.NVML_CLOCK_SM
    assert issubclass(pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError)


def test_nvml_is_shut_down_at_the_end():
    nvml = FakeNvml(FakeGpu())
    PeriodicSampler([GpuReader(nvml, 1, {})], 1).stop()
    assert nvml.opened == 0


def disturbed(record: Record) -> Record:
    return replace(record, degraded="other processes took 66% of the CPU time")


def test_a_disturbed_trial_does_not_count_beside_a_sound_one():
    run = run_of(disturbed(measured(DDP, 10)), measured(DDP, 100, round_=1))
    (row,) = run.cases
    assert (row.values["tokens_per_s"].value, row.values["tokens_per_s"].trial_count) == (100, 1)
    assert (row.trials, row.degraded_trials, row.degraded, row.relative_throughput) == (2, 1, "", 1.0)
    assert row.representative_trial is not None
    assert row.representative_trial.round == 1
    assert "1 of 2 of ddp/ws2/mb4/fp32" in "\n".join(all_findings(run))


def test_a_case_of_disturbed_trials_keeps_its_numbers_but_is_compared_with_nothing():
    run = run_of(measured(DDP, 100), disturbed(measured(FSDP, 900)))
    ddp, fsdp = run.cases
    assert fsdp.values["tokens_per_s"].value == 900
    assert (fsdp.relative_throughput, ddp.relative_throughput) == (None, 1.0)
    assert "measured on a noisy machine" in fsdp.relative_absence
    said = "\n".join(all_findings(run))
    assert "Fastest" not in said
    # noise changes no memory
    assert "Lowest memory on 2 devices: all cases are within 1%" in said
    assert "their speeds are not compared: fsdp/ws2/mb4/fp32; for example: other processes took 66%" in said


def test_a_disturbed_reference_is_none():
    row = summarize_cases(info(DDP, FSDP), [disturbed(measured(DDP)), measured(FSDP)])[1]
    assert row.relative_throughput is None
    assert "ddp at this world size was measured on a noisy machine" in row.relative_absence


def test_a_disturbed_case_takes_no_part_in_scaling():
    records = [measured(ONE, 100), disturbed(measured(DDP, 150))]
    assert scaling_series(summarize_cases(info(ONE, DDP), records)) == []


def test_a_disturbed_case_is_hollow_and_on_no_front_of_throughput_against_memory():
    run = run_of(measured(DDP), disturbed(measured(FSDP, 10**6)))
    (chart,) = all_views()["throughput"].charts(run)
    symbols = {
        trace["name"]: trace["marker"]["symbol"]
        for trace in chart.figure["data"]
        if trace["name"] in ("ddp", "fsdp")
    }
    assert [all(each.endswith("-open") for each in symbols[name]) for name in ("ddp", "fsdp")] == [
        False,
        True,
    ]
    fronts = {row.value("strategy"): row.value("front") for row in all_views()["throughput"].table(run).rows}
    assert fronts == {"ddp": True, "fsdp": False}


def test_a_disturbed_case_is_marked_wherever_it_is_shown():
    run = run_of(measured(DDP), disturbed(measured(FSDP)))
    text = overview_text(run)
    assert [line.split()[1] for line in text.splitlines() if line.startswith(("ddp ", "fsdp "))] == [
        "measured",
        "measured*",
    ]
    html = page.render(run)
    assert html.count(">noisy</span>") == 1
    assert ">1, 1 noisy<" in html
    shown = run_json(run)["cases"]
    assert [(row["degraded_trials"], row["degraded"] != "") for row in shown] == [(0, False), (1, True)]


def test_the_view_has_what_is_known_a_row_a_case_and_says_why_the_rest_is_missing():
    columns = {
        name: {"unit": "", "better": None, "over_ranks": "first", "doc": "."}
        for name in ("host_foreign_cpu", "gpu_power")
    }
    record = replace(
        disturbed(measured(DDP, host_foreign_cpu=0.66)),
        columns=columns,
        absent={"gpu_power": "no GPU was used"},
    )
    table = all_views()["telemetry"].table(run_of(record))
    assert table.headings == ("case", "disturbed", "others' CPU")
    assert list(table.texts()) == [("ddp/ws2/mb4/fp32", "1 of 1", "66.0%")]
    assert table.records()[0]["host_foreign_cpu"] == 0.66
    assert table.to_json()["rows"][0]["absent"]["gpu_power"] == "no GPU was used"
    assert "No gpu_power: no GPU was used." in table.notes
    assert all_views()["telemetry"].table(run_of(measured(DDP))).rows == ()


STRICT = QUICK.replace("steps: 3", "steps: 8") + "strategies: [ddp]\n"


@pytest.mark.train
def test_another_busy_process_makes_a_real_trial_degraded(run_suite):
    suite = STRICT + "metrics: [steptime, throughput, telemetry: {max_foreign_cpu: 0.05}]\n"
    with busy_processes(2):
        finished = run_suite(suite)
    record = finished.record("ddp")
    assert record["status"] == "measured"
    assert record["values"]["host_foreign_cpu"] > 0.1
    assert "(limit 5.0%)" in record["degraded"]
    assert record["values"]["host_busy_processes"] >= 2
    (shown,) = finished.cases.values()
    assert shown["degraded"] == record["degraded"]
    assert shown["relative_to_ddp"] is None


@pytest.mark.train
def test_what_the_ranks_take_themselves_is_not_held_against_them(run_suite):
    suite = STRICT + "metrics: [steptime, telemetry: {max_foreign_cpu: 1, max_steal: 1}]\n"
    record = run_suite(suite).record("ddp")
    rows = [row for row in record["tables"]["telemetry"] if "own_s" in row]
    ranks = sum(rank[0] for rank in record["samples"]["cpu_s"]) * 8
    assert rows[-1]["own_s"] - rows[0]["own_s"] >= ranks
    assert record["degraded"] == ""
    assert record["absent"]["gpu_power"] == "no GPU was used"


class CountingReader:
    """NVML that counts its calls by name."""

    def __init__(self, nvml: FakeNvml) -> None:
        self._nvml, self.calls = nvml, Counter[str]()

    def __getattr__(self, name: str) -> object:
        self.calls[name] += 1
        return getattr(self._nvml, name)


def test_a_sample_asks_each_gpu_once_for_what_several_numbers_need():
    nvml = CountingReader(FakeNvml(FakeGpu(processes={os.getpid(): 5 << 30})))
    (row,) = GpuReader(nvml, 1, {}).read()
    assert (row["own_memory_bytes"], row["others"], row["slowdown"]) == (5 << 30, 0, 0)
    assert nvml.calls["nvmlDeviceGetComputeRunningProcesses"] == 1
    assert nvml.calls["nvmlDeviceGetCurrentClocksEventReasons"] == 1


def test_a_kernel_that_lists_no_children_hides_whose_memory_it_is_and_nothing_else(tmp_path):
    rows = GpuReader(FakeNvml(FakeGpu(processes={os.getpid(): 5 << 30})), 1, {}, proc=tmp_path).read()
    assert rows[0]["power_w"] == 650
    assert {row["absent"] for row in rows[1:]} == {"own_memory_bytes", "others"}
