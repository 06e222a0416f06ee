"""The pytest plugin, in a pytest of its own: suites as tests, the fixture, and pytest-benchmark.

pytester forgets what is imported while one of its tests runs, and the extensions of DuckDB and numpy can't
be loaded twice: such a test reads JSON, and calls the command line in a process of its own.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from distbench.cli import main
from distbench.core.case import Case
from distbench.core.errors import EXIT_TIME_LIMIT
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.system.cache import cache_folder
from support.inner_pytest import run_inside
from support.leftover_processes import alive
from support.pretended_suites import held_by
from support.records import COLUMNS, case, failed, measured, stored_run
from support.runs import MODELS, QUICK, call_outside
from support.suites import SuiteText

HERE = Path(__file__).parents[2]
PLUGIN = "distbench.pytest_plugin"
CACHE = cache_folder()
"""Where C++ ops lie; pytester gives a pytest another home."""

SUITE = SuiteText("""
name: tiny
workload: {transformer: {preset: tiny, seq_len: 64}}
data: text
batch: {global_batch_size: 8}
world_sizes: [1]
measure: {steps: 4, trials: 2}
metrics: [steptime, throughput]
launcher: {pretend: {log: LOG}}
strategies: [{pretended: {does: [works, also-works]}}]
""")
WORKS, ALSO_WORKS = "pretended/ws1/mb8/fp32", "pretended+also-works/ws1/mb8/fp32"


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest with the plugin in a folder that has the suite tiny.yaml."""
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(HERE / "plugins"))
    monkeypatch.setenv("PYTHONPATH", str(MODELS), prepend=os.pathsep)
    monkeypatch.setenv("DISTBENCH_CACHE", str(CACHE))
    # pytest-benchmark measures nothing in a worker of pytest-xdist; the pytest inside is none
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    # what else is installed takes a second to load, in every session
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.path.joinpath("tiny.yaml").write_text(SUITE.replace("LOG", str(pytester.path / "told.txt")))

    def go(*arguments: str) -> pytest.RunResult:
        is_benchmark = any(str(each).startswith("--benchmark") for each in arguments)
        more = ("-p", "pytest_benchmark.plugin") if is_benchmark else ()
        return run_inside(pytester.path, "-p", PLUGIN, *more, *arguments)

    return go


def changed(pytester: pytest.Pytester, old: str, new: str) -> None:
    file = pytester.path / "tiny.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def only_run(pytester: pytest.Pytester, out: str = "reports") -> Run:
    (folder,) = (pytester.path / out).iterdir()
    return Run(folder)


def records(run: Run) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(run.folder.glob("*/*/*/record.json"))]


def statuses(run: Run) -> list[str]:
    return [record["status"] for record in records(run)]


def pytest_output(pytester: pytest.Pytester) -> list[str]:
    return (pytester.path / "told.txt").read_text().splitlines()


def test_a_suite_gives_a_test_for_each_case_and_one_run(run, pytester):
    done = run("tiny.yaml", "-v")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines([f"tiny.yaml::{WORKS} PASSED*", f"tiny.yaml::{ALSO_WORKS} PASSED*"])
    made = only_run(pytester)
    assert statuses(made) == ["measured"] * 4
    assert made.info().state == "finished"
    assert (made.folder / "report.html").is_file()
    done.stdout.fnmatch_lines(["*distbench: tiny*", f"report: {made.folder}/report.html"])


def test_the_tests_of_a_suite_share_one_session_and_one_preparation(run, pytester):
    run("tiny.yaml").assert_outcomes(passed=2)
    trials = [f"trial {label} {i}" for label in ("pretended", "pretended+also-works") for i in (0, 1)]
    assert pytest_output(pytester) == ["open", "prepare", *trials, "close"]


def test_only_the_chosen_tests_are_run_and_the_run_knows_no_others(run, pytester):
    run("tiny.yaml", "-k", "also-works").assert_outcomes(passed=1, deselected=1)
    made = only_run(pytester)
    assert [item.case.label for item in made.info().cases] == ["pretended+also-works"]
    assert made.info().suite["measure"]["order"] == "sequential"
    # what resumes the run plans the same
    before = pytest_output(pytester)
    done = call_outside("run", "--resume", str(made.folder))
    assert done.returncode == 0, done.stderr
    assert pytest_output(pytester) == [*before, "open", "close"]


