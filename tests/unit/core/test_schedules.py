"""Learning-rate schedules: what each is, where it turns, and that every engine follows it."""

import ast
import math
from collections.abc import Iterable
from typing import Any

import pytest

from distbench.adopt import export_case
from distbench.core import lr_schedule
from distbench.core.case import Case, OptimizerConfig
from distbench.core.errors import SuiteError
from distbench.core.machine import Machine
from distbench.jobs.equivalence import CheckSection, EquivalenceJob
from distbench.suite import load_suite
from support.records import case
from support.runs import Finished
from support.suites import SuiteText, write_suite

SCHEDULES = {
    "constant": OptimizerConfig(),
    "warm-up": OptimizerConfig(warmup_steps=4),
    "linear": OptimizerConfig(schedule="linear", warmup_steps=2, total_steps=10, final_lr_fraction=0.1),
    "cosine": OptimizerConfig(schedule="cosine", total_steps=8),
    "wsd": OptimizerConfig(schedule="wsd", warmup_steps=2, total_steps=10, decay_steps=4),
    "inverse_sqrt": OptimizerConfig(schedule="inverse_sqrt", warmup_steps=4),
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", {0: 1, 1000: 1}),
        ("warm-up", {0: 0.25, 2: 0.75, 3: 1, 4: 1, 1000: 1}),
        ("linear", {0: 0.5, 1: 1, 2: 1, 6: 0.55, 10: 0.1, 11: 0.1}),
        ("cosine", {0: 1, 2: 0.5 + math.sqrt(0.125), 4: 0.5, 8: 0, 9: 0}),
        ("wsd", {0: 0.5, 2: 1, 6: 1, 8: 0.5, 10: 0, 11: 0}),
        ("inverse_sqrt", {0: 0.25, 3: 1, 15: 0.5, 63: 0.25}),
    ],
)
def test_the_rate_of_each_update(name, expected):
    found = {update: lr_schedule.lr_factor(SCHEDULES[name], update) for update in expected}
    assert found == pytest.approx(expected, abs=1e-15)


def test_the_corners_are_where_another_law_begins():
    assert {name: lr_schedule.breakpoints(spec) for name, spec in SCHEDULES.items()} == {
        "constant": [],
        "warm-up": [4],
        "linear": [2, 10],
        "cosine": [8],
        "wsd": [2, 6, 10],
        "inverse_sqrt": [4],
    }


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_written_for_a_script_is_the_same_function(name):
    spec = SCHEDULES[name]
    script = export_case("torch", case("ddp", optimizer=spec), {}).files["adopted_torch.py"]
    functions = [n for n in ast.parse(script).body if isinstance(n, ast.FunctionDef) and n.name == "rate"]
    written: dict[str, Any] = {"math": math}
    exec("\n".join(map(ast.unparse, functions)), written)
    assert ("rate" in written) == lr_schedule.is_scheduled(spec)
    rate = written.get("rate", lambda update: 1.0)
    assert [rate(update) for update in range(15)] == pytest.approx(
        [lr_schedule.lr_factor(spec, update) for update in range(15)]
    )


def test_a_schedule_makes_another_case_and_none_keeps_its_id():
    ids = {name: case("ddp", optimizer=spec).id for name, spec in SCHEDULES.items()}
    assert ids["constant"] == case("ddp").id
    assert len(set(ids.values())) == len(ids)


SUITE = SuiteText("""
workload: {user: {model: "small:Small", length: 32}}
data: text
batch: {global_batch_size: 8, micro_batch_size: 2}
strategies: [ddp]
world_sizes: [2]
""")


@pytest.mark.parametrize(
    ("optimizer", "key", "told"),
    [
        ("{schedule: cosine}", "total_steps", "missing: cosine falls until that update"),
        (
            "{schedule: wsd, total_steps: 9}",
            "decay_steps",
            "missing: the number of updates over which wsd falls",
        ),
        ("{total_steps: 9}", "total_steps", "constant never ends; only linear, cosine, wsd use it"),
        ("{schedule: linear, total_steps: 9, decay_steps: 3}", "decay_steps", "only wsd uses it, not linear"),
        ("{schedule: linear, total_steps: 9, warmup_steps: 10}", "total_steps", "at least warmup_steps"),
        ("{schedule: inverse_sqrt, final_lr_fraction: 0.1}", "final_lr_fraction", "never ends"),
    ],
)
def test_options_that_belong_to_no_schedule_or_are_missing_are_told(optimizer, key, told, tmp_path):
    suite = write_suite(tmp_path, f"{SUITE}optimizer: {optimizer}\n")
    with pytest.raises(SuiteError) as refused:
        load_suite(suite)
    (message,) = refused.value.mistakes
    assert told in message.message and f"optimizer.{key}" in str(message)


