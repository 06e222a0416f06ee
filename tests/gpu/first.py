"""First look at distbench on a lent GPU: the most valuable steps first, ended after a limit.

python tests/gpu/first.py [--rehearse] [--limit 480] [--out FOLDER] [STEP...]

It needs what distbench needs to train, and nothing of the tests. Each step is a process that is not started
where too little time is left, and is ended after its own limit. However it ends, ``lines.jsonl`` in the
folder gets a line for each of its trials and checks, and one that tells how it ended. The folders of the
steps have the runs, and what was printed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROBES = Path(__file__).resolve().with_name("probes.py")
NEEDED = ("torch", "deepspeed", "pynvml", "duckdb", "ruamel", "pydantic", "plotly", "jinja2", "scipy")
_GRACE_S = 15.0
"""Seconds that a step which is stopped has to end its ranks and to write its report."""
_PATIENCE = 8
"""A CPU may take so many times as long in a rehearsal."""
_OF_A_RECORD = ("status", "reason", "degraded", "wall_s", "values", "absent", "effective", "failure")
_OF_AN_ENVIRONMENT = ("torch", "cuda", "nccl", "gpu", "warm", "determinism", "attention_ran")


@dataclass(frozen=True)
class Step:
    """A process, and how long it may take."""

    name: str
    least_s: float
    """It is not started if less is left."""
    most_s: float
    command: Sequence[str]
    suite: str = ""
    """Text of ``suite.yaml`` in its folder."""


class Look:
    """Runs steps one after another, and writes lines into *folder*."""

    def __init__(self, folder: Path, limit_s: float, patience: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._patience = patience
        self._folder, self._end = folder, time.monotonic() + limit_s - _GRACE_S
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }

    def run(self, step: Step) -> None:
        """Run *step* within its time; write what it found, and how it ended."""
        left_s = self._end - time.monotonic()
        if left_s < step.least_s:
            reason = f"it needs {step.least_s:g} s, {left_s:.0f} s are left"
            self.write(step.name, ended="not reached", reason=reason)
            return
        folder, began = self._folder / step.name, time.monotonic()
        folder.mkdir(exist_ok=True)
        (folder / "suite.yaml").write_text(step.suite)
        ended = "stopped from outside"
        try:
            ended = self._process(step, folder, min(step.most_s * self._patience, left_s))
        finally:
            for line in _found(folder):
                self.write(step.name, **line)
            reason = _last_line(folder / "stderr") if ended != "exit code 0" else ""
            self.write(step.name, ended=ended, seconds=round(time.monotonic() - began, 1), reason=reason)

    def _process(self, step: Step, folder: Path, limit_s: float) -> str:
        """Run the process of *step*; return how it ended."""
        with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
            process = subprocess.Popen(
                step.command,
                cwd=folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            try:
                return f"exit code {process.wait(limit_s)}"
            except subprocess.TimeoutExpired:
                return f"stopped after {limit_s:.0f} s"
            finally:
                # the command ends its ranks; whoever is left of its group is killed
                for number in (signal.SIGTERM, signal.SIGKILL):
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_GRACE_S)

    def write(self, step: str, **line: Any) -> None:
        """Append *line* of *step*, and show its beginning."""
        text = json.dumps({"step": step, **line}, default=str)
        with (self._folder / "lines.jsonl").open("a") as stream:
            stream.write(f"{text}\n")
        sys.stdout.write(f"{text[:160]}\n")
        sys.stdout.flush()


def _found(folder: Path) -> Iterator[dict[str, Any]]:
    """Lines of what a step left in *folder*: trials, kernels in traces, and JSON that it printed."""
    for file in sorted(folder.rglob("record.json")):
        record = json.loads(file.read_text())
        environment = {key: record["environment"].get(key) for key in _OF_AN_ENVIRONMENT}
        kept = {key: record[key] for key in _OF_A_RECORD}
        yield {"trial": record["case"]["name"], "job": record["job"], **kept, "environment": environment}
    for file in sorted(folder.rglob("*.trace.json.gz")):
        with gzip.open(file, "rt") as stream:
            kinds = [event.get("cat") for event in json.load(stream)["traceEvents"]]
        yield {"check": f"kernels in {file.name}", "values": {"kernels": kinds.count("kernel")}}
        # too large to be brought back
        file.unlink()
    printed = (folder / "stdout").read_text(errors="replace") if (folder / "stdout").exists() else ""
    for text in (printed, *printed.splitlines()):
        with suppress(ValueError):
            told = json.loads(text)
            yield from _told(told if isinstance(told, dict) else {})
            if text is printed:
                return


def _told(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of *told*, the JSON of a command or of a probe."""
    for case in told.get("cases", []):
        verdicts = {key: case[key] for key in ("equivalence", "findings") if case.get(key)}
        if verdicts:
            yield {"check": case.get("name") or case.get("case"), **verdicts}
    if "check" in told:
        yield told


