"""``distbench probe`` on two real ranks: every rate is there, and has a value that can be true."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.prediction.recorded_layouts import recorded_layout
from distbench.record import Record, Status
from distbench.record.run_folder import Run
from distbench.workloads.layouts import ModelLayout
from support.runs import call
from support.suites import write_suite

SUITE = """
workload: {transformer: {preset: tiny, seq_len: 32, depth: 2}}
data: synthetic
batch: {global_batch_size: 16}
world_sizes: [2]
strategies: [ddp, tp]
measure: {trials: 1}
limits: {step: 30}
probe: {seconds: 10}
launcher: kept
"""
OF_OUR_OWN = """
workload: {user: {model: "small:Uneven", length: 32}}
data: synthetic
batch: {global_batch_size: 4}
world_sizes: [2]
strategies: [ddp, fsdp]
measure: {trials: 1}
limits: {step: 30}
probe: {seconds: 2}
"""
SIZES = (4 << 10, 256 << 10, 4 << 20)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def probe(folder: Path, suite: str) -> Run:
    done = call("probe", str(write_suite(folder, suite)), "--out", str(folder / "out"), "--quiet")
    assert done.returncode == 0, done.stderr
    assert "all_reduce after each layer" in done.stdout
    (made,) = (folder / "out").iterdir()
    return Run(Path(made))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return probe(tmp_path_factory.mktemp("probe"), SUITE)


@pytest.fixture(scope="module")
def record(run) -> Record:
    (only,) = RunAnalysis.read(run).records
    return only


def rows(record: Record, rate: str) -> list[dict]:
    return [row for row in record.tables["machine_rates"] if row["rate"] == rate]


def test_one_trial_is_about_both_strategies_and_nothing_else_runs(record):
    assert record.status is Status.MEASURED
    assert record.job.kind == "probe"
    assert len(record.job.options.cases) == 2


def test_every_measured_rate_has_its_spread(record):
    known = [row for row in record.tables["machine_rates"] if not row["reason"]]
    assert known
    for row in known:
        assert row["seconds"] > 0
        assert row["relative_sd"] >= 0
        assert row["repetitions"] >= 3


def test_the_model_takes_longer_for_more_samples(record):
    passes = rows(record, "forward_backward")
    assert [row["samples"] for row in passes] == [1, 8, 16], "of ddp 8, of tp 16"
    # sixteen times the work, of which a part is overhead
    assert 2 * passes[0]["seconds"] < passes[2]["seconds"]


def test_all_parameters_and_half_of_them_are_updated(record):
    from distbench.workloads.transformer import Transformer

    half, whole = (row["bytes"] for row in rows(record, "update"))
    assert whole == 4 * Transformer(preset="tiny", seq_len=32, depth=2).parameters()
    assert 0.3 < half / whole <= 0.5


def test_memory_is_copied_at_a_rate_that_memory_has(record):
    (copy,) = rows(record, "copy")
    assert copy["bytes"] == 2 * (64 << 20)
    assert 1e8 < copy["bytes"] / copy["seconds"] < 1e13


def test_a_product_takes_as_long_as_its_arithmetic(record):
    (product,) = rows(record, "matmul")
    assert product["bytes"] == 3 * 4 * 512**2
    assert 1e7 < 2 * 512**3 / product["seconds"] < 1e15


def test_each_collective_is_timed_alone_at_each_size(record):
    alone = {(row["op"], row["bytes"]): row for row in rows(record, "collective")}
    assert set(alone) == {(op, size) for op in OPERATIONS for size in SIZES}
    assert {(row["group"], row["group_size"], row["nodes"]) for row in alone.values()} == {("all", 2, 1)}
    assert all(row["reason"] == "" for row in alone.values())
    assert alone["all_reduce", SIZES[0]]["seconds"] < alone["all_reduce", SIZES[-1]]["seconds"]


def test_collectives_are_timed_between_the_layers_of_a_training(record):
    """Large ones are well above the noise; small ones may not be, and then say so."""
    inside = {(row["op"], row["bytes"]): row for row in rows(record, "collective_in_step")}
    assert set(inside) == {(op, size) for op in OPERATIONS[:3] for size in (SIZES[0], SIZES[-1])}
    assert all(row["samples"] == 8 for row in inside.values()), "the middle one"
    measured = [row for row in inside.values() if "raise probe.seconds" not in row["reason"]]
    assert all(row["repetitions"] >= 7 for row in measured)
    assert all(row["seconds"] > 0 or "not identified" in row["reason"] for row in measured)
    left_out = [op for (op, _), row in inside.items() if "raise probe.seconds" in row["reason"]]
    assert all(left_out.count(op) == 2 for op in left_out), "one size would not tell how the time grows"
    large = inside["all_reduce", SIZES[-1]]
    assert large["reason"] == ""
    (alone,) = [
        row for row in rows(record, "collective") if (row["op"], row["bytes"]) == ("all_reduce", SIZES[-1])
    ]
    # of a collective in each layer, not of all layers, and not of none
    assert 0.2 < large["seconds"] / alone["seconds"] < 5


def test_the_ranks_tell_the_sizes_of_a_model_of_ones_own(tmp_path):
    """So that its steps are predicted, without its code."""
    made = probe(tmp_path, OF_OUR_OWN)
    analysis = RunAnalysis.read(made)
    (record,) = analysis.records
    layout = recorded_layout(record.tables["model_layout"])
    assert isinstance(layout, ModelLayout), layout
    assert layout.tied == {"head.weight": "embedding.weight"}
    assert layout.parameters["odd.weight"] == (16, 16)
    # embedding, two blocks of 16 x 32 and their biases, odd, mix
    assert sum(map(math.prod, layout.parameters.values())) == 256 * 16 + 2 * (2 * 512 + 48) + 272 + 7
    done = call("plan", str(tmp_path / "suite.yaml"), "--predict", "--rates", str(made.folder), "--json")
    assert done.returncode == 0, done.stderr
    steps = {case["strategy"]: case["predicted"]["step_s"] for case in json.loads(done.stdout)["cases"]}
    assert set(steps) == {"ddp", "fsdp"}
    assert all(step and step["value"] > 0 for step in steps.values()), steps
