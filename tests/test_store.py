"""Runs on disk: whole files or none, and a message for every way in which one can't be read."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from records import case, failed, info, measured

from distbench.errors import InfrastructureError, RecordError, UsageError
from distbench.record import FORMAT, Record
from distbench.store import Run, slug, write_json


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, info(case()), "strategies: [ddp]\n")


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 4 KiB: what a full disk looks like to a program."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("record", [measured(case()), failed(case())], ids=["measured", "failed"])
def test_a_record_comes_back_as_it_was_written(run: Run, record: Record) -> None:
    run.write_record(record)
    assert list(run.records()) == [record]


def test_a_run_comes_back_as_it_was_written(run: Run) -> None:
    assert run.info() == info(case())


def test_a_disk_that_is_full_keeps_the_old_file_and_says_how_to_go_on(run: Run, small_files: None) -> None:
    before = (run.folder / "run.json").read_text()
    with pytest.raises(InfrastructureError, match=r"Make room, then go on with: distbench run --resume"):
        write_json(run.folder / "run.json", {"big": "x" * 100_000})
    assert (run.folder / "run.json").read_text() == before
    assert not list(run.folder.glob(".run.json*"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "the file is empty"),
        ('{"format": 1,', "corrupt, no JSON: line 1"),
        ("[]", "this is no file of distbench"),
        (json.dumps({"format": FORMAT + 1}), "written by a newer distbench"),
        (json.dumps({"format": 0}), "too old"),
        (json.dumps({"format": FORMAT, "status": "measured"}), "not a readable record"),
        ("[" * 100_000, "corrupt"),
    ],
)
def test_a_record_that_can_not_be_read_names_the_file_and_the_reason(
    run: Run, content: str, told: str
) -> None:
    run.write_record(measured(case()))
    (file,) = run.folder.glob("trials/*/0/record.json")
    file.write_text(content)
    with pytest.raises(RecordError, match=told) as caught:
        list(run.records())
    assert str(file) in str(caught.value)


def test_a_folder_without_a_run_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run here"):
        Run(tmp_path).info()


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "a/b", "\u202e\x1b[31m", "x" * 500])
def test_a_name_becomes_one_safe_file_name(name: str) -> None:
    made = slug(name)
    assert made and len(made) <= 64
    assert not set(made) - set("abcdefghijklmnopqrstuvwxyz0123456789._+-")
    assert not made.startswith(".")
