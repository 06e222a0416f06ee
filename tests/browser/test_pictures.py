"""The charts of a report as PNG files."""

from __future__ import annotations

from pathlib import Path

import pytest

from distbench.cli import main
from distbench.record.run_folder import Run
from support.browser_pages import SOME
from support.records import info

pytestmark = pytest.mark.page
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.create(tmp_path, info(*(record.case for record in SOME)), "")
    for record in SOME:
        made.write_record(record)
    return made


def test_every_chart_is_a_file_named_after_it(run, tmp_path, capsys):
    assert main(["report", str(run.folder), "--png", str(tmp_path / "new" / "png")]) == 0
    page, *pictures = capsys.readouterr().out.split()
    assert page == str(run.folder / "report.html")
    assert Path(pictures[0]).name == "throughput-memory.png"
    assert all(Path(file).read_bytes().startswith(PNG) for file in pictures)
    assert len(pictures) == Path(page).read_text().count('class="chart"')


def test_without_a_browser_it_says_what_it_needs_and_the_page_is_there(run, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["report", str(run.folder), "--png", "pictures"]) == 2
    assert "--png: needs a browser on the PATH, one of chromium, " in capsys.readouterr().err
    assert (run.folder / "report.html").is_file()


def test_a_browser_that_fails_is_an_error_of_the_machine(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin" / "chromium"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["report", str(run.folder), "--png", str(tmp_path / "png")]) == 4
    assert f"--png: {broken}: " in capsys.readouterr().err
