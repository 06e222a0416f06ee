"""The folder that the checks of tests/gpu leave: what passed, with what figures, on what machine."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from distbench.system.files import write_atomic
from distbench.system.machine import machine_facts

REHEARSAL = bool(os.environ.get("DISTBENCH_REHEARSAL"))
"""The CPU takes the place of the GPU, with models that suit it: the checks themselves are tried."""


@dataclass
class Check:
    """A row of the report."""

    name: str
    verdict: str = "not reached"
    """passed, failed, timed out, running (as the report was written), not reached, or skipped."""
    seconds: float = 0.0
    reason: str = ""
    figures: dict[str, tuple[float | str | bool, str]] = field(default_factory=dict)
    """What was measured: name -> value and unit."""

    def figure(self, name: str, value: float | str | bool, unit: str = "") -> None:
        """Keep *value*, in *unit*, whatever becomes of the check."""
        self.figures[name] = value, unit


class Report:
    """Writes ``summary.md`` and ``report.json`` into *folder*, as often as there is news.

    So a run that is killed has left what it knew.
    """

    def __init__(self, folder: Path, minutes: float) -> None:
        self.checks: dict[str, Check] = {}
        self.facts: dict[str, Any] = {"rehearsal": REHEARSAL, **machine_facts()}
        """What the figures depend on: device, driver, versions."""
        self._folder, self._end = folder, time.monotonic() + 60 * minutes

    @property
    def left_s(self) -> float:
        """Seconds that the whole of the checks may still take."""
        return self._end - time.monotonic()

    @contextlib.contextmanager
    def stacks(self) -> Iterator[TextIO]:
        """File for the stacks of a check that does not end; one that stays empty is removed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "stacks.txt"
        with file.open("a") as stream:
            yield stream
        if not file.stat().st_size:
            file.unlink()

    def note(self, environment: Mapping[str, Any]) -> None:
        """Keep what the ranks of a trial say of their *environment* and this process can't know."""
        told = {key: environment[key] for key in ("gpu", "cuda", "nccl", "backend") if key in environment}
        self.facts.update(told)

    def write(self) -> None:
        """Write both files; what was there is replaced as a whole."""
        self._folder.mkdir(parents=True, exist_ok=True)
        checks = [asdict(check) for check in self.checks.values()]
        write_atomic(self._folder / "report.json", json.dumps({**self.facts, "checks": checks}, indent=1))
        write_atomic(self._folder / "summary.md", "\n".join(self._lines()) + "\n")

    def _lines(self) -> Iterator[str]:
        yield "# Checks on a GPU\n"
        if REHEARSAL:
            yield "**A rehearsal on a CPU: it shows that the checks run, and nothing about GPUs.**\n"
        yield f"- GPUs: {', '.join(self.facts['gpus']) or 'none'}; driver: {self.facts['gpu_driver']}"
        versions = self.facts["packages"] | {key: self.facts.get(key) for key in ("cuda", "nccl")}
        shown = ("torch", "deepspeed", "cuda", "nccl")
        yield "- " + ", ".join(f"{name} {versions.get(name) or 'not known'}" for name in shown)
        yield f"- CPU: {self.facts['cpu']}, {self.facts['cpu_cores']} cores; Python {self.facts['python']}\n"
        yield "| check | verdict | seconds | figures | reason |\n|---|---|--:|---|---|"
        for check in self.checks.values():
            figures = "; ".join(f"{name}: {_shown(*value)}" for name, value in check.figures.items())
            cells = [check.name, check.verdict, f"{check.seconds:.1f}", figures, check.reason]
            yield f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"


def _shown(value: float | str | bool, unit: str) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".strip()
