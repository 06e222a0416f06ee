"""Public GPU traces read by distbench and by other tools; tox -e traces, with the folder in DISTBENCH_TRACES.

The traces are test data of HolisticTraceAnalysis and TraceLens (both MIT), not part of this repository.
In the folder, ``reference.yaml`` has what these tools say of each.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from distbench.analysis.traces.breakdown import break_down, part_seconds
from distbench.analysis.traces.rank_trace import RankTrace, read_rank
from distbench.analysis.traces.steps import whole_trace
from distbench.analysis.traces.work import find_work
from distbench.traces.chrome_file import read_file
from distbench.traces.trace import read_trace

# TraceLens counts no communication in it, as its reference says
WRONG_ELSEWHERE = {"v100_2ranks/rank1"}
# percentage points, and a fraction
MOST_POINTS, MOST_MATMUL = 0.1, 0.01
# TraceLens leaves the 108 fills of memory of this trace out, and counts those of all others as computation
FILLS_LEFT_OUT = {"mi300_resnet_checkpointing/rank0": 0.6}


@dataclass
class Compared:
    """A trace, and what other tools say of it."""

    name: str
    rank: RankTrace
    reference: dict[str, Any]

    def parts(self) -> list[dict[str, float]]:
        """Parts in the window that TraceLens used: the steps, or all of the trace."""
        told = self.reference["tracelens_timeline_ms"]["total_time"] / 1e3
        steps = math.fsum(step.seconds for step in self.rank.steps)
        if math.isclose(steps, told, rel_tol=1e-3):
            return [step.parts for step in self.rank.steps]
        trace = read_trace(read_file(self.rank.path).events)
        whole = whole_trace(trace)
        assert math.isclose(whole.seconds, told, rel_tol=1e-3), "another window than TraceLens"
        return [part_seconds(pieces) for pieces in break_down(trace, find_work(trace), [whole])]


def folder() -> Path:
    named = os.environ.get("DISTBENCH_TRACES")
    assert named, "set DISTBENCH_TRACES to the folder of the traces"
    return Path(named)


@pytest.fixture(scope="session")
def compared() -> list[Compared]:
    references = YAML(typ="safe").load((folder() / "reference.yaml").read_text())
    found = [
        Compared(name, read_rank(folder() / f"{name}.json.gz", 0), reference)
        for name, reference in references.items()
    ]
    assert len(found) >= 10
    return found


KINDS = ("compute", "communication", "copy", "idle")


def shares(parts: list[dict[str, float]]) -> dict[str, float]:
    """Percentages of computation, exposed communication, exposed copies and idle time."""
    seconds = {kind: math.fsum(step.get(kind, 0.0) for step in parts) for kind in KINDS}
    whole = math.fsum(seconds.values())
    return {kind: 100 * found / whole for kind, found in seconds.items()}


def of_tracelens(reference: dict[str, Any]) -> dict[str, float]:
    told = reference["tracelens_timeline_ms"]
    names = {
        "compute": "computation_time",
        "communication": "exposed_comm_time",
        "copy": "exposed_memcpy_time",
        "idle": "idle_time",
    }
    return {kind: 100 * told[name] / told["total_time"] for kind, name in names.items()}


def test_every_file_is_read_and_its_parts_add_up(compared):
    assert compared
    for each in compared:
        assert each.rank.steps and each.rank.operators, each.name
        for step in each.rank.steps:
            whole = math.fsum(step.parts.get(kind, 0.0) for kind in KINDS)
            assert whole == pytest.approx(step.seconds, rel=1e-6), each.name


def test_shares_are_those_of_tracelens(compared, capsys):
    lines = []
    for each in compared:
        if not each.reference["tracelens_timeline_ms"] or each.name in WRONG_ELSEWHERE:
            own = shares([step.parts for step in each.rank.steps])
            lines.append(f"| {each.name} | {texts(own)} | – |")
            continue
        own, other = shares(each.parts()), of_tracelens(each.reference)
        most = FILLS_LEFT_OUT.get(each.name, MOST_POINTS)
        lines.append(f"| {each.name} | {texts(own)} | {texts(other)} |")
        assert all(abs(own[kind] - other[kind]) <= most for kind in own), (each.name, own, other)
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines, ""]))
    assert len(lines) == len(compared)


def texts(of_kinds: dict[str, float]) -> str:
    return " / ".join(f"{value:.2f}" for value in of_kinds.values())


def products(compared: list[Compared]) -> Iterator[tuple[str, dict[str, Any], list[float]]]:
    """Yield the name of a trace, a product of TraceLens, and the seconds of the same calls here."""
    for each in compared:
        for told in each.reference.get("tracelens_matmuls") or []:
            found = [
                x
                for x in each.rank.matmuls
                if (x.shape.m, x.shape.n, x.shape.k) == (told["m"], told["n"], told["k"])
            ]
            # TraceLens tells products with and without a bias apart
            yield each.name, told, [seconds for times in found for seconds in times.call_seconds]


def test_matrix_products_are_those_of_tracelens(compared):
    seen = 0
    for name, told, seconds in products(compared):
        flops = 2 * told["m"] * told["n"] * told["k"]
        if len(seconds) == told["calls"]:
            mean = statistics.fmean(seconds) * 1e6
            assert mean == pytest.approx(told["kernel_us_mean"], rel=MOST_MATMUL), (name, told)
            # it averages the rates of the calls
            rate = statistics.fmean(flops / each for each in seconds) / 1e12
            assert rate == pytest.approx(told["tflops_mean"], rel=MOST_MATMUL, abs=5e-4), (name, told)
            seen += 1
        else:
            assert len(seconds) > told["calls"], (name, told)
    assert seen >= 12
