"""One damaged file loses one trial: the others are shown, compared, queried, gated against and resumed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distbench.core.errors import UsageError
from distbench.record import FORMAT_VERSION, parquet
from distbench.record.run_folder import Run
from distbench.record.verification import quarantine_trial
from support.fuzzing import describe
from support.pretended_suites import SUITE
from support.runs import call
from support.stored_runs import SAMPLE

FROZEN = Path(__file__).parents[2] / "frozen" / "run"
FIRST, ALONE = "pretended-ws1", "pretended+also-works"


@pytest.fixture(scope="module")
def intact_run(tmp_path_factory) -> Path:
    """Folder with one run of three trials of each of two cases."""
    folder = tmp_path_factory.mktemp("pristine")
    (folder / "suite.yaml").write_text(SUITE)
    done = call("run", str(folder / "suite.yaml"), "--out", str(folder), "--quiet")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def run(intact_run, tmp_path) -> Run:
    (folder,) = (file.parent for file in intact_run.glob("*/run.json"))
    return Run(Path(shutil.copytree(folder, tmp_path / "runs" / folder.name)))


def trial(run: Run, label: str = FIRST, round_: int = 1) -> Path:
    (folder,) = (each for each in run.folder.glob(f"trials/*/{round_}") if each.parent.name.startswith(label))
    return folder


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(bytes(content))


def replace_content(content: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(content)


def with_newer_format(file: Path) -> None:
    file.write_text(
        file.read_text().replace(f'"format": {FORMAT_VERSION}', f'"format": {FORMAT_VERSION + 1}', 1)
    )


def replace_by_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


DAMAGES = [
    pytest.param("record.json", truncate, marks=pytest.mark.drill("a record is cut short")),
    pytest.param("record.json", replace_content(b""), marks=pytest.mark.drill("a record is empty")),
    pytest.param(
        "record.json", replace_content(b"[" * 9999), marks=pytest.mark.drill("a record nests too deeply")
    ),
    pytest.param(
        "record.json", replace_content(b"\xff\xfe"), marks=pytest.mark.drill("a record is not UTF-8")
    ),
    pytest.param("samples.parquet", flip_byte, marks=pytest.mark.drill("a byte of the samples is flipped")),
    pytest.param("samples.parquet", Path.unlink, marks=pytest.mark.drill("the samples are missing")),
]
TITLES = ["cut", "empty", "deep", "not text", "flipped", "missing"]


@pytest.mark.parametrize(("name", "harm"), DAMAGES, ids=TITLES)
def test_a_damaged_file_loses_one_trial_until_it_is_measured_again(run, drill, name, harm):
    harm(trial(run) / name)
    shown = call("show", str(run.folder), "--json")
    drill.seen(shown.stderr)
    (case, _) = json.loads(shown.stdout)["cases"]
    assert (shown.returncode, case["trials"], case["status"]) == (0, 2, "measured")
    (damaged,) = json.loads(shown.stdout)["damaged"]
    assert damaged["trial"] == trial(run).relative_to(run.folder).as_posix()
    assert name in damaged["problem"]
    assert f"{damaged['trial']}/{name}" in shown.stderr
    assert f"see distbench check {run.folder}" in shown.stderr
    # what is damaged may be all that is left of it: it is not overwritten unless somebody says so
    kept = sorted(trial(run).iterdir())
    assert call("run", "--resume", str(run.folder)).returncode == 1
    assert sorted(trial(run).iterdir()) == kept
    repaired = call("check", str(run.folder), "--repair")
    assert repaired.returncode == 0, repaired.stdout
    assert run.info().state == "interrupted"
    assert [entry.name for entry in (run.folder / "damaged").iterdir()] == [
        damaged["trial"].replace("/", "-")
    ]
    resumed = call("run", "--resume", str(run.folder))
    assert resumed.returncode == 0, resumed.stderr
    assert "[1/1]" in resumed.stderr, "only what was damaged is measured again"
    assert call("check", str(run.folder)).returncode == 0


def reading_commands(run: Run, other: Run) -> dict[str, tuple[str, ...]]:
    """Each command that reads a run, and what it is given."""
    folder = str(run.folder)
    return {
        "show": (folder,),
        "show --csv": (folder, "--csv"),
        "show --view": (folder, "--view", "time"),
        "report": (folder,),
        "pick": (folder,),
        "compare": (str(other.folder), folder),
        "query": ("select count(*) as n from trials", folder, "--format", "csv"),
        "export": (folder, "--to", "pytest-benchmark"),
    }


@pytest.mark.drill("every command that reads a run, with a damaged record in it")
def test_every_command_goes_on_with_the_rest_and_names_what_is_damaged(run, intact_run, drill):
    flip_byte(trial(run) / "samples.parquet")
    (other,) = (Run(file.parent) for file in intact_run.glob("*/run.json"))
    commands = reading_commands(run, other)
    assert commands
    for command, arguments in commands.items():
        done = call(*command.split()[:1], *arguments)
        named = trial(run).relative_to(run.folder).as_posix()
        assert f"{named}/samples.parquet: corrupt" in done.stderr, (command, done)
        assert "Traceback" not in done.stderr
        assert done.returncode == 0, (command, done)
    drill.seen(done.stderr)


WRONG_CONTENT = {"other columns": {"x": [1]}, "numbers as texts": {"phase": ["backward"], "rank": ["zero"]}}


@pytest.mark.parametrize(
    "what",
    [pytest.param(w, marks=pytest.mark.drill(f"a table with its checksum, but {w}")) for w in WRONG_CONTENT],
)
def test_a_table_of_other_content_than_its_record_says_loses_one_trial(tmp_path, drill, what):
    folder = Path(shutil.copytree(FROZEN, tmp_path / "run"))
    file = sorted(folder.glob("trials/ddp-*/0/memory.parquet"))[0]
    parquet.write(file, WRONG_CONTENT[what], {})
    describe(file)
    named = file.relative_to(folder).as_posix()
    done = call("show", str(folder), "--view", "memory")
    drill.seen(done.stderr)
    assert (done.returncode, named in done.stderr) == (0, True), done
    assert "1 trial is damaged and skipped" in done.stderr
    # damage that is seen at once is told together with what is only seen when the table is parsed
    (other,) = folder.glob("trials/ddp-*/1/record.json")
    whole = other.read_text()
    other.write_text("{")
    done = call("show", str(folder), "--view", "memory")
    assert done.stderr.count("damaged and skipped") == 1, done.stderr
    assert "2 trials are damaged and skipped" in done.stderr
    other.write_text(whole)
    assert f"damaged  {named}: " in call("check", str(folder)).stdout
    assert "set aside: damaged/" in call("check", str(folder), "--repair").stdout


def test_programs_are_told_what_is_damaged(run, intact_run):
    flip_byte(trial(run) / "samples.parquet")
    (other,) = (str(file.parent) for file in intact_run.glob("*/run.json"))
    folder, out = str(run.folder), str(run.folder.parent)
    named = trial(run).relative_to(run.folder).as_posix()

    def told(*arguments: str) -> Any:
        return json.loads(call(*arguments, "--json").stdout)

    for said in (
        told("pick", folder),
        told("show", folder, "--view", "time"),
        told("compare", other, folder)[0],
        told("history", out)[0],
    ):
        assert [each["trial"] for each in said["damaged"]] == [named]
    assert told("query", "select trials, damaged from runs", folder) == [{"trials": 5, "damaged": 1}]


def test_a_case_of_a_run_with_a_damaged_trial_is_adopted_with_a_warning(tmp_path):
    run = Run(Path(shutil.copytree(FROZEN, tmp_path / "run")))
    file = sorted(run.folder.glob("trials/single-*/*/record.json"))[0]
    truncate(file)
    done = call("adopt", str(run.folder), "ddp", "--as", "torch", "--json")
    (warning,) = (each for each in json.loads(done.stdout)["warnings"] if "damaged" in each)
    assert str(file.relative_to(run.folder)) in warning and warning in done.stderr


@pytest.mark.drill("history over a run with a damaged record")
def test_a_history_has_the_run_with_what_is_sound_of_it(run, drill):
    flip_byte(trial(run) / "samples.parquet")
    done = call("history", str(run.folder.parent), "--json")
    drill.seen(done.stderr)
    assert f"1 trial is damaged and skipped: {trial(run).relative_to(run.folder)}" in done.stderr
    (shown,) = json.loads(done.stdout)
    assert {series["case"]: series["points"][0]["trials"] for series in shown["series"]} == {
        "pretended/ws1/mb8/fp32": 2,
        "pretended+also-works/ws1/mb8/fp32": 3,
    }


@pytest.mark.drill("gate --baseline RUN, with a damaged record in it")
def test_a_baseline_with_a_damaged_trial_is_compared_with_and_the_result_says_so(run, tmp_path, drill):
    truncate(trial(run) / "record.json")
    (tmp_path / "suite.yaml").write_text(SUITE)
    words = ("--baseline", str(run.folder), "--out", str(tmp_path / "out"), "--json", "--quiet")
    done = call("gate", str(tmp_path / "suite.yaml"), *words)
    drill.seen(done.stderr)
    result = json.loads(done.stdout)
    assert {case["case"]: bool(case["findings"]) for case in result["cases"]} == {
        "pretended/ws1/mb8/fp32": True,
        "pretended+also-works/ws1/mb8/fp32": True,
    }
    assert any(note.startswith("baseline: 1 trial is damaged") for note in result["notes"])


def test_a_case_without_a_sound_trial_is_damaged_and_not_pending(run):
    for round_ in range(3):
        truncate(trial(run, ALONE, round_) / "record.json")
    shown = json.loads(call("show", str(run.folder), "--json").stdout)["cases"][1]
    assert shown["status"] == "damaged"
    assert "record.json: corrupt" in shown["reason"]
    assert "3 trials are damaged and skipped" in call("show", str(run.folder)).stdout
    assert call("report", str(run.folder)).returncode == 0


def test_a_record_of_a_later_version_is_left_out_and_stays_where_it_is(run):
    with_newer_format(trial(run) / "record.json")
    assert "1 trial is of another format and skipped" in call("show", str(run.folder)).stderr
    repaired = call("check", str(run.folder), "--repair")
    assert repaired.returncode == 1
    assert "written by a newer distbench" in repaired.stdout
    assert trial(run).is_dir()


@pytest.mark.drill("distbench check of a folder with all sorts of damage")
def test_check_names_each_file_that_is_not_sound(run, drill):
    flip_byte(trial(run, round_=0) / "samples.parquet")
    (trial(run, round_=1) / "samples.parquet").unlink()
    replace_by_link(trial(run, round_=2) / "record.json")
    (trial(run, ALONE, 0) / "record.json").unlink()
    (trial(run, ALONE, 1) / "mine.parquet").touch()
    (run.folder / "notes.txt").touch()
    done = call("check", str(run.folder), "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["sound"]) == (1, False)
    found = {each["file"]: each["state"] for each in said["files"]}
    expected = {
        trial(run, round_=0) / "samples.parquet": "damaged",
        trial(run, round_=1) / "samples.parquet": "missing",
        trial(run, round_=2) / "record.json": "damaged",
        trial(run, ALONE, 0) / "record.json": "missing",
        trial(run, ALONE, 1) / "mine.parquet": "foreign",
        run.folder / "notes.txt": "foreign",
    }
    named = {file.relative_to(run.folder).as_posix(): state for file, state in expected.items()}
    assert {file: state for file, state in found.items() if state not in ("sound", "unverified")} == named
    assert len(said["damaged"]) == 3, "a trial that has not ended is not damaged"
    told = call("check", str(run.folder))
    drill.seen(told.stdout)
    assert "To measure them again, first run: distbench check" in told.stdout


def test_a_sound_run_has_nothing_to_repair(run, intact_run):
    before = sorted(run.folder.rglob("*"))
    done = call("check", str(run.folder), "--repair")
    assert done.returncode == 0, done.stdout
    assert sorted(run.folder.rglob("*")) == before
    assert run.info().state == "finished"


@pytest.mark.parametrize("harm", [truncate, Path.unlink, replace_by_link], ids=["cut", "missing", "linked"])
@pytest.mark.drill("run.json is damaged")
def test_a_run_without_its_description_is_shown_as_its_records_tell(run, drill, harm):
    before = json.loads(call("show", str(run.folder), "--json").stdout)
    harm(run.folder / "run.json")
    shown = call("show", str(run.folder), "--json")
    drill.seen(shown.stderr)
    assert shown.returncode == 0
    assert "run.json: " in shown.stderr and "using the records instead" in shown.stderr
    now = json.loads(shown.stdout)
    assert [each["trial"] for each in now["damaged"]] == ["run.json"]
    for key in ("run_id", "suite"):
        assert now[key] == before[key]
    assert sorted(now["cases"], key=str) == sorted(before["cases"], key=str)


def test_every_command_reads_a_run_without_its_description(run, intact_run):
    truncate(run.folder / "run.json")
    (other,) = (Run(file.parent) for file in intact_run.glob("*/run.json"))
    for command, arguments in reading_commands(run, other).items():
        done = call(*command.split()[:1], *arguments)
        assert "run.json: corrupt" in done.stderr, (command, done)
        # how many steps a trial had is not in the records
        assert done.returncode == (2 if command == "export" else 0), (command, done)
    assert "skipping a run: " in call("history", str(run.folder.parent)).stderr


@pytest.mark.drill("run.json is damaged, and the run is resumed")
def test_a_run_without_its_description_is_resumed_after_a_repair(run, drill):
    shutil.rmtree(trial(run))
    truncate(run.folder / "run.json")
    refused = call("run", "--resume", str(run.folder))
    drill.seen(refused.stderr)
    assert (refused.returncode, f"distbench check {run.folder} --repair" in refused.stderr) == (2, True)
    assert call("check", str(run.folder)).returncode == 1
    repaired = call("check", str(run.folder), "--repair")
    assert repaired.returncode == 0, repaired
    assert "rebuilt run.json from suite.yaml and the records" in repaired.stderr
    assert [entry.name for entry in (run.folder / "damaged").iterdir()] == ["run.json"]
    resumed = call("run", "--resume", str(run.folder))
    assert (resumed.returncode, "[1/1]" in resumed.stderr) == (0, True), "only what is missing is measured"
    assert call("check", str(run.folder)).returncode == 0


def test_a_run_whose_suite_the_command_line_had_changed_is_not_made_again(run):
    truncate(run.folder / "run.json")
    (run.folder / "suite.yaml").write_text(SUITE.replace("global_batch_size: 8", "global_batch_size: 4"))
    done = call("check", str(run.folder), "--repair")
    assert (done.returncode, "suite.yaml has no case" in done.stderr) == (1, True)
    assert f"distbench run {run.folder / 'suite.yaml'}" in done.stdout
    assert call("show", str(run.folder)).returncode == 0


def test_nothing_is_repaired_while_the_run_is_running(run):
    truncate(trial(run) / "record.json")
    with run.hold_lock():
        refused = call("check", str(run.folder), "--repair")
    assert refused.returncode == 2 and "in use by process" in refused.stderr
    assert trial(run).is_dir()


@pytest.mark.drill("a link that has trials set aside out of the run's folder")
@pytest.mark.parametrize("place", ["damaged", "trials"])
def test_what_is_set_aside_stays_in_the_folder_of_the_run(run, tmp_path, place):
    elsewhere = tmp_path / "elsewhere"
    if place == "trials":
        (run.folder / "trials").rename(elsewhere)
        (run.folder / "trials").symlink_to(elsewhere)
    else:
        elsewhere.mkdir()
        (run.folder / "damaged").symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    with pytest.raises(UsageError, match="leaves the run's folder"):
        quarantine_trial(run.folder, trial(run).relative_to(run.folder).as_posix())
    assert sorted(elsewhere.rglob("*")) == before


def test_what_was_set_aside_before_is_not_overwritten(run):
    for times in (1, 2):
        truncate(trial(run) / "record.json")
        assert call("check", str(run.folder), "--repair").returncode == 0
        assert len(list((run.folder / "damaged").iterdir())) == times
        assert call("run", "--resume", str(run.folder), "--quiet").returncode == 0


def test_a_report_says_what_it_leaves_out(run):
    flip_byte(trial(run) / "samples.parquet")
    call("report", str(run.folder))
    assert "1 trial is damaged and skipped: " in (run.folder / "report.html").read_text()


@pytest.mark.drill("gate --resume, with a damaged record in an arm")
def test_a_gate_measures_a_damaged_trial_again_and_keeps_what_is_left_of_it(tmp_path, drill):
    (tmp_path / "suite.yaml").write_text(SUITE)
    words = ("gate", str(tmp_path / "suite.yaml"), "--self-test", "--out", str(tmp_path / "out"), "--json")
    before = json.loads(call(*words).stdout)
    candidate = Run(Path(before["folder"]) / "candidate")
    truncate(trial(candidate) / "record.json")
    again = call(*words, "--resume", before["folder"])
    drill.seen(next(line for line in again.stderr.splitlines() if "moved to" in line))
    after = json.loads(again.stdout)
    assert {case["case"]: case["word"] for case in after["cases"]} == {
        case["case"]: case["word"] for case in before["cases"]
    }
    assert len(list((candidate.folder / "damaged").iterdir())) == 1
    assert not candidate.contents().damaged


@pytest.fixture
def damaged_copies(run, tmp_path) -> tuple[Run, Run]:
    """One run twice, each with a trial that the other lacks."""
    copy = Run(Path(shutil.copytree(run.folder, tmp_path / "runs" / "copy")))
    for number, each in enumerate((run, copy)):
        shutil.rmtree(trial(each))
        done = call("run", "--resume", str(each.folder), "--quiet")
        assert done.returncode == 0, done.stderr
        for file in trial(each).glob("record.json"):
            made = json.loads(file.read_text())
            file.write_text(json.dumps({**made, "started": f"2026-01-01T00:00:0{number}Z"}))
    return run, copy


@pytest.mark.drill("a folder is copied, and both copies are resumed")
def test_copies_of_a_run_that_both_went_on_are_not_mixed(damaged_copies, drill):
    run, copy = damaged_copies
    out, (first, second) = run.folder.parent, sorted((run.folder, copy.folder), key=str)
    done = call("query", "select run_id, trials from runs", "--out", str(out), "--json")
    drill.seen(done.stderr)
    assert json.loads(done.stdout) == [{"run_id": run.info().run_id, "trials": 6}]
    told = f"{second}: skipped, because it and {first} are copies of run {run.info().run_id}. It has 1 trial"
    assert told in done.stderr
    history = call("history", str(out), "--json")
    assert "copies of run" in history.stderr
    assert {len(series["points"]) for series in json.loads(history.stdout)[0]["series"]} == {1}
    compared = call("compare", str(run.folder), str(copy.folder))
    assert f"{run.folder} and {copy.folder} are copies of one run" in compared.stderr


def test_a_copy_with_nothing_of_its_own_counts_once_without_a_word(run):
    shutil.copytree(run.folder, run.folder.with_name("copy"))
    shutil.rmtree(trial(Run(run.folder.with_name("copy"))))
    words = ("query", "select folder from runs", "--out", str(run.folder.parent), "--json")
    done = call(*words)
    assert (json.loads(done.stdout), done.stderr) == ([{"folder": str(run.folder)}], "")


@pytest.mark.parametrize("value", [None, "many"])
def test_settings_of_no_number_leave_a_run_readable(tmp_path, value):
    """Theory sums settings of engines that others may have written."""
    run = tmp_path / "run"
    shutil.copytree(SAMPLE, run)
    (file,) = run.glob("trials/zero3-ws2*/0/record.json")
    record = json.loads(file.read_text())
    kept = {key: each for key, each in record["effective"].items() if isinstance(each, dict | list)}
    numbers = dict.fromkeys(record["effective"].keys() - kept.keys() - {"parameters"}, value)
    record["effective"] = {**kept, **numbers}
    file.write_text(json.dumps(record))
    for command in ("show", "report"):
        done = call(command, str(run))
        assert done.returncode == 0, done.stderr
