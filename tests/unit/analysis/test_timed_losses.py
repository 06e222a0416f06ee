"""Whether the timed trials are the same training: their losses against a reference's, or each other's."""

import dataclasses

import numpy as np
import pytest

from distbench.analysis.job_results import ReferenceLosses
from distbench.analysis.losses.case_losses import (
    CASES_DISAGREE,
    DIFFERENT_TRAINING,
    NOT_COMPARABLE,
    NOT_COMPARED,
    SAME_LOSSES,
)
from distbench.analysis.losses.peer_groups import compare_timed_losses
from distbench.analysis.losses.rounding_bounds import BETWEEN_STRATEGIES
from distbench.analysis.wording.recommendation import recommend
from distbench.analysis.wording.verdict_sentences import (
    bad_verdict_sentences,
    missing_verdict_sentences,
    verdict_sentences,
)
from distbench.core.case import Batch, Case, PluginChoice, PrecisionConfig
from distbench.ipc.trial_files import DRAWS_KEY, LOSS_DTYPE_KEY, NO_DROPOUT_KEY
from distbench.jobs.equivalence.arms import NOT_CHECKED
from distbench.record import Record, Status
from distbench.report.overview import overview_text
from support.check_records import DDP, LOSSES, SINGLE, none, reference, rounding, trained
from support.loss_verdicts import (
    FSDP,
    STEPS,
    TRUTH,
    WARMUP,
    ZERO,
    judged,
    measured_run,
    rounded,
    timed,
    words,
    wrong_from,
)
from support.records import case, failed, in_bf16, measured
from support.suites import SuiteText

BF16 = PrecisionConfig(compute="bf16")


@pytest.mark.parametrize("by", [0.03, -0.2])
@pytest.mark.parametrize("step", [0, WARMUP + 1, WARMUP + STEPS - 1])
def test_a_mistake_of_the_timed_pass_is_found_at_its_step_and_keeps_the_case_from_being_picked(step, by):
    run = measured_run(
        timed(SINGLE, rounded(1)), timed(DDP, wrong_from(step, by)), timed(FSDP, rounded(2)), measured(ZERO)
    )
    by_label = {row.case.label: row for row in run.cases}
    verdict = by_label["ddp"].verdicts["losses"]
    assert (verdict.word, verdict.gravity, verdict.invalidates) == (DIFFERENT_TRAINING, "bad", True)
    assert f"from step {step} on" in verdict.sentence and "single/ws1" in verdict.sentence
    assert by_label["fsdp"].verdicts["losses"].word == SAME_LOSSES
    assert [line for line in bad_verdict_sentences(run) if "ddp/ws2" in line and DIFFERENT_TRAINING in line]
    (exclusion_reason,) = [one.exclusion_reason for one in run.candidates if one.label == "ddp"]
    assert exclusion_reason.startswith("losses: trains differently")


def test_one_trial_of_three_is_enough():
    sane = [timed(FSDP, rounded(i), i) for i in range(3)]
    racing = [timed(DDP, wrong_from(5, 0.01) if i == 1 else rounded(i + 5), i) for i in range(3)]
    found = judged(timed(SINGLE, rounded(1)), *sane, *racing)
    assert found["fsdp"].word == SAME_LOSSES
    assert "trains differently in 1 of 3 trials: from step 5 on" in found["ddp"].sentence


@pytest.mark.parametrize(
    ("precision", "size", "growth"),
    [
        (PrecisionConfig(), 2e-7, 1.2),
        (PrecisionConfig(), 5e-8, 1.6),
        (BF16, 1e-4, 1.2),
        (PrecisionConfig(reduce="bf16"), 1e-4, 1.2),
        (PrecisionConfig(compute="fp16", loss_scale=1024.0), 1e-4, 1.1),
        (PrecisionConfig("fp64", "fp64", "fp64", "fp64"), 1e-15, 1.5),
    ],
)
def test_what_rounding_does_is_not_called_another_training(precision, size, growth):
    cases = [
        case(label, 1 if label == "single" else 2, precision=precision) for label in ("single", "ddp", "fsdp")
    ]
    for seed in range(60):
        records = [
            timed(each, rounded(100 * seed + i, size, growth), i)
            for i, each in enumerate([*cases, *cases[1:]])
        ]
        assert set(words(*records).values()) == {SAME_LOSSES}
        assert set(words(*records[1:]).values()) == {SAME_LOSSES}, "without single, by each other"


