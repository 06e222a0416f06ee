"""Gates from anybody: a random change to a gate or a calibration, and a command of the gate that reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import strategies as st

from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.gate import calibration
from distbench.gate.calibration import CaseCalibration
from distbench.record.run_folder import write_json
from support.fuzzing import Survived, changed, repeated
from support.pretended_suites import COMMON
from support.runs import PLUGINS, call

SUITE = f"{COMMON}launcher: pretend\nstrategies: [pretended]\n"
FAILED = {"arm": 1, "round": 0, "started": "2026-01-01T00:00:00Z", "how": "crashed: no"}
KINDS = ("arms.json", "failures.json", "*/run.json", "*/trials/*/*/record.json")


def gate_attacks(count: int, place: Path, seed: int) -> Survived:
    """Make *count* changes in *place*, read by ``gate --resume`` or, those of a calibration, a dry run."""
    (place / "victim").write_text("precious")
    suite, out = place / "suite.yaml", place / "out"
    suite.write_text(SUITE)
    variables = {"DISTBENCH_CACHE": str(place / "cache"), PLUGIN_PATH_VARIABLE: PLUGINS}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        done = call("gate", str(suite), "--self-test", "--out", str(out), "--json")
        gate = Path(json.loads(done.stdout)["folder"])
        case_id = next(gate.glob("candidate/trials/*")).name.rpartition("-")[2]
        write_json(gate / "failures.json", [{**FAILED, "case_id": case_id}])
        spread = CaseCalibration("pretended", {"tokens_per_s": 0.01}, 3, 0.1, 2, "2026-01-01T00:00:00Z")
        cache = calibration.save_calibrations({case_id: spread})
        whole = shutil.copytree(gate, place / "whole"), cache.read_text()
        before, survived = _files(place, gate), Survived()

        def attack(draw: st.DrawFn) -> None:
            kind = draw(st.sampled_from((*KINDS, "calibration")))
            file = cache if kind == "calibration" else draw(st.sampled_from(sorted(gate.glob(kind))))
            data = json.loads(file.read_text())
            what = changed(draw, data)
            file.write_text(json.dumps(data))
            options = ("--dry-run",) if kind == "calibration" else ("--resume", str(gate))
            survived.see(["gate", str(suite), "--self-test", "--quiet", *options], f"{file.name}: {what}")
            shutil.rmtree(gate)
            shutil.copytree(whole[0], gate)
            cache.write_text(whole[1])
            assert _files(place, gate) == before, "something was written outside of the gate"

        repeated(attack, count, seed)
    return survived


def _files(place: Path, gate: Path) -> set[Path]:
    return {file for file in place.rglob("*") if not file.is_relative_to(gate)}
