"""Training to a target: verdicts on made-up records, and real trainings that are well or ill."""

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from distbench.analysis.run import RunAnalysis
from distbench.analysis.statistics.distributions import holm_adjusted
from distbench.core.case import Batch, Case, OptimizerConfig
from distbench.core.errors import SuiteError
from distbench.core.machine import Machine
from distbench.jobs.convergence.arms import Contrast, contrasts
from distbench.jobs.convergence.comparison import CONFIDENCE, P_VALUE
from distbench.jobs.convergence.large_batch import batch_size_effects
from distbench.jobs.convergence.verdict import ConvergenceEvidence, evidence_by_case
from distbench.plan import Plan, make_plan
from distbench.record import Record, Status
from distbench.record.run_folder import Run
from distbench.report.page import render
from distbench.suite import Suite
from distbench.suite.yaml_reader import SourceMap
from distbench.views.base import all_views
from support.convergence_records import (
    CASES,
    DDP,
    EVERY,
    REFERENCE,
    SEEDS,
    SPREAD,
    STEPS,
    compared,
    false_failures,
    matching,
    one_is_called_worse,
    trained,
)
from support.records import case, measured, run_of
from support.runs import Finished, run_in
from support.simulations import drawn
from support.suites import SuiteText

PLUGINS = Path(__file__).parents[2] / "plugins"
LAPTOP = Machine(
    "cpu", 2, {"torch": "9", "deepspeed": "9", "safetensors": "1"}, has_libaio=False, has_compiler=True
)


def reference(reached: list[float], finals: list[float]) -> list[Record]:
    pairs = enumerate(zip(reached, finals, strict=True))
    return [trained(REFERENCE, i, at, final, role="reference") for i, (at, final) in pairs]


USUAL = reference([40, 50, 60, 40, 50, 60], [0.90, 0.92, 0.94, 0.91, 0.92, 0.93])


def verdict(*mine: Record, beside: list[Record] = USUAL) -> ConvergenceEvidence:
    return evidence_by_case([*beside, *mine])[DDP.id]


def test_a_case_that_trains_as_its_reference_does_is_said_to():
    found = verdict(trained(DDP, 0, 40, 0.90), trained(DDP, 1, 50, 0.92), trained(DDP, 2, 60, 0.94))
    assert found.word == "converges as the reference"
    assert found.steps and found.steps.mean == 50
    assert found.final and found.final.reference == pytest.approx(0.92)


@pytest.mark.parametrize(
    ("reached", "final", "word", "told"),
    [
        (90, 0.92, "worse", "steps to the target: 90, reference 50"),
        (50, 0.99, "worse", "value at the end: 0.99, reference 0.92"),
        (10, 0.92, "suspiciously better", "steps to the target: 10"),
        (50, 0.50, "suspiciously better", "value at the end: 0.5"),
        (STEPS + 1, 1.4, "did not reach the target", "3 of 3 trainings, of the reference 0 of 6 (p = "),
    ],
)
def test_a_case_that_trains_otherwise_is_called_so(reached, final, word, told):
    found = verdict(*(trained(DDP, i, reached, final) for i in range(3)))
    assert found.word == word
    assert found.why.startswith(told)


def test_steps_are_known_to_one_evaluation_only_so_that_much_is_no_difference():
    same = reference([50] * 6, [0.92, 0.93, 0.91, 0.92, 0.93, 0.91])
    later = verdict(*(trained(DDP, i, 60, 0.92) for i in range(3)), beside=same)
    assert (later.word, later.steps.p_worse) == ("inconclusive", 1.0)
    much_later = verdict(*(trained(DDP, i, 70, 0.92) for i in range(3)), beside=same)
    assert much_later.word == "worse"


