"""A suite that measures a case beside its changed copies: the case stays itself, whatever suite it is of."""

from dataclasses import replace
from pathlib import Path

import pytest

from distbench.analysis.step_limit_kinds import COMPUTATION_ADVICE, LOSSES
from distbench.analysis.suggested_changes import suggested_changes
from distbench.core.machine import Machine
from distbench.plan import make_plan
from distbench.plan.setting_changes import ChangeTrials, SettingChange, suite_of_changes
from distbench.suite import load_suite, parse_suite_text

SUITES = sorted((Path(__file__).parents[3] / "suites").glob("*.yaml"))
MACHINE = Machine("cpu", 8, {"torch": "9", "deepspeed": "9"}, has_libaio=False, has_compiler=True)
SUITE = """
workload: {transformer: {seq_len: 16}}
data: synthetic
batch: {global_batch_size: 16, micro_batch_size: 2}
optimizer: {name: adamw, lr: 1.0e-3}
strategies: [STRATEGY]
world_sizes: [2]
measure: {trials: 1}
"""


def trials(strategy: str, *changes: tuple[str, object], sections: str = "") -> ChangeTrials:
    suite = parse_suite_text(SUITE.replace("STRATEGY", strategy) + sections)
    (item,) = make_plan(suite, MACHINE).cases
    assert item.problem is None
    asked = [SettingChange(*change) for change in changes]
    return suite_of_changes(item.case, asked, suite, "Changes of a case.", MACHINE)


@pytest.mark.parametrize("file", SUITES, ids=[file.stem for file in SUITES])
def test_a_case_of_any_suite_is_the_same_case_in_the_suite_of_its_changes(file):
    suite = load_suite(file)
    machine = replace(MACHINE, device="cuda") if suite.device == "cuda" else MACHINE
    cases = [item.case for item in make_plan(suite, machine).cases if item.problem is None]
    assert cases
    for case in cases[:: max(1, len(cases) // 6)]:
        made = suite_of_changes(case, [SettingChange("seed", 7)], suite, "Another seed.", machine)
        planned = {item.case.id: item.case for item in make_plan(made.suite, machine).cases}
        assert [case.id, *made.changes] == [*planned], case.name
        assert [each.seed for each in planned.values()] == [case.seed, 7]


def test_options_of_the_strategy_and_other_settings_are_changed_one_at_a_time():
    changes = [("ddp.bucket_cap_mb", 1.0), ("batch.micro_batch_size", 4), ("compile", True)]
    made = trials("ddp", *changes)
    assert not made.rejected
    base, *others = [item.case for item in make_plan(made.suite, MACHINE).cases]
    assert base.id == made.base
    assert {other.id: (each.key, each.value) for other in others for each in [made.changes[other.id]]} == {
        other.id: change for other, change in zip(others, changes, strict=True)
    }
    assert others[0].strategy.options["bucket_cap_mb"] == 1.0
    assert (others[1].batch.micro_batch_size, others[1].batch.gradient_accumulation_steps) == (4, 2)
    assert others[2].compile == "default"
    same_work = [replace(other, name=base.name, label=base.label) for other in others]
    assert {each.work_key(("strategy", "batch", "compile")) for each in same_work} == {
        base.work_key(("strategy", "batch", "compile"))
    }


def test_a_case_with_a_label_keeps_it_beside_its_changes():
    made = trials("{ddp: {label: ours}}", ("ddp.bucket_cap_mb", 1.0), ("compile", True))
    assert not made.rejected
    assert [item.case.label for item in make_plan(made.suite, MACHINE).cases] == ["ours", "ddp+1mb", "ours"]


def test_the_suite_keeps_its_machine_and_its_check_and_has_enough_trials():
    made = trials("ddp", ("compile", True), sections="check: {steps: 2}\nlimits: {step: 7}\n")
    assert made.suite.measure.trials == 3
    assert (made.suite.jobs["check"].steps, made.suite.limits.step) == (2, 7)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("optimizer.kernel", "none"), "fused"),
        (("batch.micro_batch_size", 3), "divi"),
        (("activation_checkpointing", True), "Allowed: full, none, selective"),
    ],
    ids=["no such value", "indivisible", "another type"],
)
def test_a_change_that_can_not_be_planned_is_left_out_with_its_reason(change, why):
    made = trials("ddp", change, ("compile", True))
    assert [each.key for each in made.changes.values()] == ["compile"]
    ((rejected, reason),) = made.rejected.items()
    assert (rejected.key, rejected.value) == change
    assert why in reason


