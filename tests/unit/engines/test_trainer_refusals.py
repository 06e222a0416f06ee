"""What the Trainer can't train as it was requested, and what a machine lacks for it."""

from pathlib import Path

import pytest

from distbench.core.machine import Machine
from support.planned_suites import planned

SECTIONS = {"workload": "{transformer: {preset: tiny}}", "batch": "{global_batch_size: 8}"}
INSTALLED = dict.fromkeys(("torch", "deepspeed", "transformers", "accelerate", "greenlet"), "9")


def problem(folder: Path, strategy: str, without: str = "", **sections: str) -> str:
    packages = {name: version for name, version in INSTALLED.items() if name != without}
    machine = Machine("cpu", 8, packages, has_libaio=False, has_compiler=True)
    item = planned(folder, strategy, 2, machine=machine, engine="trainer", **SECTIONS, **sections)
    return item.problem or ""


@pytest.mark.parametrize("strategy", ["ddp: {}", "ddp: {find_unused_parameters: true}", "zero: {stage: 3}"])
def test_it_trains_with_ddp_and_zero(tmp_path, strategy):
    assert problem(tmp_path, strategy) == ""


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("fsdp: {}", "engine trainer does not offer fsdp: on a CPU the Trainer would silently run DDP"),
        ("cp: {}", "engine trainer has no strategy cp; it has ddp, tp, zero; "),
        (
            "ddp: {gradient_as_bucket_view: true}",
            "engine trainer can't set gradient_as_bucket_view, for which the Trainer has no argument; use ",
        ),
        ("ddp: {sharded_optimizer: true}", "engine trainer runs DDP as it is, not ddp+zero1; "),
        (
            "tp: {}",
            "engine trainer has tp for models of transformers, which have a plan of their own, not for",
        ),
        ("zero: {stage: 1, mesh: {tp: 2}}", "engine trainer runs ZeRO over all ranks, not "),
    ],
)
def test_what_it_would_train_otherwise_is_unsupported_with_what_to_use(tmp_path, strategy, told):
    found = problem(tmp_path, strategy)
    assert found.startswith(told)
    assert "engine: native" in found


def test_fp16_is_for_zero_alone(tmp_path):
    assert problem(tmp_path, "ddp: {}", precision="fp16").startswith(
        "engine trainer trains in fp16 with zero alone; use bf16 or fp32, or engine: native"
    )


@pytest.mark.parametrize("package", ["transformers", "accelerate", "greenlet"])
def test_a_missing_package_has_the_line_that_installs_it(tmp_path, package):
    assert problem(tmp_path, "ddp: {}", without=package) == (
        f"{package} is not installed; install it in distbench's checkout: pip install -e '.[trainer]'"
    )
