"""A run folder is data, whoever wrote it: it hangs nobody, runs nothing and reaches nothing outside."""

import ast
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

import distbench
from distbench.cli import commands
from distbench.core import registry
from distbench.core.case import Case, PluginChoice
from distbench.core.errors import InfrastructureError, RecordError
from distbench.core.measurement import MeasureConfig
from distbench.core.serialization import MAX_JSON_VALUES
from distbench.gate import calibration
from distbench.gate.launch_failures import FailureLog
from distbench.record import Status, parquet
from distbench.record.run_folder import Run, write_json
from distbench.system import files
from support.fault_table import Drill
from support.fuzzing import COMMANDS, MOST_BYTES, MOST_SECONDS, QUICK_ONES, attacks
from support.pretended_suites import SUITE
from support.records import case, contradictory_records, failed, info, measured, stored_run
from support.runs import QUICK, Done, call, run_in

CODE = '1); __import__("os").system("touch PWNED"); print(1'


@pytest.fixture
def run(tmp_path) -> Run:
    return stored_run(tmp_path / "runs", measured(case()))


def record_of(run: Run) -> Path:
    (file,) = run.folder.glob("trials/*/0/record.json")
    return file


def changed(file: Path, *keys: str, to: Any) -> None:
    """Put *to* in the place that *keys* lead to in a file of JSON."""
    data = inner = json.loads(file.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    file.write_text(json.dumps(data))


def test_no_reader_imports_a_plugin_that_a_record_names(tmp_path, monkeypatch):
    (folder := tmp_path / "plugins" / "strategies").mkdir(parents=True)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')\n")
    monkeypatch.setenv(registry.PLUGIN_PATH_VARIABLE, str(tmp_path / "plugins"))
    assert "evil" in registry.plugin_names("strategies")
    evil = case("evil", strategy=PluginChoice("evil"))
    full = failed(evil, "rank 0: out of memory", status=Status.OOM_GPU)
    run = stored_run(tmp_path / "runs", measured(case()), measured(case(), round_=1), full)
    for command in ("show", "report", "pick", "check"):
        done = call(command, str(run.folder))
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "PWNED").exists(), command


@contextmanager
def run_within_limits(seconds: float = MOST_SECONDS) -> Iterator[None]:
    """Fail if the body waits for longer; what never returns is interrupted."""

    def late(*_: object) -> None:
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(drill: Drill, *words: str) -> Done:
    """Call a command that should tell what it can't read, and at once."""
    began = time.monotonic()
    with run_within_limits():
        done = call(*words)
    drill.noticed(time.monotonic() - began)
    drill.seen(done.stderr)
    assert "Traceback" not in done.stderr
    return done


def named_pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def zero_file(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/dev/zero")


def sparse_file(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(1 << 40)


OTHER_FILES = {"a FIFO": named_pipe, "a link to /dev/zero": zero_file, "a file of 1 TiB": sparse_file}


@pytest.mark.parametrize("name", ["record.json", "samples.parquet", "run.json"])
@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=pytest.mark.drill(f"in place of a run's file: {what}"))
        for what in OTHER_FILES
    ],
)
def test_what_is_no_regular_file_of_a_size_that_is_read_is_named(run, drill, name, what):
    file = run.folder / name if name == "run.json" else record_of(run).with_name(name)
    OTHER_FILES[what](file)
    done = refused(drill, "show", str(run.folder))
    assert name in done.stderr
    told = {
        named_pipe: "not a regular file",
        zero_file: "a symbolic link, which is not followed",
        sparse_file: "larger than",
    }
    assert told[OTHER_FILES[what]] in done.stderr


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["round", "case", "kind"])
@pytest.mark.drill("a folder of trials that is a link out of the run")
def test_a_folder_of_trials_that_is_a_link_is_not_followed(run, tmp_path, drill, depth):
    folder = list(record_of(run).parents)[depth]
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    done = refused(drill, "show", str(run.folder))
    assert "is a symbolic link, which is not followed" in done.stderr


