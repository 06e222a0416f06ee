"""Suites: what is read, what is refused, and what the messages say."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from distbench.core.case import OptimizerConfig
from distbench.core.machine import Machine
from distbench.core.measurement import MeasureConfig
from distbench.plan import make_plan
from distbench.suite import Overrides, Suite, load_suite
from distbench.suite.sections import check_section
from support.suites import refusal, write_suite
from support.wrong_suites import MINIMAL, MISTAKES, MISTAKES_IN_STRATEGIES

MACHINE = Machine("cpu", 2, {"torch": "9", "deepspeed": "9"}, has_libaio=False, has_compiler=True)


@pytest.fixture
def write(tmp_path) -> Callable[[str], Path]:
    return lambda text: write_suite(tmp_path, text, "mine.yaml")


def labels(suite: Suite) -> list[str]:
    return [strategy.label for strategy in suite.strategies]


def test_a_minimal_suite_has_every_default_decided(write):
    suite = load_suite(write(MINIMAL))
    assert suite.name == "mine"
    assert suite.measure == MeasureConfig()
    resolved = suite.to_resolved()
    assert resolved["data"] == {"text": {"path": None}}
    assert resolved["optimizer"]["lr"] == OptimizerConfig().lr
    assert resolved["strategies"][0]["ddp"]["bucket_cap_mb"] == 25
    assert resolved["limits"]["trial"] is None, "the plan decides it by the size of each case"
    assert len(resolved["metrics"]) >= 5


def test_what_is_resolved_is_json_and_a_suite_again(write):
    text = MINIMAL.replace("[ddp]", "[single, {zero: {stage: [1, 2]}}]") + "precision: [fp32, bf16]\n"
    suite = load_suite(write(text))
    again = Suite.from_resolved(json.loads(json.dumps(suite.to_resolved())))
    assert again.to_resolved() == suite.to_resolved()
    assert labels(again) == ["single", "zero1", "zero2"]
    assert again.axes == suite.axes


@pytest.mark.parametrize(
    ("one", "several"),
    [
        ("workload: transformer", "workload: [transformer, {mlp: {depth: 3}}]"),
        ("workload: transformer", "workload: transformer\naxes: {workload: [transformer, mlp]}"),
    ],
)
def test_a_suite_of_several_models_is_resumed(write, one, several):
    assert one in MINIMAL
    suite = load_suite(write(MINIMAL.replace(one, several)))
    assert [axis.path for axis in suite.axes] == [("workload",)]
    resolved = suite.to_resolved()
    listed = {**resolved, "axes": {"workload": resolved["workload"]}}
    del listed["workload"]
    for stored in (resolved, listed):
        # as now, and as runs were stored by earlier versions
        again = Suite.from_resolved(json.loads(json.dumps(stored)))
        assert [(axis.path, axis.values) for axis in again.axes] == [
            (axis.path, axis.values) for axis in suite.axes
        ]
        assert again.to_resolved() == resolved


def test_an_option_that_lists_values_makes_a_strategy_of_each(write):
    text = MINIMAL.replace("[ddp]", "[{fsdp: {sharding: [full, grad_op], cpu_offload: [false, true]}}]")
    assert labels(load_suite(write(text))) == ["fsdp", "fsdp+offload", "fsdp-grad-op", "fsdp-grad-op+offload"]


def test_a_label_names_the_cases_of_a_strategy_and_nothing_else(write):
    text = MINIMAL.replace("[ddp]", "[{ddp: {bucket_cap_mb: 1, label: ours}}, {zero: {label: theirs-3.5}}]")
    text += "world_sizes: [2]\ninclude: [{strategy: ours, precision: bf16}]\n"
    text += "gate: {strategies: {theirs*: {peak_memory: 5%}}}\n"
    suite = load_suite(write(text))
    assert labels(suite) == ["ours", "theirs-3.5"]
    assert "label" not in suite.strategies[0].plugin.choice.options
    again = Suite.from_resolved(json.loads(json.dumps(suite.to_resolved())))
    assert (labels(again), again.to_resolved()) == (labels(suite), suite.to_resolved())
    cases = [item.case for item in make_plan(suite, MACHINE).cases]
    assert [case.name.split("/")[0] for case in cases] == ["ours", "theirs-3.5", "ours"]
    plain = text.replace(", label: ours", "").replace("label: theirs-3.5", "")
    plain = plain.replace("ours", "ddp*").replace("theirs", "zero")
    others = [item.case for item in make_plan(load_suite(write(plain)), MACHINE).cases]
    assert [case.id for case in others] == [case.id for case in cases]
    assert {case.label for case in others} == {"ddp+1mb", "zero3"}


@pytest.mark.parametrize(
    ("strategies", "message"),
    [
        ("[{ddp: {label: a/b}}]", "strategies[0].ddp.label = 'a/b': use at most 40 letters, digits"),
        ("[{ddp: {label: 'a*'}}]", "because the label becomes part of case names"),
        ("[{ddp: {label: ''}}]", "use at most 40 letters"),
        ("[{ddp: {label: 3}}]", "strategies[0].ddp.label = 3: use at most 40 letters"),
        (f"[{{ddp: {{label: {'x' * 41}}}}}]", "use at most 40 letters"),
        ("[{zero: {label: ddp}}]", "strategies[0].zero.label = 'ddp': is the name of a strategy"),
        (
            "[{zero: {stage: [1, 2], label: ours}}]",
            "strategies[0].zero.label = 'ours': names one strategy, but its options list several values",
        ),
        ("[{zero: {mesh: auto, label: ours}}]", "list each as a strategy of its own"),
        ("[{zero: {label: x}}, fsdp, {ddp: {label: x}}]", "another strategy has this label; choose another"),
        ("[{zero: {label: zero2}}, {zero: {stage: 2}}]", "strategies[0].zero.label = 'zero2': another"),
    ],
)
def test_a_label_is_one_word_of_one_strategy(write, strategies, message):
    mistakes = refusal(write(MINIMAL.replace("[ddp]", strategies)))
    assert len(mistakes) in (1, 2)
    assert all("mine.yaml:3: strategies[" in mistake for mistake in mistakes)
    assert message in mistakes[0]


def test_a_field_that_lists_values_becomes_an_axis(write):
    suite = load_suite(
        write(MINIMAL + "optimizer: {lr: [0.1, 0.01]}\nactivation_checkpointing: [none, full]\n")
    )
    assert {axis.path: axis.values for axis in suite.axes} == {
        ("optimizer", "lr"): (0.1, 0.01),
        ("activation_checkpointing",): ("none", "full"),
    }


def test_a_list_that_is_one_value_is_no_axis_but_a_list_of_them_is(write):
    assert load_suite(write(MINIMAL + "optimizer: {betas: [0.8, 0.9]}\n")).axes == ()
    (axis,) = load_suite(write(MINIMAL + "optimizer: {betas: [[0.8, 0.9], [0.9, 0.99]]}\n")).axes
    assert axis.values == ([0.8, 0.9], [0.9, 0.99])


def test_anchors_and_merge_keys_are_followed(write):
    text = "workload: transformer\nbatch: &b {global_batch_size: 8}\nstrategies: [ddp]\n"
    suite = load_suite(write(text + "include:\n- strategy: ddp\n  batch: {<<: *b, micro_batch_size: 2}\n"))
    assert suite.include[0].axes[0].values == ({"global_batch_size": 8, "micro_batch_size": 2},)


@pytest.mark.parametrize(
    "optimizer",
    [
        "{name: [adamw, sgd], betas: [0.8, 0.9], eps: 1}",
        "[{name: sgd, momentum: 0.9}, {eps: 1}]",
        "{name: muon, eps: 1, betas: [0.8, 0.9]}",
    ],
)
def test_a_key_that_optimizers_share_is_of_those_that_read_it(write, optimizer):
    assert len(load_suite(write(f"{MINIMAL}optimizer: {optimizer}\n")).axes) <= 1


def test_a_suite_of_a_run_may_have_keys_that_were_no_mistake_when_it_began(write):
    before = write(MINIMAL + "optimizer: {name: sgd, betas: [0.8, 0.9]}\n")
    stored = load_suite(before, is_stored=True)
    assert Suite.from_resolved(stored.to_resolved()).to_resolved() == stored.to_resolved()


def test_a_user_model_is_named_without_being_imported(write):
    suite = load_suite(write(MINIMAL.replace("transformer", "{user: {model: 'no_such_package:model'}}")))
    assert suite.work["workload"] == {"user": {"model": "no_such_package:model"}}


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_names_file_line_key_and_value(write, text, message):
    (mistake,) = refusal(write(f"{MINIMAL}{text}\n"))
    assert message in mistake


@pytest.mark.parametrize(("strategies", "message"), MISTAKES_IN_STRATEGIES)
def test_a_mistake_in_a_strategy_names_its_place(write, strategies, message):
    (mistake,) = refusal(write(MINIMAL.replace("[ddp]", strategies)))
    assert message in mistake


@pytest.mark.parametrize("batch", ["{}", "{global_batch_size: 8, per_device_batch_size: 4}"])
def test_a_batch_is_given_for_all_devices_or_for_each(write, batch):
    (mistake,) = refusal(write(MINIMAL.replace("{global_batch_size: 8}", batch)))
    assert mistake.startswith("mine.yaml:2: batch: give exactly one of global_batch_size")


def test_all_mistakes_come_at_once_in_the_order_of_the_file(write):
    text = "workload: transfomer\nbatch: {global_batch_size: x}\nstrategies: [dpp]\nmeasure: {steps: -1}\n"
    found = refusal(write(text), "limits.stepp=1")
    assert [mistake.split(": ")[0] for mistake in found] == [
        "--set limits.stepp=1",
        *(f"mine.yaml:{line}" for line in (1, 2, 3, 4)),
    ]


def test_what_is_required_is_said_to_be_missing(write):
    found = refusal(write("name: nothing\n"))
    assert [mistake.split(": ")[1] for mistake in found] == ["workload", "batch", "strategies"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mine.yaml: the file is empty"),
        ("# nothing\n", "mine.yaml: the file is empty"),
        ("- a\n", "mine.yaml:1: expected a mapping (key: value) at the top level, found a list"),
        ("a: [1\nb: 2\n", "mine.yaml:2: not YAML"),
        ("a: 1\n---\nb: 2\n", "not YAML: but found another document"),
        ("a: {b: 1, b: 2}\n", "mine.yaml:1: a.b: duplicate key; keep one"),
        ("workload: x\nseed: 1\nworkload: y\n", "mine.yaml:3: workload: duplicate key (first on line 1)"),
        pytest.param(
            "[" * 5000, "nested deeper than", marks=pytest.mark.drill("a suite nested 5,000 levels deep")
        ),
        pytest.param(
            "a: &a [*a]\n", "nested deeper than", marks=pytest.mark.drill("a suite that contains itself")
        ),
        ("a: \x01\n", "not YAML"),
    ],
)
def test_a_file_that_is_no_suite_gets_one_message(write, text, message):
    (mistake,) = refusal(write(text))
    assert message in mistake


@pytest.mark.drill("a suite whose aliases expand to 9^8 items")
def test_a_yaml_bomb_is_refused(write):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    (mistake,) = refusal(write("\n".join(lines)))
    assert "expands to more than" in mistake


@pytest.mark.drill("a suite of more than 1 MiB")
def test_a_huge_file_is_refused(write):
    assert "larger than" in refusal(write("#" * (1 << 20) + "\n#"))[0]


def test_a_file_that_is_no_text_is_refused(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"name: a\nworkload: \xff\xfe\n")
    assert refusal(file) == ["mine.yaml:2: not UTF-8 text"]


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert refusal(tmp_path / "no.yaml") == ["mine.yaml: no such file"]
    assert refusal(tmp_path) == ["mine.yaml: can't be read: Is a directory"]


def test_set_changes_a_field_and_reaches_into_what_was_only_named(write):
    settings = [
        "measure.steps=3",
        "workload.transformer.depth=2",
        "precision.compute=bf16",
        "strategies=[fsdp]",
    ]
    suite = load_suite(write(MINIMAL + "precision: fp32\n"), Overrides(set=settings))
    assert suite.measure.steps == 3
    assert suite.work["workload"] == {"transformer": {"depth": 2}}
    assert suite.work["precision"] == {"compute": "bf16"}
    assert labels(suite) == ["fsdp"]


@pytest.mark.parametrize(
    ("key", "given", "wanted"),
    [
        ("strategies", "[{zero: {stage: 2, reduce_bucket_size: 5e8}}]", "reduce_bucket_size: 500000000"),
        ("strategies", "[{zero: {stage: 2, reduce_bucket_size: [5e8, 2e5]}}]", "reduce_bucket_size: 200000"),
        ("strategies", "[{fsdp: {mesh: {dp_shard: 2.0, tp: 1e0}}}]", "dp_shard: 2}"),
        ("strategies[0].ddp.bucket_cap_mb", "2.5e1", "bucket_cap_mb: 25"),
        ("workload.transformer.seq_len", "[64, 1.28e2]", "seq_len: 128"),
        ("batch.global_batch_size", "1.6E+1", "global_batch_size: 16"),
        ("axes", "{batch.global_batch_size: [8e0]}", "global_batch_size: 8,"),
        ("measure.steps", "1e1", "steps: 10"),
        ("seed", "1.7e1", "seed: 17"),
        ("world_sizes", "[2e0]", "world_size: 2"),
        ("threads", "2.0", "threads: 2"),
    ],
)
def test_a_whole_number_may_be_written_as_any_number(write, key, given, wanted):
    by_option = load_suite(write(MINIMAL), Overrides(set=[f"{key}={given}"]))
    assert wanted in told(by_option)
    if "." not in key:
        kept = "".join(line for line in MINIMAL.splitlines(True) if not line.startswith(f"{key}:"))
        assert told(load_suite(write(f"{kept}{key}: {given}\n"))) == told(by_option)


def told(suite: Suite) -> str:
    """Everything that decides the cases of *suite*, and how it is measured, as a text."""
    cases = [item.case for item in make_plan(suite).cases]
    return json.dumps([[case.to_json() for case in cases], vars(suite.measure)]).replace('"', "")


def test_set_reaches_into_a_list_by_number(write):
    suite = load_suite(
        write(MINIMAL.replace("[ddp]", "[{zero: {stage: 1}}]")), Overrides(set=["strategies[0].zero.stage=2"])
    )
    assert labels(suite) == ["zero2"]


def test_set_reaches_into_a_strategy_that_was_only_named(write):
    suite = load_suite(write(MINIMAL), Overrides(set=["strategies[0].ddp.bucket_cap_mb=5"]))
    assert suite.strategies[0].plugin.choice.options["bucket_cap_mb"] == 5


@pytest.mark.parametrize(
    "given", ["", "metrics: [steptime, telemetry]\n", "metrics: [{telemetry: {effect: 0.1}}]\n"]
)
def test_set_reaches_a_metric_by_its_name(write, given):
    before = load_suite(write(MINIMAL + given))
    suite = load_suite(write(MINIMAL + given), Overrides(set=["metrics.telemetry.max_foreign_cpu=0.5"]))
    (chosen,) = (metric for metric in suite.metrics if metric.name == "telemetry")
    assert chosen.options["max_foreign_cpu"] == 0.5
    assert chosen.options["effect"] == (0.1 if "effect" in given else 0.05)
    assert [metric.name for metric in suite.metrics] == [metric.name for metric in before.metrics]


def test_what_set_gives_is_not_varied_any_more(write):
    text = MINIMAL + "axes: {optimizer.lr: [0.1, 0.2], seed: [1, 2]}\n"
    suite = load_suite(write(text), Overrides(set=["optimizer.lr=0.5"]))
    assert [axis.path for axis in suite.axes] == [("seed",)]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "measure.stepz=10",
            "--set measure.stepz=10: measure.stepz = 10: unknown key; did you mean 'steps'?",
        ),
        ("measure.steps=ten", "--set measure.steps=ten: measure.steps = 'ten': expected a whole number"),
        ("measure.steps=null", "--set measure.steps=null: measure.steps = null: expected a whole number"),
        (
            "measure.steps=-.inf",
            "--set measure.steps=-.inf: measure.steps = '-.inf': a number must be finite",
        ),
        ("measure={steps: 1, steps: 2}", "steps: 2}: measure.steps: duplicate key; keep one"),
        ("measure.steps", "--set measure.steps: expected key=value"),
        ("measure.steps=[1", "--set measure.steps=[1: measure.steps: not YAML"),
        ("seed.x=1", "--set seed.x=1: seed.x: seed has no sub-keys"),
        ("strategies[7]=ddp", "--set strategies[7]=ddp: strategies[7]: index out of range"),
        (
            "strategies[7].ddp.x=1",
            "--set strategies[7].ddp.x=1: strategies[7].ddp.x: strategies[7] has no sub-keys",
        ),
        ("strategies[0].fsdp.version=1", "strategies[0].fsdp.version: strategies[0] is ddp"),
        ("metrics.telemetri.effect=1", "not a metric of the suite; did you mean 'telemetry'?"),
        ("metrics.telemetry.efect=1", "unknown key; did you mean 'effect'?"),
        ("workload.mlp.depth=1", "not the suite's workload; Allowed: transformer"),
    ],
)
def test_a_mistake_on_the_command_line_names_the_option(write, setting, message):
    (mistake,) = refusal(write(MINIMAL + "seed: 1\n"), setting)
    assert message in mistake


def test_allowed_words_are_listed_whole():
    @dataclass(frozen=True)
    class Section:
        kind: Literal["this or that", "orbit", "it, too"]

    _, (finding,) = check_section(Section, {"kind": "x"}, ("section",))
    assert finding.message == "Allowed: it, too, orbit, this or that"


def test_set_does_not_change_a_part_of_what_an_axis_replaces(write):
    (mistake,) = refusal(write(MINIMAL + "axes: {precision: [fp32, bf16]}\n"), "precision.reduce=bf16")
    assert "axes.precision replaces all of precision" in mistake


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("checkpoint: {steps_before: 0}", "checkpoint.steps_before = 0: must be at least 1"),
        ("checkpoint: {steps_after: 1.5}", "checkpoint.steps_after = 1.5: expected a whole number"),
        (
            "checkpoint: {step_before: 2}",
            "checkpoint.step_before = 2: unknown key; did you mean 'steps_before'? "
            "Allowed: steps_after, steps_before",
        ),
        ("checkpoint: 3", "checkpoint = 3: expected a mapping or true or false"),
        ("checkpoint: false\nmeasure: {trials: 0}", "measure.trials = 0: nothing to run"),
    ],
)
def test_a_mistake_in_what_is_asked_of_checkpoints_has_its_place(write, text, message):
    file = write(MINIMAL + text + "\n")
    line = (MINIMAL + text).count("\n") + 1
    (line_of_text,) = refusal(file)
    assert line_of_text.startswith(f"mine.yaml:{line}: {message}")


def test_checkpoints_alone_may_be_asked_for(write):
    suite = load_suite(write(MINIMAL + "checkpoint: true\nmeasure: {trials: 0}\n"))
    assert suite.jobs["checkpoint"].steps_before == 3
    assert "checkpoint" not in load_suite(write(MINIMAL)).jobs