def test_what_is_named_and_no_suite_is_looked_at_without_leaving_it_open_or_waiting(run, pytester):
    (pytester.path / "other.yaml").write_text("batch: a bread\n")
    os.mkfifo(pytester.path / "pipe.yaml")
    for name in ("other.yaml", "pipe.yaml"):
        done = run("-W", "error", name)
        assert done.ret == pytest.ExitCode.USAGE_ERROR
        done.stderr.fnmatch_lines([f"ERROR: not found: *{name}*"])
        done.stderr.no_fnmatch_line("*ResourceWarning*")


def test_a_test_is_chosen_by_its_id(run):
    done = run(f"tiny.yaml::{ALSO_WORKS}", "-v")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines([f"tiny.yaml::{ALSO_WORKS} PASSED*"])


def test_what_was_not_run_after_a_failure_can_be_resumed(run, pytester):
    changed(pytester, "[works, also-works]", "[raises, works]")
    changed(pytester, "world_sizes: [1]", "world_sizes: [2]")
    run("tiny.yaml", "-x").assert_outcomes(failed=1)
    assert only_run(pytester).info().state == "interrupted"


def test_the_options_change_the_suite(run, pytester):
    changes = ["--distbench-set", "measure.steps=7", "--distbench-set=measure.trials=1"]
    done = run(
        "tiny.yaml",
        *changes,
        "--distbench-only",
        "pretended",
        "--distbench-world-sizes=1,2",
        "--distbench-out=here",
    )
    done.assert_outcomes(passed=2)
    suite = only_run(pytester, "here").info().suite
    assert suite["measure"]["steps"] == 7
    assert suite["world_sizes"] == [1, 2]


def test_world_sizes_that_are_no_numbers_are_refused(run):
    done = run("tiny.yaml", "--distbench-world-sizes=one")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*'one': expected whole numbers, as in 1,2,4*"])


def test_folders_are_searched_for_the_suites_that_the_ini_file_names_only(run, pytester):
    (pytester.path / "suites").mkdir()
    (pytester.path / "suites" / "one.yaml").write_text(SUITE)
    assert run().ret == pytest.ExitCode.NO_TESTS_COLLECTED
    pytester.makeini("[pytest]\ndistbench_suites = suites/*.yaml\n")
    done = run("--collect-only", "-q")
    done.stdout.fnmatch_lines([f"suites/one.yaml::{WORKS}"])
    done.stdout.no_fnmatch_line("tiny.yaml*")


def test_foreign_yaml_is_left_alone(run, pytester):
    (pytester.path / "deploy.yaml").write_text("strategies: [rolling]\nservices: {web: {batch: 3}}\n")
    done = run("deploy.yaml")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*not found: *deploy.yaml*"])


def test_a_mistaken_suite_is_an_error_with_a_line_for_each_mistake(run, pytester):
    changed(pytester, "steps: 4", "stepz: 4")
    changed(pytester, "global_batch_size: 8", "global_batch_size: none")
    done = run("tiny.yaml")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(
        ["tiny.yaml:5: batch*none*", "tiny.yaml:7: measure.stepz*did you mean 'steps'?*"]
    )
    assert "Traceback" not in done.stdout.str()
    assert "pytest_plugin" not in done.stdout.str()


def test_a_suite_that_is_no_yaml_yet_is_told(run, pytester):
    changed(pytester, "data: text", "data: text: text")
    done = run("tiny.yaml")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["tiny.yaml:4: not YAML: *"])


def test_a_case_that_can_not_run_here_is_skipped_with_the_reason(run, pytester):
    changed(pytester, "[works, also-works]", "[lacks, works]")
    done = run("tiny.yaml", "-rs")
    done.assert_outcomes(skipped=1, passed=1)
    done.stdout.fnmatch_lines(["SKIPPED * tiny.yaml*: pretended to be unsupported on this machine"])
    assert sorted(statuses(only_run(pytester))) == ["measured", "measured", "unsupported"]