def _last_line(file: Path) -> str:
    lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
    return lines[-1][-400:] if lines else "it printed nothing"


def steps(*, rehearse: bool) -> list[Step]:
    """All steps, the most valuable first."""
    device = "cpu" if rehearse else "cuda"
    shape = "{dim: 32, depth: 2, heads: 4, kv_heads: 2, seq_len: 16}"
    small = shape if rehearse else "{dim: 128, depth: 2, heads: 4, kv_heads: 4, seq_len: 64}"
    middle = shape if rehearse else "{dim: 1024, depth: 4, heads: 16, kv_heads: 4, seq_len: 512}"
    zero = find_spec("deepspeed") is not None

    def suite(model: str, strategies: str, rest: str) -> str:
        entries = ", ".join(each for each in strategies.split("; ") if zero or "zero" not in each)
        return (
            f"device: {device}\nworld_sizes: [1]\nlauncher: local\ndata: synthetic\n"
            "batch: {global_batch_size: 8}\nlimits: {start: 90, build: 120, step: 60, trial: 150}\n"
            f"workload: {{transformer: {model}}}\nstrategies: [{entries}]\n{rest}\n"
        )

    def distbench(*words: str) -> tuple[str, ...]:
        return (sys.executable, "-P", "-m", "distbench", *words, "suite.yaml", "--out", "runs", "--json")

    def probe(name: str, least_s: float, most_s: float) -> Step:
        return Step(name, least_s, most_s, (sys.executable, str(PROBES), name, device))

    every = (
        "single; ddp; fsdp; {zero: {stage: [0, 1, 2, 3]}}; {fsdp: {cpu_offload: true}}; "
        "{fsdp: {version: 1}}; {zero: {stage: 3, offload_optimizer: cpu, offload_parameters: cpu}}"
    )
    timed = "measure: {warmup: 3, steps: 10, trials: 1}\nprecision: bf16"
    traced = "measure: {warmup: 2, steps: 6, trials: 1, profile_steps: 3, keep_traces: true}\nprecision: bf16"
    checked = "measure: {trials: 0}\ncheck: {steps: 3}\naxes: {precision: [fp32, bf16]}"
    gated = "measure: {warmup: 2, steps: 10, trials: 1}\ngate: {tokens_per_s: 10%, efficiency: false}"
    return [
        probe("facts", 10, 60),
        Step("strategies", 40, 150, distbench("run"), suite(middle, every, timed)),
        probe("memory", 10, 40),
        probe("nvml", 10, 40),
        probe("clock", 10, 40),
        Step("profile", 25, 60, distbench("run"), suite(middle, "ddp", traced)),
        Step("check", 40, 120, distbench("run"), suite(small, "ddp; fsdp; {zero: {stage: [2, 3]}}", checked)),
        Step(
            "gate", 30, 60, distbench("gate", "--self-test", "--max-pairs", "5"), suite(middle, "ddp", gated)
        ),
        Step("compile", 40, 90, distbench("run"), suite(middle, "ddp; fsdp", f"{timed}\ncompile: true")),
    ]


def _stop(*_: object) -> None:
    """End the step in progress, whose lines are then written, and this process."""
    raise SystemExit(143)


def main() -> int:
    """Run the steps that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", nargs="*", help="only these steps")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with tiny models")
    parser.add_argument("--limit", type=float, default=480.0, metavar="SECONDS")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "gpu-first"))
    given = parser.parse_args()
    known = steps(rehearse=given.rehearse)
    if unknown := {*given.step} - {each.name for each in known}:
        parser.error(f"{', '.join(sorted(unknown))}: steps are {', '.join(each.name for each in known)}")
    signal.signal(signal.SIGTERM, _stop)
    look = Look(given.out.resolve(), given.limit, patience=_PATIENCE if given.rehearse else 1)
    look.write("packages", missing=[name for name in NEEDED if find_spec(name) is None])
    for each in known:
        if not given.step or each.name in given.step:
            look.run(each)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
