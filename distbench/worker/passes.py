"""The training loop of every pass, and the clock that times it.

In the ``time`` pass it is the loop that a user would write by hand: nothing else runs except the clock, and
hooks that a metric actually overrides.
"""

import itertools
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from distbench.ipc.trial_files import ProgressWriter
from distbench.metrics.base import Metric, NotAvailable, Pass, PassContext, SharedResult, Values
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine
from distbench.strategies.torch_engine.readback import dtype_name
from distbench.system.clock import now
from distbench.worker.batches import MicroBatchReader
from distbench.worker.gradient_range import gradient_ranges
from distbench.worker.spans import SpanDispatcher
from distbench.worker.trainer import RankResult

Hook = Callable[..., Any]


class PassRunner:
    """Runner of a rank's passes, one after another on the same engine and data stream."""

    def __init__(
        self,
        context: RankContext,
        strategy: Strategy,
        engine: Engine,
        reader: MicroBatchReader,
        *,
        keep_traces: bool = False,
    ) -> None:
        self._context, self._strategy, self._engine, self._reader = context, strategy, engine, reader
        self._keep_traces = keep_traces
        self._spans = SpanDispatcher.install(engine)
        self._shared_results: dict[type[SharedResult], SharedResult] = {}
        self._step_times: dict[Pass, list[float]] = {}
        self.losses: list[float] = []
        """Losses of every step so far."""
        self.loss_dtype = ""
        """Dtype of the engine's losses in the last pass."""
        self.result = RankResult()
        """Result of the passes so far."""

    def run(
        self, name: Pass, steps: int, metrics: dict[str, Metric], progress: ProgressWriter
    ) -> PassContext:
        """Run *steps* steps as pass *name*, and add the values of *metrics* to the result."""
        session = self._session(name)
        mode = self._engine.without_communication() if name == "unsynced" else nullcontext()
        if mode is None:
            return session
        steps = self._prefetch(name, steps, progress)
        active = {key: metric for key, metric in metrics.items() if name in metric.passes}
        states = {key: metric.start(session) for key, metric in active.items()}
        before = overridden_hooks("before_step", active, states)
        after = overridden_hooks("after_step", active, states)
        # nothing observes before the window has ended, so that no strategy sees where it begins
        if name not in ("warmup", "time") and (around := overridden_hooks("around", active, states)):
            self._spans.target = observing_span(session, around)
        self._engine.retain_gradients = name == "grad_norm"
        self._context.step.is_without_communication = name == "unsynced"
        clock = StepClock(self._context.device)
        losses = []
        # all ranks start the window together, so the first step includes no wait for set-up
        dist.barrier()
        began = now()
        clock.mark()
        with mode:
            for step in range(steps):
                progress.report(name, step)
                for hook, state in before:
                    hook(session, state)
                losses.append(self._step(len(self.losses) + step, session if name == "grad_norm" else None))
                for hook, state in after:
                    hook(session, state)
                clock.mark()
        session.step_times = clock.seconds()
        session.data_waits = self._reader.waits[-steps:] if steps else []
        session.token_counts = self._reader.token_counts[-steps:] if steps else []
        if name == "time":
            self.result.window = (began, now())
        self._spans.target = nullcontext
        session.losses = [_mean(parts) for parts in losses]
        self.losses += session.losses
        self.loss_dtype = dtype_name(loss.dtype for parts in losses for loss in parts)
        self._collect(session, active, states)
        self._step_times[name] = session.step_times
        return session

    def _prefetch(self, name: Pass, steps: int, progress: ProgressWriter) -> int:
        """Make the batches of a pass that does not wait for a loader; return the steps that it can have."""
        ahead = range(len(self.losses), len(self.losses) + steps)
        if name == "ready":
            of_ranks = [False] * self._context.world_size
            # batches of ranks may differ in size
            dist.all_gather_object(of_ranks, self._reader.prefetch(ahead, partial(progress.report, name)))
            return steps if all(of_ranks) else 0
        if self._context.device.type == "cuda" and not self._reader.loader:
            self._reader.prefetch(ahead, partial(progress.report, name))
        return steps

    def _session(self, name: Pass) -> PassContext:
        setting = self._context
        return PassContext(
            case=setting.case,
            workload=setting.workload,
            strategy=self._strategy,
            engine=self._engine,
            device=setting.device,
            rank=setting.rank,
            world_size=setting.world_size,
            nodes=setting.node_of_rank or [0] * setting.world_size,
            pass_name=name,
            folder=setting.trial_folder,
            effective=self.result.effective,
            keep_traces=self._keep_traces,
            shared_results=self._shared_results,
            earlier_step_times=self._step_times,
            lengths_differ=self._reader.lengths_differ,
        )

    def _step(self, step: int, checked: PassContext | None) -> list[torch.Tensor]:
        """Run one step; return the losses of its micro-batches, as averaging them belongs to no step."""
        with self._engine.span("data"):
            batches = self._reader.micro_batches(step)
        losses = [self._engine.forward_backward(batch) for batch in batches]
        if checked:
            checked.grad_norms.append(self._engine.grad_norm())
            if checked.case.precision.compute == "fp16":
                checked.gradient_ranges = gradient_ranges(self._engine)
        self._engine.step()
        return losses

    def _collect(self, context: PassContext, metrics: dict[str, Metric], states: dict[str, Any]) -> None:
        delivery = self.result
        for key, metric in metrics.items():
            for column, value in metric_values(key, metric, context, states[key]).items():
                if isinstance(value, NotAvailable):
                    delivery.absent[column] = str(value)
                else:
                    delivery.samples[column] = value if isinstance(value, list) else [value]
                    delivery.passes[column] = context.pass_name
        for name, rows in context.tables.items():
            if name in delivery.tables:
                delivery.tables[name] += rows
            else:
                # the list itself: a metric of a later pass may put better rows into it, as profile does
                delivery.tables[name] = rows


class StepClock:
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


def overridden_hooks(name: str, metrics: dict[str, Metric], states: dict[str, Any]) -> list[tuple[Hook, Any]]:
    """Hooks *name* that a metric overrides: calling empty ones would cost time."""
    return [
        (getattr(metric, name), states[key])
        for key, metric in metrics.items()
        if getattr(type(metric), name) is not getattr(Metric, name)
    ]


def metric_values(name: str, metric: Metric, context: PassContext, state: Any) -> Values:
    """Values of *metric*, or the reason for none: an exception costs its own numbers, not the trial."""
    try:
        return metric.values(context, state)
    except NotAvailable as reason:
        why = reason
    except Exception as error:
        traceback.print_exc()
        error_text = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
        why = NotAvailable(
            f"the metric {name} failed on rank {context.rank} in {context.pass_name}: {error_text}"
        )
    return {column.name: why for column in metric.columns}


def _mean(losses: Sequence[torch.Tensor]) -> float:
    """Mean in fp64, as in the jobs that inspect a training: a mean in bf16 would round it."""
    return math.fsum(float(loss) for loss in losses) / len(losses)


def observing_span(context: PassContext, hooks: list[tuple[Any, Any]]) -> Any:
    """Context manager around each part of a step, for all metrics that hook into it."""

    @contextmanager
    def span(name: str) -> Iterator[None]:
        with ExitStack() as stack:
            for hook, state in hooks:
                stack.enter_context(hook(context, state, name))
            yield

    return span