def test_too_few_trainings_and_a_target_that_is_too_far_are_no_verdict():
    few = verdict(*(trained(DDP, i, 50, 0.92) for i in range(3)), beside=USUAL[:4])
    assert (few.word, few.why) == ("inconclusive", "the reference has 4 of 6 trainings")
    one = verdict(trained(DDP, 0, 50, 0.92, seeds=1))
    assert (one.word, one.why[:23]) == ("inconclusive", "one training is too few")
    stopped = verdict(*(trained(DDP, i, 50, 0.92) for i in range(2)))
    assert (stopped.word, stopped.why) == ("inconclusive", "it has 2 of 3 trainings")
    far = reference([50] * 5 + [STEPS + 1], [0.90, 0.92, 0.94, 0.91, 0.92, 1.1])
    nobody = verdict(*(trained(DDP, i, 50, 0.92) for i in range(3)), beside=far)
    assert nobody.word == "inconclusive"
    assert nobody.why.startswith("1 of 6 trainings of the reference did not reach the target either")


def test_a_training_that_broke_and_ranks_that_drifted_apart_are_named_before_any_number():
    good = [trained(DDP, i, 50, 0.92) for i in range(2)]
    broken = dataclasses.replace(
        trained(DDP, 2, 50, 0.92), status=Status.INVALID_NAN, reason="the loss was nan"
    )
    found = verdict(*good, broken)
    assert (found.word, found.why) == (
        "broke down",
        "1 of 3 trainings: seed 3: invalid_nan: the loss was nan",
    )
    drift = {"step": 30, "rank": 1, "module": "head", "kind": "ranks apart", "text": "2 of 4 parameters"}
    apart = verdict(*good, trained(DDP, 2, 50, 0.92, findings=[drift]))
    assert (apart.word, apart.why) == ("ranks drifted apart", "rank 1 at step 30: 2 of 4 parameters")


def suites(
    draws: int, correlation: float, slower: float = 0.0, cases: int = CASES
) -> Iterator[dict[str, Contrast]]:
    """Yield what is found of suites of honest cases, whose trainings of one seed are so much alike.

    The first case takes *slower* more steps, as a fraction.
    """
    random = np.random.default_rng(7)
    seeds = random.normal(0, SPREAD * correlation**0.5, (draws, 1, 2 * SEEDS))
    own = random.normal(0, SPREAD * (1 - correlation) ** 0.5, (draws, 1 + cases, 2 * SEEDS))
    steps = seeds + own
    steps[:, 1] += np.log1p(slower)
    yield from (compared(each, SEEDS) for each in steps)


@pytest.mark.parametrize("correlation", [0.0, 0.7])
@drawn(500)
def test_of_many_honest_cases_none_is_called_worse_in_19_of_20_suites(draws, correlation):
    false = [one_is_called_worse(suite) for suite in suites(draws, correlation)]
    # two standard errors of a share of 500
    assert np.mean(false) <= 0.05 + 0.02


@pytest.mark.parametrize("kind", ["two cases five times noisier", "the reference five times noisier"])
def test_arms_that_are_noisier_than_the_others_are_not_called_worse_for_it(kind):
    assert false_failures(kind, SEEDS, 250) <= 0.05


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(
    "kind", ["equal noise", "two cases five times noisier", "the reference five times noisier", "heavy tails"]
)
def test_of_many_honest_cases_none_is_called_worse_whatever_their_noise(kind, seeds):
    assert false_failures(kind, seeds, 1000) <= 0.05


def curve(of: Case, number: int, level: float, role: str) -> Record:
    """Return a training whose value falls as a power of its step, to two deviations below the target."""
    record = trained(of, number, STEPS, 0.0, role=role)
    fall = np.log10(3) + 2 * SPREAD / np.log(10)
    rows = [
        {**row, "value": 3 * (row["step"] / EVERY) ** -fall * np.exp(level)}
        for row in record.tables["converge_curve"]
        if row["step"] % EVERY == 0
    ]
    return dataclasses.replace(record, tables={"converge_curve": rows, "converge_findings": []})


