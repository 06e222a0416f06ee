"""What a terminal shows: colours where it has them, one line a row, nothing broken that is to be pasted."""

import contextlib
import os
import pty
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from distbench.api.progress import LiveProgress
from distbench.cli import main
from distbench.core.errors import did_you_mean
from distbench.core.text import wrap_text
from distbench.gate.calibration import CaseCalibration
from distbench.gate.view import calibration_table
from distbench.record.progress import ProgressEvent
from distbench.tables.table import Field, Table, TableCell, TableRow
from support.records import case, failed, measured
from support.run_histories import stored
from support.runs import call

SAMPLE = Path(__file__).parents[3] / "reports" / "sample"
DDP, FSDP, ZERO = case("ddp"), case("fsdp"), case("zero2")
BOLD, RED, GREEN, YELLOW = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m"
VARIABLES = ("NO_COLOR", "CI", "TERM")


class Terminal:
    """A terminal that commands of this process print on."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        self._stream = os.fdopen(theirs, "w", encoding="utf-8")
        self._seen: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def run(self, *arguments: str, **variables: str) -> str:
        """What *arguments* print, and what they complain about."""
        return self.shows(lambda: main(arguments), **variables)

    def shows(self, act: Callable[[], object], **variables: str) -> str:
        """What *act* prints."""
        before = {name: os.environ.pop(name, None) for name in VARIABLES}
        os.environ.update({"TERM": "xterm", **variables})
        try:
            with contextlib.redirect_stdout(self._stream), contextlib.redirect_stderr(self._stream):
                act()
        finally:
            for name in (*VARIABLES, *variables):
                os.environ.pop(name, None)
            os.environ.update({name: value for name, value in before.items() if value is not None})
            self._stream.close()
            self._reader.join()
            os.close(self._ours)
        return b"".join(self._seen).decode().replace("\r\n", "\n")

    def _read(self) -> None:
        # the end of a terminal that nobody has open is an error
        with contextlib.suppress(OSError):
            while seen := os.read(self._ours, 65536):
                self._seen.append(seen)


def rendered(*arguments: object, **variables: str) -> str:
    return Terminal().run(*map(str, arguments), **variables)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    busy = replace(measured(ZERO, 900), degraded="others computed")
    records = [measured(DDP, 1000), measured(DDP, 1001, round_=1), failed(FSDP), busy]
    return stored(tmp_path_factory.mktemp("colours"), 1, *records).folder


def line(text: str, name: str) -> str:
    """The first line of *text* that begins with *name*, after what it is coloured by."""
    return next(each for each in text.splitlines() if re.sub(r"\x1b\[\d*m", "", each).startswith(name))


def test_the_recommended_row_is_bold_a_failure_red_and_a_noisy_one_yellow(run):
    text = rendered("show", run)
    tones = {name: line(text, f"{name} ").partition(name)[0] for name in ("ddp", "fsdp", "zero2")}
    assert tones == {"ddp": BOLD, "fsdp": RED, "zero2": YELLOW}
    assert line(text, "Train with ddp").startswith(BOLD)
    assert line(rendered("pick", run), "> ddp").startswith(BOLD)


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"CI": "true"}, {"TERM": "dumb"}], ids=str)
def test_who_wants_no_colours_gets_none(run, variables):
    assert "\x1b" not in rendered("show", run, **variables)


def test_what_is_piped_is_the_same_text_without_colours(run):
    # a file has no columns of its own
    piped = call("show", str(run)).stdout
    assert re.sub(r"\x1b\[\d*m", "", rendered("show", run)) == piped


def test_worse_is_red_and_better_green_where_runs_are_compared(tmp_path):
    speeds = [(1000, 1000), (500, 2000)]
    folders = [
        stored(
            tmp_path / str(day),
            day,
            *(
                measured(of, pace + i, round_=i)
                for of, pace in zip((DDP, FSDP), paces, strict=True)
                for i in range(3)
            ),
        ).folder
        for day, paces in enumerate(speeds, 1)
    ]
    text = rendered("compare", *folders)
    assert f"{RED}0.5" in line(text, "ddp ")
    assert f"{GREEN}2.0" in line(text, "fsdp ") or f"{GREEN}1.9" in line(text, "fsdp ")


def test_a_step_in_a_history_is_red_or_green(tmp_path):
    for day in range(1, 13):
        pace = (1000 if day < 7 else 500) + day
        stored(tmp_path / str(day), day, *(measured(DDP, pace + i, round_=i) for i in range(3)))
    text = rendered("history", tmp_path)
    assert f"{RED}-" in line(text, "ddp") and "worse" in line(text, "ddp")
    assert RED not in rendered("history", tmp_path, NO_COLOR="1")


def test_one_run_is_said_to_have_no_history(tmp_path):
    stored(tmp_path / "1", 1, measured(DDP, 1000), measured(FSDP, 900))
    text = " ".join(call("history", str(tmp_path)).stdout.split())
    assert text.startswith(
        "tokens_per_s (tokens/s, higher is better) over runs One run has no history: at least"
    )
    assert "–" not in text
    stored(tmp_path / "2", 2, measured(ZERO, 950))
    assert "No case is in two of these 2 runs: at least" in " ".join(
        call("history", str(tmp_path)).stdout.split()
    )


def test_what_a_calibration_can_resolve_is_green_and_what_it_can_not_red():
    quiet = CaseCalibration("ddp", {"tokens_per_s": 0.02}, 10, 0.1, 10, "2026-01-01")
    loud = replace(quiet, case="fsdp", deviations={"tokens_per_s": 0.4})
    text = calibration_table([quiet, loud]).to_text(
        120, lambda text, tone: f"<{tone}>{text}" if tone else text
    )
    # pairs for 3%, 5% and 10%: more than a gate makes are no good
    tones = {name: re.findall("<(.*?)>", line(text, name)) for name in ("ddp", "fsdp")}
    assert tones == {"ddp": ["good"] * 3, "fsdp": ["bad"] * 3}


def test_the_list_of_commands_says_what_each_does_in_whole_sentences():
    done = call("--help", COLUMNS="80")
    _, _, listed = done.stdout.partition("Commands:\n")
    assert "  plan " in listed
    assert "..." not in listed


def test_a_name_can_not_colour_itself(tmp_path):
    loud = case("\x1b[31mddp\ufdd2")
    text = rendered("show", stored(tmp_path, 1, measured(loud)).folder)
    assert RED not in text
    assert "ddp" in text


def test_a_mistake_is_marked_on_a_terminal_alone(run):
    assert "\x1b[31m\x1b[1mdistbench: error:\x1b[0m" in rendered("show", run, "--view", "nonsense")
    assert call("show", str(run), "--view", "nonsense").stderr.startswith("distbench: error: ")


def test_the_live_line_tells_each_phase_and_a_noisy_trial_at_once():
    def follow() -> None:
        display = LiveProgress()
        with display.progress:
            display.show(ProgressEvent("item_started", "op cpu_adam", 0, 2))
            # otherwise once a second
            display.progress.refresh()
            for done in range(2):
                display.show(ProgressEvent("item_ended", "op cpu_adam", done, 2))
            assert display.progress.finished
            display.show(ProgressEvent("trial_started", "ddp round 1", 0, 2))
            assert not display.progress.finished, "the clock stands still"
            display.show(ProgressEvent("trial_started", "ddp round 1", 3, 18))
            display.show(
                ProgressEvent("trial_ended", "ddp round 1", status="measured", noise="others took 79%")
            )
            display.show(
                ProgressEvent("trial_ended", "fsdp round 1", status="crashed", reason="no", failed=True)
            )

    seen = Terminal().shows(follow)
    assert "0/2" in seen and "preparing: op cpu_adam" in seen
    assert "3/18" in seen
    assert f"{YELLOW}ddp round 1: measured, noisy (others took 79%)" in seen
    assert f"{RED}fsdp round 1: crashed (no)" in seen
    assert "/?" not in seen


def test_what_is_too_slow_is_excluded_with_the_bound(tmp_path):
    records = [measured(DDP, 1000, memory_peak=2e6), measured(FSDP, 500, memory_peak=1e6)]
    text = call(
        "pick", str(stored(tmp_path, 1, *records).folder), "--goal", "memory", "--within", "20%"
    ).stdout
    told = "Excluded: fsdp: more than 20% slower than the fastest that fits (--within)."
    assert told in " ".join(text.split())


def test_a_run_that_is_compared_with_itself_is_noticed(run):
    done = call("compare", str(run), str(run))
    assert (done.returncode, f"{run} is compared with itself, so nothing can differ" in done.stderr) == (
        0,
        True,
    )


@pytest.mark.parametrize(
    ("word", "allowed", "told"),
    [
        ("dpp", ["ddp", "dp", "fsdp"], "did you mean 'ddp'? Allowed: ddp, dp, fsdp"),
        ("ddpp", ["ddp", "dp"], "did you mean 'ddp'? Allowed: ddp, dp"),
        ("xx", ["70b", "8b", "1b"], "Allowed: 1b, 8b, 70b"),
        ("nothing", ["zero"], "Allowed: zero"),
    ],
)
def test_the_word_that_was_meant_comes_first_and_sizes_in_their_order(word, allowed, told):
    assert did_you_mean(word, allowed) == told


def test_a_strategy_to_avoid_that_the_run_does_not_have_is_a_mistake(tmp_path):
    folder = str(stored(tmp_path, 1, measured(DDP, 1000), measured(FSDP, 900)).folder)
    done = call("pick", folder, "--avoid", "fspd")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--avoid = 'fspd': matches no strategy of this run; did you mean 'fsdp'?" in done.stderr
    assert call("pick", folder, "--avoid", "d*").stdout.startswith("Train with fsdp")


@pytest.mark.parametrize("view", ["time", "memory", "communication", "equivalence", "telemetry", "trials"])
def test_every_row_of_a_view_has_its_name_and_its_numbers_on_one_line(view):
    rows = table_of(call("show", str(SAMPLE), "--view", view, COLUMNS="80").stdout)
    assert rows
    assert max(map(len, rows)) <= 80
    assert [row for row in rows if len(row.split()) == 1 and "/" not in row] == []


def table_of(text: str) -> list[str]:
    """Lines of the table in *text*: what stands between the caption and the notes."""
    blocks = text.split("\n\n")
    return [row for block in blocks[1:] for row in block.splitlines() if not block.rstrip().endswith(".")]


def at_width(*names: str) -> Table:
    numbers = tuple(Field(f"n{i}", f"number{i}") for i in range(12))
    identity = (
        Field("case_name", "case", type="varchar"),
        Field("strategy", "", type="varchar"),
        Field("kind", "kind", type="varchar"),
    )
    cells = {f"n{i}": TableCell(i, f"{i}.000") for i in range(12)}
    rows = [
        TableRow({"case_name": f"{name}/ws2/mb4", "strategy": name, "kind": kind, **cells})
        for name in names
        for kind in ("a", "b")
    ]
    return Table("", "", (*identity, *numbers), tuple(rows))


def test_a_table_too_wide_is_shown_in_blocks_that_each_name_their_rows():
    lines = at_width("ddp", "fsdp-grad-op+offload").to_text_lines(80)
    assert max(map(len, lines)) <= 80
    heads = [each.split() for each in lines if each.startswith("case")]
    assert [head[:2] for head in heads] == [["case", "kind"]] * len(heads)
    assert [word for head in heads for word in head[2:]] == [f"number{i}" for i in range(12)]
    assert sum(each.split()[:2] == ["ddp", "b"] for each in lines) == len(heads) > 1
    assert lines.count("ws2/mb4") == len(heads)


def test_rows_of_the_same_suffix_stand_together_under_one_heading():
    names = ["ddp/ws1/mb8", "ddp/ws2/mb4", "fsdp/ws1/mb8", "fsdp/ws2/mb4[a]"]
    rows = [
        TableRow({"case_name": TableCell(each.removesuffix("[a]"), each), "strategy": each.split("/")[0]})
        for each in names
    ]
    lines = Table("", "", at_width().fields[:2], tuple(rows)).to_text_lines(80)
    assert lines == ["case", "ws1/mb8", "ddp", "fsdp", "", "ws2/mb4", "ddp", "fsdp[a]"]


def test_a_wide_terminal_shows_one_block_and_no_column_wider_than_its_cells():
    lines = at_width("ddp").to_text_lines(200)
    assert [each for each in lines if each.startswith("case")] == lines[:1]
    assert lines[2].startswith("ddp   a")


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("About 9 more trials would tell whether it is better", "distbench run --resume RUN --until-settled"),
        ("the records are intact; write the report with", "distbench report '/a folder/a-long name/run-1'"),
        ("Whether it is the same training was not checked", "distbench run --check --set check.steps=4"),
        ("a word", "reports/" + "quickstart-" * 12),
    ],
)
def test_a_command_and_a_path_are_never_broken(text, command):
    for width in range(40, 90):
        lines = wrap_text(f"{text}: {command} (now or later).", width, indent="  ")
        assert any(command in each for each in lines), lines
        assert " ".join(each.strip() for each in lines) == f"{text}: {command} (now or later)."
