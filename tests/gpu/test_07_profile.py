"""The profiler sees the kernels of a forked rank, and the parts of a step are those of its kernels."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from gpu_runs import HAS_DEEPSPEED, PRECISIONS, strategies, work

from distbench.metrics.profile.breakdown import STEP_PART_DOCS
from support.gpu_report import REHEARSAL, Check, Report
from support.runs import Finished, run_in

HEAD = work() + (
    f"{strategies('single', 'ddp', 'fsdp', '{zero: {stage: 2}}')}"
    "measure: {warmup: 2, steps: 6, trials: 1, profile_steps: 4, keep_traces: true}\n"
)
_ATTENTION = re.compile(r"flash|fmha|efficient|cudnn.*attention|cutlassF|softmax", re.IGNORECASE)


@pytest.fixture(scope="module", params=["bf16", "fp32"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    suite = f"{HEAD}precision: {PRECISIONS[request.param]}\n"
    return run_in(tmp_path_factory.mktemp(request.param), suite)


def trials(ran: Finished) -> dict[str, dict[str, Any]]:
    """Records by label, with the path of the trace in them."""
    files = ran.folder.glob("trials/*/0/record.json")
    read = {
        record["case"]["label"]: {**record, "at": file.parent}
        for file in files
        for record in [ran.read(file)]
    }
    assert {"single", "ddp", "fsdp", *(["zero2"] if HAS_DEEPSPEED else [])} <= read.keys(), ran.errors
    return read


@pytest.mark.minutes(4)
def test_the_parts_add_up_to_the_step(ran: Finished, check: Check) -> None:
    for label, record in trials(ran).items():
        values = record["values"]
        parts = {name: values[f"profile_{name}_s"] for name in STEP_PART_DOCS}
        assert sum(parts.values()) == pytest.approx(values["profile_step_s"], rel=1e-6), label
        assert min(parts[name] for name in ("forward", "backward", "optimizer")) > 0, label
        check.figure(f"{label} backward over forward", parts["backward"] / parts["forward"])
        check.figure(f"{label} idle", parts["other"] / values["profile_step_s"])
        check.figure(f"{label} profile_slowdown", values["profile_slowdown"])
        assert REHEARSAL or parts["backward"] > parts["forward"], (
            f"{label}: the backward pass has twice the products"
        )


@pytest.mark.minutes(1)
def test_the_kernels_of_both_passes_belong_to_layers(ran: Finished, check: Check) -> None:
    for label, record in trials(ran).items():
        rows = [row for row in record["tables"]["layers"] if row["rank"] == 0]
        times = {(row["layer"], row["kind"]): row["forward_s"] + row["backward_s"] for row in rows}
        assert len(times) > 3, (label, times)
        whole = sum(times.values())
        passes = sum(record["values"][f"profile_{part}_s"] for part in ("forward", "backward"))
        # kernels on two streams at once count twice
        check.figure(f"{label} time of layers over both passes", whole / passes)
        assert whole == pytest.approx(passes, rel=0.2), label
        outside = times.get((None, None), 0.0)
        check.figure(f"{label} share outside of modules", outside / whole)
        assert outside < whole / 2, f"{label}: nodes of the backward pass find no module"
        matmuls = [row for row in rows if row["kind"] == "Linear"]
        assert sum(row["backward_flops"] for row in matmuls) == 2 * sum(
            row["forward_flops"] for row in matmuls
        ), label


@pytest.mark.minutes(4)
def test_the_first_profiled_step_is_like_the_others(ran: Finished, check: Check) -> None:
    for label, record in trials(ran).items():
        first, *others = record["samples"]["profile_step_s"][0]
        middle = sorted(others)[len(others) // 2]
        check.figure(f"{label} first profiled step over the others", first / middle)


@pytest.mark.cuda
@pytest.mark.minutes(4)
def test_the_trace_has_the_kernels_of_the_gpu(ran: Finished, gpu_report: Report, check: Check) -> None:
    for label, record in trials(ran).items():
        gpu_report.note(record["environment"])
        kernels = kernel_names(record["at"])
        check.figure(f"{label} kernels", len(kernels))
        attention = sorted({name[:60] for name in kernels if _ATTENTION.search(name)})
        check.figure(f"{label} attention", ", ".join(attention)[:300] or "none seen")
        ran_by_record = record["environment"].get("attention_ran", [])
        check.figure(f"{label} attention by the record", ", ".join(ran_by_record))
        assert kernels, label
        # neither fp32 nor grouped heads leave only the kernel that keeps all scores in memory
        assert ran_by_record and "math" not in ran_by_record, (label, ran_by_record, attention)


@pytest.mark.cuda
@pytest.mark.minutes(4)
def test_one_device_communicates_nothing(ran: Finished) -> None:
    for label, record in trials(ran).items():
        values, absent = record["values"], record["absent"]
        for name in ("comm_transfer_s", "comm_wait_s", "comm_exposed_s"):
            assert values.get(name, 0.0) < 0.05 * values["profile_step_s"], (label, name)
            assert name in values or absent[name], (label, name)


def kernel_names(folder: Path) -> list[str]:
    """Names of the kernels in the trace of rank 0 in *folder*."""
    with gzip.open(folder / "rank0.trace.json.gz", "rt") as stream:
        events = json.load(stream)["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "kernel"]
