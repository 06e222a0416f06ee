"""Columns of ``telemetry``, with definitions and sources."""

from __future__ import annotations

from distbench.core.columns import Column, TableColumn, TableSpec, columns_of

# over several nodes, each column is the worst, unless its definition says otherwise
_AROUND_DOC = "between the last sample before the timed window and the first after it"
_IN_WINDOW_DOC = "samples in the timed window"

HOST_COLUMNS = (
    *columns_of("", None, "first")(
        host_load="Load average of the last minute (/proc/loadavg) at the start of the timed window; it "
        "includes the start of the trial and the previous trial.",
        host_steal="Fraction of the usable CPU time that the hypervisor gave to other guests although "
        f"there was work (steal of /proc/stat), {_AROUND_DOC}.",
        host_foreign_cpu="Fraction of the usable CPU time that other processes took, including the "
        "kernel's: busy time of /proc/stat minus that of this command (on several nodes: of agents) "
        f"and its descendants, {_AROUND_DOC}; so it can't separate the window from the time just before "
        "or after it. Ticks of 10 ms make it uncertain by some percent in windows below a second.",
        host_quota_throttle="Fraction of the periods (100 ms by default) of the CPU quota of a cgroup in "
        "which it stopped processes of this run (nr_throttled over nr_periods of cpu.stat), "
        f"{_AROUND_DOC}; of all cgroups with a quota around it. Absent without a quota.",
        host_busy_processes="Number of other processes that took more than a tenth of a CPU over the "
        "whole trial and still ran at its end. Neither names nor owners are recorded.",
    ),
    *columns_of("Hz", None, "first")(
        host_frequency="Clock of some of the usable CPUs (cpufreq's scaling_cur_freq), mean over "
        f"{_IN_WINDOW_DOC}; on several nodes, the slowest.",
    ),
)
GPU_COLUMNS = (
    *columns_of("", None, "first")(
        gpu_utilisation="NVML's GPU utilisation: fraction of its last sample period (a sixth of a second "
        "to one second) in which a kernel ran. It shows activity, not efficiency. Mean over "
        f"{_IN_WINDOW_DOC} and GPUs.",
    ),
    *columns_of("W", None, "first")(
        gpu_power="Power drawn by all GPUs of the trial together (nvmlDeviceGetPowerUsage), mean over "
        f"{_IN_WINDOW_DOC}. From Ampere on (except GA100) each reading is the mean of the preceding "
        "second, so readings in a shorter window include time before it.",
    ),
    *columns_of("J", "lower", "first")(
        energy_per_token="Energy that all GPUs of the trial took in the timed window for each token "
        "trained on: difference of nvmlDeviceGetTotalEnergyConsumption at its ends, linear between "
        "samples. CPUs and the rest of the machine are not included.",
    ),
    Column("gpu_sm_clock", "Hz", None, "first", f"SM clock, mean over {_IN_WINDOW_DOC}, of the slowest GPU."),
    Column("gpu_temperature", "°C", None, "first", f"Highest temperature of any GPU, over {_IN_WINDOW_DOC}."),
    *columns_of("B", "lower", "first")(
        gpu_memory_used="Peak memory in use on a GPU (nvmlDeviceGetMemoryInfo) in the timed window, "
        "including the CUDA context, NCCL buffers, memory of the driver and of other processes.",
        gpu_memory_own="Peak memory of the trial's processes on a GPU "
        "(nvmlDeviceGetComputeRunningProcesses).",
    ),
    *columns_of("", None, "first")(
        gpu_other_processes="Other processes that compute on a GPU of the trial, maximum over samples.",
        gpu_throttle=f"Fraction of the {_IN_WINDOW_DOC} in which a GPU lowered its clocks to protect "
        "itself (clocks event reasons: hardware slowdown, thermal slowdown by hardware or software, "
        "power brake); of the GPU with the largest fraction.",
        gpu_power_cap=f"Fraction of the {_IN_WINDOW_DOC} in which the power limit lowered a GPU's clocks "
        "(SwPowerCap), which is usual at full load; of the GPU with the largest fraction.",
    ),
)


def _double(name: str, doc: str, unit: str = "") -> TableColumn:
    return TableColumn(name, "double", doc, unit)


TABLE = TableSpec(
    "telemetry",
    "Samples of the machine while the ranks ran, taken outside of them; one row per sample.",
    (
        _double("at", 'When, in seconds since 1970. A word of SQL: write "at" in quotes.', "s"),
        _double("busy_s", "CPU time of all processes since boot, over the usable CPUs.", "s"),
        _double("steal_s", "CPU time that a hypervisor took since boot.", "s"),
        _double("total_s", "All CPU time since boot, busy or idle, over the usable CPUs.", "s"),
        _double("own_s", "CPU time of this run's processes so far.", "s"),
        _double("load", "Load average of the last minute."),
        _double("frequency_hz", "Mean clock of the usable CPUs.", "Hz"),
        TableColumn("quota_periods", "bigint", "Periods of the CPU quota so far; null: there is none."),
        TableColumn("throttled_periods", "bigint", "Those in which the quota stopped a process."),
        _double("others_busy", "Busy processes outside this run."),
        _double("others_most", "CPUs used by the busiest of them."),
        TableColumn("node", "varchar", "Node of the sample; null: the machine of the command."),
        TableColumn("device", "bigint", "GPU of the trial on it, from 0 on; null in rows of the host."),
        _double("utilisation", "Fraction of time in which a kernel ran on the GPU."),
        _double("power_w", "Power draw of the GPU.", "W"),
        _double("energy_j", "Energy used by the GPU since its driver was loaded.", "J"),
        _double("sm_clock_hz", "Clock of the GPU's multiprocessors.", "Hz"),
        _double("temperature_c", "Temperature of the GPU.", "°C"),
        _double("memory_bytes", "Memory of the GPU in use by all processes.", "B"),
        _double("own_memory_bytes", "Memory of the GPU in use by this run.", "B"),
        TableColumn("slowdown", "bigint", "1 if the GPU lowers its clocks to protect itself, else 0."),
        TableColumn("power_cap", "bigint", "1 if the GPU lowers its clocks to save power, else 0."),
        TableColumn("others", "bigint", "Other processes that compute on the GPU."),
        TableColumn("absent", "varchar", "Name of a reading that is missing from here on."),
        TableColumn("reason", "varchar", "Reason why it is missing."),
    ),
    by_rank=False,
)
