"""Losses of timed trials, made up, and how they are judged."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from distbench.analysis.job_results import Verdict
from distbench.analysis.run import RunAnalysis
from distbench.core.case import Case
from distbench.record import Record
from support.records import case, measured, run_info

FSDP, ZERO = case("fsdp"), case("zero")
WARMUP, STEPS = 3, 10
TRUTH = 5.5 * np.exp(-0.03 * np.arange(WARMUP + STEPS))


def rounded(seed: int, size: float = 1e-7, growth: float = 1.3) -> np.ndarray:
    """Losses of an honest training: rounding that training amplifies, drawn by *seed*."""
    drawn = np.random.default_rng(seed).normal(size=len(TRUTH))
    return TRUTH * (1 + size * growth ** np.arange(len(TRUTH)) * drawn)


def wrong_from(step: int, by: float, seed: int = 9, size: float = 1e-7) -> np.ndarray:
    """An honest training up to *step*, from which on its losses are larger *by* that fraction."""
    return rounded(seed, size) * (1 + by * (np.arange(len(TRUTH)) >= step))


def timed(of: Case, losses: np.ndarray, round_: int = 0, **changes: Any) -> Record:
    """A trial with *losses* on every rank, the first of them those of the warm-up."""
    ranks = range(of.world_size)
    record = measured(of, round_=round_)
    return dataclasses.replace(
        record,
        samples={"loss": [losses[WARMUP:].tolist() for _ in ranks]},
        warmup_losses=[losses[:WARMUP].tolist() for _ in ranks],
        **changes,
    )


def measured_run(*records: Record) -> RunAnalysis:
    """Return the run of the cases that *records* measure, with what else was done to them."""
    return RunAnalysis(run_info(*(each for each in records if each.job.kind == "measure")), records)


def judged(*records: Record) -> dict[str, Verdict]:
    """The verdicts on the timed losses by label."""
    found = {row.case.label: row.verdicts.get("losses") for row in measured_run(*records).cases}
    return {label: verdict for label, verdict in found.items() if verdict}


def words(*records: Record) -> dict[str, str]:
    return {label: verdict.word for label, verdict in judged(*records).items()}
