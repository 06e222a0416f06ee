"""Optimizers: which strategies keep each of them the same training, and what the others are told."""

import dataclasses
import re
import typing
from collections.abc import Callable
from typing import Any

import pytest

from distbench.core.case import OptimizerConfig
from distbench.core.errors import SuiteError
from distbench.core.machine import Machine
from distbench.optimizers import CATALOG, HYPER_PARAMETER_KEYS, ParameterShape, state_bytes
from distbench.plan import Plan, make_plan
from distbench.strategies.ddp import DistributedDataParallel
from distbench.suite import load_suite
from support.records import case
from support.runs import Finished
from support.suites import SuiteText, write_suite

ALL_PACKAGES = dict.fromkeys(("torch", "deepspeed", "pytorch-optimizer", "torchao"), "9")
CPU = Machine(device="cpu", devices=2, packages=ALL_PACKAGES, has_libaio=False, has_compiler=True)
PLAN = """
workload: transformer
batch: {global_batch_size: 8}
world_sizes: [2]
strategies: [ddp, fsdp, {fsdp: {version: 1}}, {zero: {stage: [0, 1, 2, 3]}}]
"""


@pytest.fixture
def planned(tmp_path) -> Callable[..., Plan]:
    def plan(optimizer: str, machine: Machine = CPU) -> Plan:
        file = write_suite(tmp_path, f"{PLAN}optimizer: {optimizer}\n", "mine.yaml")
        return make_plan(load_suite(file), machine)

    return plan


def test_a_suite_may_name_just_the_optimizers_of_the_table():
    assert typing.get_args(typing.get_type_hints(OptimizerConfig)["name"]) == tuple(CATALOG)


@pytest.mark.parametrize("name", CATALOG)
def test_one_that_needs_whole_tensors_is_refused_where_it_gets_flat_pieces(planned, name):
    problems = {item.case.label: item.problem for item in planned(f"{{name: {name}, kernel: loop}}").cases}
    refused = {label for label, problem in problems.items() if problem}
    flat = {"fsdp1", "zero1", "zero2", "zero3"} if CATALOG[name].needs_full_tensors else set()
    assert refused == flat | ({"fsdp"} if CATALOG[name].dtensor_problem else set())
    for label in flat:
        assert problems[label].startswith(
            f"optimizer.name = {name} needs {CATALOG[name].needs_full_tensors}, but "
        ), label


def test_what_a_suite_leaves_out_is_what_the_optimizer_has(planned):
    cases = [item.case.optimizer for item in planned("{name: [adamw, adafactor, muon]}").cases[::7]]
    assert [(each.kernel, each.momentum) for each in cases] == [("fused", 0), ("foreach", 0), ("loop", 0.95)]


@pytest.mark.parametrize(
    ("optimizer", "mistake"),
    [
        (
            "{name: muon, kernel: fused}",
            "optimizer.kernel = 'fused': muon has no fused kernel. Allowed: loop",
        ),
        ("{name: adafactor, momentum: 0.9}", "only sgd and muon have momentum, not adafactor"),
        ("addam", "optimizer.name = 'addam': did you mean 'adam'?"),
    ],
)
def test_a_key_that_an_optimizer_lacks_is_a_mistake(planned, optimizer, mistake):
    with pytest.raises(SuiteError, match=r"mine\.yaml:6: ") as refused:
        planned(optimizer)
    assert mistake in str(refused.value)


@pytest.mark.parametrize("name", CATALOG)
def test_an_optimizer_reads_just_the_keys_by_which_it_changes(name):
    def made(**other: Any) -> list[dict[str, Any]]:
        spec = OptimizerConfig(name, **other)
        parts = (
            [spec, dataclasses.replace(spec, name=CATALOG[name].companion)]
            if CATALOG[name].companion
            else [spec]
        )
        return [CATALOG[part.name].hyper_parameters(part) for part in parts]

    others: dict[str, Any] = {
        "lr": 0.5,
        "betas": (0.1, 0.2),
        "eps": 0.3,
        "momentum": 0.4,
        "weight_decay": 0.6,
    }
    assert set(others) == set(HYPER_PARAMETER_KEYS)
    assert {key for key, value in others.items() if made(**{key: value}) != made()} == set(
        CATALOG[name].setting_keys
    )


