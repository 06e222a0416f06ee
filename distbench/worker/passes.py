"""The training loop of every pass, and the clock that times it.

In the ``time`` pass it is the loop that a user would write by hand: nothing else runs but the clock, and
hooks that a metric really overrides.
"""

import itertools
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from distbench.ipc.trial_files import Progress
from distbench.metrics.base import Absent, Left, Metric, Pass, Session, Values
from distbench.strategies.base import Setting, Strategy
from distbench.strategies.engine import Engine
from distbench.strategies.torch_engine.reading import dtype_name
from distbench.system.clock import now
from distbench.worker.feed import Feed
from distbench.worker.spans import Spans
from distbench.worker.trainer import Delivery

Hook = Callable[..., Any]


class Loop:
    """Runs the passes of one rank one after another on the same engine and stream of data."""

    def __init__(
        self, setting: Setting, strategy: Strategy, engine: Engine, feed: Feed, *, keep_traces: bool = False
    ) -> None:
        self._setting, self._strategy, self._engine, self._feed = setting, strategy, engine, feed
        self._keep_traces = keep_traces
        self._spans = Spans.of(engine)
        self._passed_on: dict[type[Left], Left] = {}
        self._earlier: dict[Pass, list[float]] = {}
        self.losses: list[float] = []
        """Of every step so far."""
        self.loss_dtype = ""
        """In which the engine gave those of the last pass."""
        self.delivery = Delivery()
        """What the passes have given so far."""

    def run(self, name: Pass, steps: int, metrics: dict[str, Metric], progress: Progress) -> Session:
        """Run *steps* steps as pass *name*, and add what *metrics* make of them to the delivery."""
        session = self._session(name)
        mode = self._engine.unsynchronised() if name == "unsynced" else nullcontext()
        if mode is None:
            return session
        if self._setting.device.type == "cuda":
            self._feed.make_ahead(range(len(self.losses), len(self.losses) + steps))
        active = {key: metric for key, metric in metrics.items() if name in metric.passes}
        states = {key: metric.start(session) for key, metric in active.items()}
        before = _overridden("before_step", active, states)
        after = _overridden("after_step", active, states)
        # before the window has ended nobody observes, so that no strategy sees where it begins
        if name not in ("warmup", "time") and (around := _overridden("around", active, states)):
            self._spans.inner = _observed(session, around)
        self._engine.keeps_gradients = name == "grad_norm"
        self._setting.step.is_apart = name == "unsynced"
        clock = Clock(self._setting.device)
        losses = []
        # all ranks start the window together, so that the first step includes no waiting for set-up
        dist.barrier()
        began = now()
        clock.mark()
        with mode:
            for step in range(steps):
                progress.at(name, step)
                for hook, state in before:
                    hook(session, state)
                losses.append(self._step(len(self.losses) + step, session if name == "grad_norm" else None))
                for hook, state in after:
                    hook(session, state)
                clock.mark()
        session.steps = clock.seconds()
        if name == "time":
            self.delivery.window = (began, now())
        self._spans.inner = nullcontext
        session.losses = [_mean(parts) for parts in losses]
        self.losses += session.losses
        self.loss_dtype = dtype_name(loss.dtype for parts in losses for loss in parts)
        self._collect(session, active, states)
        self._earlier[name] = session.steps
        return session

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
            nodes=setting.nodes or [0] * setting.world_size,
            pass_=name,
            folder=setting.scratch,
            effective=self.delivery.effective,
            keep_traces=self._keep_traces,
            passed_on=self._passed_on,
            earlier=self._earlier,
        )

    def _step(self, step: int, checked: Session | None) -> list[torch.Tensor]:
        """Losses of the micro-batches: averaging them belongs to no step."""
        with self._engine.span("data"):
            batches = self._feed.micro_batches(step)
        losses = [self._engine.forward_backward(batch) for batch in batches]
        if checked:
            checked.grad_norms.append(self._engine.grad_norm())
        self._engine.step()
        return losses

    def _collect(self, session: Session, metrics: dict[str, Metric], states: dict[str, Any]) -> None:
        delivery = self.delivery
        for key, metric in metrics.items():
            for column, value in _values(key, metric, session, states[key]).items():
                if isinstance(value, Absent):
                    delivery.absent[column] = str(value)
                else:
                    delivery.samples[column] = value if isinstance(value, list) else [value]
                    delivery.passes[column] = session.pass_
        for name, rows in session.tables.items():
            if name in delivery.tables:
                delivery.tables[name] += rows
            else:
                # the list itself: a metric of a later pass may put better rows into it, as profile does
                delivery.tables[name] = rows


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


def _values(name: str, metric: Metric, session: Session, state: Any) -> Values:
    """Values of *metric*, or why there are none: whatever it raises costs its own numbers, not the trial."""
    try:
        return metric.values(session, state)
    except Absent as reason:
        why = reason
    except Exception as error:
        traceback.print_exc()
        told = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
        why = Absent(f"the metric {name} failed on rank {session.rank} in {session.pass_}: {told}")
    return {column.name: why for column in metric.columns}


def _mean(losses: Sequence[torch.Tensor]) -> float:
    """Mean in fp64, as the jobs that inspect a training take it: a mean in bf16 would round it."""
    return math.fsum(float(loss) for loss in losses) / len(losses)


def _observed(session: Session, around: list[tuple[Any, Any]]) -> Any:
    """Context manager around each part of a step, for all metrics that hook into it."""

    @contextmanager
    def span(name: str) -> Iterator[None]:
        with ExitStack() as stack:
            for hook, state in around:
                stack.enter_context(hook(session, state, name))
            yield

    return span