def test_a_suite_of_honest_cases_passes_all_its_tests_in_19_of_20_runs():
    """Steps, values at the end and targets that one training in fifty misses, in suites of 23 cases."""
    random, failing = np.random.default_rng(7), 0
    arms = [(REFERENCE, "reference", 2 * SEEDS), *((case(f"case{i}"), "case", SEEDS) for i in range(CASES))]
    for _ in range(30):
        records = [
            curve(of, seed, level, role)
            for of, role, seeds in arms
            for seed, level in enumerate(random.normal(0, SPREAD, seeds))
        ]
        failing += any(found.verdict.gravity == "bad" for found in evidence_by_case(records).values())
    # of 100 such suites two fail
    assert failing <= 3


@pytest.mark.parametrize(("correlation", "found"), [(0.0, 0.5), (0.7, 0.97)])
@drawn(300)
def test_one_case_of_many_that_takes_a_fifth_more_steps_is_found(draws, correlation, found):
    chances = [
        dict(zip(suite, holm_adjusted([contrast.p_above for contrast in suite.values()]), strict=True))
        for suite in suites(draws, correlation, 0.2)
    ]
    assert np.mean([each["case 0"] < P_VALUE for each in chances]) >= found


@pytest.mark.parametrize(("cases", "draws"), [(1, 500), (CASES, 100)])
def test_a_slow_down_that_is_said_to_be_excluded_is_there_in_one_of_twenty_cases(cases, draws):
    slower = suites(draws, 0.7, 0.2, cases)
    most = np.array([[each.upper_bound(CONFIDENCE) for each in suite.values()] for suite in slower])
    true = np.array([0.2] + [0.0] * (cases - 1))
    # three standard errors of a share of 500; of 100 suites, whose cases have one reference, it is as much
    assert np.mean(np.expm1(most) < true) <= 0.05 + 0.03


def test_a_case_that_scatters_widely_neither_hides_nor_drowns_the_others():
    random = np.random.default_rng(7)
    reference = dict(enumerate(random.normal(0, 0.01, SEEDS)))
    arms = {f"case {i}": dict(enumerate(random.normal(0, 0.01, SEEDS))) for i in range(8)}
    arms["wild"] = {0: 0.0, 1: 2.0, 2: -1.5}
    found = contrasts(arms, reference)
    reach = {name: each.upper_bound(CONFIDENCE) - each.difference for name, each in found.items()}
    # 1.65 standard errors
    assert max(reach[name] for name in arms if name != "wild") < 1.65 * 0.02
    assert reach["wild"] > 1.65 * 0.5


def test_one_missed_target_among_many_cases_is_no_failure_and_a_target_never_met_is_one():
    unlucky = [trained(DDP, i, *at) for i, at in enumerate([(40, 0.90), (50, 0.92), (STEPS + 1, 1.01)])]
    found = verdict(*unlucky)
    assert found.word == "inconclusive"
    assert found.why.startswith("1 of 3 trainings, of the reference 0 of 6 (p = 0.42)")


def test_a_case_of_which_little_is_known_does_not_converge_as_its_reference_yet():
    found = verdict(trained(DDP, 0, 70, 0.90), trained(DDP, 1, 40, 0.92), trained(DDP, 2, 50, 0.94))
    assert found.word == "inconclusive"
    assert "more steps to the target (limit: converge.max_slowdown = 0.2)" in found.why
    assert found.verdict.gravity == "unknown"


@pytest.mark.parametrize(("seeds", "honest"), [(2, 0.65), (3, 0.85)])
def test_a_case_that_ends_2_percent_worse_does_not_match_its_reference(seeds, honest):
    assert matching(0.02, seeds) <= 0.1
    assert matching(0.0, seeds) >= honest


def test_a_case_whose_end_is_little_known_says_how_much_worse_it_may_be():
    finals = [(40, 0.86), (50, 0.92), (60, 0.98)]
    found = verdict(*(trained(DDP, i, *at) for i, at in enumerate(finals)))
    assert found.word == "inconclusive"
    assert "a final value that is" in found.why
    assert found.why.endswith("worse (limit: converge.max_worse = 0.02); raise converge.seeds")


