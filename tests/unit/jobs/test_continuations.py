"""Whether a training that went on from a checkpoint is the same one, judged from records alone."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from distbench.core.case import Case, PrecisionConfig
from distbench.ipc.trial_files import SKETCH_COLUMNS
from distbench.jobs.checkpoint.verdict import (
    ROUNDING_LIMITS,
    ResumedTraining,
    evidence_by_case,
    resumed_trainings,
)
from distbench.record import Record
from support import records

SINGLE, DDP = records.case("single", 1), records.case("ddp", 2)
EPS = 2.0**-23


def tensor(training: str, step: int, of: str, value: float) -> dict[str, Any]:
    sketch = dict.fromkeys(SKETCH_COLUMNS, 0.0) | {"s00": value}
    told = {"training": training, "step": step, "of": of, "tensor": "head"}
    return {**told, "norm": abs(value), "digest": repr(value), **sketch}


def rows(
    training: str,
    losses: Sequence[float | None] = (3.0, 2.9),
    norms: Sequence[float] = (1.0, 0.9),
    weights: Sequence[float] = (5.0, 5.1, 5.2),
    exp_avg: float | None = 0.5,
) -> dict[str, list[dict[str, Any]]]:
    """Return what is kept of steps 2 and 3, after a checkpoint at step 1."""
    curve = [
        {"training": training, "step": step, "loss": loss, "grad_norm": norm}
        for step, loss, norm in zip((2, 3), losses, norms, strict=True)
    ]
    tensors = [tensor(training, step, "parameter", weight) for step, weight in enumerate(weights, 1)]
    tensors += [tensor(training, 1, "exp_avg", exp_avg)] if exp_avg is not None else []
    return {"checkpoint_curve": curve, "checkpoint_tensors": tensors}


def record(
    of: Case, *trainings: dict[str, Any], source: Case | None = None, lacking: str = "", unseen: str = ""
) -> Record:
    parts = [
        {
            "training": "exchanged",
            "source": source.name,
            "source_id": source.id,
            "lacking": lacking,
            "unseen": unseen,
        }
        for source in [source]
        if source
    ]
    names = ("checkpoint_curve", "checkpoint_tensors")
    tables = {name: [row for told in trainings for row in told[name]] for name in names}
    job = records.job_of("checkpoint", role="case")
    return dataclasses.replace(records.measured(of), job=job, tables={**tables, "checkpoint_parts": parts})


SAVED = record(SINGLE, rows("continued"))


def judged(of: Case = DDP, saved: Record = SAVED, unseen: str = "", **changed: Any) -> ResumedTraining:
    told = record(of, rows("continued"), rows("exchanged", **changed), source=saved.case, unseen=unseen)
    (found,) = resumed_trainings([saved, told])
    return found


def test_equal_bits_are_the_same():
    assert (judged().word, judged().difference) == ("same", 0.0)


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("loss", {"losses": (3.0, 2.9 * (1 + 50 * EPS))}),
        ("gradient norm", {"norms": (1.0, 0.9 * (1 + 50 * EPS))}),
        # of a movement of 0.2
        ("parameters", {"weights": (5.0, 5.1, 5.2 + 0.2 * 4000 * EPS)}),
    ],
)
def test_a_difference_of_some_eps_is_rounding_and_twice_the_limit_is_not(what, changed):
    assert judged(**changed).word == "rounding"
    key, (*before, last) = next(iter(changed.items()))
    exact = rows("x")
    plain = {"losses": 2.9, "norms": 0.9, "weights": 5.2}[key]
    found = judged(**{key: (*before, plain + 3 * (last - plain))})
    assert exact and (found.word, found.step, found.what) == ("differs", 3, what)


def test_what_was_loaded_must_be_what_was_saved_however_little_it_differs():
    found = judged(weights=(5.0 + 1e-12, 5.1, 5.2))
    assert (found.word, found.step, found.what) == ("differs", 1, "head")
    found = judged(exp_avg=0.5 + 1e-12)
    assert (found.word, found.step, found.what) == ("differs", 1, "exp_avg of head")


def test_optimizer_state_that_is_not_there_is_not_restored():
    found = judged(exp_avg=None)
    assert (found.word, found.what) == ("differs", "exp_avg of head")
    assert "from step 1: exp_avg of head is missing" in str(found)
    lost = evidence_by_case([SAVED, record(DDP, rows("exchanged", exp_avg=None), source=SINGLE)])[
        DDP.id
    ].verdict
    assert lost.gravity == "bad"
    assert lost.to_json()["detail"]["continuations"][0]["apart"] is None


def test_optimizer_state_that_no_one_can_see_is_judged_by_the_steps_alone():
    assert judged(exp_avg=None, unseen="it can't gather").word == "same"
    assert judged(exp_avg=None, unseen="it can't gather", weights=(5.0, 5.1, 5.4)).word == "differs"


def test_a_loss_that_is_no_number_is_not_the_same():
    assert judged(losses=(3.0, None)).word == "differs"


def test_in_16_bits_more_is_rounding_but_never_a_lost_moment():
    precision = PrecisionConfig(compute="bf16")
    saved = record(records.case("single", 1, precision=precision), rows("continued"))
    case = records.case("ddp", 2, precision=precision)
    assert judged(case, saved, weights=(5.0, 5.1, 5.2 + 0.2 * 0.09)).word == "rounding"
    assert judged(case, saved, weights=(5.0, 5.1, 5.2 + 0.2 * 0.3)).word == "differs"
    assert ROUNDING_LIMITS["parameters"].for_case(case) == 0.1


def test_the_way_from_another_case_is_told_and_was_by_its_whole_state_before_there_was_another():
    whole, told = judged(), record(DDP, rows("exchanged"), source=SINGLE)
    told.tables["checkpoint_parts"][0]["way"] = "directly"
    (direct,) = resumed_trainings([SAVED, told])
    assert (whole.to_json()["way"], direct.to_json()["way"]) == ("whole state", "directly")
    assert "from the state of single/ws1/mb4/fp32: " in str(whole)
    assert "from the shards of single/ws1/mb4/fp32: " in str(direct)


def test_what_was_not_tried_says_why():
    told = record(DDP, source=SINGLE, lacking="no disk")
    lacking = evidence_by_case([SAVED, told])[DDP.id].verdict
    assert (lacking.word, lacking.gravity) == ("lacking", "unknown")
    assert "no disk" in lacking.sentence
    alone = record(DDP, rows("exchanged"), source=SINGLE)
    assert resumed_trainings([alone])[0].reason == "single/ws1/mb4/fp32 has no result"


def test_a_trial_that_failed_is_told_with_those_that_differ():
    failed = dataclasses.replace(records.failed(DDP), job=records.job_of("checkpoint", role="case"))
    crashed = evidence_by_case([SAVED, failed])[DDP.id].verdict
    assert (crashed.word, crashed.gravity) == ("failed", "bad")
    assert "crashed: rank 1 in time: RuntimeError: no" in crashed.sentence
    assert (
        evidence_by_case([SAVED, record(DDP, rows("exchanged"), source=SINGLE)])[DDP.id].verdict.gravity
        == "ok"
    )
