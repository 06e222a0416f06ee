"""What people see of a measured script while it runs."""

from collections.abc import Iterator
from pathlib import Path

from distbench.ipc.script_files import claim_file
from distbench.ipc.trial_files import ProgressMark, progress_file, write_progress
from distbench.run.scripts.script_progress import ScriptProgress

STEPS = {"warmup": 2, "time": 10, "count": 1, "profile": 3}


def told(folder: Path, events: list[tuple[float, dict[int, ProgressMark]]]) -> list[str]:
    """Sentences about ranks that have these marks at these seconds; a rank without one has begun to train."""
    lines: list[str] = []
    seconds = [0.0]

    def waits() -> Iterator[None]:
        for at, marks in events:
            seconds[0] = at
            for rank, mark in marks.items():
                claim_file(folder, rank).touch()
                if mark:
                    write_progress(progress_file(folder, rank), mark)
            yield

    ScriptProgress(folder, STEPS, lines.append, lambda: seconds[0]).follow(waits())
    return lines


def mark(phase: str, step: int, number: int) -> ProgressMark:
    return ProgressMark(phase, step, number)


def test_it_says_when_ranks_begin_where_the_last_is_and_how_long_it_takes(tmp_path):
    lines = told(
        tmp_path,
        [
            (1, {}),
            (5, {0: None, 1: None}),
            (6, {0: mark("warmup", 1, 1)}),
            (14, {0: mark("time", 3, 5), 1: mark("time", 2, 4)}),
            (24, {0: mark("time", 6, 8), 1: mark("time", 6, 8)}),
        ],
    )
    assert lines == [
        "2 ranks began to train; measuring 2 warm-up and 10 timed steps",
        "timed step 6 of 10, about 24 s left",
    ]


def test_a_rank_that_ends_no_step_is_named_once_until_it_moves_again(tmp_path):
    silent = {0: mark("time", 4, 6), 1: mark("time", 3, 5)}
    lines = told(
        tmp_path, [(0, silent), (10, silent), (75, silent), (80, silent), (90, {1: mark("time", 4, 6)})]
    )
    assert lines[1] == (
        "no step has ended for 1 min 00 s: rank 1 has ended timed step 3 of 10; Ctrl-C ends the script and "
        "keeps what was measured"
    )
    assert len(lines) == 3
    assert lines[2].startswith("timed step 4 of 10")
