"""Collectives over a link whose rate is known."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.network_nodes import Bench

RATE = 40e6 / 8
"""Bytes per second of the limited link."""


def test_bus_bandwidths_between_nodes_are_no_more_than_that_of_the_link(bench: Bench, tmp_path: Path) -> None:
    hosts = [f"{node}:1" for node in bench.nodes]
    launcher = f"launcher={{ssh: {{hosts: {hosts}, shell: {bench.ssh()}}}}}"
    asked = ["--operations", "all_reduce,send_recv", "--sizes", "2MiB", "--set", "collectives.trials=1"]
    command = ["distbench", "collectives", *asked, "--set", launcher, "--out", str(tmp_path), "--json"]
    bench.rate("40mbit")
    done = bench.run(bench.nodes[0], sys.executable, "-m", *command)
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    verdict = case["verdicts"]["links"]
    assert verdict["word"] == "correct"
    found = {each["op"]: each for each in verdict["detail"]["results"]}
    for result in found.values():
        assert (result["group"], result["group_size"], result["nodes"]) == ("all", 2, 2)
        # a busy machine may do less, but no factor makes more of a link than it has
        assert 0.2 * RATE < result["busbw"]["value"] < 1.1 * RATE, result
    assert set(found) == {"all_reduce", "send_recv"}
    missing = {each["group"]: each["reason"] for each in verdict["detail"]["missing"]}
    assert "see the group all" in missing["between"]
