"""The grid that ``tune`` takes from a suite: cases of some sizes, and a probe in place of other jobs."""

import pytest

from distbench.cli.commands.tune import _grid
from distbench.cli.options import make_overrides
from distbench.plan import make_plan
from distbench.suite import Suite

SUITE = """
workload: {transformer: {preset: tiny}}
data: synthetic
batch: {global_batch_size: 8}
device: cpu
world_sizes: [1, 2]
launcher: {pretend: {step_s: 0.1}}
strategies: [single, ddp, fsdp]
check: {steps: 2}
"""


@pytest.fixture
def grid(tmp_path):
    def read(more: str = "", sizes: str = "", *changes: str) -> Suite:
        file = tmp_path / "grid.yaml"
        file.write_text(SUITE + more)
        return _grid(file, make_overrides([*changes], [], sizes, ""))

    return read


@pytest.mark.parametrize(("sizes", "expected"), [("", {2}), ("2", {2}), ("1,2", {1, 2}), ("1", {1})])
def test_cases_are_of_the_most_devices_or_of_those_that_are_asked_for(grid, sizes, expected):
    cases = make_plan(grid("", sizes)).cases
    assert len(cases) >= 2
    assert {item.case.world_size for item in cases} == expected


def test_a_probe_takes_the_place_of_other_jobs(grid):
    assert {*grid().jobs} == {"measure", "probe"}


@pytest.mark.parametrize(
    ("more", "changes", "seconds"),
    [
        ("", (), 15.0),
        ("probe: {}\n", (), 15.0),
        ("probe: {seconds: 60}\n", (), 60.0),
        ("", ("probe.seconds=5",), 5.0),
        ("", ("probe={seconds: 7}",), 7.0),
    ],
)
def test_seconds_that_are_given_stay(grid, more, changes, seconds):
    assert grid(more, "", *changes).jobs["probe"].seconds == seconds
