"""The training loop of every pass, and the clock that times it.

In the ``time`` pass it is the loop that a user would write by hand: nothing else runs but the clock, and
hooks that a metric really overrides.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from distbench.metrics.base import Absent, Left, Metric, Pass, Session
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.trial import Progress
from distbench.worker.feed import Feed

Hook = Callable[..., Any]


@dataclass
class PassResult:
    """Results of one pass on one rank."""

    name: Pass
    samples: dict[str, list[float | None]] = field(default_factory=dict)
    """Column -> one number per step, or a list of one."""
    absent: dict[str, str] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    window: tuple[float, float] = (0.0, 0.0)
    """``time.time()`` at the beginning of the first step and at the end of the last."""


class Loop:
    """Runs the passes of one rank one after another on the same engine and stream of data."""

    def __init__(
        self, setting: Setting, strategy: Strategy, engine: Engine, feed: Feed, *, keep_traces: bool = False
    ) -> None:
        self._setting, self._strategy, self._engine, self._feed = setting, strategy, engine, feed
        self._keep_traces = keep_traces
        self._passed_on: dict[type[Left], Left] = {}
        self._earlier: dict[Pass, list[float]] = {}
        self._next_step = 0
        self.effective: dict[str, Any] = {}
        """Effective settings of the live engine, once they are known."""

    def run(self, name: Pass, steps: int, metrics: dict[str, Metric], progress: Progress) -> PassResult:
        """Results of *steps* steps, run as pass *name*."""
        session = self._session(name)
        mode = self._engine.unsynchronised() if name == "unsynced" else nullcontext()
        if mode is None:
            return PassResult(name)
        active = {key: metric for key, metric in metrics.items() if name in metric.passes}
        states = {key: metric.start(session) for key, metric in active.items()}
        before = _overridden("before_step", active, states)
        after = _overridden("after_step", active, states)
        if name != "time" and (around := _overridden("around", active, states)):
            self._engine.span = _spans(session, around)
        clock = Clock(self._setting.device)
        losses = []
        # all ranks start the window together, so that the first step includes no waiting for set-up
        dist.barrier()
        began = time.time()
        clock.mark()
        with mode:
            for step in range(steps):
                progress.at(name, step)
                for hook, state in before:
                    hook(session, state)
                losses.append(self._step(self._next_step + step, session if name == "check" else None))
                for hook, state in after:
                    hook(session, state)
                clock.mark()
        session.steps = clock.seconds()
        self._engine.__dict__.pop("span", None)
        session.losses = [float(loss) for loss in losses]
        self._next_step += steps
        result = _collect(session, active, states)
        self._earlier[name] = session.steps
        result.window = (began, time.time())
        return result

    def _session(self, name: Pass) -> Session:
        setting = self._setting
        return Session(
            case=setting.case,
            workload=setting.workload,
            strategy=self._strategy,
            engine=self._engine,
            device=setting.device,
            rank=setting.rank,
            world_size=setting.world_size,
            pass_=name,
            folder=setting.scratch,
            effective=self.effective,
            keep_traces=self._keep_traces,
            passed_on=self._passed_on,
            earlier=self._earlier,
        )

    def _step(self, step: int, checked: Session | None) -> torch.Tensor:
        with self._engine.span("data"):
            batches = self._feed.micro_batches(step)
        losses = [self._engine.forward_backward(batch) for batch in batches]
        if checked:
            checked.grad_norms.append(self._engine.grad_norm())
        self._engine.step()
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()


class Clock:
    """Marks between steps: perf_counter on a CPU, events on a GPU, which do not block."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []
        if self._cuda:
            torch.cuda.synchronize()

    def mark(self) -> None:
        """Mark the end of one step and the beginning of the next."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Seconds between the marks; waits for the device."""
        pairs = itertools.pairwise(self._marks)
        if not self._cuda:
            return [end - begin for begin, end in pairs]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1000 for begin, end in pairs]


def _overridden(name: str, metrics: dict[str, Metric], states: dict[str, Any]) -> list[tuple[Hook, Any]]:
    """Hooks *name* that a metric overrides: calling empty ones would cost time."""
    return [
        (getattr(metric, name), states[key])
        for key, metric in metrics.items()
        if getattr(type(metric), name) is not getattr(Metric, name)
    ]


def _spans(session: Session, around: list[tuple[Any, Any]]) -> Any:
    """Context manager around each part of a step, for all metrics that hook into it."""

    @contextmanager
    def span(name: str) -> Iterator[None]:
        with ExitStack() as stack:
            for hook, state in around:
                stack.enter_context(hook(session, state, name))
            yield

    return span


def _collect(session: Session, metrics: dict[str, Metric], states: dict[str, Any]) -> PassResult:
    result = PassResult(session.pass_, losses=session.losses, norms=session.grad_norms, tables=session.tables)
    for key, metric in metrics.items():
        try:
            values = metric.values(session, states[key])
        except Absent as reason:
            result.absent.update({column.name: str(reason) for column in metric.columns})
            continue
        for column, value in values.items():
            if isinstance(value, Absent):
                result.absent[column] = str(value)
            else:
                result.samples[column] = value if isinstance(value, list) else [value]
    return result