def test_a_suite_of_which_nothing_can_run_starts_nothing(run, pytester):
    changed(pytester, "[works, also-works]", "lacks")
    run("tiny.yaml").assert_outcomes(skipped=1)
    assert not (pytester.path / "reports").exists()


def test_a_failed_trial_fails_its_test_with_the_reason_the_rank_and_its_log(run, pytester):
    changed(pytester, "[works, also-works]", "[raises, works]")
    changed(pytester, "world_sizes: [1]", "world_sizes: [2]")
    done = run("tiny.yaml", "--junitxml=junit.xml")
    done.assert_outcomes(failed=1, passed=1)
    done.stdout.fnmatch_lines(
        [
            "crashed: rank 1 in time: RuntimeError: a pretended failure",
            "rank 1, in time, of pretended+raises/ws2/mb4/fp32 round 1",
            "log: *rank1.log",
            "rank 1 was here",
            "2 of its 2 trials failed",
            "FAILED tiny.yaml::pretended+raises/ws2/mb4/fp32 - *crashed: rank 1 in*",
        ]
    )
    assert "pytest_plugin" not in done.stdout.str()
    assert "\x1b[3" not in done.stdout.str()
    (failure,) = ElementTree.parse(pytester.path / "junit.xml").iter("failure")
    assert "a pretended failure" in failure.attrib["message"]


def test_a_folder_that_can_not_be_made_is_told_without_a_traceback(run, pytester):
    (pytester.path / "taken").write_text("")
    done = run("tiny.yaml", "--distbench-out=taken")
    done.assert_outcomes(errors=2)
    done.stdout.fnmatch_lines(["--out *taken: can't create a folder for the run: *"])
    assert "pytest_plugin" not in done.stdout.str()


def test_numbers_stand_in_junit_xml(run, pytester):
    run("tiny.yaml", "--junitxml=junit.xml", "-k", f"not {ALSO_WORKS}")
    found = {
        each.attrib["name"]: each.attrib["value"] for each in ElementTree.parse("junit.xml").iter("property")
    }
    assert float(found["step_s"]) == pytest.approx(0.1005)


def test_tests_of_the_project_run_in_between(run, pytester):
    """Tests may be put into any order; the run goes on where it was, in a session of its own."""
    pytester.makepyfile("def test_something(): pass")
    pytester.makeconftest(
        "def pytest_collection_modifyitems(items): items[:] = [items[0], items[2], items[1]]"
    )
    done = run("tiny.yaml", "test_tests_of_the_project_run_in_between.py", "-v")
    done.assert_outcomes(passed=3)
    assert only_run(pytester).info().state == "finished"
    assert pytest_output(pytester).count("open") == pytest_output(pytester).count("close") == 2
    assert done.stdout.str().count("report: ") == 1


def test_xdist_is_refused_for_suites_and_for_nothing_else(run, pytester):
    pytester.makeconftest("def pytest_configure(config): config.workerinput = {}")
    pytester.makepyfile(
        """
        def test_something(): pass
        def test_run(distbench_run): distbench_run("tiny.yaml")
        """
    )
    done = run("tiny.yaml")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["distbench: pytest-xdist *without -n*"])
    run("-k", "something").assert_outcomes(passed=1, deselected=1)
    run("-k", "test_run").assert_outcomes(failed=1, deselected=1)


