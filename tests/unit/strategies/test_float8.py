"""float8: linear layers of torchao, where they can run, and the same training under every strategy."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from distbench.core import registry
from distbench.core.case import Batch, Case, PluginChoice, PrecisionConfig
from distbench.core.errors import SuiteError
from distbench.core.machine import Machine
from distbench.metrics.base import NotAvailable, TrialData
from distbench.metrics.utilisation import Utilisation
from distbench.plan import PlannedCase, make_plan
from distbench.strategies.base import RankContext
from distbench.suite import Overrides, load_suite
from support.emulation import CLASSIFIER, DECODER, emulated, laboratory
from support.records import case
from support.releases import needs_release
from support.suites import SuiteText, write_suite
from support.theory_checks import assert_same_training

PACKAGES = {"torch": "2.13.0", "torchao": "0.18.0"}
HOPPER = Machine("cuda", 8, PACKAGES, False, True, compute_capability=9.0)
SUITE = SuiteText("""
workload: {transformer: {dim: 32, depth: 1, heads: 2, kv_heads: 1, ffn_dim: 48, seq_len: SEQ}}
batch: {global_batch_size: 4, micro_batch_size: 2}
strategies: [ddp]
world_sizes: [1]
precision: PRECISION
""")
FLOAT8 = PrecisionConfig(compute="bf16", float8="tensorwise", float8_emulated=True)


@pytest.fixture
def plan(tmp_path):
    """The only case of a suite in some precision."""

    def planned(precision: str = "float8", machine: Machine = HOPPER, length: int = 16) -> PlannedCase:
        file = write_suite(
            tmp_path, SUITE.replace("PRECISION", precision).replace("SEQ", str(length)), "mine.yaml"
        )
        (item,) = make_plan(load_suite(file, Overrides()), machine).cases
        return item

    return planned


def test_float8_is_a_precision_with_a_name_for_each_recipe(plan):
    wordings = {
        "float8": "float8",
        "{compute: bf16, float8: tensorwise}": "float8",
        "{compute: bf16, float8: rowwise}": "float8-rowwise",
        "bf16": "bf16",
    }
    cases = {wording: plan(wording).case for wording in wordings}
    assert {wording: case.name for wording, case in cases.items()} == {
        wording: f"ddp/ws1/mb2/{name}" for wording, name in wordings.items()
    }
    assert len({case.id for case in cases.values()}) == 3, "the word and what it stands for are one case"


def test_what_can_not_multiply_in_float8_is_unsupported_with_what_to_do(plan):
    def problem(precision: str = "float8", length: int = 16, **machine: Any) -> str:
        return plan(precision, dataclasses.replace(HOPPER, **machine), length).problem or ""

    assert problem() == problem(compute_capability=None) == "", "what is unknown may be tried"
    assert problem(compute_capability=8.0).startswith(
        "float8 needs GPUs of compute capability 8.9 (Ada, Hopper) or newer; this machine has 8.0; use "
    )
    on_a_cpu = problem(device="cpu", compute_capability=None)
    assert on_a_cpu.startswith("float8 needs NVIDIA GPUs of compute capability 8.9")
    assert on_a_cpu.endswith("precision.float8_emulated: true and measure.trials: 0")
    assert problem(packages={"torch": "9"}).startswith(
        "precision.float8 = tensorwise: torchao is not installed; install it in "
    )
    assert problem(length=12).endswith("16 tokens in a micro-batch; batch.micro_batch_size = 2 makes 24")
    assert problem("{compute: bf16, float8: rowwise_with_gw_hp}", length=12) == ""


@pytest.mark.parametrize(
    ("precision", "told"),
    [
        ("{compute: fp32, float8: rowwise}", "precision.float8 = 'rowwise': float8 needs compute: bf16"),
        (
            "fp8",
            "precision.compute = 'fp8': with float8, linear layers multiply in float8 and everything else ",
        ),
        ("{float8_emulated: true}", "precision.float8_emulated = true: no float8 to emulate"),
        ("{compute: bf16, float8: row}", "precision.float8 = 'row': did you mean 'rowwise'?"),
        (
            "{compute: bf16, float8: rowwise, float8_emulated: true}",
            "precision.float8_emulated = true: emulated float8 has no speed to measure; set measure.trials",
        ),
    ],
)
def test_what_makes_no_sense_names_its_line(plan, precision, told):
    with pytest.raises(SuiteError, match=r"mine\.yaml:6") as refused:
        plan(precision)
    assert told in str(refused.value)


def test_gpus_that_emulate_bf16_or_know_no_tf32_are_told(plan):
    turing = dataclasses.replace(HOPPER, compute_capability=7.5)
    assert str(plan("bf16", turing).problem).startswith("bf16 needs GPUs of compute capability 8.0 (Ampere)")
    assert "do not support TF32" in str(plan("{compute: fp32, matmul: high}", turing).problem)
    assert plan("fp16", turing).problem is plan("fp32", turing).problem is None


def test_with_float8_there_is_no_one_peak_and_so_no_mfu():
    samples: dict[str, list[list[float | None]]] = {"step_s": [[2.0]] * 2}
    trial = TrialData(case("ddp", precision=FLOAT8), 16, samples, {}, flops_per_sample=3_000_000)
    found = Utilisation().summary(trial)
    assert isinstance(found["mfu"], NotAvailable)
    assert "two dtypes" in str(found["mfu"])
    assert found["model_flops_per_s_per_device"] == 8 * 3e6 / 2 / 2


def single_rank_case(precision: PrecisionConfig, workload: PluginChoice = DECODER) -> Case:
    """The case of one rank with the whole batch."""
    whole = emulated(workload=workload)
    return dataclasses.replace(
        whole, strategy=PluginChoice("single"), world_size=1, batch=Batch(8, 4, 2), precision=precision
    )


def trained(folder: Path, case: Case) -> tuple[list[float], RankContext, dict[str, Any]]:
    """Losses of two steps of *case* in this process, its setting, and what its engine reports."""
    import torch

    from distbench.worker.trainer import Trainer, TrainingRecorder
    from distbench.workloads import weights

    workload, file = registry.create_plugin("workloads", case.workload), folder / "weights.safetensors"
    weights.save_initial(
        workload, case.seed, file, case.precision.compute, exact=case.initial_weights == "exact"
    )
    setting = RankContext(case, workload, file, torch.device("cpu"), 0, 1, folder)
    trainer, kept = Trainer(setting), TrainingRecorder(0)
    trainer.train(range(2), kept)
    return [row["loss"] for row in kept.curve], setting, trainer.engine.effective_settings()


@pytest.mark.train
@needs_release("torch", "2.10")
def test_linear_layers_inside_the_blocks_multiply_in_float8_and_are_read_back(tmp_path):
    from distbench.core.errors import Mismatch, UnsupportedCase
    from distbench.worker.checks import check_effective

    rowwise = dataclasses.replace(FLOAT8, float8="rowwise")
    with laboratory(tmp_path):
        losses, settings, told = zip(
            *(
                trained(tmp_path, single_rank_case(precision))
                for precision in (PrecisionConfig("bf16"), FLOAT8, rowwise)
            ),
            strict=True,
        )
        for setting, effective in zip(settings, told, strict=True):
            check_effective(effective, setting, 2)
        # queries, keys, values, output, and three of the feed-forward part, but not the head
        assert [each.get("float8_layers") for each in told] == [None, 7, 7]
        assert len(set(map(tuple, losses))) == 3, "each rounds in its own way"
        assert losses[1] == pytest.approx(losses[0], rel=1e-2)
        assert losses[2] == pytest.approx(losses[0], rel=1e-2)
        with pytest.raises(Mismatch, match="float8: expected 'rowwise', found 'tensorwise'"):
            check_effective(told[1], settings[2], 2)
        with pytest.raises(Mismatch, match="float8: expected 'none', found 'tensorwise'"):
            check_effective(told[1], settings[0], 2)
        with pytest.raises(
            UnsupportedCase, match=r"no layer of the model has an nn\.Linear whose sizes are multiples"
        ):
            trained(
                tmp_path,
                dataclasses.replace(single_rank_case(FLOAT8, CLASSIFIER), data=PluginChoice("digits")),
            )


EVERY = "ddp, fsdp, {fsdp: {version: 1}}, {zero: {stage: [0, 1, 2, 3]}}"


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
@pytest.mark.parametrize("recomputes", ["none", "full"])
def test_float8_is_the_same_training_under_every_strategy(run_suite, recipe, recomputes):
    done = run_suite(
        "workload: {transformer: {dim: 32, depth: 2, heads: 2, kv_heads: 1, ffn_dim: 48, seq_len: 32}}\n"
        "batch: {global_batch_size: 16, micro_batch_size: 4}\nworld_sizes: [2]\n"
        f"strategies: [{EVERY}]\nactivation_checkpointing: {recomputes}\n"
        f"precision: {{compute: bf16, float8: {recipe}, float8_emulated: true}}\n"
        "measure: {trials: 0}\ncheck: {steps: 5}\n"
    )
    assert_same_training(done)
    assert all("/float8" in name for name in done.verdicts)
