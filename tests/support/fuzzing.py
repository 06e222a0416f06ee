"""Run folders from anybody: one random change to a run that was measured, and a command that reads it.

Each change is read by one command, drawn so that each reads thousands or, if it takes long, dozens of them.
``python tests/support/fuzzing.py SEED COUNT`` makes COUNT changes in a process of its own, one in forty of a
gate (``hostile_gates``), and prints, as JSON, how long the slowest command took and how much memory the
process held. It fails on the first change that is not survived.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st

from distbench.cli import main
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.record import parquet

FROZEN = Path(__file__).parents[1] / "frozen" / "run"
MOST_SECONDS = 5.0
MOST_BYTES = 500 << 20
# so few records that a command takes some 20 ms: the trials, or those of one other kind of job
PARTS = ("trials", "checks", "checkpoints", "convergence")

ODD: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 2, 7, 0.5, -0.0, 1e-320, 1e308, math.nan, math.inf, -math.inf),
    *(2**31, 2**53, 3_000_000_000, 2**63 - 1, 2**63, 10**400, -(10**20)),
    *("", " ", "0", "x", "measured", "crashed", "fp32", "adamw", "case", "reference", "time", "../../victim"),
    *(
        "1); __import__('os').system('touch PWNED'); print(1",
        '"; import os; """',
        "\x1b[31m\x07\x00",
        "\ud800",
    ),
    *(
        "=cmd|' /C calc'!A0",
        "<img src=x onerror=alert(1)>",
        "漢" * 50,
        "x" * 100_000,
        "\u2028\n\r\u202e",
        "%s{}",
    ),
    *([], {}, [[]], [None], [{}], {"": None}, {"x": 1}, [1, "x"], [[0.5, None], []], [[[[[[]]]]]]),
)


_LIKE = {kind: [odd for odd in ODD if type(odd) is kind] for kind in (int, float, str, list, dict)}
# what Parquet can hold
ODD_CELLS = [odd for odd in ODD if type(odd) is not int or abs(odd) < 2**64]
_LIKE_CELLS = {kind: [odd for odd in ODD_CELLS if type(odd) is kind] for kind in (int, float, str)}


@dataclass(frozen=True)
class Command:
    """A command that reads runs."""

    words: tuple[str, ...]
    """``RUN`` stands for the folder, ``OUT`` for the one it is in."""
    weight: int = 2
    """How often it is drawn."""


_VIEWS = ("throughput", "time", "memory", "communication", "ranks", "parity", "loss", "scaling")
_VIEWS += (
    "timeline",
    "telemetry",
    "trials",
    "equivalence",
    "convergence",
    "checkpoint",
    "collectives",
    "check_tensors",
)
# what renders pages or fills a database takes ten times as long as the rest
_LONG = 1
COMMANDS = (
    *(Command(("show", "RUN", *form), 8) for form in ((), ("--json",), ("--md",), ("--csv",))),
    *(Command(("show", "RUN", "--view", view, *form)) for view in _VIEWS for form in ((), ("--json",))),
    Command(("report", "RUN"), _LONG),
    Command(("pick", "RUN"), 8),
    Command(("pick", "RUN", "--goal", "memory", "--memory", "1GiB", "--json"), 4),
    Command(("extrapolate", "RUN", "--to", "4,64", "--json"), 4),
    Command(("compare", "RUN", "RUN", "--json"), _LONG),
    Command(("history", "OUT", "--json"), 6),
    *(Command(("adopt", "RUN", "ddp", "--force", "--as", tool), 4) for tool in ("torch", "accelerate")),
    Command(("adopt", "RUN", "ddp", "--force", "--as", "transformers", "--json"), 4),
    Command(("query", "from steps, cases, runs", "RUN", "--format", "csv"), _LONG),
    Command(("query", "from samples, jobs", "RUN", "--format", "markdown"), _LONG),
    Command(("query", "--tables", "RUN"), _LONG),
    Command(("export", "RUN", "--to", "pytest-benchmark", "--into", "INTO")),
    Command(("check", "RUN"), 4),
    Command(("runs", "OUT"), 4),
)
ALL = tuple(command for command in COMMANDS for _ in range(command.weight))
QUICK_ONES = tuple(command for command in COMMANDS if command.weight > 2)


@dataclass
class Ground:
    """A folder with a run in it, and something next to it that nobody may touch."""

    place: Path
    runs: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def made(cls, place: Path) -> Ground:
        ground = cls(place)
        (place / "victim").write_text("precious")
        for part in PARTS:
            run = place / part / "run"
            shutil.copytree(FROZEN, run, ignore=_others(part))
            ground.runs[part] = run
        return ground

    def outside(self) -> dict[str, str]:
        """What lies there besides the runs."""
        return {
            file.name: file.read_text() for file in sorted(self.place.iterdir()) if file.name not in self.runs
        }


