"""What a run says of the link between its nodes is what the link was made to carry."""

from __future__ import annotations

import os
import sys

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.recommendation import recommend
from distbench.record import Record
from distbench.record.run_folder import Run
from support.network_nodes import Bench

SUITE = """
workload: {mlp: {hidden: 1024, depth: 3}}
batch: {global_batch_size: 8}
measure: {warmup: 1, steps: 4, trials: 1, profile_steps: 2}
world_sizes: [2]
strategies: [ddp, fsdp]
# without telemetry: however busy the machine of both nodes is, every trial counts
metrics: [steptime, throughput, communication, network, profile]
"""
MBIT = 100


@pytest.fixture(scope="module")
def run(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The suite on two nodes with a slow link."""
    folder = tmp_path_factory.mktemp("link")
    hosts = [f"{node}:1" for node in bench.nodes]
    suite = folder / "suite.yaml"
    suite.write_text(f"{SUITE}launcher: {{ssh: {{hosts: {hosts}, shell: {bench.ssh()}}}}}\n")
    command = [sys.executable, "-m", "distbench", "run", str(suite), "--out", str(folder / "reports")]
    bench.rate(f"{MBIT}mbit")
    try:
        done = bench.run(bench.nodes[0], *command, PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    finally:
        bench.unlimit()
    assert done.returncode == 0, done.stderr
    (found,) = (folder / "reports").iterdir()
    return Run(found)


def of(run: Run, label: str) -> Record:
    (record,) = [record for record in run.records() if record.case.label == label]
    return record


def test_the_bus_bandwidth_of_ddp_between_nodes_is_that_of_the_link(run: Run) -> None:
    reached = of(run, "ddp").values["comm_between_busbw"] * 8 / 1e6
    assert reached == pytest.approx(MBIT, rel=0.1)


def test_a_node_sends_what_theory_says_and_headers(run: Run) -> None:
    for label in ("ddp", "fsdp"):
        values = of(run, label).values
        assert 1 < values["node_sent_bytes"] / values["node_bytes_theory"] < 1.15, label


def test_the_first_sentence_names_the_link(run: Run) -> None:
    assert "limited by the link between nodes" in recommend(RunAnalysis.read(run)).headline
