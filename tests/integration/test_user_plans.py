"""Modules of one's own, split inside and between their layers by plans in the suite."""

import json
import os
import re
from typing import Any

import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.workloads.user import UserModel
from support.runs import MODELS, call_outside
from support.theory_checks import against_theory

TENSOR = {
    "tokens": "embedding_rowwise",
    "blocks.*.attention.[qkv]": "colwise",
    "blocks.*.attention.o": "rowwise",
    "blocks.*.up": "colwise",
    "blocks.*.down": "rowwise",
    "blocks.*.norm": "replicate",
    "blocks.*.other": "replicate",
    "head": "colwise_gather_output",
}
PIPELINE = {
    "tokens": [["ids"], ["hidden"]],
    "positions": [["places"], ["hidden"]],
    "blocks": [["hidden", "mask"], ["hidden"]],
    "norm": [["hidden"], ["hidden"]],
    "head": [["hidden"], ["logits"]],
}
SUITE = """
batch: {global_batch_size: 12}
optimizer: {name: adamw, lr: 1.0e-3}
world_sizes: [2]
measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 1}
check: {steps: 3, perturbed: 4}
"""


def workload(model: str, **plans: Any) -> dict[str, Any]:
    options = {"model": f"planned:{model}", "length": 32}
    return {"user": {**options, "tp_plan": TENSOR, "pp_plan": PIPELINE, **plans}}


def suite_of(strategies: list[Any], precision: str = "fp32") -> str:
    own = {"workload": workload("Decoder"), "strategies": strategies, "precision": precision}
    return SUITE + "".join(f"{key}: {json.dumps(value)}\n" for key, value in own.items())


ALL: list[Any] = [
    "tp",
    {"tp": {"loss_parallel": True}},
    {"fsdp": {"mesh": {"tp": 2}}},
    {"zero": {"stage": 1, "mesh": {"tp": 2}}},
    {"pp": {"micro_batches": 2}},
    {"pp": {"micro_batches": 2, "schedule": "GPipe"}},
    {"zero": {"stage": 1, "mesh": {"pp": 2}}},
]


@pytest.mark.parametrize(
    ("strategies", "precision"),
    [
        (["tp", {"pp": {"micro_batches": 2}}], "fp32"),
        pytest.param(ALL, "fp32", marks=pytest.mark.deep),
        pytest.param(ALL, "bf16", marks=pytest.mark.deep),
    ],
)
def test_a_module_that_plans_split_is_the_same_training(run_suite, strategies, precision):
    done = run_suite(suite_of(strategies, precision))
    assert done.code == 0, done.errors
    assert len(done.verdicts) == len(strategies)
    assert all(word.startswith("equivalent") for word in done.verdicts.values()), done.verdicts
    unexplained = against_theory(done.folder)
    assert len(unexplained) == len(strategies)
    assert not any(unexplained.values()), unexplained


def test_a_stage_that_trains_nothing_takes_a_loss_scale(run_suite):
    plan = {"embedding": [["ids"], ["x"]], "layers": [["x"], ["x"]], "head": [["x"], ["logits"]]}
    own = {"user": {"model": "small:Tuned", "length": 32, "pp_plan": plan}}
    text = SUITE.replace("check: {steps: 3, perturbed: 4}\n", "") + "precision: fp16\nstrategies: [pp]\n"
    done = run_suite(f"{text}workload: {json.dumps(own)}\n")
    assert done.code == 0, done.errors
    record = done.record("pp")
    assert record["status"] == "measured", record["reason"]
    assert record["values"]["skipped_share"] == 0


@pytest.fixture(autouse=True)
def models(monkeypatch):
    """Have the models of the tests found here, and by the process that lists their modules without torch."""
    monkeypatch.syspath_prepend(MODELS)
    monkeypatch.setenv("PYTHONPATH", str(MODELS), prepend=os.pathsep)


def made(model: str = "Decoder", **plans: Any) -> UserModel:
    one: UserModel = registry.create_plugin("workloads", PluginChoice(*workload(model, **plans).popitem()))
    return one


def without(plan: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in plan.items() if key != name}


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (
            without(TENSOR, "head"),
            "its plan names 0 modules as colwise_gather_output, but must name exactly one",
        ),
        (
            without(TENSOR, "blocks.*.norm"),
            "its plan does not say how to split blocks.*.norm, or that it is replicate",
        ),
        ({**TENSOR, "norm": "rowwise"}, "norm is rowwise in its plan, but is not a plain linear layer"),
    ],
)
def test_a_tensor_plan_that_leaves_something_open_splits_nothing(plan, why):
    splits = made(tp_plan=plan).tensor_splits()
    assert splits is not None
    assert splits.unsupported_reason == why


