"""Steps that were still speeding up are told from steady ones whose noise lasts a few steps."""

from __future__ import annotations

import numpy as np
import pytest
from records import case, info, measured

from distbench.analysis.headlines import findings
from distbench.analysis.run import AnalysedRun
from distbench.metrics.steptime.drift import are_unsettled, change, falling

DDP = case("ddp")
TRIALS, PERSISTENCE = 3, 0.7


def share_told(steps: int, noise: float, drift: float, cases: int = 500) -> float:
    """Part of *cases* that are said to speed up, whose step time changes by *drift* over each trial."""
    rng = np.random.default_rng(7)
    logs = rng.normal(0, noise, (steps, cases, TRIALS))
    for i in range(1, steps):
        logs[i] = PERSISTENCE * logs[i - 1] + (1 - PERSISTENCE**2) ** 0.5 * logs[i]
    times = np.exp(logs + np.linspace(0, drift, steps)[:, None, None]).transpose(1, 2, 0).tolist()
    told = [are_unsettled([change(t) for t in of], [falling(t) for t in of]) for of in times]
    return float(np.mean(told))


@pytest.mark.parametrize("steps", [11, 22])
def test_steady_steps_whose_noise_lasts_are_not_said_to_speed_up(steps: int) -> None:
    assert share_told(steps, noise=0.05, drift=0.0) <= 0.02


@pytest.mark.parametrize(("steps", "noise", "found"), [(11, 0.01, 0.8), (22, 0.01, 0.95), (22, 0.02, 0.5)])
def test_steps_that_become_a_twentieth_faster_are_found(steps: int, noise: float, found: float) -> None:
    assert share_told(steps, noise, drift=-0.05) >= found


def test_the_chances_of_steady_steps_are_chances() -> None:
    rng = np.random.default_rng(7)
    chances = [falling(series) for series in rng.normal(1, 0.05, (500, 20)).tolist()]
    assert np.mean(np.array(chances) < 0.05) <= 0.07
    assert np.mean(np.array(chances) < 0.5) == pytest.approx(0.5, abs=0.07)


@pytest.mark.parametrize(
    ("trials", "told"),
    [
        ([(-0.2, 1e-4), (0.01, 0.6), (0.02, 0.7)], False),
        ([(-0.10, 0.01), (-0.08, 0.02), (-0.09, 0.04)], True),
        ([(-0.02, 1e-4), (-0.02, 1e-4), (-0.09, 1e-4)], False),
        ([(-0.09, 1.0), (-0.09, 0.0)], False),
    ],
)
def test_a_case_is_judged_by_all_of_its_trials(trials: list[tuple[float, float]], told: bool) -> None:
    records = [measured(DDP, round_=i, drift=drift, drift_p=p) for i, (drift, p) in enumerate(trials)]
    sentences = findings(AnalysedRun(info(DDP), records))
    assert any("still speeding up" in sentence for sentence in sentences) == told