@pytest.mark.parametrize(("name", "package"), [("lion", "pytorch-optimizer"), ("adamw8bit", "torchao")])
def test_one_whose_package_is_missing_says_how_to_get_it(planned, name, package):
    bare = dataclasses.replace(CPU, packages={"torch": "9", "deepspeed": "9"})
    problems = {item.problem for item in planned(f"{{name: {name}}}", bare).cases}
    assert problems == {f"{package} is not installed; install it with: pip install {package}"}


def test_one_that_is_compiled_says_what_it_needs(planned):
    bare = dataclasses.replace(CPU, has_compiler=False)
    ddp, *_ = (item.problem for item in planned("adamw8bit", bare).cases)
    assert ddp.startswith("optimizer.name = adamw8bit needs a C++ compiler, but none was found; install one")


def test_states_are_counted_by_shape():
    weights = [ParameterShape((6, 10), is_layer_matrix=True), ParameterShape((6, 10)), ParameterShape((10,))]
    counted = {name: state_bytes(OptimizerConfig(name, momentum=0.9), weights, 4) / 4 for name in CATALOG}
    # AdamW in 8 bits keeps tensors as small as these in full
    by_shape = {"adafactor": 2 * 16 + 10, "muon": 60 + 2 * 70, "adamw8bit": 260}
    alike = {"adamw": 260, "adam": 260, "sgd": 130, "lion": 130, "lamb": 260}
    assert counted == by_shape | alike


@pytest.mark.parametrize(
    ("shape", "expected"),
    # two moments: a byte a number, 4 a block of 256, and a table of 256 numbers; or 4 bytes a number
    [((64, 64), 2 * (4096 + 4 * 16 + 1024)), ((4095,), 2 * 4 * 4095), ((4097,), 2 * 4 * 4097)],
)
def test_moments_of_8_bits_have_scales_and_a_table(shape, expected):
    assert state_bytes(OptimizerConfig("adamw8bit"), [ParameterShape(shape)], 4) == expected


def test_a_case_is_not_refused_for_states_that_its_optimizer_does_not_keep():
    states = {}
    for name in CATALOG:
        optimizer = OptimizerConfig(name, momentum=0.9)
        states[name] = DistributedDataParallel().model_states(case(optimizer=optimizer), 10**9)
    sizes = {name: round(kinds["optimizer_state"] / 1e9, 1) for name, kinds in states.items()}
    alike = {"adamw": 8.0, "adam": 8.0, "sgd": 4.0, "lion": 4.0, "lamb": 8.0}
    assert sizes == alike | {"adafactor": 0.0, "muon": 4.0, "adamw8bit": 2.0}


SUITE = SuiteText("""
workload: {user: {model: "small:Uneven", length: 32}}
data: text
batch: {global_batch_size: 8}
world_sizes: [2]
measure: {trials: 0}
check: {steps: 2, perturbed: 4, fp32: false}
limits: {start: 300}
""")
THEORY = "memory_states_theory"
EQUIVALENT = {"equivalent", "equivalent within rounding"}


def verdicts(done: Finished) -> dict[tuple[str, str], tuple[str, str]]:
    """Verdict on each case with its sentence, by label and optimizer; of one that can't run its status."""
    found = {}
    for name, each in done.cases.items():
        told = each["verdicts"].get("equivalence")
        key = each["label"], name.rpartition("name=")[2]
        found[key] = (told["word"], told["sentence"]) if told else (each["status"], each["reason"])
    return found


COMMON_OPTIMIZERS = "ddp, fsdp, {flat_fsdp: {version: 1}}"
OTHER_OPTIMIZERS = """
  {zero: {stage: 0}}, {fsdp: {sharding: hybrid}}, {flat_fsdp: {version: 2}}, {flat_zero: {stage: [1, 2, 3]}}
"""