def test_a_case_that_converges_says_which_slow_down_it_excludes():
    found = verdict(*(trained(DDP, i, *at) for i, at in enumerate([(40, 0.90), (50, 0.92), (60, 0.94)])))
    assert found.verdict.sentence == (
        "matches the reference: at most 0.1% more steps to the target, and a final value at most 0.1% "
        "worse (95% confidence)"
    )
    assert found.verdict.extent == (pytest.approx(0, abs=1e-6), "more steps to the target not ruled out")


def test_a_training_whose_value_is_no_number_in_the_end_broke_down():
    good = [trained(DDP, i, 50, 0.92) for i in range(2)]
    found = verdict(*good, trained(DDP, 2, 50, float("nan")))
    assert (found.word, found.why) == (
        "broke down",
        "1 of 3 trainings: seed 3: nats_per_token is not finite at the end",
    )
    lost = [*USUAL[:5], trained(REFERENCE, 5, 50, float("inf"), role="reference")]
    alone = verdict(*good, trained(DDP, 2, 50, 0.93), beside=lost)
    assert alone.why.startswith("the reference has 5 of 6 trainings: seed 6: nats_per_token is not finite")


def test_a_target_is_passed_between_evaluations_and_not_at_one():
    slow = trained(DDP, 0, 50, 0.92)
    rows = slow.tables["converge_curve"]
    rows[49]["value"] = 0.5
    (training,) = verdict(slow).group.trainings
    assert training.crossing_step == pytest.approx(40 + 10 / 1.5)


def test_throughput_gained_and_convergence_lost_by_a_larger_batch_stand_side_by_side():
    small = case(world_size=1, batch=Batch(8, 8, 1))
    large = case(world_size=2, batch=Batch(16, 8, 1), optimizer=OptimizerConfig(lr=2e-3))
    records = [trained(small, i, 40, 0.9) for i in range(3)] + [trained(large, i, 30, 0.9) for i in range(3)]
    (effect,) = batch_size_effects(list(evidence_by_case(records).values()))
    assert effect.throughput == pytest.approx(4.0), "twice the samples a step, steps in half the time"
    assert effect.samples == pytest.approx(30 * 16 / (40 * 8))
    assert effect.seconds == pytest.approx(effect.samples / effect.throughput)
    assert effect.learning_rate_note == " (learning rate 0.002 against 0.001)"


def test_the_view_and_the_page_show_targets_curves_and_verdicts():
    records = [*USUAL, *(trained(DDP, i, 90, 0.92) for i in range(3))]
    run = run_of(*records)
    view = all_views()["convergence"]
    shown = view.table(run)
    assert {row.group for row in shown.rows} == {"transformer on text, global batch 8: nats_per_token ≤ 1"}
    last = shown.records()[-1]
    assert (last["case_name"], last["verdict"], last["seeds"]) == (DDP.name, "worse", 3)
    assert (last["steps"], last["steps_stdev"], last["target"]) == (90, 0, 1)
    drawn = view.charts(run)
    axes = ["optimizer steps", "tokens", "seconds of training"]
    assert [chart.title.rpartition("against ")[2] for chart in drawn[:3]] == axes
    assert [trace["name"] for trace in drawn[0].figure["data"]][-1] == "target"
    band, line = drawn[0].figure["data"][:2]
    assert line["x"] == list(range(EVERY, STEPS + 1, EVERY))
    assert max(band["y"]) == 2.0 and min(band["y"]) == pytest.approx(0.90)
    page = render(run)
    assert "Convergence: ddp/ws2/mb4/fp32: worse" in page
    assert "nats_per_token against tokens" in page


def test_a_run_that_trains_to_no_target_says_so_in_a_line_and_shows_no_empty_table_on_the_page():
    shown = all_views()["convergence"].table(run_of(measured(DDP)))
    assert shown.rows == ()
    assert ["converge" in note for note in shown.notes] == [True]


