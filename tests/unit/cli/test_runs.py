"""``distbench runs``: what lies in a folder of runs."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from distbench.system import files

FROZEN = Path(__file__).parents[2] / "frozen" / "run"


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two runs of which the second is older, with nothing but what was measured."""
    for name, created in (("new", "2026-03-01T10:00:00Z"), ("old", "2026-01-01T10:00:00Z")):
        run = tmp_path / f"tiny-{name}"
        shutil.copytree(FROZEN, run, ignore=shutil.ignore_patterns("checks", "checkpoints", "convergence"))
        info = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**info, "created": created}))
    return tmp_path


@pytest.fixture
def run_list(command, folder):
    def rows() -> list[dict[str, Any]]:
        code, output, errors = command("runs", str(folder), "--json")
        assert (code, errors) == (0, "")
        return json.loads(output)["rows"]

    return rows


def test_runs_are_listed_newest_first_with_their_size(run_list, folder):
    rows = run_list()
    assert [row["run"] for row in rows] == ["new", "old"]
    assert {(row["suite"], row["state"], row["cases"]) for row in rows} == {("frozen", "finished", 3)}
    files = [file for file in (folder / "tiny-new").rglob("*") if file.is_file()]
    assert rows[0]["bytes"] == sum(file.stat().st_size for file in files)
    assert rows[0]["trials"] == sum(file.name == "record.json" for file in files)


def test_the_pick_is_what_the_report_stored_until_trials_are_added(command, run_list, folder):
    assert [row["pick"] for row in run_list()] == [None, None]
    assert command("report", str(folder / "tiny-old"))[0] == 0
    picked = json.loads(command("pick", str(folder / "tiny-old"), "--json")[1])
    assert [row["pick"] for row in run_list()] == [None, picked["pick"]["case"]]
    assert run_list()[1]["headline"] == picked["headline"]
    trial = next((folder / "tiny-old").glob("trials/*/0"))
    shutil.copytree(trial, trial.with_name("9"))
    assert run_list()[1]["pick"] is None
    assert "were added" in run_list()[1]["absent"]["pick"]
    assert "distbench report" in command("runs", str(folder))[1]


def test_a_pick_of_trials_that_were_measured_again_is_out_of_date(command, run_list, folder):
    assert command("report", str(folder / "tiny-new"))[0] == 0
    assert [row["pick"] for row in run_list() if row["run"] == "new"] != [None]
    record = next((folder / "tiny-new").glob("trials/*/0/record.json"))
    plain = json.loads(record.read_text())
    plain["wall_s"] += 1
    record.write_text(json.dumps(plain))
    (row,) = [row for row in run_list() if row["run"] == "new"]
    assert row["pick"] is None
    assert row["absent"]["pick"] == "trials have changed since it was stored"


def test_a_damaged_run_is_named_and_hides_no_other(command, folder):
    (folder / "tiny-old" / "run.json").write_text("{")
    code, output, _ = command("runs", str(folder))
    assert code == 0
    assert "old: can't be read: " in output
    assert "new  2026-03-01 10:00  frozen  finished" in output


def test_a_plug_in_that_can_not_be_imported_is_no_fault_of_the_runs(command, folder, tmp_path, monkeypatch):
    (tmp_path / "plug-ins" / "jobs").mkdir(parents=True)
    (tmp_path / "plug-ins" / "jobs" / "mine.py").write_text("raise RuntimeError('not today')\n")
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path / "plug-ins"))
    code, output, errors = command("runs", str(folder))
    assert (code, output) == (2, "")
    assert "mine.py: can't import this plug-in: RuntimeError('not today')" in " ".join(errors.split())


def test_a_run_that_waits_for_its_engine_is_listed(run_list, folder):
    (folder / "tiny-later" / "submitted").mkdir(parents=True)
    (folder / "tiny-later" / "submitted" / "request.json").write_text("{}")
    assert {row["run"]: row["state"] for row in run_list()}["later"] == "waiting"


def test_a_folder_of_runs_in_place_of_a_run_is_answered_with_the_list(command, folder):
    code, _, errors = command("show", str(folder))
    assert (code, "holds 2 runs" in errors, f"distbench runs {folder}" in errors) == (2, True, True)


def test_a_link_to_itself_is_no_run_and_no_traceback(command, folder):
    (folder / "loop").symlink_to("loop")
    code, out, errors = command("runs", str(folder))
    assert (code, "Traceback" in errors, "loop" in out) == (0, False, False)
    run = next(folder.glob("*/run.json")).parent
    (run / "run.json").unlink()
    (run / "run.json").symlink_to("run.json")
    code, _, errors = command("show", str(run))
    assert (code, "a symbolic link, which is not followed" in errors) == (0, True), errors


def test_no_folder_is_an_error(command, tmp_path):
    code, _, errors = command("runs", str(tmp_path / "nothing"))
    assert (code, "no such folder" in errors) == (2, True)


def test_the_latest_are_those_that_began_last_whatever_their_suites_are_called(command, tmp_path):
    names = [f"warm-2026112{day}-100000Z-{day}aaaaaaa" for day in range(5)]
    for name in ("hang-20261127-100000Z-bbbbbbbb", *names):
        shutil.copytree(FROZEN, tmp_path / name)
    code, _, errors = command("show", "nothere", "--out", str(tmp_path))
    assert code == 2
    assert "the latest: warm-20261121-" in errors
    assert errors.strip().endswith("hang-20261127-100000Z-bbbbbbbb")


def test_files_that_go_away_while_they_are_counted_are_left_out(command, folder):
    stop = threading.Event()

    def write() -> None:
        trial = next((folder / "tiny-new" / "trials").glob("*/0"))
        record = (trial / "record.json").read_text()
        while not stop.is_set():
            # as records are written, in folders of their own beside and inside that of the trial
            for place in (trial, trial.parent, trial.parent.parent):
                with files.atomic_path(place / "record.json") as new:
                    new.write_text(record)
            for place in (trial.parent, trial.parent.parent):
                (place / "record.json").unlink()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(40):
            code, _, errors = command("runs", str(folder), "--json")
            assert (code, errors) == (0, "")
    finally:
        stop.set()
        writer.join()