@pytest.mark.train
@pytest.mark.parametrize(
    ("strategies", "names"),
    [
        (COMMON_OPTIMIZERS, "adafactor, muon"),
        pytest.param(OTHER_OPTIMIZERS, "adafactor, muon", marks=pytest.mark.deep),
        pytest.param(
            f"{COMMON_OPTIMIZERS}, {OTHER_OPTIMIZERS.strip()}", "adam, lion, lamb", marks=pytest.mark.deep
        ),
        pytest.param(f"{COMMON_OPTIMIZERS}, {OTHER_OPTIMIZERS.strip()}", "adamw8bit", marks=pytest.mark.deep),
    ],
)
def test_the_check_finds_what_the_plan_refuses_and_nothing_else(run_suite, strategies, names):
    text = f"{SUITE}strategies: [{strategies.strip()}]\noptimizer: {{name: [{names}], lr: 0.01}}\n"
    found = verdicts(run_suite(text))
    assert {optimizer for _, optimizer in found} == {*names.split(", ")}
    for (label, optimizer), (word, sentence) in found.items():
        kind = CATALOG[optimizer]
        if label in ("fsdp", "fsdp-hybrid") and kind.dtensor_problem:
            assert word == "unsupported", (label, optimizer, sentence)
        elif label == "flat-fsdp" and optimizer in ("adafactor", "lamb"):
            assert "in-place operations that require placement changes" in sentence, optimizer
        elif (
            not label.startswith("flat-")
            or (label == "flat-fsdp" and not kind.dtensor_problem)
            or not kind.needs_full_tensors
        ):
            assert word in EQUIVALENT, (label, optimizer, sentence)
        elif optimizer == "muon":
            assert re.search("must be a 2D matrix|the matrices of a model's layers", sentence), label
        else:
            # a piece is a vector with a norm of its own, of which nobody makes factors of rows and columns,
            # and has other blocks of 256 numbers
            assert word == "differs", (label, optimizer, sentence)


@pytest.mark.train
@pytest.mark.deep
def test_states_of_every_shape_are_counted_and_resumed_in_other_strategies(run_suite):
    text = SUITE.replace("measure: {trials: 0}\ncheck: {steps: 2, perturbed: 4, fp32: false}\n", "")
    done = run_suite(
        f"{text}strategies: [ddp, fsdp, {{zero: {{stage: 0}}}}]\n"
        "measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 0}\ncheckpoint: true\n"
        "optimizer: {name: [adafactor, muon, lamb], lr: 0.01, warmup_steps: 2}\nmetrics: [steptime, memory]\n"
    )
    assert done.code == 0, done.errors
    assert {each["verdict"] for each in done.checkpoints} == {"same", "rounding"}
    for each in done.cases.values():
        if each["status"] != "unsupported":
            states, theory = (each["values"][name]["value"] for name in ("memory_states", THEORY))
            assert states == pytest.approx(theory, rel=0.01), each["case"]


@pytest.mark.train
@pytest.mark.deep
def test_moments_of_8_bits_are_counted_and_resumed_from_shards(run_suite):
    done = run_suite("""
workload: {transformer: {dim: 64, depth: 2, heads: 4, kv_heads: 2, ffn_dim: 128, seq_len: 32}}
batch: {global_batch_size: 8}
world_sizes: [2]
measure: {warmup: 1, steps: 3, trials: 1, profile_steps: 0}
limits: {start: 300}
strategies: [ddp, {zero: {stage: 0}}]
optimizer: {name: adamw8bit, lr: 0.01, weight_decay: 0.1, warmup_steps: 2}
checkpoint: true
""")
    assert done.code == 0, done.errors
    # DDP's, and that of ZeRO 0: DeepSpeed can't load what it saves of it
    assert {each["verdict"] for each in done.checkpoints if each["training"] == "sharded"} == {
        "same",
        "lacking",
    }
    for label in ("ddp", "zero0"):
        record = done.record(f"{label}-*")
        values, optimizer = record["values"], record["effective"]["optimizer"]
        assert values["memory_states"] == pytest.approx(values[THEORY], rel=0.01)
        # not the rate as torchao would round it
        assert (optimizer["lr"], optimizer["block_size"]) == (0.01, 256)