@pytest.mark.train
def test_a_spike_stands_seven_deviations_above_what_was_before_and_falling_is_none():
    from distbench.worker.health import LossSpikeDetector  # needs torch

    watch = LossSpikeDetector()
    steady = [3.0 + 0.01 * (i % 2) for i in range(30)]
    assert not any(watch.check(value) for value in [*steady, 1.0])
    assert watch.check(9.0)
    assert not LossSpikeDetector().check(9.0), "of the first value nothing is known"


SUITE = {
    "workload": {"transformer": {"seq_len": 16}},
    "batch": {"global_batch_size": 8},
    "strategies": ["ddp"],
    "world_sizes": [1, 2],
}


def planned(**changes: object) -> Plan:
    return make_plan(Suite.from_tree({**SUITE, **changes}, SourceMap("suite.yaml")), LAPTOP)


def convergence_section(**options: object) -> dict[str, object]:
    return {"measure": {"trials": 0}, "converge": {"targets": {"bits_per_byte": 4.0}, **options}}


def test_each_case_is_trained_with_its_seeds_and_one_reference_with_twice_as_many():
    plan = planned(**convergence_section(seeds=2))
    kinds = [(task.case.label, task.case.world_size, task.case.seed, task.round) for task in plan.trials]
    assert kinds == [
        *(("single", 1, 1234, 0), ("ddp", 1, 1234, 0), ("ddp", 2, 1234, 0)),
        *(("single", 1, 1235, 1), ("ddp", 1, 1235, 1), ("ddp", 2, 1235, 1)),
        *(("single", 1, 1236, 2), ("single", 1, 1237, 3)),
    ]
    assert {task.job.options.of for task in plan.trials[1:3]} == {item.case.id for item in plan.cases}


def test_data_that_hold_nothing_out_can_not_be_judged_and_the_record_says_so(monkeypatch):
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(PLUGINS))
    plan = planned(axes={"data": ["text", "same"]}, **convergence_section())
    (told,) = {task.problem for task in plan.trials if task.problem}
    assert told == "data same has no held-out rows, so a training on it can't be evaluated"


@pytest.mark.parametrize(("size", "is_enough"), [(600, False), (1290, True)])
def test_data_of_which_too_little_can_be_held_out_are_told_before_a_launch(tmp_path, size, is_enough):
    file = tmp_path / "mine.txt"
    file.write_bytes(bytes(size))
    long_rows = {"transformer": {"preset": "tiny", "seq_len": 128}}
    plan = planned(data={"text": {"path": str(file)}}, workload=long_rows, **convergence_section())
    told = {task.problem for task in plan.trials}
    if is_enough:
        assert told == {None}
    else:
        assert told == {
            "data text: 600 tokens: the last tenth is held out, and is too short for one sample of 129 "
            "tokens; use at least 1,290 tokens, or shorter samples"
        }


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{}", "converge.targets: missing; it has no default"),
        ("{targets: {bits_per_byte: 4}, seeds: 0}", "converge.seeds = 0: must be at least 1"),
        ("{targets: {bits_per_byte: soon}}", "converge.targets.bits_per_byte = 'soon': expected a number"),
        ("{targets: {bits_per_byte: 4}, sedes: 3}", "converge.sedes = 3: unknown key; did you mean 'seeds'"),
        ("{targets: {accuracy: 0.9}}", "converge.targets: missing bits_per_byte"),
        (
            "{targets: {bits_per_byte: 4, bits_per_bite: 3.5}}",
            "converge.targets.bits_per_bite = 3.5: not used by any case; did you mean 'bits_per_byte'",
        ),
    ],
)
def test_a_mistake_in_the_section_is_told_with_its_line(section, told, distbench, tmp_path):
    file = tmp_path / "suite.yaml"
    text = "workload: transformer\nbatch: {global_batch_size: 8}\nstrategies: [ddp]\nmeasure: {trials: 0}\n"
    file.write_text(f"{text}converge: {section}\n")
    done = distbench("plan", str(file))
    assert done.returncode == 2
    assert f"{file}:5: {told}" in done.stderr


