"""The CUDA paths, on one GPU: NCCL at world size 1, CUDA's memory, NVML, offload, bf16 and fp16.

    python -m pytest tests/gpu

in an environment with the extra ``train`` and ``pytest``. Not part of the tests that CI passes, which
need no GPU: on a machine without one these fail rather than being skipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import call, run_in

from distbench.metrics.profile.breakdown import PARTS
from distbench.record import Record
from distbench.record.store import Run

SUITE = """
workload: {transformer: {dim: 1024, depth: 4, heads: 16, kv_heads: 4, seq_len: 512}}
batch: {global_batch_size: 16}
world_sizes: [1]
device: cuda
measure: {warmup: 3, steps: 20, trials: 1}
metrics:
  - steptime
  - throughput
  - memory
  - communication
  - profile
  - convergence
  - startup
  - telemetry
  - utilisation: {measure_peak: true}
strategies:
  - single
  - ddp
  - fsdp
  - fsdp: {cpu_offload: true}
  - fsdp: {version: 1}
  - zero: {stage: [0, 1, 2, 3]}
  - zero: {stage: [2, 3], offload_optimizer: cpu}
  - zero: {stage: 3, offload_optimizer: cpu, offload_parameters: cpu}
"""
PRECISIONS = {"fp32": "fp32", "bf16": "bf16", "fp16": "{compute: fp16, loss_scale: 1024}"}


@pytest.fixture(scope="module", params=sorted(PRECISIONS))
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Every strategy on one GPU."""
    folder = tmp_path_factory.mktemp(request.param)
    finished = run_in(Path(folder), f"{SUITE}\nprecision: {PRECISIONS[request.param]}\n")
    return {record.case.label: record for record in Run(finished.folder).records()}


def test_every_strategy_is_measured_or_says_why_not(ran: dict[str, Record]) -> None:
    told = {label: f"{r.status}: {r.reason}" for label, r in ran.items()}
    assert {r.status.value for r in ran.values()} <= {"measured", "unsupported"}, told
    assert ran["single"].status == "measured", told


def test_losses_agree_with_single(ran: dict[str, Record]) -> None:
    expected = ran["single"].values["final_loss"]
    for label, record in ran.items():
        if record.status == "measured":
            assert record.values["final_loss"] == pytest.approx(expected, rel=5e-3), label


def test_the_numbers_of_a_gpu_are_there(ran: dict[str, Record]) -> None:
    for label, record in ran.items():
        if record.status != "measured":
            continue
        values = record.values
        assert values["memory_reserved_peak"] >= values["memory_peak"] > 0, label
        assert values["memory_device_peak"] > values["memory_reserved_peak"], label
        assert values["matmul_flops"] > 0 and 0 < values["mamfu"] <= 1.5, label
        assert "mfu" in values or "no published peak" in record.absent["peak_flops"], label
        parts = sum(values[f"profile_{part}_s"] for part in PARTS)
        assert parts == pytest.approx(values["profile_step_s"], rel=1e-6), label
        assert values["profile_forward_s"] > 0 and values["profile_backward_s"] > 0, label
        assert record.environment["gpu"], label


JOBS = """
workload: {transformer: {dim: 128, depth: 2, heads: 4, kv_heads: 4, seq_len: 64}}
batch: {global_batch_size: 8, micro_batch_size: 4}
world_sizes: [1]
device: cuda
optimizer: {clip_grad_norm: 1.0}
measure: {trials: 0}
strategies: [single, ddp, fsdp, {fsdp: {version: 1}}, {zero: {stage: [1, 2, 3]}}]
"""


@pytest.mark.parametrize("precision", sorted(PRECISIONS))
def test_every_strategy_is_the_same_training(precision: str, tmp_path: Path) -> None:
    done = run_in(tmp_path, f"{JOBS}\nprecision: {PRECISIONS[precision]}\ncheck: {{steps: 10}}\n")
    told = {name: case["equivalence"] for name, case in done.cases.items()}
    assert {each["verdict"] for each in told.values()} <= {"equivalent", "equivalent within rounding"}, told


def test_every_strategy_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    done = run_in(tmp_path, f"{JOBS}\ncheckpoint: true\n")
    assert done.code == 0, done.errors


def test_a_gate_of_equal_arms_has_a_verdict_for_every_number(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"{SUITE}\nprecision: bf16\ngate: {{tokens_per_s: 10%, efficiency: false}}\n")
    done = call("gate", str(suite), "--self-test", "--only", "ddp", "--json", "--out", str(tmp_path / "out"))
    assert done.returncode in (0, 3), done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    words = {one["metric"]: one["word"] for one in case["findings"]}
    assert words.pop("tokens_per_s") in ("pass", "inconclusive")
    assert words == dict.fromkeys(("peak_memory", "comm_bytes", "comm_calls"), "pass")
