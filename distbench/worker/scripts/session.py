"""Measure the steps of a script in this process: warm-up, timed, counted and profiled steps."""

from __future__ import annotations

import functools
import json
import math
import os
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch.nn.parallel import DistributedDataParallel

from distbench.core.serialization import replace_nonfinite
from distbench.ipc.script_files import COMPLETE, ScriptReport, ScriptSettings, note_file
from distbench.ipc.trial_files import ProgressWriter, partial_result_file, progress_file, result_file
from distbench.metrics.base import Pass
from distbench.metrics.profile import WARM_STEPS
from distbench.system.files import write_atomic
from distbench.worker.rank_environment import device_facts, rank_environment
from distbench.worker.scripts.exit_watch import watch_exit
from distbench.worker.scripts.live_objects import LiveTraining
from distbench.worker.scripts.observation import Observation
from distbench.worker.scripts.rank_place import claim_rank, find_rank, node_numbers, wait_for_results
from distbench.worker.scripts.script_case import (
    ObservedSteps,
    live_settings,
    mean,
    most_frequent,
    script_case,
)
from distbench.worker.scripts.script_engine import ScriptEngine, parameter_digest
from distbench.worker.scripts.script_passes import ScriptPasses, store_losses, store_norms
from distbench.worker.scripts.span_clock import SpanClock
from distbench.worker.scripts.step_boundary import StepBoundary
from distbench.worker.user_code import imported_code_digest

_WRITE_EVERY_S = 2.0
"""Seconds between writes of the result so far, which a killed process leaves."""
_PAGE = resource.getpagesize()
_current: ScriptSession | None = None

F = TypeVar("F", bound=Callable[..., Any])


def begin_session(optimizer: torch.optim.Optimizer | None = None) -> None:
    """Begin to measure this process, whose *optimizer* has made its first update."""
    global _current
    settings = ScriptSettings.read(os.environ)
    if settings is None or _current is not None:
        return
    folder = Path(settings.folder)
    try:
        rank, ranks = find_rank()
        if not claim_rank(folder, rank):
            return
        _current = ScriptSession(settings, rank, ranks, optimizer)
        _current.begin()
    except Exception as error:
        # whatever is wrong in here must not end the script
        traceback.print_exc()
        with suppress(OSError):
            note_file(folder, os.getpid()).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


def mark_step() -> None:
    """End a step here: for scripts that update without an optimizer of torch."""
    if _current is None:
        begin_session()
    elif _current.is_active:
        _current.on_mark()


def _guarded(method: F) -> F:
    """Method of a session, whose own errors end the measurement and never the script."""

    @functools.wraps(method)
    def call(self: ScriptSession, *args: Any) -> Any:
        # a child of a fork has everything of its parent, and is no rank
        if not self.is_active or os.getpid() != self.report.pid:
            return None
        try:
            result = method(self, *args)
        except Exception as error:
            self._give_up(error)
            return None
        if self._must_stop:
            self._must_stop = False
            # as if the script ended here: its own clean-up runs
            raise SystemExit(0)
        return result

    return cast("F", call)


