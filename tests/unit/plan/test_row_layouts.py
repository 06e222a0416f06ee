"""Which cases can train on micro-batches of different lengths, and why others can't."""

from typing import Any

import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice, PrecisionConfig
from distbench.core.dtypes import Float8Recipe
from distbench.plan.length_requirements import variable_length_problem
from distbench.strategies.base import Strategy
from support.records import case

LONGEST = PluginChoice("user", {"dataset": "datasets_of_users:Tokens", "padding": "longest"})
TINY = PluginChoice("transformer", {"preset": "tiny"})


def problem(
    strategy: PluginChoice, workload: PluginChoice = TINY, data: PluginChoice = LONGEST, **changes: Any
) -> str | None:
    made: Strategy = registry.create_plugin("strategies", strategy)
    one = case(strategy=strategy, workload=workload, data=data, **{"world_size": 2, **changes})
    return variable_length_problem(one, made, registry.create_plugin("workloads", workload))


@pytest.mark.parametrize(
    ("name", "options"),
    [("single", {}), ("dp", {}), ("ddp", {}), ("fsdp", {}), ("zero", {"stage": 3}), ("fsdp", {"version": 1})],
)
def test_strategies_that_move_no_activations_take_any_length(name, options):
    assert problem(PluginChoice(name, options)) is None


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("pp", {}, "stages"),
        ("cp", {}, "parts of rows"),
        ("tp", {}, "parts of layers"),
        ("ep", {}, "experts"),
        ("zero", {"stage": 1, "mesh": {"tp": 2}}, "parts of layers"),
        ("zero", {"stage": 1, "mesh": {"pp": 2}}, "stages"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_strategies_that_exchange_activations_are_refused(name, options, what, ranks):
    if ranks == 1 and "mesh" in options:
        return
    said = problem(PluginChoice(name, options), world_size=ranks) or ""
    assert f"ranks that have {what} exchange activations of one size; use padding: max_length" in said


def test_compilation_and_losses_of_whole_rows_are_refused():
    assert "would compile again in timed steps" in (problem(PluginChoice("ddp"), compile="default") or "")
    experts = PluginChoice("transformer", {"preset": "moe-tiny", "capacity_factor": 1.5})
    said = problem(PluginChoice("ddp"), experts) or ""
    assert "would change the training (capacity_factor = 1.5: experts have room for a share" in said
    balanced = PluginChoice(
        "huggingface", {"model_type": "mixtral", "config": {"output_router_logits": True}}
    )
    assert "output_router_logits: the balancing loss" in (problem(PluginChoice("ddp"), balanced) or "")


def test_rows_of_one_length_are_for_all_of_them():
    filled = PluginChoice("user", {**LONGEST.options, "padding": "max_length"})
    for data in (filled, PluginChoice("text")):
        assert problem(PluginChoice("cp"), data=data, compile="default") is None


PACKED = PluginChoice("user", {"dataset": "datasets_of_users:Tokens", "packing": True})


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (PluginChoice("pp"), "stages pass on activations alone, and not where documents begin"),
        (PluginChoice("zero", {"stage": 1, "mesh": {"pp": 2}}), "stages pass on activations alone"),
        (PluginChoice("cp"), "context parallelism attends over whole rows"),
        (PluginChoice("tp", {"sequence_parallel": True}), "with sequence_parallel ranks have parts of rows"),
    ],
)
def test_strategies_that_cut_rows_or_drop_their_documents_can_t_pack(strategy, why):
    said = problem(strategy, data=PACKED) or ""
    assert said.startswith("packing: ") and why in said and "use padding: max_length" in said


@pytest.mark.parametrize("name", ["single", "dp", "ddp", "fsdp", "tp"])
def test_other_strategies_pack_and_are_compiled(name):
    assert problem(PluginChoice(name), data=PACKED, compile="default") is None


def test_float8_with_one_scale_for_all_rows_can_t_be_packed():
    recipes: tuple[Float8Recipe, ...] = ("tensorwise", "rowwise")
    precisions = {recipe: PrecisionConfig("bf16", float8=recipe) for recipe in recipes}
    said = {
        recipe: problem(PluginChoice("ddp"), data=PACKED, precision=p) for recipe, p in precisions.items()
    }
    assert "has one scale for all rows" in (said["tensorwise"] or "")
    assert said["rowwise"] is None


def test_losses_of_whole_rows_can_t_be_packed():
    experts = PluginChoice("transformer", {"preset": "moe-tiny", "capacity_factor": 1.5})
    said = problem(PluginChoice("ddp"), experts, PACKED) or ""
    assert "packing would change the training (capacity_factor = 1.5" in said
