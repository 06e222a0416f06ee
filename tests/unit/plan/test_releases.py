"""An older torch: what lacks something there is unsupported, with the release that has it."""

import dataclasses

import pytest

from distbench.core import registry
from distbench.core.machine import Machine
from distbench.plan.releases import TORCH_MINIMA
from support.planned_suites import planned

OLDEST = Machine("cpu", 8, {"torch": "2.9.0+cu128", "torchao": "0.18.0", "deepspeed": "0.19.8"}, False, True)
DECODER = "{transformer: {dim: 32, depth: 4, heads: 4, ffn_dim: 32, vocab_size: 256, seq_len: 16}}"
FLOAT8 = {
    "precision": "{compute: bf16, float8: tensorwise, float8_emulated: true}",
    "measure": "{trials: 0}",
    "check": "{}",
}


@pytest.mark.parametrize(
    ("strategy", "sections", "needs"),
    [
        ("pp: {}", {}, "pp needs torch 2.10 or newer, but 2.9.0+cu128 is installed: older schedules always"),
        ("pp: {schedule: GPipe}", {}, "fails; zero: {stage: 1, mesh: {pp: 2}} has DeepSpeed's pipelines"),
        ("cp: {implementation: ring}", {}, "implementation: ring needs torch 2.10 or newer"),
        ("cp: {implementation: ring}", {}, "prototype of ring attention; use implementation: ulysses"),
        ("ddp: {}", FLOAT8, "torchao needs torch 2.10 or newer, but 2.9.0+cu128 is installed"),
        ("ddp: {}", {"optimizer": "{name: adamw8bit}"}, "its import fails; install a newer torch"),
    ],
)
def test_what_an_older_torch_lacks_is_unsupported_with_the_release_that_has_it(
    strategy, sections, needs, tmp_path
):
    def problem(torch: str) -> str:
        machine = dataclasses.replace(OLDEST, packages={**OLDEST.packages, "torch": torch})
        suite = {"workload": DECODER, "batch": "{global_batch_size: 8}", **sections}
        return planned(tmp_path, strategy, 2, machine=machine, **suite).problem or ""

    assert needs in problem("2.9.0+cu128")
    assert problem("2.10.0a0+git1") == problem("2.13.0") == problem("3.0") == ""


@pytest.mark.parametrize("schedule", ["ZBVZeroBubble", "DualPipeV"])
def test_ranks_with_both_ends_of_a_pipeline_need_a_later_torch_than_other_pipelines(schedule, tmp_path):
    def problem(torch: str) -> str:
        machine = dataclasses.replace(OLDEST, packages={"torch": torch})
        suite = {"workload": DECODER, "batch": "{global_batch_size: 8}"}
        return planned(tmp_path, f"pp: {{schedule: {schedule}}}", 2, machine=machine, **suite).problem or ""

    for version in ("2.9.1", "2.11.0"):
        assert problem(version).startswith(f"schedule: {schedule} needs torch 2.12 or newer, but {version}")
    assert problem("2.12.0") == ""


@pytest.mark.parametrize(
    "strategy",
    ["ddp: {}", "fsdp: {}", "fsdp: {version: 1}", "tp: {}", "cp: {}", "zero: {stage: 1, mesh: {pp: 2}}"],
)
def test_all_else_is_planned_there(strategy, tmp_path):
    suite = {"workload": DECODER, "batch": "{global_batch_size: 8}"}
    assert planned(tmp_path, strategy, 2, machine=OLDEST, **suite).problem is None


def test_a_torch_that_no_one_knows_is_not_called_old(tmp_path):
    bare = dataclasses.replace(OLDEST, packages={})
    found = planned(tmp_path, "pp: {}", 2, machine=bare, workload=DECODER, batch="{global_batch_size: 8}")
    assert found.problem and found.problem.startswith("torch is not installed; install it in distbench's")


def test_what_needs_a_release_exists():
    strategies = registry.built_in_plugins("strategies")
    for minimum in TORCH_MINIMA:
        assert minimum.package or minimum.options.keys() <= vars(strategies[minimum.strategy]()).keys()
