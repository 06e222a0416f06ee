"""What every plug-in owes, whoever wrote it: one contract a kind, over all that the registry finds.

(Workloads and data sources have theirs in ``test_workloads`` and ``test_data``.)
"""

import dataclasses
import importlib.util
import json
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice, PrecisionConfig
from distbench.core.columns import RANK_REDUCTIONS
from distbench.core.machine import Machine
from distbench.ipc.launch_spec import LaunchSpec
from support.records import case

LAPTOP = Machine("cpu", 2, {"torch": "9", "deepspeed": "9"}, has_libaio=False, has_compiler=True)


def plugins(kind: str) -> list[object]:
    return [pytest.param(kind, name, id=f"{kind}-{name}") for name in registry.plugin_names(kind)]


EVERY = [plugin for kind in registry.PLUGIN_KINDS for plugin in plugins(kind)]


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_plugin_is_a_frozen_dataclass_whose_every_option_is_documented(kind, name):
    found = registry.load_plugin(kind, name)
    assert dataclasses.is_dataclass(found)
    assert found.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert registry.summary(found).endswith(".")
    for option in registry.option_infos(getattr(found, "section", found)):
        assert option.doc, option.name


@pytest.mark.parametrize("kind", registry.PLUGIN_KINDS)
def test_listing_plugins_imports_nothing_heavy(kind):
    # a view is loaded where something is shown, and computes
    statistics = set() if kind == "views" else {"scipy", "numpy"}
    heavy = {"torch", "deepspeed", "transformers", "sklearn", "pydantic", *statistics}
    code = f"""
import json, sys
from distbench.core import registry
imported = {{}}
for name in registry.plugin_names({kind!r}):
    registry.load_plugin({kind!r}, name)
    imported[name] = sorted(set(sys.modules) & {heavy!r})
print(json.dumps(imported))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {name: [] for name in registry.plugin_names(kind)}


@pytest.mark.parametrize("kind", ["strategies", "launchers", "metrics"])
def test_every_plugin_is_in_the_contract_that_keeps_them_apart(kind):
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    contracts = {each["name"]: each for each in declared["tool"]["importlinter"]["contracts"]}
    listed = contracts[f"{kind} do not import each other"]["modules"]
    assert listed == [f"distbench.{kind}.{name}" for name in registry.plugin_names(kind)]


@pytest.mark.parametrize("kind", ["strategies", "metrics"])
def test_what_is_imported_early_exists(kind):
    """A fork server passes over what can't be imported, so that one strategy doesn't end all others."""
    early = [module for plugin in registry.built_in_plugins(kind).values() for module in plugin.early_imports]
    assert len(early) > 2
    # of torch itself the environment without it knows nothing
    own = [module for module in early if module.startswith("distbench.")]
    assert [module for module in own if importlib.util.find_spec(module) is None] == []


@pytest.mark.parametrize("name", registry.plugin_names("strategies"))
def test_a_strategy_says_what_it_is_and_why_it_can_not_run(name):
    strategy = registry.create_plugin("strategies", PluginChoice(name))
    assert strategy.label
    assert strategy.engine_class
    assert set(strategy.world_sizes([1, 2, 4])) <= {1, 2, 4}
    for size in strategy.world_sizes([1, 2]):
        problem = strategy.problem(case(name, size), LAPTOP)
        assert problem is None or problem.strip()


def test_ddp_reduces_in_bf16_on_gpus_only_and_says_so_before_launch():
    strategy = registry.create_plugin("strategies", PluginChoice("ddp"))
    assert "needs CUDA" in strategy.problem(case(precision=PrecisionConfig(reduce="bf16")), LAPTOP)
    whole = PrecisionConfig(compute="bf16", reduce="bf16", master="bf16", optimizer_state="bf16")
    assert strategy.problem(case(precision=whole), LAPTOP) is None, "without a hook it can"


def test_a_column_has_one_metric_a_unit_a_direction_and_a_definition():
    columns = [
        c for name in registry.plugin_names("metrics") for c in registry.load_plugin("metrics", name).columns
    ]
    assert not [name for name, count in Counter(c.name for c in columns).items() if count > 1]
    for column in columns:
        assert column.doc.endswith(".")
        assert column.over_ranks in RANK_REDUCTIONS
        assert column.better in ("higher", "lower", None)


HOSTS = {
    "mpi": {"hosts": ["near"], "slots": 2},
    "ray": {"nnodes": 1, "num_cpus": 2, "num_gpus": 0},
    "spark": {"slots": 2},
    "ssh": {"hosts": ["near:2"]},
}
STARTED_BY_TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


# slurm shows it inside an allocation: test_slurm
@pytest.mark.parametrize("name", [name for name in registry.plugin_names("launchers") if name != "slurm"])
def test_a_launcher_shows_what_it_would_start_and_starts_nothing(name, tmp_path, monkeypatch):
    # what torchrun gives the first of two processes, for the launcher env
    for variable, value in STARTED_BY_TORCHRUN.items():
        monkeypatch.setenv(variable, value)
    launch = LaunchSpec("rank", tmp_path / "trial.json", processes=2)
    commands = registry.create_plugin("launchers", PluginChoice(name, HOSTS.get(name, {}))).commands(launch)
    assert bool(commands) == (name != "pretend")
    assert all(isinstance(word, str) for command in commands for word in command)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stage": 0, "offload_optimizer": "cpu"}, "stage = 0"),
        ({"stage": 2, "offload_parameters": "cpu"}, "only in stage 3"),
        ({"stage": 3, "offload_parameters": "nvme"}, "libaio"),
    ],
)
def test_what_deepspeed_can_not_do_is_said_before_launch(options, told):
    zero = registry.create_plugin("strategies", PluginChoice("zero", options))
    assert told in zero.problem(case("zero"), LAPTOP)


def test_a_table_of_a_metric_says_what_each_of_its_columns_is():
    tables = [
        table
        for name in registry.plugin_names("metrics")
        for table in registry.load_plugin("metrics", name).tables
    ]
    assert len({table.name for table in tables}) == len(tables)
    for table in tables:
        assert table.doc.endswith(".")
        assert len({column.name for column in table.columns}) == len(table.columns)
        assert all(column.doc.endswith(".") for column in table.columns)
