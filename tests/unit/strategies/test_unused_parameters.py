"""Trained parameters that the loss does not use: what DDP says of them, and the two ways to train them."""

import dataclasses

import pytest

from distbench.adopt import export_case
from distbench.core.case import PluginChoice
from distbench.core.machine import Machine
from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from distbench.record.run_folder import Run
from distbench.strategies.ddp import DistributedDataParallel
from support.records import case

MACHINE = Machine("cpu", 2, {"torch": "9"}, has_libaio=False, has_compiler=True)
FINDING = DistributedDataParallel(find_unused_parameters=True)
UNUSED = """
workload: {user: {model: "odd:Unused", length: 32}}
batch: {global_batch_size: 8}
world_sizes: [2]
strategies: [ddp, ddp: {find_unused_parameters: true}, ddp: {static_graph: true}]
measure: {warmup: 1, steps: 1, trials: 1, profile_steps: 0}
check: {steps: 2, perturbed: 4}
"""


def test_static_graph_leaves_nothing_to_find():
    both = DistributedDataParallel(static_graph=True, find_unused_parameters=True)
    assert "static_graph finds unused parameters" in (both.problem(case("ddp"), MACHINE) or "")
    assert FINDING.problem(case("ddp"), MACHINE) is None


@pytest.mark.parametrize(
    ("format_", "told"),
    [
        ("torch", "find_unused_parameters=True"),
        ("accelerate", "find_unused_parameters=True"),
        ("transformers", '"ddp_find_unused_parameters": true'),
        ("torchtitan", "torchtitan 0.3 has no DDP"),
        ("torchtitan-toml", "torchtitan does not set find_unused_parameters"),
    ],
)
def test_every_format_asks_for_it_or_says_that_it_can_not(format_, told):
    device = "cuda" if format_.startswith("torchtitan") else "cpu"
    of = dataclasses.replace(
        case("ddp"), device=device, strategy=PluginChoice("ddp", {"find_unused_parameters": True})
    )
    written = export_case(format_, of, {})
    assert told in " ".join([*written.files.values(), *written.differences])


@pytest.mark.train
def test_ddp_names_the_parameters_and_both_ways_to_train_them_are_the_same_training(run_suite):
    done = run_suite(UNUSED)
    assert done.code == 0, done.errors
    plain, finding, static = (
        done.cases[f"{name}/ws2/mb4/fp32"] for name in ("ddp", "ddp+unused", "ddp+static")
    )
    assert plain["status"] == "unsupported"
    assert plain["reason"] == (
        "torch's DDP waits for the gradients of all trained tensors, but the loss does not use 2 of 13 "
        "(spare.weight, spare.bias); set ddp: {find_unused_parameters: true}, or {static_graph: true} "
        "if they are the same in every step, or freeze them"
    )
    assert {each["equivalence"]["verdict"] for each in (finding, static)} <= {EQUIVALENT, ROUNDING}
    records = {r.case.label: r for r in Run(done.folder).records() if r.job.kind == "measure"}
    found = {label: record.effective.get("find_unused_parameters") for label, record in records.items()}
    assert found == {"ddp": None, "ddp+unused": True, "ddp+static": False}
    finds = records["ddp+unused"]
    trained, tensors = (finds.effective[key] for key in ("trained_parameters", "trainable_tensors"))
    assert finds.values["comm_bytes"] == 4 * trained + 4 * tensors, "a number for each tensor"