def test_a_loss_that_the_model_gives_in_16_bits_is_rounded_beside_what_training_does():
    """Up to 0.9 of what training may do, then rounded to bf16, whose numbers are 0.4 to 0.8 % apart."""
    cases = [case(label, n, precision=BF16) for label, n in (("single", 1), ("ddp", 2), ("fsdp", 2))]
    parted = 1 + 0.9 * BETWEEN_STRATEGIES.limits("bf16", np.arange(len(TRUTH)))
    curves = [in_bf16(curve) for curve in (TRUTH, TRUTH * parted, TRUTH * parted**4)]
    found = {
        dtype: words(
            *(timed(*each, environment={LOSS_DTYPE_KEY: dtype}) for each in zip(cases, curves, strict=True))
        )
        for dtype in ("bf16", "fp32")
    }
    assert found["bf16"] == {"single": SAME_LOSSES, "ddp": SAME_LOSSES, "fsdp": DIFFERENT_TRAINING}
    assert found["fp32"] == {"single": SAME_LOSSES, "ddp": DIFFERENT_TRAINING, "fsdp": DIFFERENT_TRAINING}


def test_without_a_single_process_the_odd_one_out_is_named():
    found = judged(timed(DDP, rounded(1)), timed(FSDP, wrong_from(4, 0.01)), timed(ZERO, rounded(3)))
    assert {label: verdict.word for label, verdict in found.items()} == {
        "ddp": SAME_LOSSES,
        "fsdp": DIFFERENT_TRAINING,
        "zero": SAME_LOSSES,
    }
    assert "most of the 3 cases of the same work" in found["fsdp"].sentence


def test_they_are_told_without_naming_a_view_that_is_not_there():
    lines = overview_text(measured_run(timed(DDP, rounded(1)), timed(FSDP, rounded(2)))).splitlines()
    assert "  same losses: 2 of 2 cases" in lines[lines.index("Losses") + 1]


def test_two_that_disagree_are_both_kept_from_being_picked_as_nobody_knows_which_is_right():
    records = [timed(DDP, rounded(1)), timed(FSDP, wrong_from(4, 0.01))]
    assert words(*records) == {"ddp": CASES_DISAGREE, "fsdp": CASES_DISAGREE}
    assert all(one.exclusion_reason for one in measured_run(*records).candidates)
    assert recommend(measured_run(*records)).headline.startswith("No recommendation")


def test_trials_of_one_case_that_disagree_with_each_other_are_told():
    racing = [timed(DDP, wrong_from(4, 0.01) if i == 2 else rounded(i), i) for i in range(3)]
    assert words(*racing) == {"ddp": CASES_DISAGREE}
    assert words(*racing[:2]) == {}, "agreeing with oneself is no evidence"


def test_cases_of_other_work_are_not_held_against_each_other():
    other = case("fsdp", seed=2)
    assert words(timed(DDP, rounded(1)), timed(other, wrong_from(0, 0.1))) == {}


def test_a_loss_that_is_no_mean_over_parts_of_the_batch_is_not_called_a_mistake_of_all():
    apart = [timed(of, wrong_from(0, 0.02, seed)) for seed, of in enumerate([DDP, FSDP], 1)]
    found = judged(timed(SINGLE, rounded(1)), *apart)
    assert {found[label].word for label in ("ddp", "fsdp")} == {NOT_COMPARED}
    assert "run --check" in found["ddp"].sentence
    later = [timed(of, wrong_from(4, 0.02, seed)) for seed, of in enumerate([DDP, FSDP], 1)]
    assert judged(timed(SINGLE, rounded(1)), *later)["ddp"].word == DIFFERENT_TRAINING, (
        "no way to divide a batch begins late"
    )
    four = dataclasses.replace(case("ddp", 4), label="on-four", batch=Batch(8, 2, 1))
    alone = words(timed(DDP, rounded(1)), timed(four, wrong_from(0, 0.02)))
    assert alone == {"ddp": NOT_COMPARED, "on-four": NOT_COMPARED}


