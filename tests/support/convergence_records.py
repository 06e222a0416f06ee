"""Trainings to a target, made up: their records, and how they are judged."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from distbench.analysis.statistics.distributions import holm_adjusted
from distbench.core.case import Case
from distbench.jobs.convergence.arms import Contrast, contrasts
from distbench.jobs.convergence.comparison import P_VALUE
from distbench.jobs.convergence.verdict import AS_REFERENCE, evidence_by_case
from distbench.record import Record
from distbench.record.run_folder import Run
from support.records import case, info, job_of, measured, with_options

DDP = case()
REFERENCE = case("single", 1)
EVERY, STEPS = 10, 100
LOSS = {"name": "nats_per_token", "unit": "nats/token", "better": "lower", "doc": "Held-out loss."}


def trained(
    of: Case, number: int, reached: float, final: float, *, role: str = "case", seeds: int = 3, **told: object
) -> Record:
    """Return the record of one training whose held-out value falls to 1 at step *reached*."""
    rows = [
        {
            "step": step,
            "samples": step * of.batch.global_batch_size,
            "tokens": step * of.batch.global_batch_size * 4,
            "seconds": step * 0.1 / of.world_size,
            "loss": 5 - step / STEPS,
            "value": None if step % EVERY else final if step == STEPS else 1.0 if step >= reached else 2.0,
            "grad_norm": None,
        }
        for step in range(1, STEPS + 1)
    ]
    options = {"of": of.id, "role": role, "reference": REFERENCE.id, "merit": LOSS, "target": 1.0}
    seeded = dataclasses.replace(of, seed=of.seed + number)
    record = measured(seeded, round_=number)
    return dataclasses.replace(
        record,
        values={},
        samples={},
        job=job_of("converge", **options, eval_every=EVERY, seeds=seeds),
        tables={"converge_curve": rows, "converge_findings": told.get("findings", [])},
    )


CASES, SEEDS, SPREAD = 23, 3, 0.06


def compared(steps: np.ndarray, seeds: int) -> dict[str, Contrast]:
    """Return contrasts of arms with the first one, *steps* of shape (arms, seeds of the first)."""
    named = {f"case {i}": dict(enumerate(arm[:seeds])) for i, arm in enumerate(steps[1:])}
    return contrasts(named, dict(enumerate(steps[0])))


def one_is_called_worse(suite: dict[str, Contrast]) -> bool:
    return min(holm_adjusted([contrast.p_above for contrast in suite.values()])) < P_VALUE


def noise(kind: str, random: np.random.Generator, seeds: int) -> np.ndarray:
    shape = (1 + CASES, 2 * seeds)
    if kind == "heavy tails":
        return random.standard_t(3, shape) / 3**0.5
    drawn = random.standard_normal(shape)
    if kind == "two cases five times noisier":
        drawn[-2:] *= 5
    if kind == "the reference five times noisier":
        drawn[0] *= 5
    return drawn


def false_failures(kind: str, seeds: int, draws: int) -> float:
    random = np.random.default_rng(13)
    drawn = (compared(SPREAD * noise(kind, random, seeds), seeds) for _ in range(draws))
    return float(np.mean([one_is_called_worse(suite) for suite in drawn]))


def matching(worse: float, seeds: int) -> float:
    """Fraction of cases that match their reference, in suites of five whose values at the end are *worse*.

    Values at the end scatter by 1%, of whose variance the trainings of a seed share half.
    """
    random, words = np.random.default_rng(11), list[str]()
    arms = [
        (REFERENCE, "reference", 0.0, 2 * seeds),
        *((case(f"{i}"), "case", worse, seeds) for i in range(5)),
    ]
    for _ in range(40):
        of_seed = random.normal(0, 0.0071, 2 * seeds)
        records = [
            trained(of, seed, 50, 0.9 * (1 + behind + shared + own), role=role, seeds=seeds)
            for of, role, behind, count in arms
            for seed, (shared, own) in enumerate(
                zip(of_seed[:count], random.normal(0, 0.0071, count), strict=True)
            )
        ]
        words += [each.word for each in evidence_by_case(records).values()]
    return words.count(AS_REFERENCE) / len(words)


def stored(folder: Path, *records: Record, name: str = "tiny") -> Run:
    run = Run.create(folder, info(*(record.case for record in records), name=name), "")
    for record in records:
        run.write_record(record)
    return run


def training(of: Case, number: int, role: str = "case", merit: str = "bits_per_byte") -> Record:
    """Return the record of a training whose gradients were looked at every tenth step."""
    record = trained(of, number, 50, 0.9, role=role)
    rows = [
        {**row, "grad_norm": 1 / row["step"] if row["step"] % 10 == 0 else None}
        for row in record.tables["converge_curve"]
    ]
    options: Any = record.job.options
    job = with_options(record.job, merit={**options.merit, "name": merit})
    return dataclasses.replace(record, tables={"converge_curve": rows}, job=job)