@pytest.mark.parametrize(
    ("model", "plan", "why"),
    [
        ("Decoder", without(PIPELINE, "norm"), "its plan has no stage for norm.weight and norm.bias"),
        (
            "Decoder",
            {"norm": [["hidden"], ["hidden"]], **without(PIPELINE, "norm")},
            "its plan has norm before blocks.2, but the model runs it later",
        ),
        ("Scaled", PIPELINE, "between its layers it does more than pass on the first argument"),
        (
            "Masked",
            PIPELINE,
            "its layers take another argument that depends on the rows, and only one stage has it",
        ),
        ("Skipping", PIPELINE, "its forward pass does not run each of its layers once"),
        (
            "HeadFirst",
            PIPELINE,
            "tokens.weight is tied to head.weight; in a pipeline, only a parameter after the layers "
            "can be tied to one before them, and the model must create that one first",
        ),
    ],
)
def test_a_module_of_which_no_stages_can_be_made_is_refused(model, plan, why):
    stages = made(model, pp_plan=plan).pipeline_stages()
    assert stages is not None
    assert stages.unsupported_reason == why


def test_numbers_of_plans_are_those_of_the_module():
    splits, stages = made().tensor_splits(), made().pipeline_stages()
    assert splits is not None
    assert stages is not None
    assert (splits.regions, splits.layers, splits.hidden_size, splits.vocab_size) == (6, 3, 32, 256)
    assert "the size of blocks.*.attention.q = 32" in (splits.problem(3) or "")
    assert "may compute positions and masks" in splits.sequence_parallel_problem
    every = sum(parameter.numel() for parameter in made().module().parameters())
    assert (
        stages.embedding_parameters
        + sum(stages.layer_parameters)
        + stages.head_parameters
        - stages.tied_parameters
        == every
    )
    assert (stages.activation_shape, stages.tied_names) == ((32, 32), {"head.weight": "tokens.weight"})


def test_stages_one_after_the_other_are_the_module():
    import torch

    one = made()
    module = one.module()
    names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    ids = torch.arange(64).reshape(2, 32)
    expected, passed, seen = module(ids), ids, set()
    for layers in (range(1), range(1, 2), range(2, 3)):
        stage = one.build_stage(module, layers)
        assert type(stage) is type(module)
        assert len(one.layers(stage)) == 1
        passed = stage(passed)
        own = {name for name, _ in stage.named_parameters(remove_duplicate=False)}
        assert not own & seen
        seen |= own
    assert seen == names
    assert torch.equal(passed, expected)
    # and the module is as it was
    assert torch.equal(module(ids), expected)


@pytest.mark.parametrize(
    ("plans", "why"),
    [
        (
            {"tp_plan": {**TENSOR, "heads": "replicate"}},
            "tp_plan names 'heads', and no module of the model has that name; did you mean 'head'?",
        ),
        (
            {"pp_plan": {**PIPELINE, "blokcs": [["hidden"], ["hidden"]]}},
            "pp_plan names 'blokcs', and no module of the model has that name; did you mean 'blocks'?",
        ),
        (
            {"pp_plan": without(PIPELINE, "blocks")},
            "pp_plan must name one nn.ModuleList or nn.ModuleDict, the layers; it names none",
        ),
        (
            {"kind": "pairs"},
            "a stage takes one tensor, but kind = pairs has input_ids and decoder_input_ids; remove pp_plan",
        ),
    ],
)
def test_a_plan_of_modules_that_are_not_there_is_refused(plans, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        made(**plans).module()


@pytest.mark.parametrize(
    ("plans", "why"),
    [
        ({"tp_plan": {**TENSOR, "heads": "replicate"}}, "workload.user: tp_plan names 'heads'"),
        (
            {"tp_plan": {"head": "columnwise"}},
            "workload.user.tp_plan.head = 'columnwise': did you mean 'colwise'?",
        ),
        ({"pp_plan": {"head": [["hidden"]]}}, "workload.user.pp_plan.head"),
        (
            {"layer_classes": ["Block"]},
            "layer_classes: pp_plan already names the layers; remove layer_classes",
        ),
    ],
)
def test_a_mistake_in_a_plan_is_told_with_its_place(tmp_path, plans, why):
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"{SUITE}workload: {json.dumps(workload('Decoder', **plans))}\nstrategies: [ddp]\n")
    done = call_outside("plan", str(suite))
    assert done.returncode == 2
    assert "suite.yaml:7: workload.user" in done.stderr
    assert why in done.stderr
