"""Columns of ``telemetry``, with definitions and sources."""

from __future__ import annotations

from distbench.core.columns import Column, TableColumn, TableSpec, columns_of

# over several nodes, each column is the worst, unless its definition says otherwise
_AROUND_DOC = "between the last sample before the timed window and the first after it"
_IN_WINDOW_DOC = "samples in the timed window"

HOST_COLUMNS = (
    *columns_of("", None, "first")(
        host_load="Load average of the last minute (/proc/loadavg) as the timed window begins; the trial's "
        "own start is part of it, and so is the trial before.",
        host_steal="Part of the time of the usable CPUs that a hypervisor gave to others although there "
        f"was work (steal of /proc/stat), {_AROUND_DOC}.",
        host_foreign_cpu="Part of the time of the usable CPUs that went to processes which are not of this "
        "run, the kernel's own among them: busy time of /proc/stat less that of the command line (on several "
        f"nodes: of agents) and all that descends from it, {_AROUND_DOC}; so it can't tell what happened "
        "just before or after the window. Ticks of 10 ms make it uncertain by some percent in windows below "
        "a second.",
        host_busy_processes="Other processes that took more than a tenth of a CPU over the whole trial, of "
        "those that still ran at its end. Counted only: neither names nor owners are kept.",
    ),
    *columns_of("Hz", None, "first")(
        host_frequency=f"Clock of some of the usable CPUs (cpufreq's scaling_cur_freq), mean over "
        f"{_IN_WINDOW_DOC}; of several nodes the slowest.",
    ),
)
GPU_COLUMNS = (
    *columns_of("", None, "first")(
        gpu_utilisation="NVML's GPU utilisation: part of its last sample period (a sixth of a second to "
        f"one second) in which a kernel ran, a busy signal and no efficiency. Mean over {_IN_WINDOW_DOC} and "
        "GPUs.",
    ),
    *columns_of("W", None, "first")(
        gpu_power="Power drawn by all GPUs of the trial together (nvmlDeviceGetPowerUsage), mean over "
        f"{_IN_WINDOW_DOC}. From Ampere on (but for GA100) each reading is itself the mean of the second "
        "before, so that of a window shorter than that much is of what came before it.",
    ),
    *columns_of("J", "lower", "first")(
        energy_per_token="Energy that all GPUs of the trial took in the timed window for each token "
        "trained on: difference of nvmlDeviceGetTotalEnergyConsumption at its ends, linear between "
        "samples. CPUs and the rest of the machine are not in it.",
    ),
    Column("gpu_sm_clock", "Hz", None, "first", f"SM clock, mean over {_IN_WINDOW_DOC}, of the slowest GPU."),
    Column("gpu_temperature", "°C", None, "first", f"Highest temperature of any GPU, over {_IN_WINDOW_DOC}."),
    *columns_of("B", "lower", "first")(
        gpu_memory_used="Most memory in use on a GPU (nvmlDeviceGetMemoryInfo) in the timed window: with "
        "CUDA's context, NCCL's buffers, what the driver keeps, and what other processes hold.",
        gpu_memory_own="Most memory that the trial's own processes held on a GPU "
        "(nvmlDeviceGetComputeRunningProcesses).",
    ),
    *columns_of("", None, "first")(
        gpu_other_processes="Processes that are not of this run and compute on a GPU of the trial, most in "
        "any sample.",
        gpu_throttle=f"Part of the {_IN_WINDOW_DOC} in which a GPU lowered its clocks to save "
        "itself (clocks event reasons: hardware slowdown, thermal slowdown by hardware or software, power "
        "brake), of the GPU that did most.",
        gpu_power_cap=f"Part of the {_IN_WINDOW_DOC} in which the power limit lowered a GPU's clocks "
        "(SwPowerCap), which is usual at full load; of the GPU where it did most.",
    ),
)


def _double(name: str, doc: str, unit: str = "") -> TableColumn:
    return TableColumn(name, "double", doc, unit)


TABLE = TableSpec(
    "telemetry",
    "What was seen of the machine while the ranks ran, from outside of them; a row each time.",
    (
        _double("at", 'When, in seconds since 1970. A word of SQL: write "at" in quotes.', "s"),
        _double("busy_s", "CPU time of all processes since boot, over the usable CPUs.", "s"),
        _double("steal_s", "CPU time that a hypervisor took since boot.", "s"),
        _double("total_s", "All CPU time since boot, busy or idle, over the usable CPUs.", "s"),
        _double("own_s", "CPU time of this run's processes so far.", "s"),
        _double("load", "Load average of the last minute."),
        _double("frequency_hz", "Mean clock of the usable CPUs.", "Hz"),
        _double("others_busy", "Busy processes that are not of this run."),
        _double("others_most", "CPUs that the busiest of them takes."),
        TableColumn("node", "varchar", "Node that was watched; null: the machine of the command."),
        TableColumn("device", "bigint", "GPU of the trial on it, from 0 on; null in rows of the host."),
        _double("utilisation", "Part of the time in which a kernel ran on the GPU."),
        _double("power_w", "Power draw of the GPU.", "W"),
        _double("energy_j", "Energy that the GPU has taken since its driver was loaded.", "J"),
        _double("sm_clock_hz", "Clock of the GPU's multiprocessors.", "Hz"),
        _double("temperature_c", "Temperature of the GPU.", "°C"),
        _double("memory_bytes", "Memory of the GPU in use by anybody.", "B"),
        _double("own_memory_bytes", "Memory of the GPU in use by this run.", "B"),
        TableColumn("slowdown", "bigint", "1 if the GPU lowers its clocks to save itself, else 0."),
        TableColumn("power_cap", "bigint", "1 if the GPU lowers its clocks to save power, else 0."),
        TableColumn("others", "bigint", "Processes of others that compute on the GPU."),
        TableColumn("absent", "varchar", "Name of a reading that is missing from here on."),
        TableColumn("reason", "varchar", "Why it is missing."),
    ),
    by_rank=False,
)
