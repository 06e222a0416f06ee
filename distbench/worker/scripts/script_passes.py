"""Passes over a script's steps, with the metrics of any measured trial."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import CodeType
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from distbench.core.case import Case
from distbench.metrics.base import Metric, NotAvailable, Pass, PassContext
from distbench.metrics.communication import Communication
from distbench.metrics.communication.traffic import CountedCollectives
from distbench.metrics.convergence import ConvergenceMetric
from distbench.metrics.memory import Memory
from distbench.metrics.steptime import StepTime
from distbench.strategies.engine import Engine
from distbench.system import clock
from distbench.worker.passes import StepClock, metric_values, observing_span, overridden_hooks
from distbench.worker.scripts.observation import Observation
from distbench.worker.scripts.script_engine import ScriptEngine, ScriptStrategy
from distbench.worker.scripts.script_profile import ScriptProfile, trace_file
from distbench.worker.trainer import RankResult, first_non_finite
from distbench.workloads.base import Workload

METRICS: dict[Pass, dict[str, Metric]] = {
    "warmup": {"steptime": StepTime()},
    "time": {"steptime": StepTime(), "memory": Memory(), "convergence": ConvergenceMetric()},
    "count": {"communication": Communication(), "memory": Memory()},
    "profile": {"profile": ScriptProfile()},
}
"""Metrics of each pass."""
_VALUE_READS = ("aten::_local_scalar_dense", "aten::is_nonzero")
"""Operators that make the host wait until a tensor is computed, to read its value."""

_TENSOR_METHODS = (
    *("torch/_tensor.py", "torch/_tensor_str.py", "torch/utils/_contextlib.py"),
    # around dispatch modes, of which metrics have some, too
    *("torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/_ops.py"),
)
"""Files between a line that reads or prints a tensor and the operator."""
_PACKAGE = str(Path(__file__).parents[2])


class ValueReads(TorchDispatchMode):
    """Counts the lines of the script that read a value of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.places: Counter[str] = Counter()
        """``file:line`` -> calls."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: run compiled code unchanged."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func._schema.name in _VALUE_READS:
            self.places[_reading_line()] += 1
        return func(*args, **(kwargs or {}))


def _reading_line() -> str:
    """Line that reads a value by itself, outside of installed packages; empty: a library reads it."""
    frame: Any = sys._getframe(2)
    while frame is not None and _is_between(frame.f_code):
        frame = frame.f_back
    if frame is None or "-packages/" in (file := frame.f_code.co_filename):
        return ""
    if file.startswith(("<", _PACKAGE)):
        return ""
    return f"{Path(file).name}:{frame.f_lineno}"


def _is_between(code: CodeType) -> bool:
    return code.co_name == "__torch_dispatch__" or code.co_filename.endswith(_TENSOR_METHODS)


class ScriptPasses:
    """Runner of the passes of one rank, driven by the ends of its steps."""

    def __init__(self, device: torch.device, folder: Path, rank: int, nodes: list[int]) -> None:
        """Run passes of *rank* on *device*; *nodes* has the number of the node of each rank."""
        self._device, self._folder, self._rank, self._nodes = device, folder, rank, nodes
        self._context: PassContext | None = None
        self._states: dict[str, Any] = {}
        self._active: dict[str, Metric] = {}
        self._before: list[tuple[Any, Any]] = []
        self._after: list[tuple[Any, Any]] = []
        self._step_times: dict[Pass, list[float]] = {}
        self._clock = StepClock(device)
        self._seen: Observation | None = None
        self._reads: ValueReads | None = None
        self._started = time.perf_counter()
        self.result = RankResult()
        """Result of the passes so far."""
        self.began = clock.now()
        """Time at which the process began to train."""
        self.phases: dict[str, float] = {}
        """Pass -> seconds."""
        self.steps_done = 0
        """Steps of the current pass that have ended."""
        self.calls: list[list[dict[str, Any]]] = []
        """Collectives of each counted step."""
        self.trace = ""
        """Name of the file with the profiled steps."""
        self.value_reads: list[dict[str, Any]] = []
        """Lines that read a value of a tensor in the counted step."""

    @property
    def is_running(self) -> bool:
        """True during a pass."""
        return self._context is not None

    def start(self, name: Pass, case: Case | None, engine: ScriptEngine, seen: Observation) -> None:
        """Start the pass *name* at the end of a step; *case* is known from the timed steps on."""
        context = PassContext(
            case=cast("Case", case),
            workload=cast("Workload", None),
            strategy=ScriptStrategy(),
            engine=cast("Engine", engine),
            device=self._device,
            rank=self._rank,
            world_size=len(self._nodes),
            nodes=self._nodes,
            pass_name=name,
            folder=self._folder,
            effective=self.result.effective,
            earlier_step_times=self._step_times,
        )
        self._active, self._seen = METRICS[name], seen
        self._states = {key: metric.start(context) for key, metric in self._active.items()}
        # a pass runs from here on: Ctrl-C may come at any time
        self.steps_done, self._context = 0, context
        if name not in ("warmup", "time"):
            seen.around = observing_span(context, overridden_hooks("around", self._active, self._states))
        self._clock = StepClock(self._device)
        self._started = time.perf_counter()
        self._before = overridden_hooks("before_step", self._active, self._states)
        self._after = overridden_hooks("after_step", self._active, self._states)
        self.begin_step()
        if name == "count":
            # the last mode that is entered, and the first that is left
            self._reads = ValueReads()
            self._reads.__enter__()
        if name == "time":
            self.result.window = (clock.now(), 0.0)
        self._clock.mark()

    def end_step(self) -> None:
        """End a step of the pass."""
        # before anything of distbench reads a value; one step is counted
        self._stop_reads()
        self.steps_done += 1
        for hook, state in self._after:
            hook(self._context, state)
        self._clock.mark()

    def begin_step(self) -> None:
        """Begin the next step of the pass, right after the end of the last."""
        for hook, state in self._before:
            hook(self._context, state)

    def end(self, losses: list[float | None]) -> None:
        """End the pass, whose steps had *losses*."""
        context = self._context
        assert context is not None
        if self._seen is not None:
            self._seen.around = None
        context.step_times = self._step_times[context.pass_name] = self._clock.seconds()
        self.phases[context.pass_name] = time.perf_counter() - self._started
        if context.pass_name == "time":
            self.result.window = (self.result.window[0], clock.now())
        context.losses = [loss for loss in losses if loss is not None]
        self._collect(context)
        if counted := context.shared(CountedCollectives):
            self.calls = [[asdict(call) for call in step] for step in counted.steps]
        if context.pass_name == "profile":
            self.trace = trace_file(self._folder, self._rank).name
        self._context = None

    def abandon(self) -> None:
        """End the pass, if there is one, without results: neither a mode nor a profiler stays."""
        if self._context is None:
            return
        self._stop_reads()
        for hook, state in self._after:
            with suppress(Exception):
                hook(self._context, state)
        if profiler := getattr(self._states.get("profile"), "profiler", None):
            with suppress(Exception):
                profiler.stop()
        self._context = None

    def _stop_reads(self) -> None:
        if self._reads is not None:
            self._reads.__exit__(None, None, None)
            places = self._reads.places.items()
            self.value_reads = [{"place": place, "calls": calls} for place, calls in places if place]
            self._reads = None

    def so_far(self) -> RankResult:
        """Result with the times of the timed steps that have ended, on a CPU."""
        result = RankResult(**vars(self.result))
        if self._device.type == "cpu" and self.is_running:
            result.samples = {**result.samples, "step_s": self._clock.seconds()}
            result.passes = {**result.passes, "step_s": "time"}
            result.window = (result.window[0], clock.now())
        return result

    def clock_restart(self) -> None:
        """Begin the time before the first pass."""
        self._started = time.perf_counter()

    def _collect(self, context: PassContext) -> None:
        result = self.result
        for key, metric in self._active.items():
            for column, value in metric_values(key, metric, context, self._states[key]).items():
                if isinstance(value, NotAvailable):
                    result.absent[column] = str(value)
                else:
                    result.samples[column] = value if isinstance(value, list) else [value]
                    result.passes[column] = context.pass_name
        for name, rows in context.tables.items():
            result.tables.setdefault(name, []).extend(rows)


def store_norms(result: RankResult, norms: list[list[Any]]) -> None:
    """Store the gradient norms of the timed steps in *result*, or the reason why there are none."""
    if all(len(each) == 1 for each in norms):
        result.samples["grad_norm"], result.passes["grad_norm"] = [float(each[0]) for each in norms], "time"
        result.absent.pop("grad_norm", None)
    elif any(norms):
        result.absent["grad_norm"] = (
            "the script computes several norms of gradients in a step, or none in some"
        )
    else:
        result.absent["grad_norm"] = "the script computes no L2 norm of its whole gradient"


def store_losses(result: RankResult, losses: list[float | None]) -> None:
    """Store the *losses* of the timed steps in *result*, or the reason why there are none."""
    known = [loss for loss in losses if loss is not None]
    if not losses:
        result.absent["loss"] = "DeepSpeed scales losses in fp16, and does not tell the scale of a step"
    elif len(known) < len(losses):
        result.absent["loss"] = "a step had no scalar that a backward pass began with"
    else:
        result.samples["loss"], result.passes["loss"] = [*known], "time"
        if broken := first_non_finite(enumerate(known)):
            result.not_finite = {**broken, "phase": "time"}
