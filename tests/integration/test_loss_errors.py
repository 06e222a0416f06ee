"""Losses that use more of a module than its call, and how they are written instead."""

import re

import pytest

from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING

QUICK = """
data: text
batch: {global_batch_size: 4}
world_sizes: [2]
"""
TIMED = "measure: {warmup: 1, steps: 1, trials: 1, profile_steps: 0}"


def suite(model: str, loss: str) -> str:
    options = f'model: "chunked:{model}", loss_function: "chunked:{loss}", length: 16'
    return f"workload: {{user: {{{options}}}}}{QUICK}"


@pytest.mark.parametrize(
    ("loss", "strategies", "used"),
    # FSDP2 leaves what is in no layer whole until the backward pass
    [("outside", "ddp, {zero: {stage: 3}}", {"head"}), ("around", "ddp, fsdp", {"embedding"})],
)
def test_a_loss_that_uses_parts_of_the_module_is_explained_alike(loss, strategies, used, run_suite):
    done = run_suite(f"{suite('Body', loss)}{TIMED}\nstrategies: [{strategies}]")
    assert [case["status"] for case in done.cases.values()] == ["unsupported"] * 2
    for case in done.cases.values():
        assert re.search(
            r"the loss function uses .* of the module in addition to calling it \(chunked", case["reason"]
        )
        assert all(part in case["reason"] for part in used)
        assert "in the module's forward, and only call module(...)" in case["reason"]


def test_another_mistake_in_a_loss_stays_what_it_is(run_suite):
    done = run_suite(f"{suite('Small', 'wrong')}{TIMED}\nstrategies: [ddp]")
    (case,) = done.cases.values()
    assert case["status"] == "crashed"
    assert "in addition to calling it" not in case["reason"]


def test_a_chunked_head_inside_forward_trains_under_wrappers(run_suite):
    check = "measure: {trials: 0}\ncheck: {steps: 2, perturbed: 4, fp64: false}"
    done = run_suite(f"{suite('Chunked', 'inside')}{check}\nstrategies: [ddp, {{zero: {{stage: 3}}}}]")
    assert done.code == 0, done.errors
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    assert len(done.verdicts) == 2