def test_the_learning_rate_follows_the_batch_if_it_is_asked_to_and_the_case_says_so():
    batch = {"per_device_batch_size": 8, "lr_batch_size": 8}
    for scaling, expected in {"none": 1e-3, "sqrt": 2**0.5 * 1e-3, "linear": 2e-3}.items():
        one, two = (item.case for item in planned(batch={**batch, "lr_scaling": scaling}).cases)
        assert one.optimizer.lr == 1e-3
        assert two.optimizer.lr == pytest.approx(expected)
        assert ("scaled_lr" in two.name) == (scaling != "none")
    assert (
        planned(batch={"global_batch_size": 8}).cases[0].case.id
        == planned(batch={"global_batch_size": 8, "lr_scaling": "none"}).cases[0].case.id
    )
    with pytest.raises(SuiteError, match="lr_scaling: sqrt needs lr_batch_size"):
        planned(batch={"global_batch_size": 8, "lr_scaling": "sqrt"})


# ------------------------------------------------------------------------------------ real trainings

TRAIN_SUITE = SuiteText("""
workload: {user: {model: "small:%s", length: 32}}
data: text
batch: {global_batch_size: 8}
optimizer: {lr: 0.01}
measure: {trials: 0}
limits: {step: 60}
world_sizes: [2]
strategies: %s
converge: {targets: {bits_per_byte: 5.5}, max_steps: 20, eval_every: 5, eval_samples: 33, seeds: 2%s}
""")


def verdicts_in(finished: Finished) -> dict[str, ConvergenceEvidence]:
    run = Run(finished.folder)
    cases = RunAnalysis.read(run).cases
    return {row.case.label: found for row in cases if (found := row.evidence(ConvergenceEvidence))}


@pytest.mark.train
@pytest.mark.parametrize(
    ("strategies", "labels"),
    [
        ("[ddp, {zero: {stage: 3, offload_optimizer: cpu}}]", {"ddp", "zero3+offload"}),
        pytest.param(
            "[ddp, fsdp, {fsdp: {version: 1}}, {zero: {stage: [1, 3], offload_optimizer: cpu}}]",
            {"ddp", "fsdp", "fsdp1", "zero1+offload", "zero3+offload"},
            marks=pytest.mark.deep,
        ),
    ],
)
def test_a_small_model_reaches_its_target_alike_however_it_is_sharded(run_suite, strategies, labels):
    finished = run_suite(TRAIN_SUITE % ("Small", strategies, ", replicas_every: 10"))
    assert finished.code == 0, finished.errors
    found = verdicts_in(finished)
    assert set(found) == labels
    for label, each in found.items():
        assert each.word == "converges as the reference", label
        assert not each.group.findings
        for mine, theirs in zip(each.group.trainings, each.reference.trainings, strict=False):
            for row, other in zip(mine.curve, theirs.curve, strict=True):
                assert row["loss"] == pytest.approx(other["loss"], rel=1e-4), label
                assert (row["value"] is None) == (other["value"] is None)
                assert row["value"] is None or row["value"] == pytest.approx(other["value"], rel=1e-4), label
            assert mine.curve[-1]["grad_norm"] == pytest.approx(theirs.curve[-1]["grad_norm"], rel=1e-3)
    assert "convergence" in finished.cases["ddp/ws2/mb4/fp32"]


