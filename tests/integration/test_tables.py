"""The tables of simulations in the docs are those of this code: two rows of each are computed again."""

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from support import convergence_records, random_histories, random_runs

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/benchmarks"))

pytestmark = pytest.mark.deep

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def cells(document: str, *starts: str) -> list[list[float]]:
    """The numbers in the cells of a row after the first ones, which are *starts*; there is one such."""
    lines = (ROOT / "docs" / document).read_text().splitlines()
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    (found,) = [row for row in rows if row[: len(starts)] == [*starts]]
    return [[float(number) for number in NUMBER.findall(cell)] for cell in found[len(starts) :]]


def close(shares: Sequence[float], percents: Sequence[float], runs: int, told_runs: int) -> bool:
    """Whether *shares* of *runs* are those *percents* of others within four standard errors and a digit."""
    told = np.array(percents) / 100
    error = np.sqrt(np.clip(told * (1 - told), 1e-4, 1) * (1 / runs + 1 / told_runs))
    return bool(np.all(np.abs(np.array(shares) - told) <= 4 * error + 0.005))


@pytest.mark.parametrize("level", ["quiet", "typical"])
def test_how_often_a_gate_stops_a_loss(level):
    from gate_tables import LEVELS, PACE, blocks

    from distbench.gate.sequential_test import PairRule
    from support.gate_simulation import ended

    told = cells("gate.md", f"{level}, throughput, 3%")
    pace = blocks(LEVELS[level], 2000, seed=7)[..., 1]
    losses = (0.02, 0.03, 0.04, 0.06, 0.1)
    stops = [ended(pace + np.log1p(loss), PairRule(PACE)).share("regressed") for loss in losses]
    assert close([share**2 for share in stops], [cell[0] for cell in told[:5]], 2000, 6000)
    assert close([ended(pace, PairRule(PACE)).share("inconclusive")], told[5], 2000, 6000)


@pytest.mark.parametrize(
    ("name", "draw"),
    [("normal", random_runs.normal), ("heavy tails (t, 3 degrees)", random_runs.heavy_tails)],
)
def test_what_intervals_hold_and_what_a_pick_costs(name, draw):
    trials, held, _, _, loss, above = cells("measuring-evidence.md", name)[:6]
    at = trials.index(3)
    found = random_runs.tally(draw, 3, 600, seed=11)
    # a run has 18 cases
    assert close([float(np.mean(found.held))], [held[at]], 600 * 18, 1000 * 18)
    assert 100 * np.mean(found.loss) == pytest.approx(loss[at], abs=0.3)
    assert close([float(np.mean(np.array(found.loss) > 0.1))], [above[at]], 600, 1000)


@pytest.mark.parametrize(("cases", "rounds"), [(18, 5), (8, 5)])
def test_what_intervals_hold_where_trials_resemble_one_another(cases, rounds):
    stated = cells("measuring-evidence.md", f"{cases}, {rounds}")
    assert len(stated) >= 3
    for cell, rho in zip(stated, (0.0, 0.3, 0.5), strict=False):
        held, _ = random_runs.coverage(cases, rounds, rho, 150)
        assert 100 * held == pytest.approx(cell[0], abs=0.6)


@pytest.mark.parametrize("kind", ["equal", "2 cases five times noisier"])
def test_how_often_an_honest_case_converges_worse(kind):
    named = {"equal": "equal noise", "2 cases five times noisier": "two cases five times noisier"}[kind]
    told = [cell[0] for cell in cells("convergence-evidence.md", kind)]
    found = [convergence_records.false_failures(named, seeds, 400) for seeds in (3, 5)]
    assert close(found, told, 400, 1000)


@pytest.mark.parametrize("worse", [0.0, 0.02])
def test_how_often_a_case_that_ends_worse_matches_its_reference(worse):
    start = f"{100 * worse:.0f}" + ("%" if worse else "")
    told = [cell[0] for cell in cells("convergence-evidence.md", start)]
    found = [100 * convergence_records.matching(worse, seeds) for seeds in (2, 3, 5)]
    assert found == pytest.approx(told, abs=0.6)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("every twentieth run 20% slower", random_histories.outliers),
        ("noise with the tails of Student's *t* (3 degrees of freedom)", random_histories.heavy_tails),
    ],
)
def test_how_often_a_history_has_a_false_step(name, made):
    ((told,),) = cells("records.md", name)
    # 400 histories at a time
    found = random_histories.share_called(made(np.random.default_rng(5)))
    assert close([found], [told], 400, 2000)


@pytest.mark.parametrize(("compute", "rate"), [("fp32", "0.001, 0.003"), ("bf16", "0.003")])
def test_how_often_losses_are_judged_wrongly(compute, rate):
    from honest_losses import row

    with tempfile.TemporaryDirectory() as folder:
        from support.emulation import laboratory

        with laboratory(Path(folder)):
            made = row("small decoder", compute, 0.003, 4, Path(folder))
    found = [[float(number) for number in NUMBER.findall(cell)] for cell in made.split("|")[4:-1]]
    *shares, _, _, _, _, _, late = found
    told = gate_row(f"{compute}, small decoder", rate)
    # invalid without and with the trial of moved weights, inconclusive
    assert shares[3:6] == told[:3]
    mistakes = np.array(found[6:11], dtype=int)
    assert mistakes[:, 2:].sum(axis=0).tolist() == [told[3][0], told[4][0]]
    assert late[2:] == [told[5][0], told[6][0]]


def gate_row(model: str, rate: str) -> list[list[float]]:
    """Numbers of a row of the gate's table, where the model stands in its first row alone."""
    lines = (ROOT / "docs/gate.md").read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(f"| {model} |"))
    line = next(line for line in lines[first:] if line.split("|")[2].strip() == rate)
    return [[float(number) for number in NUMBER.findall(cell)] for cell in line.split("|")[3:-1]]