class ScriptSession:
    """The measurement of this process."""

    def __init__(
        self, settings: ScriptSettings, rank: int, ranks: int, optimizer: torch.optim.Optimizer | None
    ) -> None:
        self._settings, self._folder = settings, Path(settings.folder)
        self._live = LiveTraining.find(optimizer)
        self._device = self._live.device
        self._clock = SpanClock(self._device)
        self._seen = Observation(self._clock, self._give_up)
        self._engine = ScriptEngine(self._live)
        self._boundary = StepBoundary(len(self._live.optimizers))
        nodes = node_numbers(ranks)
        self._passes = ScriptPasses(self._device, self._folder, rank, nodes)
        self._hooks: list[Callable[[], None]] = []
        self._marked = optimizer is None
        self._losses: list[list[torch.Tensor]] = []
        self._sizes: list[tuple[float, float | None]] = []
        self._counted: list[int] = []
        self._accumulated: list[float] = []
        self._held: list[int] = []
        self._norms: list[list[Any]] = []
        self._progress = ProgressWriter(progress_file(self._folder, rank))
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._autocast: torch.dtype | None = None
        self._last_pass, self._last_accumulation, self._written = 0, 0, time.monotonic()
        self._plan: list[tuple[Pass, int]] = []
        self._case: Any = None
        self._must_stop = False
        self.is_active = True
        """True while the process is measured."""
        self.report = ScriptReport(rank, ranks, socket.gethostname(), os.getpid(), nodes, list(sys.argv))

    def begin(self) -> None:
        """Observe from the next step on."""
        warm = WARM_STEPS.get(self._device.type, 0)
        profiled = self._settings.profile_steps and self._settings.profile_steps + warm
        planned: list[tuple[Pass, int]] = [
            ("warmup", self._settings.warmup),
            ("time", self._settings.steps),
            ("count", 1),
            ("profile", profiled),
        ]
        self._plan = [(name, steps) for name, steps in planned if steps]
        self._seen.install(self._live.models, self._live.scalers, self._on_update, self._on_skipped)
        self._hooks.append(watch_exit(self.finish, self._note_error))
        self._passes.clock_restart()

    @_guarded
    def on_mark(self) -> None:
        """End a step where the script says so."""
        self._marked = True
        self._end_step()

    @_guarded
    def _on_update(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._marked and self._boundary.ends_step(id(optimizer), self._seen.backward_passes):
            self._end_step()

    @_guarded
    def _on_skipped(self) -> None:
        self._engine.skipped_steps += 1
        if not self._marked:
            self._end_step()

    def _end_step(self) -> None:
        if not (self._marked or self._boundary.is_chosen):
            return
        if not self._passes.is_running:
            self._start_pass()
            return
        self._passes.end_step()
        self._keep_step()
        name, steps = self._plan[0]
        self._progress.report(name, self._passes.steps_done)
        if self._passes.steps_done == steps:
            self._end_pass()
            if not self._plan:
                self._complete()
            else:
                self._start_pass()
            return
        self._passes.begin_step()
        if name == "time" and time.monotonic() - self._written > _WRITE_EVERY_S:
            self.write(partial_result_file)

    def _start_pass(self) -> None:
        name, _ = self._plan[0]
        if name == "time":
            self._describe()
            # a process that is killed soon leaves at least this
            self.write(partial_result_file)
        self._seen.next_step()
        self._clock.clear()
        self._written = time.monotonic()
        self._losses, self._last_pass = [], self._seen.backward_passes
        self._last_accumulation = self._seen.accumulations
        self._passes.start(name, self._case, self._engine, self._seen)

    def _keep_step(self) -> None:
        """Keep what the step that has ended trained on."""
        seen, name = self._seen, self._plan[0][0]
        self._losses.append(seen.losses)
        of = seen.loaded or seen.given
        tokens = [size.tokens for size in of if size.tokens is not None]
        self._sizes.append((float(sum(size.samples for size in of)), float(sum(tokens)) if tokens else None))
        passes = seen.backward_passes - self._last_pass
        self._counted.append(passes)
        self._accumulated.append(passes / max(1, seen.accumulations - self._last_accumulation))
        self._last_pass, self._last_accumulation = seen.backward_passes, seen.accumulations
        if name == "warmup":
            self._autocast = seen.autocast
            if len(self._counted) == 1:
                self.report.unused_parameters = self._live.unused_parameters()
        if name == "time":
            self._held.append(self._held_bytes())
            self._norms.append(self._live.deepspeed_norm() or seen.norms.found)
        seen.next_step()

    def _held_bytes(self) -> int:
        """Bytes that the process holds between steps: of tensors on the GPU, or of resident memory."""
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        # read again from its start: each step pays for this
        return int(os.pread(self._statm, 64, 0).split()[1]) * _PAGE

    def _describe(self) -> None:
        """Describe the training, now that its optimizer has states and its steps are known."""
        observed = ObservedSteps(
            most_frequent([samples for samples, _ in self._sizes]),
            most_frequent(self._accumulated),
            self._autocast,
            bool(self._live.scalers and any(each.is_enabled() for each in self._live.scalers)),
            self._live.deepspeed_clipping() or self._seen.norms.limit,
        )
        # before the timed steps, of which none waits for it
        _ = self._facts
        self._case = script_case(self._live, observed, list(sys.argv))
        result = self._passes.result
        result.effective = live_settings(self._live, self._case)
        report = self.report
        report.case = self._case.to_json()
        report.shares_rows = self._live.model_parallel_ranks > 1
        replicas = [*self._live.modules_of(DistributedDataParallel)]
        trained = [each for model in replicas for each in model.module.parameters() if each.requires_grad]
        report.gradient_bytes = sum(each.numel() * each.element_size() for each in trained) or None

    def _end_pass(self) -> None:
        name, _ = self._plan.pop(0)
        steps = self._passes.steps_done
        # DeepSpeed scales losses by itself, with a scale that changes from step to step
        known = [] if self._live.has_scaled_losses else self._losses[:steps]
        losses = [math.fsum(map(float, parts)) if parts else None for parts in known]
        self._passes.end(losses)
        result = self._passes.result
        if name == "warmup":
            result.warmup_losses = [loss for loss in losses if loss is not None]
        if name == "time":
            self._store_timed(losses, steps)
            self.write(partial_result_file)

    def _store_timed(self, losses: list[float | None], steps: int) -> None:
        result, report = self._passes.result, self.report
        store_losses(result, losses)
        store_norms(result, self._norms)
        report.has_norm_of_part = self._seen.norms.is_part
        for part, seconds in self._clock.seconds(steps).items():
            result.samples[f"script_{part}_s"], result.passes[f"script_{part}_s"] = [*seconds], "time"
        sizes = self._sizes[-steps:]
        samples = mean([size for size, _ in sizes])
        result.samples["script_held_bytes"], result.passes["script_held_bytes"] = [*self._held], "time"
        report.samples_per_step = samples or None
        tokens = [counted for _, counted in sizes if counted is not None]
        if len(tokens) == len(sizes) and samples:
            report.tokens_per_sample = mean(tokens) / samples
        report.backward_passes = mean([*map(float, self._counted[-steps:])]) or None
        report.rows = self._seen.rows

    def _complete(self) -> None:
        report = self.report
        if self._live.replicates and report.world_size > 1:
            report.parameter_digest = parameter_digest(self._live.parameters)
        report.ended = COMPLETE
        self.detach()
        self.write(result_file)
        if self._settings.stops and wait_for_results(self._folder, report.world_size):
            self._must_stop = True

    @_guarded
    def finish(self, ended: str) -> None:
        """End the measurement where the script ends, and keep the steps so far."""
        self.report.ended = ended
        if self._passes.is_running and self._plan[0][0] == "time" and self._passes.steps_done:
            self._end_pass()
        self.detach()
        self.write(result_file)

    def _give_up(self, error: Exception) -> None:
        """End the measurement because of an *error* of its own; the script goes on."""
        traceback.print_exception(error)
        self.report.fault = f"{type(error).__name__}: {error}"
        self.detach()
        with suppress(Exception):
            self.write(result_file)

    def _note_error(self, text: str) -> None:
        self.report.error = text

    def detach(self) -> None:
        """Remove everything from the script's process."""
        if not self.is_active:
            return
        self.is_active = False
        report, passes = self.report, self._passes
        report.calls, report.trace, report.value_reads = passes.calls, passes.trace, passes.value_reads
        passes.abandon()
        self._seen.remove()
        for undo in reversed(self._hooks):
            undo()
        self._hooks = []
        os.close(self._statm)

    @functools.cached_property
    def _facts(self) -> dict[str, Any]:
        """Facts of this process, read once: it takes longer than a step."""
        return {
            "device": device_facts(self._device),
            "environment": {**rank_environment(self._device), "warm": False},
            "code": imported_code_digest(),
        }

    def write(self, place: Callable[[Path, int], Path]) -> None:
        """Write the result so far to *place* of this rank."""
        self._written = time.monotonic()
        result = self._passes.result
        if place is partial_result_file and "step_s" not in result.samples:
            result = self._passes.so_far()
        facts = {
            **vars(result),
            "began": self._passes.began,
            "phases": self._passes.phases,
            **self._facts,
            "script": asdict(self.report),
        }
        write_atomic(place(self._folder, self.report.rank), json.dumps(replace_nonfinite(facts)))
