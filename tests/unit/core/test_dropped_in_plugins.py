"""Plug-ins that are dropped in: how they are listed and planned."""

import json
from pathlib import Path

import pytest

from support.planned_suites import planned


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("strategies", "apart"),
        ("workloads", "line"),
        ("data", "same"),
        ("metrics", "heartbeat"),
        ("launchers", "echo"),
    ],
)
def test_a_dropped_in_file_is_listed_with_its_docs(distbench, kind, name):
    listed = json.loads(distbench("list", kind, "--json").stdout)
    (found,) = [plugin for plugin in listed[kind] if plugin["name"] == name]
    assert found["summary"]


def test_a_model_of_ones_own_that_does_not_say_it_is_told_what_to_add(tmp_path, monkeypatch):
    here = Path(__file__).parents[2]
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(here / "plugins"))
    monkeypatch.syspath_prepend(str(here / "models"))
    item = planned(tmp_path, "cp: {}", 2, workload="parted", batch="{global_batch_size: 8}")
    assert item.problem == (
        "context parallelism: workload.parted.model = 'small:Small' does not declare which modules are "
        "attention (only these may mix positions), and distbench does not import the model to find "
        'out; add context_split() and shard_sequence() to Parted (docs/plugins.md, "A model that can '
        'be split"), or use transformer'
    )
