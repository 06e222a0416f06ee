"""Trainings that are others by design, in records made by hand: their verdicts, and when they are picked."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from distbench.analysis.candidates import make_candidates, pareto_fronts
from distbench.analysis.job_results import Verdict
from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN
from distbench.analysis.wording.recommendation import recommend
from distbench.analysis.wording.verdict_sentences import bad_verdict_sentences
from distbench.core.case import Case, PluginChoice, PrecisionConfig
from distbench.gate.case_verdict import required_findings
from distbench.ipc.trial_files import SKETCH_COLUMNS
from distbench.jobs.convergence.verdict import AS_REFERENCE
from distbench.jobs.equivalence.arms import DIFFERS, EQUIVALENT, ROUNDING
from distbench.jobs.equivalence.verdict import judge_cases
from distbench.record import Record
from distbench.report.page import chapters
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.description import IntendedDifference, StrategyDescription
from distbench.suite.gate import GateRules
from support.check_records import DDP, SINGLE, TENSORS, Noise, none, reference, rounding, trained
from support.convergence_records import REFERENCE as CONVERGENCE_REFERENCE
from support.convergence_records import trained as to_target
from support.loss_verdicts import measured_run
from support.records import case, measured, with_options

FIRST_CHANGED_STEP = 2
BY_DESIGN = StrategyDescription(by_design=IntendedDifference("it rounds on purpose", FIRST_CHANGED_STEP))
WARMUP_LOSSES, LOSSES = [4.0, 3.9], [3.8, 3.7, 3.6]

Row = dict[str, Any]


def powersgd_case(**options: Any) -> Case:
    """A case of DDP with *options*."""
    strategy = DistributedDataParallel(**options)
    return case(strategy.label, 2, strategy=PluginChoice("ddp", options))


POWERSGD = powersgd_case(powersgd_rank=2)


def timed(of: Case, losses: list[float], pace: float = 1000.0, **changes: Any) -> Record:
    record = measured(of, pace)
    samples = {"loss": [losses] * of.world_size}
    warm = [WARMUP_LOSSES] * of.world_size
    return dataclasses.replace(record, samples=samples, warmup_losses=warm, **changes)


def verdict(noise: Noise, **changes: Any) -> Verdict:
    changes = {"described_strategy": BY_DESIGN, **changes}
    return judge_cases([reference(), trained(noise, **changes)], 0.001)[DDP.id]


def loss_off_by(since: int, kind: str = "parameter", by: float = 0.1) -> Noise:
    """Rounding, and from step *since* on numbers of that *kind* that are wrong *by* that fraction."""
    return lambda *place: by if place[0] >= since and place[1] == kind else rounding(*place)


def test_what_is_beyond_rounding_after_the_design_begins_is_no_failure_and_told_with_how_far():
    found = verdict(loss_off_by(FIRST_CHANGED_STEP))
    assert (found.word, found.gravity, found.invalidates, found.confirms_quality) == (
        DIFFERENT_BY_DESIGN,
        "ok",
        False,
        False,
    )
    assert found.sentence.startswith(
        f"{DIFFERENT_BY_DESIGN} from step {FIRST_CHANGED_STEP} on (adamw), first in parameters of"
    )
    assert found.sentence.endswith("; it rounds on purpose")
    assert found.extent and found.extent[0] > 1


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(loss_off_by(FIRST_CHANGED_STEP - 1), id="an update before it begins"),
        # the loss of a step is that before its update
        pytest.param(loss_off_by(FIRST_CHANGED_STEP, "loss"), id="the loss of the step in which it begins"),
        pytest.param(loss_off_by(0, "gradient"), id="the first gradients"),
        pytest.param(loss_off_by(FIRST_CHANGED_STEP + 1, by=math.inf), id="no number afterwards"),
    ],
)
def test_no_design_excuses_what_is_wrong_before_it_begins_or_is_no_number(noise):
    found = verdict(noise)
    assert (found.word, found.gravity) == (DIFFERS, "bad")


@pytest.mark.parametrize(
    ("strategy", "word"),
    [
        (DistributedDataParallel(powersgd_rank=2, powersgd_start=2), DIFFERENT_BY_DESIGN),
        # the mean of what ranks compute with equal parameters is the gradient
        (DistributedDataParallel(local_sgd_period=2, local_sgd_start=2), DIFFERS),
    ],
)
def test_the_gradients_with_which_it_begins_are_excused_only_where_the_design_changes_them(strategy, word):
    described = strategy.description()
    assert verdict(loss_off_by(2, "norm"), described_strategy=described).word == word
    assert verdict(loss_off_by(3, "norm"), described_strategy=described).word == DIFFERENT_BY_DESIGN


def moved(change: Callable[[Row, str], Row]) -> Verdict:
    """Verdict on a case whose moves, after the step in which its design begins, are changed by *change*."""
    record = trained(loss_off_by(FIRST_CHANGED_STEP), described_strategy=BY_DESIGN)
    rows = [
        change(row, row["tensor"]) if row["of"] == "update" and row["step"] > FIRST_CHANGED_STEP else row
        for row in record.tables["check_tensors"]
    ]
    changed = dataclasses.replace(record, tables={**record.tables, "check_tensors": rows})
    return judge_cases([reference(), changed], 0.001)[DDP.id]


def scaled(row: Row, times: float) -> Row:
    """*row* with a move *times* as long; negative: in the opposite direction."""
    sketch = {column: row[column] * times for column in SKETCH_COLUMNS}
    return {**row, **sketch, "norm": row["norm"] * abs(times)}


@pytest.mark.parametrize(
    ("times", "tensors", "told"),
    [
        (170.0, TENSORS, "parameters, which moved 170 times as far as the reference's (median tensor; "),
        (0.01, TENSORS, "parameters, which moved 0.01 times as far as the reference's (median tensor; "),
        (3.1, TENSORS, "(median tensor; allowed: 0.33 to 3 times); a different design does not explain it"),
        # gradient ascent
        (-1.0, TENSORS, "parameters, which moved in another direction than the reference's (cosine -"),
        (-1.0, TENSORS[:2], "in another direction than the reference's (cosine -"),
        (0.0, TENSORS[:1], "parameters of embedding, which did not move, and the reference's did; "),
        (100.0, TENSORS[:1], "parameters of embedding, which moved 100 times as far as the reference's ever"),
    ],
)
def test_no_design_excuses_moves_of_another_order_or_direction(times, tensors, told):
    found = moved(lambda row, tensor: scaled(row, times) if tensor in tensors else row)
    assert found.word == DIFFERS, found.sentence
    assert told in found.sentence
    assert found.sentence.startswith(
        f"differs from step {FIRST_CHANGED_STEP + 1} on (adamw), first in parameters"
    )


@pytest.mark.parametrize(
    ("times", "tensors"),
    # of all tensors, and of one: its own sign and size may be chance
    [(1.5, TENSORS), (0.9, TENSORS), (-1.0, TENSORS[:1]), (10.0, TENSORS[:1]), (0.05, TENSORS[:1])],
)
def test_a_design_excuses_moves_of_the_same_order(times, tensors):
    found = moved(lambda row, tensor: scaled(row, times) if tensor in tensors else row)
    assert found.word == DIFFERENT_BY_DESIGN, found.sentence
    assert "it rounds on purpose" in found.sentence


@pytest.mark.parametrize(
    ("bounds", "at", "word"),
    [
        ({}, 0, DIFFERS),
        ({"bounded_from": 2}, 0, DIFFERENT_BY_DESIGN),
        ({"bounded_from": 2}, 2, DIFFERS),
        ({"bounded_until": 3}, 2, DIFFERS),
        ({"bounded_until": 3}, 3, DIFFERENT_BY_DESIGN),
    ],
)
def test_a_design_says_in_which_steps_it_moves_about_as_far(bounds, at, word):
    record = trained(
        loss_off_by(0),
        described_strategy=StrategyDescription(by_design=IntendedDifference("it skips", 0, **bounds)),
    )
    rows = [
        {**row, "norm": 0.0} if row["of"] == "update" and row["step"] == at else row
        for row in record.tables["check_tensors"]
    ]
    still = dataclasses.replace(record, tables={**record.tables, "check_tensors": rows})
    assert judge_cases([reference(), still], 0.001)[DDP.id].word == word


def test_no_design_excuses_copies_that_part():
    part = {"training": "case", "step": FIRST_CHANGED_STEP + 1, "of_rank": 1, "tensor": "layer"}
    record = trained(loss_off_by(FIRST_CHANGED_STEP), described_strategy=BY_DESIGN)
    record = dataclasses.replace(record, tables={**record.tables, "check_replicas": [part]})
    assert judge_cases([reference(), record], 0.001)[DDP.id].word == DIFFERS


def test_one_that_no_rounding_tells_apart_is_equivalent_unless_it_never_began():
    assert verdict(rounding).word == ROUNDING
    assert verdict(none).word == EQUIVALENT
    later = verdict(
        rounding, described_strategy=StrategyDescription(by_design=IntendedDifference("it rounds later", 100))
    )
    assert later.word == DIFFERENT_BY_DESIGN
    assert "but not in the steps that were checked" in later.sentence


def test_gradients_that_a_suite_rounds_to_be_reduced_are_another_training_by_design():
    asked = dataclasses.replace(DDP, precision=PrecisionConfig(reduce="fp16"))
    found = verdict(loss_off_by(0), case=asked, described_strategy=None)
    assert found.word == DIFFERENT_BY_DESIGN
    assert "gradients are rounded to fp16" in found.sentence
    assert verdict(loss_off_by(0), described_strategy=None).word == DIFFERS


def test_gradients_rounded_to_be_reduced_need_a_proof_and_may_take_timed_losses_from_the_checks():
    asked = dataclasses.replace(DDP, precision=PrecisionConfig(reduce="fp16"))
    known = [3.0, 2.5, 2.2, 2.0]
    parted = dataclasses.replace(timed(asked, known[1:]), warmup_losses=[[4.0, 3.001]] * 2)
    check = trained(loss_off_by(0), case=asked, case_id=asked.id)
    check = dataclasses.replace(check, job=with_options(check.job, of=asked.id))
    (row,) = measured_run(reference(), check, parted).cases
    assert {kind: each.word for kind, each in row.verdicts.items()} == {
        "equivalence": DIFFERENT_BY_DESIGN,
        "losses": DIFFERENT_BY_DESIGN,
    }
    (exclusion_reason,) = [one.exclusion_reason for one in make_candidates([row], {}, {})]
    assert (
        "gradients are rounded to fp16" in exclusion_reason and "add a section converge" in exclusion_reason
    )
    # one process rounds none, whatever it is asked for
    alone = timed(dataclasses.replace(SINGLE, precision=asked.precision), LOSSES)
    (row,) = measured_run(dataclasses.replace(alone, effective={"dtypes": {"reduce": None}})).cases
    assert row.unproven_design is None


@pytest.mark.parametrize(
    ("losses", "word"),
    [
        ([3.8, 3.75, 3.65], DIFFERENT_BY_DESIGN),
        ([3.9, 3.8, 3.7], "trains differently"),
        (LOSSES, "same losses"),
    ],
)
def test_timed_losses_may_part_only_after_the_design_begins(losses, word):
    # of steps 0 and 1 gradients are reduced whole, so the loss of step 2 is the same
    run = measured_run(timed(SINGLE, LOSSES), timed(DDP, LOSSES), timed(POWERSGD, losses))
    found = {row.case.label: row.verdicts["losses"].word for row in run.cases}
    assert found == {"single": "same losses", "ddp": "same losses", "ddp+powersgd2": word}


def test_many_trainings_by_design_never_outvote_the_one_that_is_meant_to_be_the_same():
    others = [timed(powersgd_case(powersgd_rank=rank), [3.8, 3.75, 3.65]) for rank in (1, 2, 4)]
    run = measured_run(timed(DDP, LOSSES), *others)
    assert {row.verdicts["losses"].word for row in run.cases if "losses" in row.verdicts} == {
        DIFFERENT_BY_DESIGN
    }


def converged(word: str, gravity: Any) -> Verdict:
    sentence, is_good = f"{word}: as measured", gravity == "ok"
    return Verdict("convergence", word, gravity, sentence, confirms_quality=is_good, confirms_by_outcome=True)


def excluded_labels(**verdicts: Verdict) -> str:
    """Why the case that trains differently by design may not be recommended, by its *verdicts*."""
    run = measured_run(timed(DDP, LOSSES), timed(POWERSGD, LOSSES, 2000.0))
    rows = [
        dataclasses.replace(row, verdicts=verdicts if row.case == POWERSGD else {}, degraded="")
        for row in run.cases
    ]
    return make_candidates(rows, {}, {})[1].exclusion_reason


def test_it_is_picked_only_where_a_run_to_a_target_shows_that_it_converges_as_well():
    judged = Verdict("equivalence", DIFFERENT_BY_DESIGN, "ok", "as meant")
    assert "its convergence was not tested; add a section converge" in excluded_labels(equivalence=judged)
    good = converged(AS_REFERENCE, "ok")
    assert excluded_labels(equivalence=judged, convergence=good) == ""
    assert "worse: as measured" in excluded_labels(convergence=converged("worse", "bad"))
    assert "inconclusive: as" in excluded_labels(convergence=converged("inconclusive", "unknown"))
    # what no check can tell apart needs no other proof, unless there is one against it
    same = Verdict("equivalence", ROUNDING, "ok", "same", confirms_quality=True)
    assert excluded_labels(equivalence=same) == ""
    assert "worse: as measured" in excluded_labels(equivalence=same, convergence=converged("worse", "bad"))


def test_timed_steps_that_part_outvote_a_check_that_saw_nothing_but_no_run_to_a_target():
    same = Verdict("equivalence", ROUNDING, "ok", "same", confirms_quality=True)
    parted = Verdict("losses", DIFFERENT_BY_DESIGN, "ok", "as meant")
    assert "its convergence was not tested" in excluded_labels(equivalence=same, losses=parted)
    assert excluded_labels(equivalence=same, losses=parted, convergence=converged(AS_REFERENCE, "ok")) == ""


@pytest.mark.parametrize("noise", [none, rounding])
def test_on_reduced_work_no_check_vouches_for_another_training_by_design(noise):
    def on(work: str, **changes: Any) -> Verdict:
        record = trained(noise, **changes)
        record = dataclasses.replace(record, job=with_options(record.job, work=work))
        return judge_cases([reference(), record], 0.001)[DDP.id]

    # a PowerSGD that shrinks only the embedding shrinks nothing where that has fewer tokens
    reduced = "vocab_size 1,024"
    found = on(reduced, described_strategy=BY_DESIGN)
    assert (found.word in (EQUIVALENT, ROUNDING), found.confirms_quality) == (True, False)
    assert on("", described_strategy=BY_DESIGN).confirms_quality
    assert on(reduced).confirms_quality, "what is meant to be the same does the same to smaller tensors"


def test_the_answer_says_why_a_faster_case_was_not_taken():
    found = recommend(
        measured_run(*(timed(of, LOSSES, pace) for of, pace in ((DDP, 1000.0), (POWERSGD, 2000.0))))
    )
    assert found.headline.startswith("Train with ddp on 2 devices")
    assert any("ddp+powersgd2 was faster, but is not recommended" in reason for reason in found.reasons)


def test_a_gate_passes_it_where_equivalence_is_required_and_wants_convergence_where_that_is():
    (row,) = measured_run(timed(POWERSGD, LOSSES)).cases
    row = dataclasses.replace(row, verdicts={"equivalence": verdict(loss_off_by(FIRST_CHANGED_STEP))})
    found = required_findings(row, GateRules(equivalence="required", convergence="required"))
    assert [(each.metric, each.word) for each in found] == [
        ("equivalence", "pass"),
        ("convergence", "missing"),
    ]
    assert found[0].said.startswith(DIFFERENT_BY_DESIGN)


def test_what_may_train_worse_is_on_no_front_keeps_none_off_it_and_is_hollow():
    run = measured_run(timed(DDP, LOSSES), timed(POWERSGD, LOSSES, 2000.0))
    (front,) = pareto_fronts(run.cases)
    assert [row.case.label for row in front] == ["ddp"]
    (told,) = [chapter for chapter in chapters(run) if chapter.id == "throughput"]
    assert told.data_table and [row.value("front") for row in told.data_table.rows] == [True, False]
    (marks,) = [trace for trace in told.charts[0].figure["data"] if trace["name"] == "ddp"]
    assert [symbol.endswith("-open") for symbol in marks["marker"]["symbol"]] == [False, True]


@pytest.mark.parametrize(("of", "ends"), [(POWERSGD, False), (DDP, True)], ids=["by design", "by mistake"])
def test_a_worse_convergence_ends_a_run_with_1_unless_the_case_differs_by_design(of, ends):
    trainings = [
        *(
            to_target(CONVERGENCE_REFERENCE, seed, (40, 50, 60)[seed % 3], 0.92, role="reference")
            for seed in range(6)
        ),
        *(to_target(of, seed, 90, 0.92) for seed in range(3)),
    ]
    timed_cases = [timed(DDP, LOSSES), timed(POWERSGD, LOSSES, 2000.0)]
    run = measured_run(*timed_cases, *trainings)
    words = {row.case.label: row.verdicts["convergence"].word for row in run.cases if row.case == of}
    assert words == {of.label: "worse"}
    assert bool(bad_verdict_sentences(run)) == ends
