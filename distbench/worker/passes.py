"""The training loop of every pass, and the clock that times it.

The loop of the ``time`` pass is the loop that a user would write by hand; nothing else is
switched on but the clock, and hooks that a metric really overrides.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from distbench.metrics.base import Absent, Metric, Pass, Session
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.trial import Progress
from distbench.worker.feed import Feed

Hook = Callable[..., Any]


@dataclass
class PassResult:
    """What one pass of one rank leaves."""

    name: Pass
    samples: dict[str, list[float | None]] = field(default_factory=dict)
    """Column -> one number a step, or a list of one."""
    absent: dict[str, str] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    window: tuple[float, float] = (0.0, 0.0)
    """``time.time()`` at the begin of the first step and at the end of the last."""


class Loop:
    """Runs the passes of one rank one after another on the same engine and stream of data."""

    def __init__(
        self, setting: Setting, strategy: Strategy, engine: Engine, feed: Feed, *, keep_traces: bool = False
    ) -> None:
        self._setting, self._strategy, self._engine, self._feed = setting, strategy, engine, feed
        self._keep_traces = keep_traces
        self._kept: dict[str, Any] = {}
        self._next_step = 0
        self.effective: dict[str, Any] = {}
        """What the live engine really does, once that is known."""

    def run(self, name: Pass, steps: int, metrics: dict[str, Metric], progress: Progress) -> PassResult:
        """Run *steps* steps as pass *name* and return what was measured."""
        session = self._session(name)
        mode = self._engine.unsynchronised() if name == "unsynced" else nullcontext()
        if mode is None:
            return PassResult(name)
        taking_part = {key: metric for key, metric in metrics.items() if name in metric.passes}
        states = {key: metric.start(session) for key, metric in taking_part.items()}
        before = _overridden("before_step", taking_part, states)
        after = _overridden("after_step", taking_part, states)
        if name != "time" and (around := _overridden("around", taking_part, states)):
            self._engine.span = _spans(session, around)
        clock = Clock(self._setting.device)
        losses = []
        # all ranks begin the window together, so that the first step holds no waiting for set-up
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
        result = _collect(session, taking_part, states)
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
            kept=self._kept,
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
    """Marks between steps: perf_counter on a CPU, events on a GPU, which never wait for it."""

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
        """Return the seconds between the marks; waits for the device."""
        pairs = itertools.pairwise(self._marks)
        if not self._cuda:
            return [end - begin for begin, end in pairs]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1000 for begin, end in pairs]


def _overridden(name: str, metrics: dict[str, Metric], states: dict[str, Any]) -> list[tuple[Hook, Any]]:
    """Return the hooks *name* that a metric really has: calling empty ones would be felt."""
    return [
        (getattr(metric, name), states[key])
        for key, metric in metrics.items()
        if getattr(type(metric), name) is not getattr(Metric, name)
    ]


def _spans(session: Session, around: list[tuple[Any, Any]]) -> Any:
    """Return what stands around each part of a step for all metrics that look there."""

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
