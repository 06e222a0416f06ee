"""Changes that no rank reads: by their files, by what ranks imported, and by how they trained."""

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from distbench.gate.arms import GateArm
from distbench.gate.code_changes import imports_same_code, unread_changes
from distbench.ipc.launch_spec import PythonTarget
from distbench.suite import load_suite
from support.records import case, measured
from support.suites import write_suite

SUITE = """
workload: mlp
batch: {global_batch_size: 8}
strategies: [ddp]
world_sizes: [2]
gate: {min_pairs: 3}
"""


@pytest.fixture
def arms(tmp_path):
    """A baseline whose files are in a folder of its own, and a candidate."""
    suite = load_suite(write_suite(tmp_path, SUITE))
    moved = PythonTarget(working_directory="tree", environment={"PYTHONPATH": "tree/lib"})
    return GateArm("main (1234)", suite, moved, {}), GateArm("here", suite, PythonTarget(), {})


def changed(arm, *files: str) -> GateArm:
    return replace(arm, changed_files=tuple(map(PurePosixPath, files)))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], "no file differs from main (1234)"),
        (["README.md"], "1 file that no rank imports (README.md) differs from main (1234)"),
        (
            ["docs/a.png", ".github/workflows/ci.yml", "lib/LICENSE", "lib/x.py", "a.rst", "b.py"],
            "6 files that no rank imports (docs/a.png, .github/workflows/ci.yml, lib/LICENSE, lib/x.py, a.rst"
            " and 1 more) differ from main (1234)",
        ),
        # ranks may open any of these
        (["README.md", "lib/vocabulary.txt"], None),
        (["kernel.cu"], None),
        (["lib/docs/tokens.json"], None),
        (["other-suite.yaml"], None),
        (["submodule"], None),
    ],
)
def test_files_that_ranks_can_only_import_or_never_read(arms, files, expected):
    baseline, candidate = arms
    assert unread_changes(changed(baseline, *files), candidate) == expected


def test_arms_that_differ_by_more_than_their_files_are_compared(arms, tmp_path):
    baseline, candidate = arms
    assert unread_changes(baseline, candidate) is None, "another environment, or values"
    before = changed(baseline)
    other = load_suite(write_suite(tmp_path, SUITE.replace("ddp", "fsdp")))
    assert unread_changes(before, replace(candidate, suite=other)) is None
    for target in (PythonTarget(environment={"A": "1"}), PythonTarget("/other/python")):
        assert unread_changes(before, replace(candidate, target=target)) is None
    rules = load_suite(write_suite(tmp_path, SUITE.replace("3}", "4}")))
    assert unread_changes(before, replace(candidate, suite=rules)), "the rules of the gate train nothing"


@pytest.mark.parametrize(
    ("before", "after", "loss", "expected"),
    [
        (["a", "a"], ["a", "a"], 2.5, True),
        (["a", "a"], ["a", "b"], 2.5, False),
        # a record of an earlier version
        ([], [], 2.5, False),
        # kernels that are not deterministic, or files that Python has not opened
        (["a", "a"], ["a", "a"], 2.6, False),
        (["", ""], ["", ""], 2.5, True),
    ],
)
def test_trials_run_the_same_code_if_all_ranks_imported_it_and_trained_alike(before, after, loss, expected):
    old, new = (replace(measured(case()), code=code) for code in (before, after))
    new = replace(new, samples={"loss": [[3.0, loss]] * 2})
    assert imports_same_code(old, new) is expected
