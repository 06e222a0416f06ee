"""Views of a run: the same table in the terminal and on the page, and no two names alike."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import call

from distbench.report.tables import Table, as_text
from distbench.report.views import JOB_VIEWS, VIEWS

NOT_ASKED = {
    "convergence": "This run trains to no target: its suite has no section converge.",
    "checkpoint": "This run tried no checkpoints.",
}
SAMPLE = Path(__file__).parent.parent / "reports" / "sample"


def test_a_name_that_is_too_long_gets_a_line_of_its_own_and_is_never_cut() -> None:
    names = ["fsdp-grad-op/ws1/mb16", "fsdp-grad-op+offload/ws1/mb16"]
    rows = tuple((name, "1.0", "2.0") for name in names)
    shown = as_text(Table("x", "Title", "Caption.", ("case", "a" * 30, "b" * 30), (("group",), *rows)), 80)
    lines = shown.splitlines()
    assert [line for line in lines if line in names] == names
    assert max(map(len, lines)) <= 80
    assert "group" in lines


def test_every_view_of_a_real_run_has_rows_and_says_what_they_are() -> None:
    for name in set(VIEWS) - set(NOT_ASKED):
        done = call("show", str(SAMPLE), "--view", name)
        assert done.returncode == 0, done.stderr
        title, caption, *rest = done.stdout.splitlines()
        assert title and caption and len(rest) > 8, name


@pytest.mark.parametrize("view", NOT_ASKED)
def test_a_view_for_which_a_run_has_nothing_says_so_in_a_line(view: str) -> None:
    done = call("show", str(SAMPLE), "--view", view)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"{NOT_ASKED[view]}\n")


def test_a_run_that_was_not_checked_says_how_it_can_be(tmp_path: Path) -> None:
    unchecked = tmp_path / "run"
    shutil.copytree(SAMPLE, unchecked, ignore=shutil.ignore_patterns("checks"))
    done = call("show", str(unchecked), "--view", "equivalence")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("Nothing was checked: distbench run SUITE --check does it.\n")


def test_a_view_that_is_not_there_is_refused_with_those_that_are() -> None:
    done = call("show", str(SAMPLE), "--view", "memry")
    assert done.returncode == 2
    assert done.stderr == f"distbench: error: --view = 'memry': allowed: {', '.join([*VIEWS, *JOB_VIEWS])}\n"
