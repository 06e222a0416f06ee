"""Runs in folders whose names the locale can't decode, and what they leave in TMPDIR."""

import json
import os
import subprocess
import sys

import pytest

from support.runs import MODELS, QUICK, call

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NON_UTF8_PATH = os.fsdecode(b"\xe9 \xff")


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("place", "temporary_place", "locale"),
    [
        pytest.param(
            "é 漢",
            "é 漢",
            C_LOCALE,
            marks=pytest.mark.drill("LC_ALL=C without coercion, and é 漢 in --out and TMPDIR"),
            id="the locale is ASCII",
        ),
        pytest.param(
            "usual",
            NON_UTF8_PATH,
            {},
            marks=pytest.mark.drill("bytes that are no UTF-8 in TMPDIR"),
            id="the bytes are no UTF-8",
        ),
    ],
)
def test_a_path_that_the_locale_cannot_decode_takes_nothing_from_a_run(
    tmp_path, drill, place, temporary_place, locale
):
    (tmp_path / "suite.yaml").write_text(QUICK + "launcher: local\nstrategies: [ddp]\n")
    out, temporary = tmp_path / place / "out", tmp_path / temporary_place / "tmp"
    temporary.mkdir(parents=True)

    def distbench(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "distbench", *arguments],
            cwd=MODELS,
            env={**os.environ, **locale, "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            check=False,
        )

    done = distbench("run", str(tmp_path / "suite.yaml"), "--out", str(out), "--keep-traces", "--json")
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    drill.seen(f"{case['status']}, and nothing is left in TMPDIR")
    assert case["status"] == "measured"
    assert list(temporary.iterdir()) == []
    (run,) = out.iterdir()
    assert len(list(run.glob("trials/*/0/rank*.trace.json.gz"))) == 2
    shown = distbench("query", "select count(*) from steps", str(run))
    assert shown.returncode == 0, shown.stderr


@pytest.mark.drill("bytes that are no UTF-8 in --out")
def test_a_run_folder_that_no_table_could_be_read_from_is_refused(tmp_path, drill):
    (tmp_path / "suite.yaml").write_text(QUICK + "launcher: pretend\nstrategies: [pretended]\n")
    done = call("run", str(tmp_path / "suite.yaml"), "--out", str(tmp_path / NON_UTF8_PATH))
    drill.seen(done.stderr)
    assert done.returncode == 2
    assert "can't create a folder for the run: DuckDB accepts only UTF-8 paths" in done.stderr
    assert not (tmp_path / NON_UTF8_PATH).exists()
