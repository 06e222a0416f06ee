"""A gate of equal arms on a GPU, and the telemetry of its trials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu_runs import measured, work

from support.gpu_report import REHEARSAL, Check, Report
from support.runs import call

SUITE = f"{work()}strategies: [ddp]\nprecision: bf16\nmeasure: {{warmup: 3, steps: 20, trials: 1}}\n"


@pytest.mark.minutes(8)
def test_a_gate_of_equal_arms_has_a_verdict_for_every_number(check: Check, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"{SUITE}gate: {{tokens_per_s: 10%, efficiency: false}}\n")
    done = call("gate", str(suite), "--self-test", "--json", "--out", str(tmp_path / "out"))
    assert done.returncode in (0, 3), done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    for one in case["findings"]:
        check.figure(one["metric"], one["word"])
        if one.get("ratio"):
            check.figure(f"{one['metric']} ratio", one["ratio"])
            check.figure(f"{one['metric']} pairs", one["pairs"])
    words = {one["metric"]: one["word"] for one in case["findings"]}
    assert words.pop("tokens_per_s") in ("pass", "inconclusive")
    assert words == dict.fromkeys(("peak_memory", "comm_bytes", "comm_calls"), "pass")


@pytest.mark.cuda
@pytest.mark.minutes(3)
def test_the_rows_of_telemetry_are_plausible(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    long = SUITE.replace("steps: 20", "steps: 200")
    record = measured(tmp_path, long, gpu_report)["ddp"]
    rows = [row for row in record.tables["telemetry"] if row.get("device") is not None]
    check.figure("rows of the GPU", len(rows))
    missing = {row["absent"]: row["reason"] for row in rows if row.get("absent")}
    check.figure("missing readings", str(missing) if missing else "none")
    for name in ("gpu_throttle", "gpu_power_cap", "gpu_power", "gpu_other_processes"):
        check.figure(name, record.values.get(name, record.absent.get(name, "")))
    assert rows and not REHEARSAL
    assert 0 <= record.values["gpu_throttle"] <= 1 and 0 <= record.values["gpu_power_cap"] <= 1
    assert 20 < record.values["gpu_power"] < 1500