@pytest.mark.train
def test_the_module_that_was_first_not_finite_is_named_and_the_suite_goes_on(run_suite):
    finished = run_suite(TRAIN_SUITE % ("NotANumberInOneLayer", "[single, ddp]", ""))
    assert finished.code == 1
    assert finished.cases["ddp/ws2/mb4/fp32"]["convergence"]["verdict"] == "broke down"
    records = [r for r in Run(finished.folder).records() if r.case.label == "ddp"]
    assert [record.status for record in records] == ["invalid_nan"] * 2
    for record in records:
        assert record.failure and record.failure.rank == 1
        assert record.reason.startswith(
            "the loss of rank 1 was nan at step 4; first not finite: the output of layers.1"
        )
        (row,) = record.tables["converge_findings"]
        assert (row["step"], row["rank"], row["module"], row["kind"]) == (4, 1, "layers.1", "not finite")
    assert {r.status for r in Run(finished.folder).records() if r.case.label == "single"} == {"measured"}


@pytest.mark.train
def test_ranks_whose_modules_communicate_look_for_it_together(run_suite):
    parts = TRAIN_SUITE.replace("global_batch_size: 8", "global_batch_size: 8, micro_batch_size: 2")
    finished = run_suite(parts.replace("seeds: 2", "seeds: 1") % ("NotANumberInOneLayer", "[fsdp]", ""))
    record = next(r for r in Run(finished.folder).records() if r.case.label == "fsdp")
    assert record.status == "invalid_nan"
    assert "first not finite: the output of layers.1" in record.reason


@pytest.mark.train
def test_gradients_that_are_not_finite_are_named_before_they_reach_the_loss(run_suite):
    finished = run_suite(TRAIN_SUITE % ("BreaksGradients", "[ddp]", ", gradients_every: 1"))
    record = next(r for r in Run(finished.folder).records() if r.case.label == "ddp")
    assert record.status == "invalid_nan"
    assert record.reason.startswith("the gradient of layers.0.down.bias of rank 0 was nan at step 3")


@pytest.fixture(scope="module")
def faulty_convergence_run(tmp_path_factory) -> Finished:
    """Strategies that train badly, each in its own way, beside one reference."""
    strategies = "[apart, slow_learner, planted_local: {bug: never}]"
    text = TRAIN_SUITE % ("Small", strategies, ", replicas_every: 5")
    return run_in(tmp_path_factory.mktemp("ill"), text)


@pytest.mark.train
def test_ranks_that_train_apart_are_found_by_their_parameters(faulty_convergence_run):
    assert faulty_convergence_run.code == 1
    found = verdicts_in(faulty_convergence_run)["apart"]
    assert found.word == "ranks drifted apart"
    assert found.why.startswith("rank 1 at step 5: ")
    # of those that are averaged after steps 2, 4, 6, the fifth says nothing
    local = verdicts_in(faulty_convergence_run)["planted-local-never"]
    assert local.word == "ranks drifted apart"
    assert local.why.startswith("rank 1 at step 6: ")


@pytest.mark.train
def test_a_strategy_that_spoils_the_learning_rate_is_called_worse(faulty_convergence_run):
    assert faulty_convergence_run.code == 1
    found = verdicts_in(faulty_convergence_run)["slow-learner"]
    assert found.word in ("worse", "did not reach the target")
    assert re.search(rf"Convergence: {found.word} .*slow-learner/ws2/mb4/fp32", faulty_convergence_run.errors)


@pytest.mark.train
def test_steps_that_overflow_under_the_loss_scale_are_counted(run_suite):
    text = TRAIN_SUITE % ("Small", "[ddp]", "") + "precision: {compute: fp16, loss_scale: 1073741824.0}\n"
    finished = run_suite(text, "--only", "ddp*")
    record = next(r for r in Run(finished.folder).records() if r.case.label == "ddp")
    assert record.status == "measured", record.reason
    findings = record.tables["converge_findings"]
    assert {row["kind"] for row in findings} == {"loss scale"}
    # gradients are inspected every few steps
    named = [row for row in findings if " first" in row["text"]]
    told = "gradients overflowed under loss scale 1.07374e+09, that of head.bias first: the step was skipped"
    assert {(row["module"], row["text"]) for row in named} == {("head", told)}
    assert os.environ.get("DISTBENCH_PLUGINS") is None
