"""Collectives over a link whose rate is known: what is measured is that rate."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bench import Bench

RATE = 100e6 / 8
"""Bytes per second of the limited link. Headers of Ethernet, IP and TCP take 4.5% of it."""


def test_bus_bandwidths_between_nodes_are_that_of_the_link(bench: Bench, tmp_path: Path) -> None:
    hosts = [f"{node}:1" for node in bench.nodes]
    launcher = f"launcher={{ssh: {{hosts: {hosts}, shell: {bench.ssh()}}}}}"
    asked = ["--operations", "all_reduce,send_recv", "--sizes", "4MiB", "--set", "collectives.trials=1"]
    command = ["distbench", "collectives", *asked, "--set", launcher, "--out", str(tmp_path), "--json"]
    bench.rate("100mbit")
    done = bench.run(bench.nodes[0], sys.executable, "-m", *command)
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    verdict = case["verdicts"]["links"]
    assert verdict["word"] == "correct"
    found = {each["op"]: each for each in verdict["detail"]["results"]}
    for result in found.values():
        assert (result["group"], result["group_size"], result["nodes"]) == ("all", 2, 2)
        assert result["busbw"]["value"] == pytest.approx(0.95 * RATE, rel=0.05)
    assert set(found) == {"all_reduce", "send_recv"}
    missing = {each["group"]: each["reason"] for each in verdict["detail"]["missing"]}
    assert "see the group all" in missing["between"]
