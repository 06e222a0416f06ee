"""torch.compile as an axis: the same training from generated code, compiled outside of the timed window."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Finished
from records import case

from distbench.metrics.base import Trial
from distbench.metrics.steptime import StepTime

SUITE = """
workload: {mlp: {hidden: 64, depth: 2}}
batch: {global_batch_size: 16}
world_sizes: [2]
measure: {warmup: 2, steps: 3, trials: 1, profile_steps: 0}
metrics: [steptime, throughput, convergence]
"""
EVERY = "ddp, fsdp, {fsdp: {version: 1}}, {zero: {stage: [0, 2, 3]}}"


@pytest.mark.train
@pytest.mark.parametrize(
    ("strategies", "more"),
    [
        ("ddp", "compile: [false, true]"),
        pytest.param(EVERY, "compile: [false, true]\nactivation_checkpointing: full", marks=pytest.mark.deep),
        pytest.param(EVERY, "compile: [false, true]\nprecision: bf16", marks=pytest.mark.deep),
    ],
)
def test_compiled_layers_train_alike_and_are_compiled_before_the_window(
    run_suite: Callable[..., Finished], strategies: str, more: str
) -> None:
    done = run_suite(f"{SUITE}strategies: [{strategies}]\n{more}\n")
    assert done.code == 0, done.errors
    for label in {each["label"] for each in done.cases.values()}:
        plain, compiled = (done.record(f"{label}-*compile-{kind}*") for kind in ("false", "true"))
        assert (plain["status"], compiled["status"]) == ("measured", "measured"), compiled["reason"]
        assert "compile" not in plain["effective"]
        assert (compiled["effective"]["compile"], compiled["effective"]["compiled_layers"]) == ("default", 2)
        assert compiled["values"]["compile_s"] > 0
        assert compiled["absent"]["compile_in_window_s"] == "nothing was compiled in it"
        losses = [each["values"]["final_loss"] for each in (plain, compiled)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-2 if "bf16" in more else 1e-5), label


@pytest.mark.train
@pytest.mark.deep
def test_a_compiled_case_is_checked_against_one_that_is_not(run_suite: Callable[..., Finished]) -> None:
    done = run_suite(f"{SUITE}strategies: [{EVERY}]\ncompile: true\ncheck: {{steps: 5}}\n")
    told = {name: each["equivalence"]["verdict"] for name, each in done.cases.items()}
    assert set(told.values()) <= {"equivalent", "equivalent within rounding"}, told


def test_a_trial_that_compiles_in_its_window_is_not_compared() -> None:
    samples: dict[str, list[list[float | None]]] = {"compile_in_window_s": [[None], [2.5]]}
    said = StepTime().degraded(Trial(case("ddp"), 16, samples, {}))
    assert said == "torch.compile worked for 2.5 s of the timed window; increase measure.warmup"
    assert StepTime().degraded(Trial(case("ddp"), 16, {}, {})) == ""