def test_registered_twice_it_is_there_once(run, pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    entries = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["entry-points"][
        "pytest11"
    ]
    installed = pytester.path / "other-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    lines = "".join(f"{name} = {module}\n" for name, module in entries.items())
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{lines}")
    pytester.makeconftest(f"pytest_plugins = [{PLUGIN!r}]")
    run("tiny.yaml").assert_outcomes(passed=2)
    pytester.runpytest_subprocess("tiny.yaml").assert_outcomes(passed=2)


def test_pytest_starts_without_what_a_suite_needs(pytester):
    program = (
        f"import sys, pytest; before = set(sys.modules); import {PLUGIN}; print(*set(sys.modules) - before)"
    )
    done = pytester.run(sys.executable, "-c", program)
    assert done.ret == 0
    assert set(done.stdout.str().split()) == {"distbench", PLUGIN}


def test_the_time_limit_around_pytest_ends_it_after_the_trial_in_flight(run, pytester):
    hold = pytester.path / "hold"
    hold.write_text("hang")
    pytester.path.joinpath("held.yaml").write_text(held_by(str(hold)))
    process = started("held.yaml")
    reports = pytester.path / "reports"
    wait_for(lambda: list(reports.glob("*/trials/*/1/trial.json")), process)
    process.send_signal(signal.SIGUSR1)
    hold.unlink()
    shown = process.communicate()[0]
    assert process.returncode == EXIT_TIME_LIMIT, shown
    made = only_run(pytester)
    assert f"the time limit is near; resume with: distbench run --resume {made.folder}" in shown
    assert made.info().state == "interrupted"
    assert sorted(record["round"] for record in records(made)) == [0, 1]
    assert (made.folder / "report.html").is_file()


def test_ctrl_c_ends_the_trial_in_order_and_stops_pytest(run, pytester):
    changed(pytester, "[works, also-works]", "[works, hangs, also-works]")
    process = started("tiny.yaml")
    wait_for(lambda: "trial pretended+hangs 0" in (pytester.path / "told.txt").read_text(), process)
    process.send_signal(signal.SIGINT)
    shown = process.communicate()[0]
    assert process.returncode == pytest.ExitCode.INTERRUPTED, shown
    made = only_run(pytester)
    assert made.info().state == "interrupted"
    assert statuses(made) == ["cancelled", "measured", "measured"]
    assert f"distbench run --resume {made.folder}" in shown
    assert pytest_output(pytester)[-1] == "close"


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(seen: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        try:
            if seen():
                return
        except FileNotFoundError:
            pass
        time.sleep(0.05)
    pytest.fail(f"it ended before: {process.communicate()}")


def compare(*arguments: str | Path) -> str:
    """Return what the real ``pytest-benchmark compare`` prints."""
    command = [sys.executable, "-m", "pytest_benchmark", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def benchmarks(file: Path) -> dict[str, dict[str, Any]]:
    return {each["fullname"]: each for each in json.loads(file.read_text())["benchmarks"]}


def test_pytest_benchmark_gets_a_round_for_each_trial(run, pytester):
    run("tiny.yaml", "--benchmark-json=a.json").assert_outcomes(passed=2)
    found = benchmarks(pytester.path / "a.json")[f"tiny::{WORKS}"]
    assert found["stats"]["data"] == pytest.approx([0.1, 0.101])
    assert found["stats"]["rounds"] == 2
    assert found["stats"]["mean"] == pytest.approx(0.1005)
    assert found["stats"]["iterations"] == 4
    assert found["params"]["strategy"] == "pretended"
    assert found["params"]["world_size"] == 1
    # 8 samples of 64 tokens each step
    assert found["extra_info"]["tokens_per_s"] == pytest.approx(8 * 64 / 0.1005, rel=1e-3)
    assert found["extra_info"]["units"] == {"tokens_per_s": "tokens/s"}
    assert found["extra_info"]["absent"]["comm_bytes"] == "not measured"


def test_its_commands_compare_two_runs(run, pytester):
    run("tiny.yaml", "--benchmark-json=a.json", "-k", "also-works")
    run("tiny.yaml", "--benchmark-json=b.json", "-k", "also-works", *slow_down(0.2))
    shown = compare("compare", "a.json", "b.json", "--columns=mean,rounds")
    (first, second) = [line.split() for line in shown.splitlines() if line.startswith(ALSO_WORKS)]
    assert first[1:] == ["(a)", "100.5000", "(1.0)", "2"]
    assert second[1:] == ["(b)", "201.0000", "(2.00)", "2"]


def slow_down(step_s: float) -> list[str]:
    return ["--distbench-set", f"launcher.pretend.step_s={step_s}"]


def test_compare_fail_stops_what_is_slower_and_passes_what_is_not(run):
    asked = ["--benchmark-compare", "--benchmark-compare-fail=mean:5%"]
    assert run("tiny.yaml", "--benchmark-save=first").ret == 0
    assert run("tiny.yaml", *asked).ret == 0
    assert run("tiny.yaml", *slow_down(0.104), *asked).ret == 0
    done = run("tiny.yaml", *slow_down(0.106), *asked)
    assert done.ret != 0
    done.stderr.fnmatch_lines(["Performance has regressed:", f"*{WORKS}*Field 'mean' has failed *: 6.0*"])
    done.stdout.fnmatch_lines(["report: *"])


def test_a_disturbed_case_is_not_compared_and_no_comparison_passes_without_it(run, pytester):
    changed(pytester, "[steptime, throughput]", "[steptime, band]")
    done = run("tiny.yaml", "--benchmark-json=a.json")
    done.assert_outcomes(passed=2, warnings=2)
    done.stdout.fnmatch_lines(
        [f"*{WORKS}: not passed to pytest-benchmark: measured on a noisy machine*a marching band passed"]
    )
    assert not (pytester.path / "a.json").exists() or not (pytester.path / "a.json").read_text()
    done = run("tiny.yaml", "--benchmark-compare=none", "--benchmark-compare-fail=mean:5%")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines([f"{WORKS}: *; --benchmark-compare-fail has nothing to compare"])


@pytest.mark.parametrize(
    ("option", "outcome"),
    [
        ("--benchmark-only", {"passed": 2, "skipped": 1}),
        ("--benchmark-skip", {"passed": 1, "skipped": 2}),
        ("--benchmark-disable", {"passed": 3}),
        ("-pno:benchmark", {"passed": 3}),
    ],
)
def test_cases_are_benchmarks(run, pytester, option, outcome):
    test = pytester.makepyfile("def test_something(): pass")
    done = run("tiny.yaml", test, option)
    done.assert_outcomes(**outcome)


def stored(folder: Path, *records: Record) -> Run:
    return stored_run(folder, *records, suite={"name": "tiny", "measure": {"steps": 4, "trials": 2}})


def timed_records(of: Case, *seconds: float, degraded: str = "") -> list[Record]:
    columns = {
        **COLUMNS,
        "step_s": {"unit": "s", "better": "lower", "over_ranks": "max", "doc": "Time of a step."},
    }
    return [
        dataclasses.replace(measured(of, round_=i, step_s=value), columns=columns, degraded=degraded)
        for i, value in enumerate(seconds)
    ]


def test_a_run_is_exported_into_a_storage_of_pytest_benchmark(tmp_path, capsys):
    ddp, dp, fsdp = case("ddp"), case("dp"), case("fsdp\x1b[31m")
    run = stored(
        tmp_path, *timed_records(ddp, 0.3, 0.1), failed(dp), *timed_records(fsdp, 0.2, degraded="a band")
    )
    storage = tmp_path / "storage"
    assert main(["export", str(run.folder), "--to", "pytest-benchmark", "--into", str(storage)]) == 0
    said = capsys.readouterr()
    assert "1 benchmarks in " in said.out
    assert f"skipped: {dp.name}: crashed: no step time" in said.err
    assert "measured on a noisy machine: a band" in said.err
    assert "\x1b" not in said.err
    (file,) = storage.glob("*/0001_tiny-abcd1234.json")
    assert json.loads(file.read_text())["datetime"] == "2026-01-01T00:00:00+00:00"
    (found,) = benchmarks(file).values()
    assert found["stats"]["data"] == [0.3, 0.1]
    assert found["extra_info"]["memory_peak"] == 1e6
    shown = compare("--storage", storage, "compare", "--columns=min,mean,max,rounds")
    (line,) = [line.split() for line in shown.splitlines() if line.startswith(ddp.name)]
    assert line[-4:] == ["100.0000", "200.0000", "300.0000", "2"]


def test_what_was_exported_is_not_exported_again(tmp_path, capsys):
    run = stored(tmp_path, *timed_records(case("ddp"), 0.1))
    command = ["export", str(run.folder), "--to", "pytest-benchmark"]
    assert [main(command), main(command)] == [0, 2]
    assert "was exported before" in capsys.readouterr().err
    assert len(list(run.folder.glob("pytest-benchmark/*/*.json"))) == 1


def test_a_run_without_times_exports_nothing(tmp_path, capsys):
    run = stored(tmp_path, failed(case("ddp")))
    assert main(["export", str(run.folder), "--to", "pytest-benchmark"]) == 2
    assert "no case of this run has times" in capsys.readouterr().err
    assert not (run.folder / "pytest-benchmark").exists()


def test_an_exported_run_is_a_baseline_for_pytest(run, pytester):
    run("tiny.yaml").assert_outcomes(passed=2)
    folder = str(only_run(pytester).folder)
    done = call_outside(
        "export", folder, "--to", "pytest-benchmark", "--into", str(pytester.path / ".benchmarks")
    )
    assert done.returncode == 0, done.stderr
    asked = ["--benchmark-compare=0001", "--benchmark-compare-fail=mean:5%"]
    assert run("tiny.yaml", *asked).ret == 0
    assert run("tiny.yaml", *slow_down(0.2), *asked).ret != 0


def test_the_fixture_runs_a_suite_once_for_each_way_to_change_it(run, pytester):
    test = pytester.makepyfile(
        """
        import pytest
        from distbench.analysis.case_aggregation import summarize_cases
        from distbench.core.errors import SuiteError, UsageError

        def asked(distbench_run, **changes):
            return distbench_run("tiny.yaml", set=["measure.steps=2"], only=["pretended"], **changes)

        def test_numbers(distbench_run):
            run = asked(distbench_run)
            assert run.case("pretended").values["step_s"].trials == pytest.approx((0.1, 0.101))
            assert run.case("pretended/ws1/mb8/fp32") is run.case("pretended")
            assert len(run.records) == 2
            rows = summarize_cases(run.analysis.info, run.records)
            assert [row.case.label for row in rows] == ["pretended"]
            assert (run.folder / "run.json").is_file()

        def test_again(distbench_run):
            assert asked(distbench_run) is asked(distbench_run)
            assert asked(distbench_run, world_sizes=[2]) is not asked(distbench_run)

        def test_wrong(distbench_run):
            with pytest.raises(SuiteError, match="stepz"):
                distbench_run("tiny.yaml", set=["measure.stepz=2"])
            with pytest.raises(UsageError, match="Allowed: pretended"):
                asked(distbench_run).case("work")
        """
    )
    done = run(test)
    done.assert_outcomes(passed=3)
    assert pytest_output(pytester).count("open") == 2
    assert not (pytester.path / "reports").exists()


@pytest.mark.train
def test_real_ranks_are_measured_and_checked(run, pytester):
    pytester.path.joinpath("quick.yaml").write_text(QUICK + "strategies: [ddp, {planted: {bug: summed}}]\n")
    done = run(
        "quick.yaml", "--distbench-check", "--distbench-set=check.steps=4", "--distbench-set=device=cpu"
    )
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["equivalence: differs from step 0 on*"])
    jobs = [record["job"] for record in records(only_run(pytester))]
    made = [(job["kind"], job["options"].get("role")) for job in jobs]
    # the references of both cases are the same two trainings: with AdamW and with SGD
    assert made.count(("check", "reference")) == 2
    assert made.count(("check", "case")) == 4


@pytest.mark.train
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.deep)])
def test_a_stopped_pytest_leaves_no_rank(run, pytester, number):
    pytester.path.joinpath("quick.yaml").write_text(QUICK + "strategies: [ddp]\n")
    process = started("quick.yaml", "--distbench-set=measure.steps=100000")
    reports = pytester.path / "reports"
    wait_for(
        lambda: any("time" in file.read_text() for file in reports.glob("*/trials/*/0/*.progress")), process
    )
    run_id = only_run(pytester).info().run_id
    assert len(alive(run_id)) > 2
    process.send_signal(number)
    shown = process.communicate()[0]
    assert process.returncode == pytest.ExitCode.INTERRUPTED, shown
    assert not alive(run_id)
    assert only_run(pytester).info().state == "interrupted"
