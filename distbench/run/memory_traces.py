"""Trace the peak memory of cases in a subprocess: this process imports no torch."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from distbench.core import registry
from distbench.core.case import CURRENT_ENVIRONMENT, NATIVE_ENGINE, Case
from distbench.data.base import DataSource
from distbench.ipc.launch_spec import WORKER_ARGUMENTS
from distbench.ipc.memory_traces import TracedMemory
from distbench.record.run_folder import write_json
from distbench.strategies.base import Strategy
from distbench.strategies.description import TracedStep
from distbench.system.interpreters import make_python_path
from distbench.system.processes import exit_text
from distbench.system.temporary import temporary_folder

_NO_TRACE = (
    "of the strategies, single, ddp, fsdp (version 2) and tp are traced, without offload and without "
    "lossy communication"
)


def trace_memory(cases: Sequence[Case], device: str) -> Iterator[TracedMemory]:
    """Yield the peak memory of each of *cases*, in their order, as soon as it is known.

    If the process that traces them dies, so does the trace of one case; another process goes on with the
    next.

    Args:
        device: Kind of device on which they would be trained: ``cpu`` or ``cuda``.
    """
    steps = [traced_step(case) for case in cases]
    left = [step for step in steps if isinstance(step, TracedStep)]
    traces = _trace_steps(left, device)
    for step in steps:
        yield next(traces) if isinstance(step, TracedStep) else TracedMemory(reason=step)


def traced_step(case: Case) -> TracedStep | str:
    """Step to trace for *case*, or the reason why there is none."""
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    if case.engine != NATIVE_ENGINE:
        return f"engine = {case.engine.name}: only native steps are traced"
    if case.environment != CURRENT_ENVIRONMENT:
        return f"environment = {case.environment}: only steps of this Python environment are traced"
    if case.compile != "none":
        return f"compile = {case.compile}: compiled code is not traced"
    if case.precision.loss_scale:
        return "precision: the values of gradients decide whether a step with a loss scale is skipped"
    source: DataSource = registry.create_plugin("data", case.data)
    if source.length_multiple is not None:
        return "padding = longest: the lengths of the rows decide how much memory a step takes"
    return strategy.traced_step(case) or _NO_TRACE


def _trace_steps(steps: Sequence[TracedStep], device: str) -> Iterator[TracedMemory]:
    """Yield the peak memory of each of *steps*."""
    left = list(steps)
    with temporary_folder() as scratch:
        file = scratch / "steps.json"
        while left:
            write_json(file, [{"step": _step_json(step), "device": device} for step in left])
            with _tracing_process(file) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    left.pop(0)
                    yield TracedMemory(**json.loads(line))
                code = process.wait()
            if left:
                left.pop(0)
                yield TracedMemory(reason=f"the process that traced it {exit_text(code)}")


def _step_json(step: TracedStep) -> dict[str, object]:
    return {**dataclasses.asdict(step), "case": step.case.to_json()}


@contextmanager
def _tracing_process(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Process that traces the steps in *file*; it ends with the context."""
    with subprocess.Popen(
        [sys.executable, *WORKER_ARGUMENTS, "trace-memory", str(file)],
        env={**os.environ, "PYTHONPATH": make_python_path()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        except BaseException:
            # an interrupt, or results that nobody reads any more
            process.kill()
            raise
