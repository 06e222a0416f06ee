"""Trace the peak memory of cases in a subprocess: this process imports no torch."""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from distbench.core import registry
from distbench.core.case import CURRENT_ENVIRONMENT, NATIVE_ENGINE, Case
from distbench.core.units import format_duration
from distbench.data.base import DataSource
from distbench.ipc.launch_spec import WORKER_ARGUMENTS
from distbench.ipc.memory_traces import TracedMemory
from distbench.record.run_folder import write_json
from distbench.strategies.base import Strategy
from distbench.strategies.description import TracedStep
from distbench.system.interpreters import make_python_path
from distbench.system.processes import exit_text
from distbench.system.temporary import temporary_folder

_LIMIT_S = 600.0
"""Seconds after which a trace is given up: one of 70 billion parameters takes minutes."""
_POLL_S, _END_S = 0.2, 10.0

Stopped = Callable[[], bool]
"""True once no more traces are wanted."""


def trace_memory(
    cases: Sequence[Case], device: str, stopped: Stopped = lambda: False
) -> Iterator[TracedMemory]:
    """Yield the peak memory of each of *cases*, in their order, as soon as it is known.

    If the process that traces them dies, so does the trace of one case; another process goes on with the
    next. It ends early if *stopped*.

    Args:
        device: Kind of device on which they would be trained: ``cpu`` or ``cuda``.
    """
    steps = [traced_step(case) for case in cases]
    traces = _trace_steps([step for step in steps if isinstance(step, TracedStep)], device, stopped)
    for step in steps:
        if isinstance(step, str):
            yield TracedMemory(reason=step)
        elif (found := next(traces, None)) is not None:
            yield found
        else:
            return


def traced_step(case: Case) -> TracedStep | str:
    """Step to trace for *case*, or the reason why there is none."""
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    source: DataSource = registry.create_plugin("data", case.data)
    if case.engine != NATIVE_ENGINE:
        return f"engine = {case.engine.name}: only native steps are traced"
    if case.environment != CURRENT_ENVIRONMENT:
        return f"environment = {case.environment}: only steps of this Python environment are traced"
    if case.compile != "none":
        return f"compile = {case.compile}: compiled code is not traced"
    if case.precision.loss_scale:
        return "precision: the values of gradients decide whether a step with a loss scale is skipped"
    if source.length_multiple is not None:
        return "padding = longest: the lengths of the rows decide how much memory a step takes"
    return strategy.traced_step(case)


def _trace_steps(steps: Sequence[TracedStep], device: str, stopped: Stopped) -> Iterator[TracedMemory]:
    """Yield the peak memory of each of *steps*, until *stopped*."""
    left = list(steps)
    with temporary_folder() as scratch:
        while left and not stopped():
            file = scratch / "steps.json"
            write_json(file, [{"step": _step_json(step), "device": device} for step in left])
            errors = scratch / "errors.txt"
            with _tracing_process(file, errors) as process:
                for line in _lines(process, stopped):
                    left.pop(0)
                    yield TracedMemory(**json.loads(line))
                if stopped():
                    process.kill()
                    return
                reason = _end_text(process, errors) if left else ""
            if left:
                left.pop(0)
                yield TracedMemory(reason=reason)


def _lines(process: subprocess.Popen[bytes], stopped: Stopped) -> Iterator[bytes]:
    """Yield the lines that *process* prints, until it ends, it takes too long for one, or *stopped*."""
    assert process.stdout is not None
    descriptor, rest, began = process.stdout.fileno(), b"", time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not stopped() and time.monotonic() - began < _LIMIT_S:
            if not selector.select(_POLL_S):
                continue
            if not (read := os.read(descriptor, 1 << 16)):
                return
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                yield line
                began = time.monotonic()


def _end_text(process: subprocess.Popen[bytes], errors: Path) -> str:
    """Text about the end of *process*, with the last line that it printed to *errors*; ends it if it runs."""
    try:
        # its output has ended, or its time
        code = process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"its trace exceeded {format_duration(_LIMIT_S)}"
    lines = errors.read_text(errors="replace").strip().splitlines() if code > 0 else []
    return f"the process that traced it {exit_text(code)}" + (f": {lines[-1]}" if lines else "")


def _step_json(step: TracedStep) -> dict[str, object]:
    return {**dataclasses.asdict(step), "case": step.case.to_json()}


@contextmanager
def _tracing_process(file: Path, errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Process that traces the steps in *file*, and prints to *errors*; it ends with the context."""
    with (
        errors.open("wb") as error_file,
        subprocess.Popen(
            [sys.executable, *WORKER_ARGUMENTS, "trace-memory", str(file)],
            env={**os.environ, "PYTHONPATH": make_python_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=error_file,
        ) as process,
    ):
        try:
            yield process
        except BaseException:
            # an interrupt, or results that nobody reads any more
            process.kill()
            raise
