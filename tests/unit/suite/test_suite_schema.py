"""The JSON Schema of a suite, with which editors complete and check, and the list of keys made of it."""

import json
from pathlib import Path

import jsonschema
import pytest

from distbench.suite import Suite, load_suite
from distbench.suite.json_schema import json_schema
from distbench.suite.yaml_reader import SourceMap, parse_suite
from support import wrong_suites
from support.suites import write_suite

ROOT = Path(__file__).parents[3]
SUITES = sorted(
    [*ROOT.glob("suites/*.yaml"), *ROOT.glob("docs/**/*.yaml"), *ROOT.glob("tests/frozen/**/*.yaml")]
)
GOOD = [
    "precision: [fp32, {compute: bf16}]\n",
    "measure: {steps: 1e1}\nworld_sizes: [2e0]\nseed: 1.7e1\n",
    "optimizer: {betas: [[0.8, 0.9], [0.9, 0.99]], lr: [0.1, 0.01]}\nthreads: [1, auto]\n",
    "axes: {batch.micro_batch_size: [1, 2], data: [text, {synthetic: {states: [4, 8]}}]}\n",
    "include: [{strategy: ddp, world_size: 1, precision: bf16}]\nexclude: [{world_size: [2, 4]}]\n",
    "gate: {tokens_per_s: {max_drop: 3%}, efficiency: false, checkpoint: required, links: 10%}\n",
    "check: true\ncheckpoint: false\ncollectives: {sizes: [8KiB, 1024]}\nprobe: {seconds: 9}\n",
    "seed: null\nmetrics: null\n",
    "launcher: {local: {warm: false}}\nmetrics: [memory, {telemetry: {max_foreign_cpu: 2}}]\n",
]
ONLY_THE_LOADER = (
    "loss_scale: 2",
    "name: adamw, momentum",
    "name: sgd",
    "eps: 1",
    "sgd, adafactor",
    "step: .inf",
    "!!python/object",
)
"""Mistakes of two keys together, and those that YAML has before there are values."""
MISTAKES = [getattr(case, "values", case)[0] for case in wrong_suites.MISTAKES]
MISTAKES = [text for text in MISTAKES if not any(part in text for part in ONLY_THE_LOADER)]
MISTAKES += ["gate: {tokens_per_s: true}", "gate: {min_pairs: 1}", "converge: true", "measure: true"]


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    return jsonschema.Draft202012Validator(json_schema())


def refused(schema: jsonschema.Draft202012Validator, text: str) -> bool:
    return not schema.is_valid(parse_suite(text, "suite.yaml")[0])


@pytest.mark.parametrize("file", SUITES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_suite_of_the_repository_fits_its_schema(schema, file):
    assert list(schema.iter_errors(parse_suite(file.read_text(), file.name)[0])) == []


@pytest.mark.parametrize("text", GOOD)
def test_what_the_loader_takes_fits_and_so_does_the_resolved_suite(schema, text, tmp_path):
    file = write_suite(tmp_path, wrong_suites.MINIMAL + text)
    assert list(schema.iter_errors(load_suite(file).to_resolved())) == []
    assert not refused(schema, file.read_text())


@pytest.mark.parametrize("text", MISTAKES)
def test_what_the_loader_refuses_the_schema_refuses_if_it_can_be_said(schema, text):
    assert refused(schema, f"{wrong_suites.MINIMAL}{text}\n")


def test_a_strategy_may_have_a_label_beside_its_options(schema):
    labelled = "[{ddp: {label: ours}}, {zero: {stage: [1, 2]}}, {single: {label: A-1}}]"
    assert not refused(schema, wrong_suites.MINIMAL.replace("[ddp]", labelled))
    for wrong in ("a/b", "'a*'", "[a, b]"):
        assert refused(schema, wrong_suites.MINIMAL.replace("[ddp]", f"[{{ddp: {{label: {wrong}}}}}]"))


@pytest.mark.parametrize("strategies", [text for text, _ in wrong_suites.MISTAKES_IN_STRATEGIES])
def test_a_mistake_in_a_strategy_does_not_fit(schema, strategies):
    assert refused(schema, wrong_suites.MINIMAL.replace("[ddp]", strategies))


@pytest.mark.parametrize("mesh", ["{dp_shard: [2, 4], cp: 1, ep: [1]}", "[auto, {pp: 1, tp: 2}]"])
def test_any_dimension_of_a_mesh_may_be_of_one_rank(schema, mesh):
    assert not refused(schema, wrong_suites.MINIMAL.replace("[ddp]", f"[{{fsdp: {{mesh: {mesh}}}}}]"))


@pytest.mark.parametrize("mesh", ["{cp: 2}", "{cp: [1, 2]}", "{dp: 1}"])
def test_a_dimension_that_a_strategy_does_not_have_does_not_fit(schema, mesh):
    assert refused(schema, wrong_suites.MINIMAL.replace("[ddp]", f"[{{fsdp: {{mesh: {mesh}}}}}]"))


def test_options_of_a_plugin_of_ones_own_are_in_the_schema(monkeypatch):
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(Path(__file__).parents[2] / "plugins"))
    own = jsonschema.Draft202012Validator(json_schema())
    assert not refused(own, wrong_suites.MINIMAL.replace("ddp", "sleepy"))
    assert refused(own, wrong_suites.MINIMAL.replace("ddp", "sleepy: {bogus: 1}"))


def test_list_suite_has_every_key_with_type_default_and_doc(command):
    code, output, _ = command("list", "suite")
    assert code == 0
    assert "measure.steps: whole number from 1 to 1,000,000; default: 10" in output
    rows = {row["key"]: row for row in json.loads(command("list", "suite", "--json")[1])}
    assert {key.partition(".")[0] for key in rows} == set(json_schema()["properties"])
    assert all(row["doc"] and row["type"] for row in rows.values())
    assert rows["batch"]["required"]
    assert rows["measure.order"]["type"] == "interleaved, sequential"
    # each default that is shown is one that the loader takes
    defaults = {key: row["default"] for key, row in rows.items() if "default" in row and "." not in key}
    needed = {"workload": "transformer", "batch": {"global_batch_size": 8}, "strategies": ["ddp"]}
    assert Suite.from_tree({**needed, **defaults}, SourceMap("defaults"))


def test_the_schema_is_printed_for_editors_and_only_for_a_suite(command):
    code, output, _ = command("list", "suite", "--json-schema")
    assert (code, json.loads(output)) == (0, json_schema())
    code, _, errors = command("list", "data", "--json-schema")
    assert (code, "distbench list suite --json-schema" in errors) == (2, True)