@pytest.mark.parametrize(
    ("options", "micro", "told"),
    [
        ({"loss_function": "mine:loss"}, 2, True),
        ({"loss_function": "mine:loss", "count_function": "mine:count"}, 2, False),
        ({}, 2, False),
        # another division of the batch is evidence
        ({"loss_function": "mine:loss"}, 4, False),
    ],
)
def test_where_all_divide_the_batch_alike_losses_do_not_tell_whether_they_are_means(options, micro, told):
    workload = PluginChoice("user", {"model": "mine:Model", **options})
    of = [
        dataclasses.replace(each, workload=workload, batch=Batch(8, size, 8 // size // each.world_size))
        for each, size in ((SINGLE, 2), (DDP, 2), (FSDP, micro))
    ]
    run = measured_run(*(timed(each, rounded(seed)) for seed, each in enumerate(of)))
    said = [verdict.remarks for row in run.cases for verdict in row.verdicts.values()]
    assert len(said) == 3
    for remarks in said:
        assert bool(remarks) == told
        assert not told or remarks[0].startswith(
            "All cases divide the batch into 4 parts, so their losses can't"
        )


def test_where_parts_matter_other_divisions_are_no_evidence():
    declared = PluginChoice("user", {"model": "m:M", "batch_norm": "per_rank"})
    one, two = (dataclasses.replace(each, workload=declared) for each in (SINGLE, DDP))
    whole = dataclasses.replace(one, batch=Batch(8, 8, 1))
    halves = dataclasses.replace(two, batch=Batch(8, 4, 1))
    found = words(timed(whole, rounded(1)), timed(halves, wrong_from(0, 0.02)))
    assert found == {"single": SAME_LOSSES}, "nothing else divides the batch as ddp does"
    other = dataclasses.replace(halves, label="other", name="other/ws2")
    wrong = dataclasses.replace(other, strategy=PluginChoice("fsdp"))
    assert CASES_DISAGREE in words(timed(halves, rounded(1)), timed(wrong, wrong_from(0, 0.02))).values()


def test_a_model_that_draws_random_numbers_is_not_compared():
    drawing = [
        timed(of, wrong_from(0, i / 10), environment={DRAWS_KEY: True}) for i, of in enumerate([SINGLE, DDP])
    ]
    assert words(*drawing) == {"single": NOT_COMPARABLE, "ddp": NOT_COMPARABLE}
    (line,) = verdict_sentences(measured_run(*drawing), "losses")
    assert line.startswith("not comparable: the model draws random numbers") and line.endswith(
        ": 2 of 2 cases"
    )


def test_timed_losses_with_dropout_are_not_held_against_a_check_without():
    bare = [
        dataclasses.replace(each, environment={NO_DROPOUT_KEY: "drop"})
        for each in (reference(), trained(none))
    ]
    drawing = timed(DDP, wrong_from(0, 0.1), environment={DRAWS_KEY: True})
    assert words(*bare, drawing) == {"ddp": NOT_COMPARABLE}


def test_random_numbers_that_only_a_strategy_draws_excuse_nothing():
    drawing = timed(DDP, wrong_from(4, 0.01), environment={DRAWS_KEY: True})
    assert words(timed(SINGLE, rounded(1)), drawing)["ddp"] == DIFFERENT_TRAINING
    assert words(reference(), trained(rounding), drawing)["ddp"] == DIFFERENT_TRAINING, (
        "a check refuses what draws"
    )


def checked(losses: np.ndarray) -> list[Record]:
    """Check and one trial of a case, whose reference has the losses of ``evidence``."""
    return [reference(), trained(rounding), timed(DDP, losses)]


def test_where_a_check_trained_a_reference_that_is_what_counts():
    truth = np.array([*LOSSES, *[1.9] * (WARMUP + STEPS - len(LOSSES))])
    (same,) = judged(*checked(truth)).values()
    assert same.word == SAME_LOSSES and "the check's single/ws1" in same.sentence
    wrong = truth.copy()
    wrong[4] *= 1 + 1e-4
    (found,) = judged(*checked(wrong)).values()
    assert found.word == DIFFERENT_TRAINING and "from step 4 on" in found.sentence
    # the reference trained five steps; beyond them there is nobody else
    wrong = truth.copy()
    wrong[5:] *= 2
    assert judged(*checked(wrong))["ddp"].word == SAME_LOSSES


def test_beyond_the_steps_of_the_check_the_other_cases_count():
    truth = np.array([*LOSSES, *[1.9] * (WARMUP + STEPS - len(LOSSES))])
    wrong = truth * (1 + 0.05 * (np.arange(len(truth)) > 6))
    records = [reference(), trained(rounding), timed(DDP, wrong), timed(FSDP, truth), timed(ZERO, truth)]
    assert words(*records) == {"ddp": DIFFERENT_TRAINING, "fsdp": SAME_LOSSES, "zero": SAME_LOSSES}


def test_where_a_perturbed_training_broke_down_its_reference_allows_nothing_and_forbids_nothing():
    truth = np.array([*LOSSES, *[1.9] * (WARMUP + STEPS - len(LOSSES))])

    def broken(step: int, kind: str, tensor: str) -> float:
        return np.nan if step >= 2 else rounding(step, kind, tensor)

    records = [reference(**{"perturbed 3": broken}), trained(rounding)]
    steps = np.arange(len(truth))
    assert words(*records, timed(DDP, truth * (1 + 1e-3 * (steps >= 2)))) == {"ddp": SAME_LOSSES}
    assert words(*records, timed(DDP, truth * (1 + 1e-3 * (steps >= 1)))) == {"ddp": DIFFERENT_TRAINING}


def test_without_a_step_in_common_nothing_is_said_to_be_the_same():
    trials = [timed(DDP, rounded(1)), timed(FSDP, rounded(2))]
    nowhere = ReferenceLosses("a reference", np.full(len(TRUTH), np.nan))
    alone = compare_timed_losses(trials[:1], {DDP.id: nowhere})[DDP.id]
    assert alone.sentence().startswith(
        "not compared: no step has a known loss both in this trial and in a reference"
    )
    assert compare_timed_losses(trials, {DDP.id: nowhere})[DDP.id].word == SAME_LOSSES, "by each other"


def test_a_warm_up_alone_is_not_called_the_same_training():
    records = [
        dataclasses.replace(timed(of, rounded(seed)), samples={}) for seed, of in enumerate((SINGLE, DDP))
    ]
    found = judged(*records)["ddp"]
    assert (found.word, found.gravity) == (NOT_COMPARED, "unknown")
    assert "the losses of the timed steps were not recorded" in found.sentence
    wrong = dataclasses.replace(timed(FSDP, wrong_from(1, 0.01)), samples={})
    assert words(*records, wrong)["fsdp"] == DIFFERENT_TRAINING


def unchecked_cases(*cases: Case) -> list[Record]:
    return [
        dataclasses.replace(
            trained(rounding, status=Status.UNSUPPORTED, reason="no dropout, please"),
            case=of,
            case_id=of.id,
            job=dataclasses.replace(
                trained(rounding).job, options=dataclasses.replace(trained(rounding).job.options, of=of.id)
            ),
        )
        for of in cases
    ]


def test_a_run_in_which_nothing_could_be_checked_says_so():
    silent = measured_run(timed(DDP, rounded(1)), timed(FSDP, rounded(2)), *unchecked_cases(DDP, FSDP))
    assert {row.verdicts["equivalence"].word for row in silent.cases} == {NOT_CHECKED}
    (said,) = missing_verdict_sentences(silent)
    assert "no verdict for any of 2 cases: not checked: no dropout, please" in said
    partly = measured_run(
        timed(DDP, rounded(1)),
        timed(FSDP, rounded(2)),
        reference(),
        trained(rounding),
        *unchecked_cases(FSDP),
    )
    assert missing_verdict_sentences(partly) == []


def test_no_recommendation_names_the_reason_of_most():
    labels = [f"zero{i}" for i in range(4)]
    crashed = [failed(case(label), "rank 1: the same end") for label in ("apart", "along")]
    # each differs by numbers of its own
    others = [timed(case(label), wrong_from(4, 0.01 * (i + 1))) for i, label in enumerate(labels)]
    headline = recommend(measured_run(*others, *crashed)).headline
    assert "4 of 6 cases: losses; for example: losses: " in headline


# no metric keeps the losses; memory observes a step after the timed ones
SMALL = SuiteText("""
workload: {user: {model: "small:Small", length: 32}}
data: text
metrics: [memory, steptime, throughput]
batch: {global_batch_size: 8}
optimizer: {lr: 0.03}
measure: {warmup: 2, steps: 5, trials: 1, profile_steps: 0}
world_sizes: [2]
""")
MISTAKES = ("race", "missing-wait", "stale-gather", "half-batch", "skips-fourth")


@pytest.mark.train
@pytest.mark.parametrize(
    ("precision", "mistakes"),
    [
        ("fp32", MISTAKES),
        # of several dtypes only the tolerance differs
        ("bf16", MISTAKES[:1]),
        pytest.param("bf16", MISTAKES, marks=pytest.mark.deep),
    ],
)
def test_mistakes_that_are_made_only_while_nobody_looks_are_found(precision, mistakes, run_suite):
    planted = f"{{unwatched: {{mistake: [none, {', '.join(mistakes)}]}}}}"
    finished = run_suite(f"{SMALL}precision: {precision}\nstrategies: [single, ddp, {planted}]\n")
    found = {row["label"]: row["verdicts"]["losses"]["word"] for row in finished.cases.values()}
    honest = dict.fromkeys(("single", "ddp", "unwatched-none"), SAME_LOSSES)
    assert found == {**honest, **{f"unwatched-{mistake}": DIFFERENT_TRAINING for mistake in mistakes}}
    assert finished.code == 1
    number = len(mistakes)
    assert f"trains differently in {number} of {number + 3} cases" in finished.errors
    (span,) = finished.record("unwatched-none")["effective"]["spans"]
    assert span == "nullcontext", "up to the end of the timed window nothing tells its steps from others"


@pytest.mark.train
def test_beside_a_check_that_heals_what_it_looks_at_the_timed_losses_are_held_against_its_reference(
    run_suite,
):
    check = "check: {steps: 4, perturbed: 4}"
    finished = run_suite(f"{SMALL}{check}\nstrategies: [ddp, {{unwatched: {{mistake: race}}}}]\n")
    rows = {row["label"]: row["verdicts"] for row in finished.cases.values()}
    assert {label: each["equivalence"]["gravity"] for label, each in rows.items()} == dict.fromkeys(
        rows, "ok"
    )
    assert {label: each["losses"]["word"] for label, each in rows.items()} == {
        "ddp": SAME_LOSSES,
        "unwatched-race": DIFFERENT_TRAINING,
    }
    assert "the check's reference/single/ws1" in rows["unwatched-race"]["losses"]["sentence"]
    assert finished.code == 1


@pytest.mark.train
def test_a_run_in_which_nothing_could_be_checked_does_not_end_like_one_that_was(run_suite):
    suite = SMALL.replace("small:Small", "odd:DrawsInForward").replace("trials: 1", "trials: 0")
    finished = run_suite(f"{suite}check: {{steps: 1, perturbed: 4}}\nstrategies: [ddp]\n")
    assert finished.code == 3
    assert "no verdict for any of 1 case: not checked" in finished.errors