def _others(part: str) -> Callable[[str, list[str]], set[str]]:
    def ignore(folder: str, names: list[str]) -> set[str]:
        # the trials of one round each; of what other jobs there are, one kind
        is_top, is_case = Path(folder) == FROZEN, Path(folder).parent.name == "trials"
        return {
            name
            for name in names
            if (is_top and name in PARTS and name != part)
            or (is_case and part == "trials" and name != "0")
            # of the checks, those of one case and its references
            or (Path(folder).name == "checks" and name.startswith("single-"))
        }

    return ignore


@st.composite
def paths(draw: st.DrawFn, data: Any) -> list[Any]:
    """Keys and places that lead to a value inside of *data*."""
    path: list[Any] = []
    while isinstance(data, dict | list) and data and (not path or draw(st.integers(0, 5))):
        keys = [*data] if isinstance(data, dict) else [*range(len(data))]
        path.append(draw(st.sampled_from(keys)))
        data = data[path[-1]]
    return path


def changed(draw: st.DrawFn, data: Any) -> str:
    """Change one value inside of *data*; return what was done."""
    path = draw(paths(data))
    *outer, last = path or [None]
    if last is None:
        return "nothing"
    for key in outer:
        data = data[key]
    how = draw(st.sampled_from(["put", "like", "like", "like", "remove", "rename", "copy", "double"]))
    if how == "put":
        data[last] = _new(draw(st.sampled_from(ODD)))
    elif how == "like":
        # what has the right type goes further
        data[last] = _new(draw(st.sampled_from(_LIKE.get(type(data[last]), ODD))))
    elif how == "remove":
        del data[last]
    elif how == "rename" and isinstance(data, dict):
        data[str(draw(st.sampled_from([odd for odd in ODD if isinstance(odd, str)])))] = data.pop(last)
    elif how == "copy":
        other = draw(st.sampled_from([*data] if isinstance(data, dict) else [*range(len(data))]))
        data[last] = data[other]
    elif how == "double" and isinstance(data, list):
        data.insert(last, data[last])
    return f"{how} {'.'.join(map(str, path))} = {data[last] if how in ('put', 'like') else ''!r:.80}"


def _new(odd: Any) -> Any:
    """*odd*, which another change may change."""
    return copy.deepcopy(odd)


def change_json(draw: st.DrawFn, run: Path) -> str:
    files = sorted(run.rglob("record.json"))
    file = draw(st.sampled_from([run / "run.json", *files, *files]))
    data = json.loads(file.read_text())
    what = "; ".join(changed(draw, data) for _ in range(draw(st.sampled_from([1, 1, 1, 2]))))
    file.write_text(json.dumps(data))
    return f"{file.relative_to(run)}: {what}"


