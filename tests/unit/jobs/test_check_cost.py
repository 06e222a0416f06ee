"""What a check costs by prediction, and the reduced work of checks that would take too long."""

import dataclasses
import json
from typing import Any

import pytest

from distbench.core.case import Batch, Case, PluginChoice, PrecisionConfig
from distbench.core.job import PlannedTrial
from distbench.core.machine import Machine
from distbench.jobs.equivalence import CheckOptions, CheckSection, EquivalenceJob
from distbench.jobs.equivalence.results import EquivalenceResults
from distbench.jobs.equivalence.verdict import judge_cases
from distbench.record import Record
from support.check_records import DDP, none, reference, rounding, trained
from support.records import with_options
from support.runs import call
from support.suites import write_suite

MACHINE = Machine("cpu", 2, {}, has_libaio=False, has_compiler=False)
LARGE = dataclasses.replace(
    DDP,
    workload=PluginChoice("transformer", {"preset": "gpt2-small", "seq_len": 1024}),
    data=PluginChoice("text"),
    batch=Batch(8, 4, 1),
)


def tasks(*cases: Case, **check: Any) -> list[PlannedTrial]:
    return list(EquivalenceJob().planned_trials(CheckSection(**check), cases, MACHINE))


def options_of(task: PlannedTrial) -> CheckOptions:
    return task.job.options_as(CheckOptions)


def predicted_s(of: list[PlannedTrial]) -> float:
    return sum(EquivalenceJob().predicted_seconds(task) or 0.0 for task in of)


def test_a_small_model_is_checked_on_its_own_work():
    small = dataclasses.replace(
        LARGE, workload=PluginChoice("transformer", {"preset": "tiny", "seq_len": 128})
    )
    assert all(task.case.workload == small.workload for task in tasks(small))
    assert {options_of(task).work for task in tasks(small)} == {""}


def test_work_that_would_take_too_long_is_reduced_and_nothing_else_is_changed():
    made, full = tasks(LARGE), tasks(LARGE, work="full")
    assert predicted_s(made) <= 600 < predicted_s(full)
    for task, whole in zip(made, full, strict=True):
        options = task.case.workload.options
        assert options["seq_len"] < 1024
        assert options["preset"] == "gpt2-small"
        assert dataclasses.replace(task.case, workload=LARGE.workload) == whole.case
        assert options_of(task).work.startswith(f"seq_len {options['seq_len']}, depth {options['depth']}")
    case = next(task for task in made if options_of(task).asked)
    assert (options_of(case).of, options_of(case).asked) == (LARGE.id, LARGE.id)
    assert case.case.optimizer == LARGE.optimizer


def test_the_most_work_is_taken_that_the_minutes_allow():
    sizes = []
    for minutes in (0.001, 10.0, 100.0, 1e6):
        made = tasks(LARGE, minutes=minutes)
        sizes.append(predicted_s(made))
        # there is a least work, whatever it takes
        assert minutes == 0.001 or sizes[-1] <= minutes * 60
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == predicted_s(tasks(LARGE, work="full"))


def test_the_least_work_still_has_several_layers_rows_and_token_ids():
    made = tasks(LARGE, minutes=0.001)
    least = made[0].case.workload.options
    assert {options_of(task).work for task in made} == {
        "seq_len 16, depth 2, vocab_size 1,024: 14.9 of 124 million parameters (the smallest possible)"
    }
    assert not any("the smallest possible" in options_of(task).work for task in tasks(LARGE))
    assert (least["depth"], least["seq_len"], least["vocab_size"]) == (2, 16, 1024)


@pytest.mark.parametrize(
    ("strategy", "device", "least"),
    [
        (PluginChoice("pp", {"micro_batches": 4}), "cpu", {"depth": 6, "seq_len": 16}),
        (PluginChoice("cp", {"implementation": "ring"}), "cuda", {"depth": 2, "seq_len": 256}),
    ],
)
def test_reduced_work_can_still_be_divided_among_the_devices(strategy, device, least):
    case = dataclasses.replace(LARGE, strategy=strategy, world_size=4, batch=Batch(8, 8, 1), device=device)
    planned = tasks(case, minutes=0.001)
    assert planned
    for task in planned:
        assert least.items() <= task.case.workload.options.items()


def test_a_case_in_16_bits_rests_on_the_suites_own_case_in_fp32_on_reduced_work_too():
    half = dataclasses.replace(LARGE, name="half", precision=PrecisionConfig(compute="bf16"))
    made = [task for task in tasks(half, LARGE) if options_of(task).role == "case"]
    assert {options_of(task).also for task in made if options_of(task).of == half.id} == {LARGE.id}
    # alone it is trained in fp32 as well
    alone = [task for task in tasks(half) if options_of(task).role == "case"]
    assert {task.case.precision.compute for task in alone} == {"bf16", "fp32"}


def on_reduced_work(record: Record) -> Record:
    less = dataclasses.replace(
        record.case, workload=PluginChoice("transformer", {"preset": "tiny", "depth": 2})
    )
    case = record.job.options.role == "case"
    job = with_options(record.job, work="depth 2", asked=DDP.id if case else "")
    return dataclasses.replace(record, case=less, case_id=less.id, job=job)


def test_a_verdict_on_reduced_work_says_so():
    held = on_reduced_work(reference())
    found = judge_cases([held, on_reduced_work(trained(rounding))], 0.001)[DDP.id]
    assert "adamw, on reduced work (depth 2); an error of" in found.sentence
    assert [arm.is_asked for arm in found.detail.arms] == [True]
    wrong = on_reduced_work(trained(lambda step, kind, tensor: 0.5 if kind == "gradient" else 0))
    assert judge_cases([held, wrong], 0.001)[DDP.id].sentence.endswith(", on reduced work (depth 2)")
    same = judge_cases([held, on_reduced_work(trained(none))], 0.001)[DDP.id]
    assert same.sentence == "equivalent (adamw, on reduced work (depth 2))"
    full = judge_cases([reference(), trained(rounding)], 0.001)[DDP.id]
    assert "reduced" not in full.sentence


def test_losses_on_reduced_work_say_nothing_about_the_timed_trials():
    records = [on_reduced_work(reference()), on_reduced_work(trained(rounding))]
    assert EquivalenceResults(EquivalenceJob()).expected_losses(records) == {}
    assert EquivalenceResults(EquivalenceJob()).expected_losses([reference(), trained(rounding)])


@pytest.mark.train
@pytest.mark.parametrize(("keys", "expected"), [("", True), ("work: full", False)])
def test_a_plan_tells_what_a_check_costs_and_whether_its_work_is_reduced(keys, expected, tmp_path):
    suite = write_suite(
        tmp_path,
        f"""
workload: {{transformer: {{preset: gpt2-small, seq_len: 1024}}}}
data: text
batch: {{global_batch_size: 8}}
strategies: [ddp]
world_sizes: [2]
check: {{{keys}}}
""",
        "mine.yaml",
    )
    text = " ".join(call("plan", str(suite), "--device", "cpu").stdout.split())
    assert "(from the workload's formulas" in text
    assert ("on reduced work (seq_len" in text) == expected
    trials = json.loads(call("plan", str(suite), "--device", "cpu", "--json").stdout)["trials"]
    assert all((trial["predicted_s"] is not None) == (trial["job"] == "check") for trial in trials)