def steps_of_check(of: Case, asked: int) -> set[int]:
    tasks = EquivalenceJob().planned_trials(
        CheckSection(steps=asked), [of], Machine("cpu", 2, {}, has_libaio=True, has_compiler=True)
    )
    return {task.job.options.steps for task in tasks}  # type: ignore[attr-defined]


def test_a_check_leads_past_every_corner_within_reach():
    assert steps_of_check(case("ddp", optimizer=SCHEDULES["wsd"]), 5) == {13}
    assert steps_of_check(case("ddp", optimizer=SCHEDULES["wsd"]), 20) == {20}
    assert steps_of_check(case("ddp"), 2) == {2}
    far = OptimizerConfig(schedule="linear", warmup_steps=3, total_steps=100_000)
    assert steps_of_check(case("ddp", optimizer=far), 2) == {6}


SCHEDULED = """
optimizer: {lr: 0.01, schedule: wsd, warmup_steps: 1, total_steps: 5, decay_steps: 2, final_lr_fraction: 0.1}
measure: {warmup: 1, steps: 4, trials: 1, profile_steps: 0}
check: {steps: 4, perturbed: 4}
"""


@pytest.mark.train
def test_every_engine_follows_the_schedule(run_suite):
    unchecked = SCHEDULED.partition("check:")[0]
    finished = run_suite(SUITE.replace("[ddp]", "[single, ddp, {zero: {stage: 2}}]") + unchecked)
    follow(finished, ("single", "ddp", "zero2"))


@pytest.mark.train
@pytest.mark.deep
def test_every_engine_is_checked_past_the_corners_of_its_schedule(run_suite):
    strategies = "[ddp, fsdp, {fsdp: {version: 1}}, {zero: {stage: [0, 1, 2, 3]}}]"
    finished = run_suite(SUITE.replace("[ddp]", strategies) + SCHEDULED)
    follow(finished, ("ddp", "fsdp", "fsdp1", "zero0", "zero1", "zero2", "zero3"))
    assert {row["verdicts"]["equivalence"]["gravity"] for row in finished.cases.values()} == {"ok"}


def follow(finished: Finished, labels: Iterable[str]) -> None:
    """Assert that the cases *labels* trained with the rates that were asked for, and alike."""
    assert finished.code == 0, finished.errors
    rows = {row["label"]: row["verdicts"]["losses"]["gravity"] for row in finished.cases.values()}
    for label in labels:
        assert rows[label] == "ok"
        told = finished.record(label)["effective"]["optimizer"]
        assert (told["lr"], told["schedule"]) == (0.01, "wsd to 0.1 at 5 from 3 on, warm-up 1")


@pytest.mark.train
def test_a_rate_that_is_wrong_after_a_corner_is_found(run_suite):
    planted = "[off_schedule, {off_schedule: {silent: true}}]"
    finished = run_suite(SUITE.replace("[ddp]", planted) + SCHEDULED)
    rows = {row["label"]: row for row in finished.cases.values()}
    assert rows["off-schedule"]["status"] == "mismatch"
    assert "optimizer.next_lr" in rows["off-schedule"]["reason"]
    # its second corner is update 3, whose rate shows in the parameters after it
    found = rows["off-schedule-silent"]["verdicts"]["equivalence"]
    assert (found["word"], finished.code) == ("differs", 1)
    assert "differs from step 3 on" in found["sentence"]


@pytest.mark.train
def test_a_schedule_goes_on_where_a_checkpoint_left_it(run_suite):
    text = SUITE.replace("strategies: [ddp]", "strategies: [ddp, {zero: {stage: 2}}]")
    scheduled = SCHEDULED.partition("check:")[0].replace("trials: 1", "trials: 0")
    finished = run_suite(f"{text}{scheduled}checkpoint: {{steps_before: 2, steps_after: 3}}\n")
    assert finished.code == 0, finished.errors
    told = finished.checkpoints
    words = {(each["case"].partition("/")[0], each["training"]): each["verdict"] for each in told}
    assert {words[label, how] for label in ("ddp", "zero2") for how in ("sharded", "full")} == {"same"}
    assert {words[label, "exchanged"] for label in ("ddp", "zero2")} <= {"same", "rounding"}
