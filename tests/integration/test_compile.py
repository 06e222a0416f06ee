"""torch.compile as an axis: the same training from generated code, compiled outside of the timed window."""

import pytest

from support.records import case

SUITE = """
workload: {MODEL}
batch: {global_batch_size: 16}
world_sizes: [2]
measure: {warmup: 2, steps: 3, trials: 1, profile_steps: 0}
metrics: [steptime, throughput, convergence]
"""
# quick to compile
MLP = "mlp: {hidden: 64, depth: 2}"
DECODER = "transformer: {dim: 32, depth: 2, heads: 2, kv_heads: 2, seq_len: 32}"
RECOMPUTING = "ddp, fsdp, {fsdp: {version: 1}}, {zero: {stage: [0, 2]}}"
EVERY = f"{RECOMPUTING}, {{zero: {{stage: 3}}}}"


@pytest.mark.parametrize(
    ("model", "strategies", "more"),
    [
        (MLP, "ddp", ""),
        pytest.param(DECODER, RECOMPUTING, "activation_checkpointing: full", marks=pytest.mark.deep),
        pytest.param(DECODER, EVERY, "precision: bf16", marks=pytest.mark.deep),
    ],
)
def test_compiled_layers_train_alike_and_are_compiled_before_the_window(run_suite, model, strategies, more):
    suite = SUITE.replace("MODEL", model)
    done = run_suite(f"{suite}strategies: [{strategies}]\ncompile: [false, true]\n{more}\n")
    assert done.code == 0, done.errors
    for label in {each["label"] for each in done.cases.values()}:
        plain, compiled = (done.record(f"{label}-*compile-{kind}*") for kind in ("false", "true"))
        assert (plain["status"], compiled["status"]) == ("measured", "measured"), compiled["reason"]
        assert "compile" not in plain["effective"]
        assert (compiled["effective"]["compile"], compiled["effective"]["compiled_layers"]) == ("default", 2)
        assert compiled["values"]["compile_s"] > 0
        assert compiled["absent"]["compile_in_window_s"] == "nothing was compiled inside it"
        losses = [each["values"]["final_loss"] for each in (plain, compiled)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-2 if "bf16" in more else 1e-5), label


@pytest.mark.deep
def test_a_compiled_case_is_checked_against_one_that_is_not(run_suite):
    suite = SUITE.replace("MODEL", DECODER)
    done = run_suite(f"{suite}strategies: [{EVERY}]\ncompile: true\ncheck: {{steps: 5}}\n")
    told = {name: each["equivalence"]["verdict"] for name, each in done.cases.items()}
    assert set(told.values()) <= {"equivalent", "equivalent within rounding"}, told


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_layers_of_which_torch_has_compiled_nothing_are_told_so():
    from torch import nn

    from distbench.strategies.torch_engine.modules import compile_layers, describe_compilation

    layer = nn.Linear(2, 2)
    assert describe_compilation(layer) == {}
    compile_layers(case("ddp", compile="default"), [layer])
    # torch compiles when a layer is called
    assert describe_compilation(layer) == {"compile": "none"}
