"""Where timed losses part further than rounding usually leads, a run looks how far it does lead."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from distbench.analysis.losses.case_losses import (
    CASES_DISAGREE,
    DIFFERENT_TRAINING,
    INDISTINGUISHABLE,
    SAME_LOSSES,
)
from distbench.analysis.wording.verdict_sentences import bad_verdict_sentences, missing_verdict_sentences
from distbench.core.case import Case
from distbench.jobs.sensitivity import SensitivityJob, SensitivitySection
from distbench.jobs.sensitivity.results import SensitivityResults
from distbench.record import Record
from support.check_records import DDP, SINGLE, reference, rounding, trained
from support.loss_verdicts import FSDP, TRUTH, judged, measured_run, rounded, timed, words, wrong_from
from support.records import job_of, measured
from support.runs import call
from support.suites import SuiteText, write_suite

CASES = (SINGLE, DDP, FSDP)


def perturbed_losses(of: Case, *curves: np.ndarray) -> Record:
    """The trial that trained *of* from moved weights, with the losses *curves*."""
    rows = [
        {"training": f"moved {number}", "step": step, "loss": float(loss)}
        for number, curve in enumerate(curves)
        for step, loss in enumerate(curve)
    ]
    record = dataclasses.replace(measured(of), job=job_of("sensitivity", trainings=len(curves)))
    return dataclasses.replace(record, samples={}, warmup_losses=[], tables={"sensitivity_curve": rows})


def amplified_losses(seed: int, growth: float) -> np.ndarray:
    """Losses of an honest training at a rate that is too high: an ulp that grows *growth* times a step."""
    return rounded(seed, size=1e-7, growth=growth)


def follow_up_cases(records: Sequence[Record], **section: int) -> set[str]:
    """Labels of the cases that are to be trained from moved weights."""
    return {
        task.case.label
        for task in SensitivityResults(SensitivityJob()).follow_up_trials(
            SensitivitySection(**section), CASES, records
        )
    }


def test_honest_trainings_that_amplify_rounding_are_not_called_another_training():
    usual, tried = [], []
    for seed in range(0, 600, 10):
        records = [timed(SINGLE, TRUTH), timed(DDP, amplified_losses(seed, 3.0))]
        usual.append(words(*records)["ddp"])
        tried.append(
            words(
                *records, perturbed_losses(SINGLE, *(amplified_losses(seed + i, 3.0) for i in range(1, 5)))
            )["ddp"]
        )
    assert usual.count(DIFFERENT_TRAINING) >= 20, "the trainings are such that what is usual does not do"
    assert tried.count(DIFFERENT_TRAINING) == 0 and tried.count(INDISTINGUISHABLE) >= 20


@pytest.mark.parametrize("growth", [1.3, 2.4])
@pytest.mark.parametrize("step", [1, 5, 12])
def test_a_mistake_is_found_all_the_same(step, growth):
    seen = perturbed_losses(SINGLE, *(amplified_losses(i, growth) for i in range(4)))
    found = judged(timed(SINGLE, TRUTH), timed(DDP, wrong_from(step, 0.05)), seen)["ddp"]
    assert found.word == DIFFERENT_TRAINING and f"from step {step} on" in found.sentence


def test_what_is_within_a_sharp_limit_that_was_seen_is_the_same_training():
    off = TRUTH * (1 + 1e-4 * (np.arange(len(TRUTH)) >= 2))
    records = timed(SINGLE, TRUTH), timed(DDP, off)
    assert words(*records)["ddp"] == DIFFERENT_TRAINING
    found = judged(*records, perturbed_losses(SINGLE, TRUTH * (1 + (off / TRUTH - 1) / 2)))["ddp"]
    assert (
        found.word == SAME_LOSSES
        and "which rounding of its initial weights changes as much" in found.sentence
    )


def test_where_rounding_leads_as_far_as_a_mistake_nothing_is_told_apart_and_nothing_fails():
    far = TRUTH * (1 + 0.03 * (np.arange(len(TRUTH)) >= 4))
    run = measured_run(timed(SINGLE, TRUTH), timed(DDP, far), perturbed_losses(SINGLE, TRUTH * 2 - far))
    verdict = {row.case.label: row for row in run.cases}["ddp"].verdicts["losses"]
    assert (verdict.word, verdict.gravity, verdict.invalidates) == (INDISTINGUISHABLE, "unknown", False)
    assert "at step 4 the loss differs by 0.15 from that of single/ws1" in verdict.sentence
    assert "moves by 0.15 by then if only rounding perturbs its initial weights" in verdict.sentence
    assert bad_verdict_sentences(run) == [] and missing_verdict_sentences(run) == []
    assert not any(one.exclusion_reason for one in run.candidates if one.label == "ddp")


def test_where_a_moved_training_breaks_down_nobody_knows_how_far_rounding_leads():
    broken = np.where(np.arange(len(TRUTH)) >= 4, np.nan, TRUTH)
    for step, word in ((3, DIFFERENT_TRAINING), (4, INDISTINGUISHABLE)):
        records = timed(SINGLE, TRUTH), timed(DDP, wrong_from(step, 0.05)), perturbed_losses(SINGLE, broken)
        assert words(*records)["ddp"] == word


def test_a_training_that_is_another_one_each_time_does_not_excuse_itself():
    racing = [timed(FSDP, wrong_from(4, 0.05), 0)]
    wide, calm = (
        perturbed_losses(FSDP, TRUTH, wrong_from(2, 0.1)),
        perturbed_losses(DDP, rounded(5), rounded(6)),
    )
    both = [timed(DDP, rounded(1)), *racing, wide, calm]
    assert words(*both) == {"ddp": CASES_DISAGREE, "fsdp": CASES_DISAGREE}
    assert (
        words(timed(SINGLE, rounded(1)), *racing, wide, perturbed_losses(SINGLE, rounded(2)))["fsdp"]
        == DIFFERENT_TRAINING
    )


def test_it_is_tried_only_where_it_decides_and_of_what_the_others_are_held_against():
    honest, wrong = [timed(SINGLE, rounded(1)), timed(DDP, rounded(2))], timed(FSDP, wrong_from(4, 0.01))
    assert follow_up_cases(honest) == set()
    assert follow_up_cases([*honest, wrong]) == {"single"}
    assert follow_up_cases([*honest, wrong], trainings=0) == set()
    assert follow_up_cases([timed(DDP, rounded(2)), wrong]) == {"ddp", "fsdp"}
    by_the_check = [reference(), trained(rounding), timed(DDP, wrong_from(1, 0.01))]
    assert follow_up_cases(by_the_check) == set(), "the check has its own perturbed trainings"


FOLLOWING = """
from dataclasses import dataclass
from distbench.core.columns import Column
from distbench.core.job import JobKind