def test_a_case_that_waits_for_its_loader_gets_more_and_persistent_workers():
    made = trials("ddp", sections="loader: {workers: 2}\n")
    (item,) = make_plan(made.suite, MACHINE).cases
    assert item.case.loader.workers == 2
    assert [change.text for change in suggested_changes(item.case, "data")] == [
        "loader.workers: 4",
        "loader.persistent_workers: true",
    ]
    more = trials("ddp", ("loader.workers", 16), sections="loader: {workers: 4}\n")
    assert not more.rejected
    # 16 x 2 micro-batches are those of 8 steps
    assert more.suite.measure.warmup == 9


LARGER = "batch.micro_batch_size: 8"
COMPILED = "compile: true"
RECOMPUTED_LESS = ["activation_checkpointing: selective", "activation_checkpointing: none"]
NOT_IN_A_PIPELINE = {COMPILED: "compile is not supported with pipeline parallelism"}


@pytest.mark.parametrize(
    ("limit", "strategy", "expected", "impossible"),
    [
        ("communication", "ddp", ["ddp.bucket_cap_mb: 100.0", "ddp.bucket_cap_mb: 6.25", LARGER], {}),
        (
            "communication",
            "fsdp",
            ["fsdp.reduce_each_micro_batch: false", "fsdp.sharding: grad_op", LARGER],
            {},
        ),
        ("communication", "{zero: {stage: 2}}", ["zero.overlap_comm: true", LARGER], {}),
        ("latency", "{ddp: {bucket_cap_mb: 0.01}}", ["ddp.bucket_cap_mb: 25.0", LARGER], {}),
        ("latency", "ddp", ["ddp.bucket_cap_mb: 100.0", LARGER], {}),
        ("latency", "fsdp", ["fsdp.reduce_each_micro_batch: false", LARGER], {}),
        (
            "latency",
            "{zero: {stage: 2, reduce_bucket_size: 1000}}",
            ["zero.reduce_bucket_size: 16000", LARGER],
            {},
        ),
        ("latency", "{zero: {stage: 2}}", [LARGER], {}),
        ("optimizer", "ddp", ["optimizer.kernel: foreach", "ddp.sharded_optimizer: true"], {}),
        ("optimizer", "fsdp", ["optimizer.kernel: foreach"], {}),
        ("recomputation", "fsdp", RECOMPUTED_LESS, {}),
        ("offload", "{fsdp: {cpu_offload: true}}", ["fsdp.cpu_offload: false", LARGER], {}),
        (
            "offload",
            "{zero: {stage: 3, offload_optimizer: cpu, offload_parameters: cpu}}",
            ["zero.offload_parameters: none", "zero.offload_optimizer: none", LARGER],
            {},
        ),
        ("host", "ddp", [LARGER, COMPILED], {}),
        ("host", "{pp: {micro_batches: 2}}", [LARGER, COMPILED], NOT_IN_A_PIPELINE),
        ("computation", "ddp", [COMPILED], {}),
        ("data", "ddp", ["loader.workers: 2"], {}),
        ("computation", "{pp: {micro_batches: 2}}", [COMPILED], NOT_IN_A_PIPELINE),
        (
            "bubble",
            "{pp: {micro_batches: 2}}",
            [
                "pp.micro_batches: 4",
                "pp.schedule: Interleaved1F1B",
                "pp.schedule: ZBVZeroBubble",
                "pp.split: time",
            ],
            {"pp.schedule: ZBVZeroBubble": "activation_checkpointing: full with the schedule ZBVZeroBubble"},
        ),
        *[(limit, "ddp", [], {}) for limit in ("bubble", "noise", "imbalance")],
    ],
)
def test_suggestions_are_planned_or_refused_with_a_reason_and_are_in_the_advice(
    limit, strategy, expected, impossible
):
    text = SUITE.replace("STRATEGY", strategy).replace("micro_batch_size: 2", "micro_batch_size: 4")
    suite = parse_suite_text(f"{text}activation_checkpointing: full\n")
    (item,) = make_plan(suite, MACHINE).cases
    assert item.problem is None
    changes = suggested_changes(item.case, limit)
    assert [change.text for change in changes] == expected
    made = suite_of_changes(item.case, changes, suite, "Advice.", MACHINE)
    assert [each.text for each in made.changes.values()] == [e for e in expected if e not in impossible]
    assert {each.text for each in made.rejected} == {*impossible}
    assert all(why.startswith(impossible[each.text]) for each, why in made.rejected.items())
    advice = {loss.limit: loss.advice for loss in LOSSES}.get(limit, COMPUTATION_ADVICE)
    assert all(each.key in advice for each in changes)
