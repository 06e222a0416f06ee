"""Plants each bug of ``planted.py`` in a copy of the tree and shows which test of the default run fails.

    python tests/mutants/run.py [NAME...]     all, or those whose names hold one of the words
    python tests/mutants/run.py --check       only whether each bug can still be planted

Exit code 1 if a bug survives all tests, 2 if its text no longer stands once in the sources.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from planted import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
NOT_COPIED = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist")
DEFAULT = "not deep"
# a bug may make a loop endless; a run that CI has to stop has failed, too
EXPECTED_S, ALL_S = 600.0, 3600.0


@cache
def sources(root: Path) -> dict[Path, str]:
    """Text of each file in which a bug may be planted."""
    files = (file for kind in ("*.py", "*.js") for file in (root / "distbench").rglob(kind))
    return {file: file.read_text() for file in files}


def place_of(mutant: Mutant, root: Path) -> Path | None:
    """File in which its text stands; None unless it stands once."""
    places = [(file, count) for file, text in sources(root).items() if (count := text.count(mutant.old))]
    return places[0][0] if [count for _, count in places] == [1] else None


@contextmanager
def planted(mutant: Mutant) -> Iterator[Path]:
    """A copy of the tree with the bug in it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(shutil.copytree(ROOT, Path(folder) / "tree", ignore=NOT_COPIED))
        file = place_of(mutant, copy)
        assert file is not None
        file.write_text(file.read_text().replace(mutant.old, mutant.new))
        yield copy


def failing(copy: Path, limit_s: float, *arguments: str) -> str:
    """Id of the first test that fails there; empty if all pass."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "DISTBENCH_PLUGINS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"pytest itself: no end within {limit_s:.0f} s"
    if process.returncode == 0:
        return ""
    if process.returncode < 0:
        return f"pytest itself: killed by signal {-process.returncode}"
    if failed := re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE):
        return failed.group(1)
    raise SystemExit(f"pytest {' '.join(arguments)} ran no test:\n{output}")


def caught_by(mutant: Mutant) -> str:
    """Test that sees the bug: one of those expected to, else any of the default run."""
    with planted(mutant) as copy:
        return failing(copy, EXPECTED_S, "-m", DEFAULT, *mutant.tests) or failing(copy, ALL_S, "-m", DEFAULT)


def main(arguments: list[str]) -> int:
    if unknown := [word for word in arguments if word.startswith("-") and word != "--check"]:
        print(f"{unknown[0]}: the only option is --check; other words choose bugs by name", file=sys.stderr)
        return 2
    words = [word for word in arguments if word != "--check"]
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    places = {mutant.name: place_of(mutant, ROOT) for mutant in chosen}
    for mutant in chosen:
        if places[mutant.name] is None:
            print(f"{mutant.name}: does not stand once in distbench: {mutant.old}", file=sys.stderr)
    if None in places.values():
        return 2
    if "--check" in arguments:
        return 0
    survivors = 0
    print("| bug | file | caught by | s |\n|---|---|---|---|", flush=True)
    for mutant in chosen:
        began = time.monotonic()
        test = caught_by(mutant)
        survivors += not test
        file = places[mutant.name]
        assert file is not None
        row = (mutant.name, str(file.relative_to(ROOT)), test or "**nothing**")
        print(f"| {' | '.join(row)} | {time.monotonic() - began:.0f} |", flush=True)
    print(f"\n{len(chosen) - survivors} of {len(chosen)} bugs were caught.")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
