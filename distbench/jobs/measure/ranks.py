"""Build the engine of a case once and run the passes on it, one after another."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from distbench.core import lr_schedule, registry
from distbench.core.case import Case
from distbench.core.errors import Mismatch
from distbench.core.gradient_overflow import overflow_remedy, overflow_text
from distbench.engines.base import engine_of
from distbench.ipc.trial_files import DRAWS_KEY, LOSS_DTYPE_KEY, PhaseTimer, TrialInstructions
from distbench.jobs.measure import communication_cycle, profile_steps
from distbench.metrics.base import COMPUTED_TOKENS, Metric, Pass, PassContext, TokenCount
from distbench.metrics.profile import AttentionKernels
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.description import GLOBAL_COUNT_TEXT
from distbench.strategies.engine import Engine
from distbench.worker import checks
from distbench.worker.batches import MicroBatchReader
from distbench.worker.document_isolation import check_documents
from distbench.worker.dropout import seed_draws
from distbench.worker.flops import flops_of
from distbench.worker.passes import PassRunner
from distbench.worker.trainer import RankResult, first_non_finite

# of a hash, for people to compare
_HASH_DIGITS = 12


def run(trial: TrialInstructions, context: RankContext, phases: PhaseTimer) -> Iterator[RankResult]:
    """Yield the result of this rank: after the timed window, then with the data of each later pass.

    Raises:
        Mismatch: what runs is not what was requested.
    """
    measure = trial.measure
    metrics: dict[str, Metric] = {
        choice.name: registry.create_plugin("metrics", choice) for choice in trial.metrics
    }
    engine, loop, data = _build(trial, context, phases, metrics)

    def run_pass(name: Pass, steps: int) -> PassContext:
        with phases.phase(name):
            return loop.run(name, steps, metrics, phases.progress)

    delivery = loop.result
    # measurements beside the training are in none of its numbers, not even in those of the warm-up
    run_pass("probe", 0)
    seed_draws(context, trial.case.seed)
    drawn = _random_state(context.device)
    delivery.warmup_losses = run_pass("warmup", measure.warmup).losses
    # nothing but steps in between: a strategy can't detect where the timed window begins
    window = run_pass("time", measure.steps)
    timed, tokens = window.losses, window.token_counts
    if tokens:
        delivery.samples[COMPUTED_TOKENS] = [count.computed for count in tokens]
        delivery.passes[COMPUTED_TOKENS] = "time"
    # with any metrics: each trial is judged by its losses
    delivery.samples["loss"], delivery.passes["loss"] = [*timed], "time"
    delivery.facts[LOSS_DTYPE_KEY] = loop.loss_dtype
    if not torch.equal(drawn, _random_state(context.device)):
        delivery.facts[DRAWS_KEY] = True
    delivery.effective = checks.effective_settings(engine)
    updates = measure.warmup + measure.steps - engine.skipped_steps
    if updates == 0:
        # without an update there is no optimizer state to check, and no optimizer in the steps
        ranges = run_pass("grad_norm", 1).gradient_ranges
        raise Mismatch(
            f"all {measure.warmup + measure.steps} steps were skipped, because "
            f"{overflow_text(context.case.precision, ranges)}: {overflow_remedy(context.case.precision)}"
        )
    checks.check_effective(delivery.effective, context, updates)
    delivery.effective = _settings_before_window(delivery.effective, trial.case, measure.steps) | data
    if _on_any_rank(context.step.has_counts, context.device):
        delivery.effective["loss_mean"] = GLOBAL_COUNT_TEXT
    yield _partial_result(loop)
    if trial.case.loader.workers is not None:
        run_pass("ready", measure.steps)
        yield _partial_result(loop)
    run_pass("count", communication_cycle([trial.case]))
    yield _partial_result(loop)
    profiled = run_pass("profile", profile_steps(trial.case, measure))
    if (attention := profiled.shared(AttentionKernels)) and attention.kernels:
        delivery.facts["attention_ran"] = attention.kernels
    yield _partial_result(loop)
    norms = run_pass("grad_norm", measure.check_steps).grad_norms
    checks.check_equal_norms(norms, context.world_size)
    yield _partial_result(loop)
    run_pass("unsynced", measure.unsynced_steps)
    yield _partial_result(loop)
    with phases.phase("flops"):
        _add_flops(context, delivery, tokens)
    yield _partial_result(loop)


def _add_flops(context: RankContext, delivery: RankResult, tokens: Sequence[TokenCount]) -> None:
    """Add the FLOPs of a sample to *delivery*, the mean over those of the timed steps. A collective call."""
    flops = flops_of(context, tokens)
    named = {"flops_per_sample": flops.model, "recomputed_flops_per_sample": flops.again}
    for name, number in named.items():
        if number is None:
            delivery.absent[name] = flops.unknown
        else:
            delivery.samples[name] = [number]


def _build(
    trial: TrialInstructions, context: RankContext, phases: PhaseTimer, metrics: Mapping[str, Metric]
) -> tuple[Engine, PassRunner, dict[str, Any]]:
    """Build the requested engine, its pass runner, and facts about its data."""
    strategy: Strategy = registry.create_plugin("strategies", trial.case.strategy)
    with phases.phase("build"):
        for metric in metrics.values():
            if context.device.type in metric.devices:
                metric.install()
        engine = engine_of(context.case).build(strategy, context)
        feed = MicroBatchReader(context, with_loader=True)
        if context.device.type == "cuda":
            _free_cached_memory()
    checks.check_engine(strategy, engine, trial.case)
    checks.check_data(feed, context)
    check_documents(engine, context)
    # versions of numpy may draw different numbers from one seed (NEP 19); rank 0 reports for all
    first = (
        {} if context.rank else {"data": {"first_batch": feed.fingerprint(0, all_ranks=True)[:_HASH_DIGITS]}}
    )
    return engine, PassRunner(context, strategy, engine, feed, keep_traces=trial.measure.keep_traces), first


def _partial_result(loop: PassRunner) -> RankResult:
    """Result of the passes that have ended."""
    if broken := first_non_finite(enumerate(loop.losses)):
        loop.result.not_finite = {**broken, "phase": "time"}
    return loop.result


def _free_cached_memory() -> None:
    """Return memory that the build has cached to the device, such as a whole model before it was sharded.

    It would count in the timed steps' peak of reserved memory. The warm-up allocates again what steps need.
    """
    gc.collect()
    torch.cuda.empty_cache()


def _random_state(device: torch.device) -> torch.Tensor:
    """State of the generator that modules of the model draw from: it changes when they draw."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _on_any_rank(own: bool, device: torch.device) -> bool:
    """True if *own* is true on any rank: in a pipeline only the last stage has a loss. A collective call."""
    flag = torch.tensor(int(own), device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def _settings_before_window(effective: dict[str, Any], case: Case, steps: int) -> dict[str, Any]:
    """Return *effective*, read after *steps* timed steps, without what depends on their number.

    The optimizer's updates are those counted before the timed steps, and the learning rate of the next
    update, once checked, is replaced by its schedule. So runs with different numbers of steps can be
    compared.
    """
    optimizer = dict(effective.get("optimizer") or {})
    if isinstance(counted := optimizer.get("steps"), int):
        optimizer["steps"] = counted - steps
    if optimizer.pop("next_lr", None) is not None:
        optimizer["schedule"] = lr_schedule.schedule_text(case.optimizer)
    return {**effective, "optimizer": optimizer}