@pytest.mark.drill("plan of a suite that is a FIFO")
def test_a_suite_that_is_no_regular_file_is_refused(tmp_path, drill):
    named_pipe(tmp_path / "suite.yaml")
    done = refused(drill, "plan", str(tmp_path / "suite.yaml"))
    assert (done.returncode, "not a regular file" in done.stderr) == (2, True)


def test_a_suite_may_be_a_link_for_its_user_has_named_it(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "workload: mlp\nbatch: {global_batch_size: 8}\nstrategies: [single]\n"
    )
    (tmp_path / "link.yaml").symlink_to("mine.yaml")
    assert call("plan", str(tmp_path / "link.yaml")).returncode == 0


@pytest.mark.drill("samples of 3,000,000,000 ranks in a small record")
@pytest.mark.parametrize("world_size", [2, 3_000_000_000])
def test_samples_of_more_ranks_than_there_can_be_are_refused(run, drill, world_size):
    changed(record_of(run), "samples", "ranks", "loss", to=3_000_000_000)
    changed(record_of(run), "case", "world_size", to=world_size)
    done = refused(drill, "show", str(run.folder))
    assert "record.json: " in done.stderr


def test_lists_of_as_many_ranks_as_a_case_can_have_are_refused_in_thousands(run):
    changed(record_of(run), "samples", "ranks", to={f"column {i}": 1_000_000 for i in range(1000)})
    changed(record_of(run), "case", "world_size", to=1_000_000)
    with pytest.raises(RecordError, match="more than 2,000,000 lists"):
        run.record(case(), 0)


WRONG = {
    "a column described by a number": (("columns", "loss"), 5),
    "a column described in other words": (("columns", "loss", "better"), "faster"),
    "a value that is text": (("values", "tokens_per_s"), "fast"),
    "a value of a thousand digits": (("values", "tokens_per_s"), 10**1000),
    "a format that is true": (("format",), True),
    "a status of another world": (("status",), "splendid"),
    "threads that are code": (("case", "threads"), CODE),
    "a world size of none": (("case", "world_size"), 0),
    "a learning rate that is no number": (("case", "optimizer", "lr"), float("nan")),
    "settings a thousand levels deep": (("effective", "x"), json.loads("[" * 900 + "]" * 900)),
    "a job of no kind": (("job",), {"options": []}),
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.drill(f"in a record: {what}")) for what in WRONG]
)
def test_a_record_of_other_types_is_refused_by_file_and_key(run, drill, what):
    keys, value = WRONG[what]
    changed(record_of(run), *keys, to=value)
    done = refused(drill, "show", str(run.folder))
    assert f"{record_of(run).parent.name}/record.json: " in done.stderr
    assert keys[0] in done.stderr or "digits" in done.stderr


@pytest.mark.drill("a record of a million empty lists")
def test_a_file_of_more_values_than_any_run_has_is_refused_before_it_is_parsed(run, drill):
    record_of(run).write_text("[" + "[]," * MAX_JSON_VALUES + "[]]")
    assert f"more than {MAX_JSON_VALUES:,} values" in refused(drill, "show", str(run.folder)).stderr


def decompression_bomb(file: Path, query: str) -> None:
    """Put a small Parquet file in the place of *file* that stands for gigabytes, with a digest that fits."""
    duckdb.execute(f"copy ({query}) to '{file}' (format parquet, compression zstd)")
    assert file.stat().st_size < 1 << 20
    changed(file.with_name("record.json"), "samples", "sha256", to=files.sha256_bounded(file, 1 << 20))