@dataclass(frozen=True)
class Section:
    'Nothing to set.'

@dataclass(frozen=True)
class Again(JobKind):
    'Looks at the last case that was measured, then at the first.'
    name = folder = 'again'
    section = Section
    columns = (Column('looks', '', None, 'first', 'Looks.'),)

    def planned_trials(self, section, cases, machine):
        return []

"""
FOLLOWING_RESULTS = """
from dataclasses import dataclass
from distbench.analysis.job_results import JobResults
from distbench.core.job import JobSpec, PlannedTrial

@dataclass(frozen=True)
class AgainResults(JobResults):
    def follow_up_trials(self, section, cases, records):
        looked = any(record.job.kind == self.kind.name for record in records)
        return [PlannedTrial(case, job=JobSpec(self.kind.name)) for case in (cases if looked else cases[-1:])]
"""
PRETENDED = SuiteText("""
workload: {mlp: {}}
batch: {global_batch_size: 8}
world_sizes: [1, 2]
measure: {steps: 3, trials: 2}
metrics: [steptime]
again: true
strategies: [pretended]
""")


def test_a_run_makes_what_its_trials_give_reason_for_once_also_when_it_is_resumed(tmp_path, monkeypatch):
    kind, log, suite = tmp_path / "jobs" / "again" / "__init__.py", tmp_path / "log", tmp_path / "suite.yaml"
    kind.parent.mkdir(parents=True)
    kind.write_text(FOLLOWING)
    kind.with_name("results.py").write_text(FOLLOWING_RESULTS)
    monkeypatch.setenv("DISTBENCH_PLUGINS", f"{tmp_path}:{Path(__file__).parents[2] / 'plugins'}")
    suite.write_text(f"{PRETENDED}launcher: {{pretend: {{values: {{looks: 1.0}}, log: {log}}}}}\n")
    done = call("run", str(suite), "--out", str(tmp_path / "out"))
    assert done.stderr.count("running follow-up trials: 1 trial (again)") == 2, "one asked for the other"
    trials = lambda: [line for line in log.read_text().splitlines() if line.startswith("trial")]  # noqa: E731
    assert len(trials()) == 4 + 2
    (folder,) = (tmp_path / "out").iterdir()
    assert all(
        case["trials"] == 2 for case in json.loads(call("show", str(folder), "--json").stdout)["cases"]
    )
    for record in folder.glob("again/*ws1*/0/record.json"):
        record.unlink()
    call("run", "--resume", str(folder), "--quiet")
    assert len(trials()) == 4 + 3


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_honest_strategies_at_a_rate_that_is_too_high_do_not_fail_the_run(precision, run_suite):
    suite = f"""
workload: {{transformer: {{dim: 64, depth: 6, heads: 4, kv_heads: 2, ffn_dim: 128, seq_len: 32}}}}
metrics: [steptime]
batch: {{global_batch_size: 16}}
optimizer: {{lr: 0.1}}
precision: {precision}
measure: {{warmup: 2, steps: 20, trials: 1, profile_steps: 0}}
world_sizes: [2]
strategies: [single, ddp, fsdp]
"""
    finished = run_suite(suite)
    assert "running follow-up trials: 1 trial (sensitivity)" in finished.errors
    found = {row["label"]: row["verdicts"]["losses"]["word"] for row in finished.cases.values()}
    assert set(found.values()) <= {SAME_LOSSES, INDISTINGUISHABLE}
    assert finished.code == 0


def test_a_follow_up_that_fails_is_not_made_again_and_again(tmp_path, monkeypatch):
    kind, suite = tmp_path / "jobs" / "again" / "__init__.py", tmp_path / "suite.yaml"
    kind.parent.mkdir(parents=True)
    kind.write_text(FOLLOWING)
    kind.with_name("results.py").write_text(FOLLOWING_RESULTS)
    monkeypatch.setenv("DISTBENCH_PLUGINS", f"{tmp_path}:{Path(__file__).parents[2] / 'plugins'}")
    suite.write_text(f"{PRETENDED}launcher: pretend\n")
    done = call("run", str(suite), "--out", str(tmp_path / "out"))
    assert done.stderr.count("running follow-up trials") == 2


def test_a_plan_says_what_may_follow(tmp_path):
    suite = write_suite(
        tmp_path, PRETENDED.replace("again: true", "").replace("pretended", "single").replace("[1, 2]", "[1]")
    )
    said = " ".join(call("plan", str(suite), "--set", "sensitivity.trainings=6").stdout.split())
    assert "sensitivity: if timed losses diverge, one more trial of each case" in said
    assert "6 trainings from weights perturbed by rounding" in said
