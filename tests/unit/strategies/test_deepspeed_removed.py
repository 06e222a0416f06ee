"""What DeepSpeed has removed is planned with the reason, by the version that is installed."""

import dataclasses
from pathlib import Path

import pytest

from distbench import plan
from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.core.machine import Machine
from distbench.suite import load_suite
from support.records import case
from support.suites import write_suite

MACHINE = Machine("cpu", 2, {"torch": "2.13.0", "deepspeed": "0.19.8"}, has_libaio=False, has_compiler=True)
TECHNIQUES = ("onebit_adam", "zero_one_adam", "onebit_lamb", "sparse_attention", "mics")


def problems(folder: Path, deepspeed: str) -> dict[str, str]:
    """Why each technique is not run where that version of DeepSpeed is installed, by label."""
    suite = write_suite(
        folder,
        f"""
workload: {{transformer: {{preset: tiny}}}}
batch: {{global_batch_size: 2}}
world_sizes: [2]
strategies: [{{deepspeed_removed: {{technique: [{", ".join(TECHNIQUES)}]}}}}]
""",
    )
    machine = dataclasses.replace(MACHINE, packages={**MACHINE.packages, "deepspeed": deepspeed})
    return {item.case.label: item.problem or "" for item in plan.make_plan(load_suite(suite), machine).cases}


@pytest.mark.parametrize("version", ["0.19.7", "0.19.8+cpu", "0.20.0"])
def test_a_version_without_it_is_told_from_when_on_and_where_that_is_said(version, tmp_path):
    found = problems(tmp_path, version)
    assert found.keys() == {each.replace("_", "-") for each in TECHNIQUES}
    for problem in found.values():
        assert f"DeepSpeed {version} does not have it; 0.19.6 was the last version of DeepSpeed" in problem
        assert "github.com/deepspeedai/DeepSpeed/issues/8489" in problem


def test_a_version_that_has_it_is_told_what_runs_it_or_why_nothing_does(tmp_path):
    found = problems(tmp_path, "0.19.6")
    for name, algorithm in {
        "onebit-adam": "adam",
        "zero-one-adam": "zero_one_adam",
        "onebit-lamb": "lamb",
    }.items():
        # and not an environment that this one is
        assert found[name].endswith(f"(0.19.6) still supports it; use onebit: {{algorithm: {algorithm}}}")
    assert "a torch version >= 1.5 and < 2.0" in found["sparse-attention"]
    no_engine = {name for name, problem in found.items() if "distbench does not support it" in problem}
    assert no_engine == {"sparse-attention"}


def test_what_is_alive_and_like_it_is_named(tmp_path):
    found = problems(tmp_path, "0.19.8")
    assert "fsdp: {sharding: hybrid}" in found["mics"]
    assert "use zero: {mics_shard_size: 2} in an environment with" in found["mics"]
    assert "use onebit: {algorithm: lamb} in an environment with" in found["onebit-lamb"]
    assert "attention: sliding_window" in found["sparse-attention"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *[("deepspeed_removed", {"technique": technique}) for technique in TECHNIQUES],
        ("onebit", {}),
        ("zero", {"mics_shard_size": 2, "stage": 3}),
    ],
)
def test_without_deepspeed_a_strategy_has_a_reason_or_none_and_no_error(name, options):
    bare = dataclasses.replace(MACHINE, packages={"torch": "2.13.0"})
    problem = registry.create_plugin("strategies", PluginChoice(name, options)).problem(case(name, 2), bare)
    assert problem is None or "DeepSpeed" in problem or "optimizer" in problem