SAMPLE = "select 'loss' as name, 0::bigint as rank, 0 as step, 1.0::double as value"
BOMBS = {
    "5 million samples in a few KB": f"{SAMPLE} from range(5000000)",
    "a name of 200 MB in 8 KB": "select repeat('x', 200000000) as name, 0 as rank, 0 as step, 1.0 as value",
    "samples of rank -1": f"{SAMPLE.replace('0::bigint', '-1::bigint')} from range(3)",
    "samples without ranks": "select 'loss' as name, 1.0 as value",
    "samples that are text": f"{SAMPLE.replace('1.0::double', repr('one'))} from range(3)",
}


@pytest.mark.parametrize("what", [pytest.param(w, marks=pytest.mark.drill(f"Parquet: {w}")) for w in BOMBS])
def test_a_parquet_file_that_is_not_what_its_record_says_loses_its_trial(run, drill, what):
    decompression_bomb(record_of(run).with_name("samples.parquet"), BOMBS[what])
    run.write_record(measured(case(), round_=1))
    done = refused(drill, "show", str(run.folder), "--json")
    assert (done.returncode, "0/samples.parquet: " in done.stderr) == (0, True)
    shown = json.loads(done.stdout)
    assert [each["trials"] for each in shown["cases"]] == [1]
    assert [each["trial"].rpartition("/")[2] for each in shown["damaged"]] == ["0"]


def test_a_text_that_a_parquet_file_repeats_is_read_to_a_length_that_fits(tmp_path):
    text = tmp_path / "text.parquet"
    duckdb.execute(
        f"copy (select repeat('x', 100000) as op, 1 as n from range(3)) to '{text}' (format parquet)"
    )
    assert {len(value) for value in parquet.read(text)[0].values} == {parquet.MAX_CELL_TEXT}


@pytest.mark.drill("links laid where a report is written first")
def test_nothing_is_written_through_a_link_that_somebody_laid(run, tmp_path, drill):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    trial = record_of(run).parent
    targets = (
        run.folder / "report.html",
        run.folder / "run.json",
        trial / "samples.parquet",
        trial / "record.json",
    )
    for file in targets:
        for name in (f".{file.name}.{os.getpid()}", f".{file.name}", f"tmp_{file.name}", f"{file.name}.tmp"):
            file.with_name(name).symlink_to(victim)
    assert call("report", str(run.folder)).returncode == 0
    run.write_record(measured(case()))
    run.write_info(info(case()))
    assert victim.read_text() == "precious"
    assert not any(file.is_symlink() for file in targets)
    drill.seen("the report; the file that the links lead to is as it was")


def test_a_link_in_place_of_a_file_is_replaced_and_what_it_leads_to_stays(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "report.html").symlink_to("victim")
    files.write_atomic(tmp_path / "report.html", "new")
    assert ((tmp_path / "victim").read_text(), (tmp_path / "report.html").read_text()) == ("precious", "new")
    assert {file.name for file in tmp_path.iterdir()} == {"victim", "report.html"}


@pytest.mark.drill("export into a folder of the run that is a link out of it")
def test_an_export_does_not_leave_the_run_by_a_link(run, tmp_path, drill):
    (tmp_path / "elsewhere").mkdir()
    (run.folder / "pytest-benchmark").symlink_to(tmp_path / "elsewhere")
    run.write_record(dataclasses.replace(measured(case(), step_s=0.1)))
    done = refused(drill, "export", str(run.folder), "--to", "pytest-benchmark")
    assert (done.returncode, "--into" in done.stderr) == (2, True)
    assert not list((tmp_path / "elsewhere").iterdir())


def case_with_options(strategy: str, **options: Any) -> Case:
    return case(strategy, strategy=PluginChoice(strategy, options))


