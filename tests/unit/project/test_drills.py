"""The table of drills has a row for each of them, whatever became of it."""

import os
from pathlib import Path

DRILLS = """
import pytest

@pytest.mark.drill("it holds")
def test_holds(drill):
    drill.noticed(1.25)
    drill.seen("first | line\\x1b[2J\\udcff\\nsecond")

@pytest.mark.drill("it breaks")
def test_breaks(drill):
    drill.seen("nothing")
    assert False

@pytest.fixture
def namespace(drill):
    drill.impossible("no namespaces")

@pytest.mark.drill("it can't be made")
def test_cannot(namespace):
    pass

def test_no_drill():
    pass
"""


def test_the_table_tells_of_every_drill(pytester, monkeypatch):
    pytester.makepyfile(DRILLS)
    pytester.makeini("[pytest]\nmarkers = drill(what): a row")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    done = pytester.runpytest_subprocess("-p", "support.fault_table", "--drills")
    done.assert_outcomes(passed=1, failed=1, skipped=1, deselected=1)
    done.stdout.fnmatch_lines(
        [
            "| fault | detected after | message | result |",
            "| it breaks |  | nothing | [*][*]failed[*][*] |",
            "| it can't be made |  | no namespaces | skipped |",
            "| it holds | 1.2 s | first \\| line | recovered |",
        ],
        consecutive=False,
    )
