"""Steps of models whose sizes only their own code knows, by what the ranks of a probe read."""

import dataclasses
import json
from typing import Any

import pytest

from distbench.core.case import Batch, Case, PluginChoice
from distbench.prediction import StepPrediction
from distbench.prediction.cases import predict_from_probe
from distbench.prediction.recorded_layouts import layout_rows, recorded_layout, with_model_layout
from distbench.workloads.base import workload_of
from distbench.workloads.layouts import ModelLayout
from distbench.workloads.module_calls import FlatModuleCall
from support.probes import IN_STEP_S, UPDATE_S, probe_of, probe_rows
from support.records import case

OWN = PluginChoice("user", {"model": "nowhere:Model", "length": 32})
WIDTH, CLASSES = 64, 256
LAYERS = ("layers.0", "layers.1", "layers.2")
LAYOUT = ModelLayout(
    parameters={
        "embedding.weight": (CLASSES, WIDTH),
        **{
            f"{layer}.{name}": shape
            for layer in LAYERS
            for name, shape in {"up.weight": (4 * WIDTH, WIDTH), "down.weight": (WIDTH, 4 * WIDTH)}.items()
        },
        "norm.weight": (WIDTH,),
    },
    tied={"head.weight": "embedding.weight"},
    layers=LAYERS,
    calls=(
        FlatModuleCall(0, takes_data=True),
        FlatModuleCall(1, (("embedding.weight", CLASSES * WIDTH),), takes_data=True),
        *(
            call
            for layer in LAYERS
            for call in (
                FlatModuleCall(1),
                FlatModuleCall(2, ((f"{layer}.up.weight", 4 * WIDTH * WIDTH),), multiplies=True),
                FlatModuleCall(2, ((f"{layer}.down.weight", 4 * WIDTH * WIDTH),), multiplies=True),
            )
        ),
        FlatModuleCall(1, (("norm.weight", WIDTH),)),
        FlatModuleCall(1, (("embedding.weight", CLASSES * WIDTH),), multiplies=True),
    ),
    uncut="it has no pp_plan",
)
OUTSIDE, OF_LAYER = CLASSES * WIDTH + WIDTH, 8 * WIDTH * WIDTH
PARAMETERS = OUTSIDE + 3 * OF_LAYER


def cell(strategy: str, options: dict[str, Any] | None = None) -> Case:
    return case(strategy, strategy=PluginChoice(strategy, options or {}), workload=OWN, batch=Batch(8, 4, 1))


def predicted(of: Case, rows: list[dict]) -> StepPrediction | str:
    tables = {"machine_rates": probe_rows(), "model_layout": rows}
    return predict_from_probe(of, None, [probe_of(of, tables=tables)]).step


def terms(of: Case, layout: ModelLayout = LAYOUT) -> dict[str, float]:
    found = predicted(of, layout_rows(layout))
    assert isinstance(found, StepPrediction), found
    return dict(found.terms)


def test_what_ranks_read_is_what_theory_knows():
    assert recorded_layout(layout_rows(LAYOUT)) == LAYOUT
    known = workload_of(with_model_layout(cell("ddp"), LAYOUT))
    assert known.parameters() == PARAMETERS
    shapes = known.layer_shapes()
    assert shapes
    assert shapes.before == [(CLASSES, WIDTH)]
    assert shapes.layers == 3 * [[(4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]]
    assert shapes.after == [(WIDTH,)]
    whole = known.module_calls()
    assert whole
    assert [len(call.calls) for call in whole.calls] == [0, 2, 2, 2, 0, 0]
    assert whole.calls[1].calls[1].parameters == (("layers.0.down.weight", 4 * WIDTH * WIDTH),)


def test_a_model_of_ones_own_without_a_plan_updates_and_moves_as_one_with_formulas():
    ddp, fsdp = terms(cell("ddp")), terms(cell("fsdp"))
    assert ddp["update"] == pytest.approx(4 * PARAMETERS / 1e6 * UPDATE_S)
    # less than a MiB of gradients is one bucket
    assert ddp["communication"] == pytest.approx(IN_STEP_S)
    assert fsdp["update"] == pytest.approx(2 * PARAMETERS / 1e6 * UPDATE_S, rel=1e-3)
    # 4 units gathered forward, 3 again, 4 reduced
    assert 4 * IN_STEP_S < fsdp["communication"] <= 11 * IN_STEP_S


def test_gathers_of_stage_3_follow_the_calls_of_the_modules():
    assert terms(cell("zero", {"stage": 3}))["communication"] > 3 * IN_STEP_S
    silent = dataclasses.replace(LAYOUT, calls=())
    reason = "all_gather: theory does not say in how many calls"
    assert predicted(cell("zero", {"stage": 3}), layout_rows(silent)) == reason


def test_without_it_the_size_is_unknown():
    assert predicted(cell("ddp"), []) == "the size of the model is known only to its own code"


def test_a_model_that_could_not_be_read_has_the_reason():
    reason = "the model can't be read: ValueError: no such file"
    assert predicted(cell("ddp"), [{"reason": reason}]) == reason


def test_theory_has_no_models_of_which_a_part_is_not_trained():
    tuned = dataclasses.replace(LAYOUT, frozen=("embedding.weight", "norm.weight"))
    reason = "2 of 8 parameter tensors are not trained, and theory has no such models"
    assert predicted(cell("ddp"), layout_rows(tuned)) == reason


def damaged(field: str, value: object) -> list[dict]:
    rows = layout_rows(LAYOUT)
    assert any(row["field"] == field for row in rows)
    return [row | {"value": value} if row["field"] == field else row for row in rows]


@pytest.mark.parametrize(
    "rows",
    [
        damaged("parameters", "{"),
        damaged("parameters", None),
        damaged("parameters", json.dumps({"a": "b"})),
        damaged("parameters", json.dumps({"a": [-3, 2]})),
        damaged("parameters", json.dumps({"a": [1 << 60]})),
        damaged("layers", json.dumps(3)),
        [{"field": "nothing", "value": "1"}],
        [{}],
    ],
)
def test_a_damaged_record_gives_a_reason_and_no_number(rows):
    reason = predicted(cell("fsdp"), rows)
    assert isinstance(reason, str)
    assert "the probe's record" in reason


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tied", {"head.weight": "nothing"}),
        ("linear", ["nothing"]),
        # a vector
        ("embeddings", ["norm"]),
        ("calls", [{"depth": 1}]),
        ("calls", [{"depth": 0}, {"depth": 0}]),
        ("calls", [{"depth": each} for each in range(1000)]),
        ("calls", [{"depth": 0, "parameters": [["norm.weight", 3]]}]),
    ],
)
def test_names_that_lead_nowhere_are_of_no_model(field, value):
    reason = predicted(cell("pp"), damaged(field, json.dumps(value)))
    assert reason == "the probe's record of the model is inconsistent"