INJECTIONS = {
    "threads": ("torch", dataclasses.replace(case(), threads=CODE)),  # type: ignore[arg-type]
    "seed": ("torch", dataclasses.replace(case(), seed=CODE)),  # type: ignore[arg-type]
    "world size": ("torch", dataclasses.replace(case("dp"), world_size=CODE)),  # type: ignore[arg-type]
    "device": ("torch", dataclasses.replace(case(), device=CODE)),  # type: ignore[arg-type]
    "an option of ddp": ("torch", case_with_options("ddp", static_graph=CODE)),
    "an option of ddp, for Accelerate": (
        "accelerate",
        case_with_options("ddp", gradient_as_bucket_view=CODE),
    ),
    "an option of fsdp": ("torch", case_with_options("fsdp", reshard_root=CODE)),
    "the replicas of fsdp": ("torch", case_with_options("fsdp", sharding="hybrid", replicas=CODE)),
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.drill(f"adopt: code as {what}")) for what in INJECTIONS]
)
def test_no_value_of_a_record_becomes_code(tmp_path, drill, what):
    tool, hostile = INJECTIONS[what]
    run = Run.create(tmp_path, info(hostile), "")
    run.write_record(measured(dataclasses.replace(hostile, world_size=2)))
    (record,) = run.folder.glob("trials/*/0/record.json")
    changed(record, "case", "world_size", to=hostile.world_size)
    done = refused(drill, "adopt", str(run.folder), hostile.label, "--as", tool)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_script_calls_the_same_whatever_its_case_is_called(tmp_path):
    def calls(name: str) -> list[str]:
        run = stored_run(tmp_path / str(len(name)), measured(case(name=name)))
        done = call("adopt", str(run.folder), "ddp", "--as", "torch", "--json")
        (script,) = json.loads(done.stdout)["files"].values()
        return [ast.unparse(node.func) for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]

    assert calls(f'\n{CODE}\n"""{CODE}\r\x0c{CODE}\u2028{CODE}') == calls("ddp")


FORMULA = "=cmd|' /C calc'!A0"


@pytest.mark.drill("a case called =cmd|... as CSV")
@pytest.mark.parametrize("words", [("query", "select case_name, world_size from cases"), ("show",)])
def test_no_cell_of_csv_is_a_formula(tmp_path, drill, words):
    run = stored_run(tmp_path, measured(case(name=FORMULA)))
    form = ("--format", "csv") if words[0] == "query" else ("--csv",)
    done = refused(drill, *words, str(run.folder), *form)
    assert done.returncode == 0
    assert f"'{FORMULA}" in done.stdout
    assert FORMULA not in done.stdout.replace(f"'{FORMULA}", "")


def test_a_number_below_zero_stays_a_number_in_csv(run):
    done = call("query", "select -1.5::double as x, '-1' as y", str(run.folder), "--format", "csv")
    assert done.stdout.splitlines() == ["x,y", "-1.5,'-1"]


@pytest.mark.drill("a case called <img ...>, [link](...) and @everyone as Markdown")
def test_a_name_makes_no_markup_in_the_answer_of_a_query(tmp_path, drill):
    name = "<img src=x> [x](https://example.org) @everyone a|b"
    run = stored_run(tmp_path, measured(case(name=name)))
    done = refused(
        drill, "query", "select case_name as '<b>' from cases", str(run.folder), "--format", "markdown"
    )
    head, _, row = done.stdout.splitlines()
    for mark in ("<", "](", "://", "@", "a|b"):
        assert mark not in head + row


def test_a_long_text_is_kept_in_part_with_the_place_of_the_whole(run):
    long = "M" * 50_000_000
    run.write_record(failed(case("fsdp"), long, traceback=long, log=long))
    (file,) = run.folder.glob("trials/fsdp*/0/record.json")
    assert file.stat().st_size < 1 << 20
    stored = run.record(case("fsdp"), 0)
    assert stored.failure is not None
    for text in (stored.reason, stored.failure.traceback, stored.failure.log):
        assert "of 50,000,000 characters omitted; see the logs" in text


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.drill("a rank raises with a message of 50 MB")
def test_a_message_of_any_length_is_clipped_in_its_rank(tmp_path, drill):
    text = QUICK.replace("small:Small", "small:RaisesAtLength")
    began = time.monotonic()
    finished = run_in(tmp_path, f"{text}strategies: [ddp]\n")
    drill.noticed(time.monotonic() - began)
    record = finished.record("ddp")
    drill.seen(record["reason"])
    assert record["status"] == "crashed"
    assert "the full text is in rank1.log" in record["reason"]
    folder = next(finished.folder.glob("trials/*/0"))
    assert all(file.stat().st_size < 1 << 20 for file in folder.glob("*.json"))
    assert (folder / "rank1.log").stat().st_size > 50_000_000
    assert "of rank1.log]" in record["failure"]["log"]