def change_bytes(draw: st.DrawFn, run: Path) -> str:
    """Cut a file off, or change some bytes of it; a Parquet file keeps a digest that fits."""
    file = draw(
        st.sampled_from(sorted(file for file in run.rglob("*") if file.suffix in (".json", ".parquet")))
    )
    data = bytearray(file.read_bytes())
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    for _ in range(draw(st.integers(0, 4)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    file.write_bytes(data)
    if file.suffix == ".parquet" and draw(st.booleans()):
        describe(file)
    return f"{file.relative_to(run)}: other bytes"


def change_rows(draw: st.DrawFn, run: Path) -> str:
    """Change a cell, a row or a column of a Parquet file, which stays one and keeps a digest that fits."""
    file = draw(st.sampled_from(sorted(run.rglob("*.parquet"))))
    columns = {column.name: [*column.values] for column in parquet.read(file)}
    name = draw(st.sampled_from([*columns]))
    values = columns[name]
    place = draw(st.integers(0, len(values) - 1))
    how = draw(st.sampled_from(["cell", "like", "like", "column", "row", "no column", "no rows", "double"]))
    if how == "cell":
        values[place] = draw(st.sampled_from(ODD_CELLS))
    elif how == "like":
        values[place] = draw(st.sampled_from([None, *_LIKE_CELLS.get(type(values[place]), ODD_CELLS)]))
    elif how == "column":
        columns[name] = [draw(st.sampled_from(ODD_CELLS))] * len(values)
    elif how == "row":
        columns = {key: each[:place] + each[place + 1 :] for key, each in columns.items()}
    elif how == "double":
        columns = {key: each[:place] + each[: place + 1] for key, each in columns.items()}
    elif how == "no rows":
        columns = {key: each[:0] for key, each in columns.items()}
    elif how == "no column" and len(columns) > 1:
        del columns[name]
    parquet.write(file, columns, {})
    describe(file, [*columns])
    return f"{file.relative_to(run)}: {how} {name} {place} {columns.get(name, [None] * 9999)[:1]!r:.60}"


def describe(file: Path, columns: list[str] | None = None) -> None:
    """Have the record beside *file* say what is in it."""
    record = file.with_name("record.json")
    data = json.loads(record.read_text())
    for entry in (data["samples"], *data["tables"].values()):
        if entry and entry.get("file") == file.name:
            entry["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
            if "columns" in entry and columns is not None:
                entry["columns"] = columns
    record.write_text(json.dumps(data))


def change_file(draw: st.DrawFn, run: Path) -> str:
    """Put something else in the place of a file."""
    file = draw(st.sampled_from(sorted(file for file in run.rglob("*") if file.is_file())))
    how = draw(st.sampled_from(["gone", "fifo", "zero", "loop", "folder", "victim", "large"]))
    file.unlink()
    if how == "fifo":
        os.mkfifo(file)
    elif how == "folder":
        file.mkdir()
    elif how == "large":
        with file.open("wb") as stream:
            stream.truncate(1 << 40)
    elif how != "gone":
        target = {"zero": Path("/dev/zero"), "loop": file, "victim": run.parent.parent / "victim"}[how]
        file.symlink_to(target)
    return f"{file.relative_to(run)}: {how}"


CHANGES = (*[change_json] * 12, *[change_rows] * 3, change_bytes, change_file)


@dataclass
class Survived:
    """What the changes came to that were survived."""

    changes: int = 0
    refused: int = 0
    slowest: float = 0.0
    what: str = ""

    def add(self, other: Survived) -> None:
        """Take in what *other* changes came to."""
        self.changes += other.changes
        self.refused += other.refused
        if other.slowest > self.slowest:
            self.slowest, self.what = other.slowest, other.what

    def see(self, words: Sequence[str], what: str) -> None:
        """Call a command after *what* was done; see that nothing but an answer or a message comes of it."""
        out, errors, began = io.StringIO(), io.StringIO(), time.process_time()
        hypothesis.note(f"{what}; distbench {' '.join(words)}")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main(words)
        took = time.process_time() - began
        # 5: the arms of a gate can't be compared
        assert code in (0, 1, 2, 3, 4, *((5,) if words[0] == "gate" else ()))
        assert "Traceback" not in errors.getvalue()
        assert code != 2 or errors.getvalue().strip(), "refused without a word"
        assert took < MOST_SECONDS, f"{took:.1f} s"
        self.changes += 1
        self.refused += code == 2
        if took > self.slowest:
            self.slowest, self.what = took, f"{what}; {' '.join(words)}"


@contextlib.contextmanager
def _restored(run: Path) -> Iterator[None]:
    """Put back what the body changes in *run*: the files of one folder, and what a command writes into it."""
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    try:
        yield
    finally:
        for file in run.rglob("*"):
            if file not in before:
                file.unlink()
        for file, written in before.items():
            if not os.path.lexists(file) or file.lstat().st_mtime_ns != written:
                if file.is_dir() and not file.is_symlink() and (FROZEN / file.relative_to(run)).is_dir():
                    continue
                _remove(file)
                shutil.copy2(FROZEN / file.relative_to(run), file)


def _remove(file: Path) -> None:
    if file.is_dir() and not file.is_symlink():
        file.rmdir()
    else:
        file.unlink(missing_ok=True)


def attack(draw: st.DrawFn, ground: Ground, survived: Survived, commands: Sequence[Command]) -> None:
    """Change a run, and have a command read it."""
    part = draw(st.sampled_from(PARTS))
    run, before, into = ground.runs[part], ground.outside(), ground.place / "into"
    with _restored(run):
        what = draw(st.sampled_from(CHANGES))(draw, run)
        command = draw(st.sampled_from(commands))
        names = {"RUN": str(run), "OUT": str(run.parent), "INTO": str(into)}
        survived.see([names.get(word, word) for word in command.words], f"{part}/{what}")
        shutil.rmtree(into, ignore_errors=True)
    assert ground.outside() == before, "something was written outside of the run"


def repeated(body: Callable[[st.DrawFn], None], count: int, seed: int) -> None:
    """Call *body* *count* times, with the same draws for the same *seed*."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(st.data())
    def all_of_them(data: st.DataObject) -> None:
        body(data.draw)

    all_of_them()


def attacks(count: int, place: Path, seed: int, commands: Sequence[Command] = ALL) -> Survived:
    """Make *count* changes in *place*, the same ones for the same *seed*, each read by one of *commands*."""
    ground, survived = Ground.made(place), Survived()
    repeated(lambda draw: attack(draw, ground, survived, commands), count, seed)
    return survived


if __name__ == "__main__":
    os.environ.pop(PLUGIN_PATH_VARIABLE, None)
    number, many = map(int, sys.argv[1:])
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.gate_fuzzing import gate_attacks

    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as other:
        of_gates = gate_attacks(many // 40, Path(other), seed=number)
        result = attacks(many - many // 40, Path(name), seed=number)
    result.add(of_gates)
    # not ru_maxrss, in which the peak of whoever started this process counts (it survives exec)
    (high,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    peak = int(high) << 10
    sys.stdout.write(json.dumps({**vars(result), "peak": peak}))
