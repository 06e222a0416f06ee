"""What the checks on a GPU share: the device, sizes of work, and runs through the command line.

With ``DISTBENCH_REHEARSAL=1`` the CPU takes the GPU's place, with models that suit it, so that a check can be
tried where there is no GPU.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.core.job import MEASURE
from distbench.record import Record
from distbench.record.run_folder import RUN_FILE, Run
from support.gpu_report import REHEARSAL, Report
from support.runs import run_in

DEVICE = "cpu" if REHEARSAL else "cuda"

PRECISIONS = {"fp32": "fp32", "bf16": "bf16", "fp16": "{compute: fp16, loss_scale: 1024}"}

HAS_DEEPSPEED = find_spec("deepspeed") is not None


def strategies(*entries: str) -> str:
    """The section of a suite with *entries*; those of DeepSpeed are left out where it is not installed."""
    kept = [entry for entry in entries if HAS_DEEPSPEED or "zero" not in entry]
    return f"strategies: [{', '.join(kept)}]\n"


STRATEGIES = strategies(
    "single",
    "ddp",
    "fsdp",
    "{fsdp: {cpu_offload: true}}",
    "{fsdp: {version: 1}}",
    "{fsdp: {version: 1, cpu_offload: true}}",
    "{zero: {stage: [0, 1, 2, 3]}}",
    "{zero: {stage: [1, 2, 3], offload_optimizer: cpu}}",
    "{zero: {stage: 3, offload_optimizer: [none, cpu], offload_parameters: cpu}}",
)
FEW = strategies("single", "ddp", "fsdp", "{fsdp: {version: 1}}", "{zero: {stage: [0, 1, 2, 3]}}")

# grouped heads, as models of today have them
MIDDLE = "{dim: 1024, depth: 4, heads: 16, kv_heads: 4, seq_len: 512}"
SMALL = "{dim: 128, depth: 2, heads: 4, kv_heads: 4, seq_len: 64}"
_TINY = "{dim: 32, depth: 2, heads: 4, kv_heads: 2, seq_len: 16}"


def work(shape: str = MIDDLE, batch: int = 16, *, world_size: int = 1, data: str = "synthetic") -> str:
    """Head of a suite: the model of *shape*, a global batch of *batch*, on so many devices."""
    size = 4 if REHEARSAL else batch
    return (
        f"workload: {{transformer: {_TINY if REHEARSAL else shape}}}\n"
        f"data: {data}\n"
        f"world_sizes: [{world_size}]\n"
        f"device: {DEVICE}\n"
        "limits: {start: 120, build: 300, step: 120, trial: 600}\n"
        f"batch: {{global_batch_size: {size}}}\n"
    )


def measured(folder: Path, suite: str, report: Report, **variables: str) -> dict[str, Record]:
    """Run *suite*; the records of its timed trials by the label of their case, the last of several."""
    return {record.case.label: record for record in records(folder, suite, report, **variables)[MEASURE]}


def records(folder: Path, suite: str, report: Report, **variables: str) -> dict[str, list[Record]]:
    """Run *suite*; its records by the kind of their job."""
    finished = run_in(folder, suite, **variables)
    assert (finished.folder / RUN_FILE).is_file(), finished.errors
    found: dict[str, list[Record]] = {MEASURE: []}
    for record in Run(finished.folder).records():
        report.note(record.environment)
        found.setdefault(record.job.kind, []).append(record)
    return found


def worker(script: Path, *arguments: str) -> dict[str, Any]:
    """Last line of JSON that *script* prints as the only rank; it ends with the check, whatever it does."""
    zero: Any = registry.create_plugin("strategies", PluginChoice("zero"))
    environment = {
        **os.environ,
        **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0"),
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        # not the interface that the host's name stands for, which a machine without a network lacks
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": DEVICE,
        "TORCH_EXTENSIONS_DIR": zero.extensions_folder(DEVICE),
    }
    with subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            output, errors = process.communicate()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    assert process.returncode == 0 and lines, f"{script.name}: {process.returncode}: {errors[-2000:]}"
    return dict(json.loads(lines[-1]))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
