"""Time each layer once per run, before everything else, to balance stages by time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from distbench.strategies.base import RankContext
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.pp.stages import load_stage, stage_io_tensors
from distbench.strategies.torch_engine.findings import compute_once
from distbench.strategies.torch_engine.modules import prepare_module
from distbench.strategies.torch_engine.stagewise import KnownOutput
from distbench.workloads import weights
from distbench.workloads.base import mean_of
from distbench.workloads.stages import PipelineStages

_WARMUP_PASSES, _TIMED_PASSES = 2, 5


def time_layers(context: RankContext, strategy: PipelineParallel, model: PipelineStages) -> list[float]:
    """Milliseconds of a forward and a backward pass of each layer over one micro-batch of the pipeline.

    The first includes everything before the layers, the last everything after them and the loss; each runs
    unsplit, and the median of several runs counts. Rank 0 measures while the others wait, once for all trials
    of the run; the result is cached. Collective call.
    """
    case, samples = context.case, context.case.batch.micro_batch_size // strategy.micro_batches

    def decides() -> list[Any]:
        model_of = [case.workload.name, case.workload.options, samples, asdict(case.precision)]
        place = [case.device, case.threads, case.environment, case.env]
        return [*model_of, case.activation_checkpointing, *place]

    def find() -> list[float]:
        return [round(ms, 4) for ms in _measure_layers(context, model, samples)]

    return [float(ms) for ms in compute_once(context, "layers", decides, find)]


def _measure_layers(context: RankContext, model: PipelineStages, samples: int) -> Iterator[float]:
    """Milliseconds of each layer; only one layer at a time is on the device."""
    is_cuda = context.device.type == "cuda"
    whole = weights.cast(weights.meta_module(context.workload), weights.DTYPES[context.case.precision.master])
    # random numbers of the training are the same as without it
    with torch.random.fork_rng([context.device] if is_cuda else []), _nondeterministic():
        for number in range(len(model.layer_parameters)):
            part = context.workload.build_stage(whole, range(number, number + 1))
            module = load_stage(context, model, part)
            prepare_module(context, module)
            yield _median_ms(_forward_backward(context, model, module, number, samples), is_cuda=is_cuda)
            part.to("meta")
    if is_cuda:
        torch.cuda.empty_cache()


@contextmanager
def _nondeterministic() -> Iterator[None]:
    """Context in which algorithms need not be deterministic, which an earlier check may have required."""
    strict = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warns)


def _forward_backward(
    context: RankContext, model: PipelineStages, module: nn.Module, number: int, samples: int
) -> Callable[[], None]:
    """Function that runs *module*, layer *number*, forward and backward over random inputs."""
    is_last, classes = number == len(model.layer_parameters) - 1, context.workload.shape.classes
    taken, given = stage_io_tensors(
        context, model.activation_shape, samples, is_first=number == 0, is_last=is_last
    )
    inputs = _random_like(taken, classes, context.device)
    labels = torch.randint(classes, given.shape[:-1], device=context.device)

    def run() -> None:
        output = module(inputs)
        if is_last:
            batch = {model.input_array: labels, "labels": labels}
            mean_of(context.workload.loss(KnownOutput(output), batch)).backward()
        else:
            output.backward(torch.ones_like(output))

    return run


def _random_like(like: torch.Tensor, classes: int, device: torch.device) -> torch.Tensor:
    if not like.is_floating_point():
        return torch.randint(classes, like.shape, device=device)
    return torch.randn(like.shape, dtype=like.dtype, device=device, requires_grad=like.requires_grad)


def _median_ms(run: Callable[[], None], *, is_cuda: bool) -> float:
    """Median time of *run* after a warm-up."""
    taken = []
    for _ in range(_WARMUP_PASSES + _TIMED_PASSES):
        began = time.perf_counter()
        run()
        if is_cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken[_WARMUP_PASSES:])