@pytest.mark.drill("the disk fills up while samples are written")
def test_a_full_disk_is_told_as_what_it_is(run, monkeypatch, drill):
    told = '{"exception_type":"IO","exception_message":"Could not write file","errno":"28"}'

    class Full:
        def execute(self, *_: object) -> None:
            raise duckdb.IOException(f"IO Error: Async write failed for range [offset=0, size=37]: {told}")

    monkeypatch.setattr(parquet, "_connection", Full)
    with pytest.raises(InfrastructureError, match="No space left on device") as caught:
        run.write_record(measured(case("fsdp")))
    drill.seen(str(caught.value))
    assert "exception_type" not in str(caught.value)
    assert "--resume" in str(caught.value)


ENTRY = {"arm": 0, "case_id": "x", "round": 0, "started": "", "how": "crashed"}


@pytest.mark.parametrize("entries", [7, [7], {"a": 1}, [{**ENTRY, "arm": "x"}], [{"arm": 1}]])
@pytest.mark.drill("failures.json of a gate with other types")
def test_the_log_of_failures_of_a_gate_has_its_types(tmp_path, entries):
    write_json(tmp_path / "failures.json", entries)
    with pytest.raises(RecordError, match=r"failures\.json: "):
        FailureLog(tmp_path / "failures.json")


def test_the_log_of_failures_of_a_gate_is_read_back(tmp_path):
    file = tmp_path / "failures.json"
    FailureLog(file).add(1, failed(case()))
    assert FailureLog(file).take_unreported(1, case().id, 0) == ["crashed: rank 1 in time: RuntimeError: no"]


@pytest.mark.parametrize(
    "spoilt",
    [named_pipe, zero_file, sparse_file, lambda file: file.write_text('{"format": 1, "cases": {"x": 5}}')],
)
@pytest.mark.drill("a calibration that is no file, or no calibration")
def test_a_calibration_that_can_not_be_read_is_none(tmp_path, monkeypatch, spoilt):
    monkeypatch.setenv("DISTBENCH_CACHE", str(tmp_path))
    file = calibration.calibration_file()
    file.parent.mkdir(parents=True)
    spoilt(file)
    with run_within_limits():
        assert calibration.load_calibrations(MeasureConfig()) == {}


@pytest.mark.drill("records that contradict each other")
def test_records_that_contradict_each_other_are_told_with_the_place_in_the_code(run, drill):
    contradictory_records(run)
    done = refused(drill, "show", str(run.folder))
    assert (done.returncode, done.stdout) == (2, "")
    (told,) = done.stderr.splitlines()
    assert re.search(r"the records in checks of run \w+ are inconsistent: KeyError: ", told)
    (place,) = re.findall(r"\(in distbench/(\S+):\d+\)", told)
    assert (Path(distbench.__file__).parent / place).is_file()
    # from here, nobody can know which
    assert (
        "if distbench check RUN finds no damaged file, this is a bug in distbench: please report it" in told
    )


