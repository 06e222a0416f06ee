"""Training to a target: one training of one seed, its curve, and what its health shows."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from distbench import registry
from distbench.data.base import Merit, Source, Split
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.trial import TrialFile
from distbench.worker import checks
from distbench.worker.evaluation import Evaluation
from distbench.worker.feed import Batch, Feed
from distbench.worker.health import Health
from distbench.worker.phases import Phases


def run(trial: TrialFile, setting: Setting, phases: Phases) -> dict[str, Any]:
    """Return what this rank delivers; all but rank 0 deliver no rows.

    Raises:
        Mismatch: the engine is not the one that was asked for.
        Refused: the model can't be judged.
    """
    case, asked = setting.case, trial.job.options
    strategy: Strategy = registry.make("strategies", case.strategy)
    with phases.phase("build"):
        split = _split(setting, asked["eval_samples"])
        feed = Feed(
            case, setting.workload, setting.rank, setting.world_size, setting.device, batches=split.training
        )
        evaluation = Evaluation(setting, Merit(**asked["merit"]), split.held_out)
        engine = strategy.build(setting)
    checks.check_engine(strategy, engine, case)
    checks.check_distinct_data(feed, setting.world_size)
    training = _Training(setting, strategy, engine, feed, evaluation, asked)
    with phases.phase("converge"):
        for step in range(1, asked["max_steps"] + 1):
            phases.progress.at("converge", step)
            if not training.step(step):
                break
    engine.close()
    return training.delivered()


def _split(setting: Setting, held_out: int) -> Split:
    case = setting.case
    source: Source = registry.make("data", case.data)
    return source.split(setting.workload.shape, case.seed, case.batch.global_batch_size, held_out)


@dataclass
class _Training:
    setting: Setting
    strategy: Strategy
    engine: Engine
    feed: Feed
    evaluation: Evaluation
    asked: dict[str, Any]
    curve: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    """Of training: data, forward, backward and update; neither evaluation nor looks at the health."""
    effective: dict[str, Any] = field(default_factory=dict)
    not_finite: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._health = Health(self.setting)

    def step(self, step: int) -> bool:
        """Train one step, the first being 1, and keep its row; return False if the training is over."""
        began = time.perf_counter()
        batches = self.feed.micro_batches(step - 1)
        losses = [self.engine.forward_backward(batch) for batch in batches]
        # reading it waits for the device
        mine = float(torch.stack([loss.double() for loss in losses]).mean())
        self.seconds += time.perf_counter() - began
        seen = _gathered(mine)
        if not all(math.isfinite(loss) for loss in seen):
            self._trace(step, seen, batches)
            return False
        loss = math.fsum(seen) / len(seen)
        norm = None
        if _due(step, self.asked["gradients_every"]):
            norm, self.not_finite = self._health.gradients(step, self.engine)
            if self.not_finite:
                return False
        began = time.perf_counter()
        self.engine.step()
        if self.setting.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - began
        self._after(step, loss, norm)
        return True

    def delivered(self) -> dict[str, Any]:
        """Return what the rank leaves."""
        tables = {"converge_curve": self.curve, "converge_findings": self._health.findings}
        return {
            "samples": {},
            "passes": {},
            "absent": {},
            "tables": tables if self.setting.rank == 0 else {},
            "warmup_losses": [],
            "not_finite": self.not_finite,
            "effective": self.effective,
            "window": (0.0, 0.0),
        }

    def _after(self, step: int, loss: float, norm: float | None) -> None:
        if not self.effective and self.engine.skipped_steps < step:
            # the optimizer's state exists only now, and an evaluation would change what is in use
            self.effective = self.engine.effective()
            checks.check_effective(self.effective, self.setting.case, self.setting.workload, self.strategy)
        self._health.loss(step, loss)
        self._health.skipped(step, self.engine)
        if _due(step, self.asked["replicas_every"]):
            self._health.replicas(step, self.engine)
        last = step == self.asked["max_steps"]
        value = self.evaluation.value(self.engine) if last or _due(step, self.asked["eval_every"]) else None
        samples = step * self.setting.case.batch.global_batch_size
        self.curve.append(
            {
                "step": step,
                "samples": samples,
                "tokens": samples * self.setting.workload.tokens_per_sample,
                "seconds": self.seconds,
                "loss": loss,
                "value": value,
                "grad_norm": norm,
            }
        )

    def _trace(self, step: int, losses: list[float], batches: list[Batch]) -> None:
        rank = next(i for i, loss in enumerate(losses) if not math.isfinite(loss))
        where = self._health.trace(step, rank, self.engine, batches)
        if rank == self.setting.rank:
            self.not_finite = {"step": step, "value": str(losses[rank]), "where": where}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _gathered(loss: float) -> list[float]:
    """Return the loss of each rank: they hold equal shares of the global batch."""
    losses = [0.0] * dist.get_world_size()
    dist.all_gather_object(losses, loss)
    return losses
