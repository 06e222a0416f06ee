"""The columns of ``telemetry``: what each is, and where it comes from."""

from __future__ import annotations

from distbench.metrics.base import Column

_AROUND = "between the last sample before the timed window and the first after it"
_IN = "samples in the timed window"

HOST = (
    Column(
        "host_load",
        "",
        None,
        "first",
        "Load average of the last minute (/proc/loadavg) as the timed window begins; the trial's own "
        "start is part of it, and so is the trial before.",
    ),
    Column(
        "host_steal",
        "",
        None,
        "first",
        "Part of the time of the usable CPUs that a hypervisor gave to others although there was work "
        f"(steal of /proc/stat), {_AROUND}.",
    ),
    Column(
        "host_foreign_cpu",
        "",
        None,
        "first",
        "Part of the time of the usable CPUs that went to processes which are not of this run, the "
        "kernel's own among them: busy time of /proc/stat less that of the command line and all that "
        f"descends from it, {_AROUND}; so it can't tell what happened just before or after the window. "
        "Ticks of 10 ms make it uncertain by some percent in windows below a second.",
    ),
    Column(
        "host_busy_processes",
        "",
        None,
        "first",
        "Other processes that took more than a tenth of a CPU over the whole trial, of those that still "
        "ran at its end. Counted only: neither names nor owners are kept.",
    ),
    Column(
        "host_frequency",
        "Hz",
        None,
        "first",
        f"Clock of some of the usable CPUs (cpufreq's scaling_cur_freq), mean over {_IN}.",
    ),
)
GPU = (
    Column(
        "gpu_utilisation",
        "",
        None,
        "first",
        "NVML's GPU utilisation: part of its last sample period (a sixth of a second to one second) in which "
        f"a kernel ran, a busy signal and no efficiency. Mean over {_IN} and GPUs.",
    ),
    Column(
        "gpu_power",
        "W",
        None,
        "first",
        f"Power drawn by all GPUs of the trial together (nvmlDeviceGetPowerUsage), mean over {_IN}.",
    ),
    Column(
        "energy_per_token",
        "J",
        "lower",
        "first",
        "Energy that all GPUs of the trial took in the timed window for each token trained on: difference of "
        "nvmlDeviceGetTotalEnergyConsumption at its ends, linear between samples. CPUs and the rest of "
        "the machine are not in it.",
    ),
    Column("gpu_sm_clock", "Hz", None, "first", f"SM clock, mean over {_IN}, of the slowest GPU."),
    Column("gpu_temperature", "°C", None, "first", f"Highest temperature of any GPU, over {_IN}."),
    Column(
        "gpu_memory_used",
        "B",
        "lower",
        "first",
        "Most memory in use on a GPU (nvmlDeviceGetMemoryInfo) in the timed window: with CUDA's context, "
        "NCCL's buffers, what the driver keeps, and what other processes hold.",
    ),
    Column(
        "gpu_memory_own",
        "B",
        "lower",
        "first",
        "Most memory that the trial's own processes held on a GPU (nvmlDeviceGetComputeRunningProcesses).",
    ),
    Column(
        "gpu_other_processes",
        "",
        None,
        "first",
        "Processes that are not of this run and compute on a GPU of the trial, most in any sample.",
    ),
    Column(
        "gpu_throttle",
        "",
        None,
        "first",
        f"Part of the {_IN} in which a GPU lowered its clocks to save itself (clocks event reasons: hardware "
        "slowdown, thermal slowdown by hardware or software, power brake), of the GPU that did most.",
    ),
    Column(
        "gpu_power_cap",
        "",
        None,
        "first",
        f"Part of the {_IN} in which the power limit lowered a GPU's clocks (SwPowerCap), which is usual at "
        "full load; of the GPU where it did most.",
    ),
)