@pytest.mark.drill("distbench check of a run whose records contradict each other")
def test_check_finds_records_that_contradict_each_other(run, drill):
    assert json.loads(call("check", str(run.folder), "--json").stdout)["contradiction"] == ""
    contradictory_records(run)
    done = call("check", str(run.folder))
    drill.seen(done.stdout)
    assert done.returncode == 1
    assert re.search(r"the records in checks of run \w+ are inconsistent: KeyError: ", done.stdout)
    said = call("check", str(run.folder), "--json")
    answer = json.loads(said.stdout)
    assert (said.returncode, answer["sound"], answer["damaged"]) == (1, False, [])
    assert "are inconsistent: KeyError: " in answer["contradiction"]


@pytest.mark.drill("a run among others whose records contradict each other")
def test_one_of_several_runs_that_contradicts_itself_is_left_out_by_name(run, tmp_path, drill):
    stored_run(run.folder.parent, measured(case("ddp")), run_id="eeee5555")
    contradictory_records(run)
    done = call("query", "select run_id from view_strategies", "--out", str(run.folder.parent), "--json")
    drill.seen(done.stderr)
    assert (done.returncode, json.loads(done.stdout)) == (0, [{"run_id": "eeee5555"}])
    (warning,) = done.stderr.splitlines()
    assert f"skipping {run.folder} in views: the records in checks of run " in warning
    alone = call("query", "select run_id from view_strategies", str(run.folder))
    assert (alone.returncode, "are inconsistent: KeyError" in alone.stderr) == (2, True)
    (warning,) = call("history", str(run.folder.parent)).stderr.splitlines()
    assert f"skipping a run: {run.folder}: the records in checks of run " in warning


@pytest.mark.drill("gate --baseline RUN, whose records contradict each other")
def test_a_baseline_that_can_not_be_read_is_told_before_anything_is_launched(run, tmp_path, drill):
    contradictory_records(run)
    (tmp_path / "suite.yaml").write_text(SUITE)
    words = ("--baseline", str(run.folder), "--out", str(tmp_path / "out"))
    done = refused(drill, "gate", str(tmp_path / "suite.yaml"), *words)
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False)
    assert "are inconsistent" in done.stderr


LAUNCHING_COMMANDS = {
    "init",
    "completion",
    "run",
    "measure",
    "gate",
    "calibrate",
    "prepare",
    "plan",
    "list",
    "doctor",
    "collectives",
    "probe",
    "tune",
    "launch",
    "attach",
}
"""Commands that end in a traceback by a mistake of distbench: what they show, they have made themselves."""


def test_every_command_reads_runs_as_anybodys_or_is_one_that_launches():
    sources = {
        file.stem.rstrip("_"): file.read_text() for file in Path(commands.__path__[0]).glob("[!_]*.py")
    }
    readers = {name for name, source in sources.items() if "@reads_runs\n" in source}
    # traces are no runs: unit/traces/test_hostile_traces.py
    assert readers == sources.keys() - LAUNCHING_COMMANDS - {"trace"}
    assert readers == {command.words[0] for command in COMMANDS}, "fuzzing.py tries them all"


def test_random_changes_come_to_an_answer_or_a_message(tmp_path):
    assert attacks(100, tmp_path, seed=14, commands=QUICK_ONES).changes == 100


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.drill("10,000 random changes of runs, gates and a calibration, each read by a command")
def test_ten_thousand_random_changes_come_to_an_answer_or_a_message(drill):
    script = Path(__file__).parents[2] / "support" / "fuzzing.py"
    # one for each of the processors that CI has
    started = [
        subprocess.Popen([sys.executable, script, str(seed), "5000"], stdout=subprocess.PIPE, text=True)
        for seed in (1, 2)
    ]
    results = [json.loads(process.communicate()[0]) for process in started]
    slowest, peak = max(each["slowest"] for each in results), max(each["peak"] for each in results)
    few = sum(each["refused"] for each in results)
    drill.seen(f"{few:,} of 10,000 refused; the slowest took {slowest:.1f} s; {peak >> 20} MiB at the peak")
    assert sum(each["changes"] for each in results) == 10_000
    assert peak < MOST_BYTES
