"""What each layer takes, by which a pipeline can be cut: timed once a run, before anything else is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from distbench.strategies.base import Setting
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.pp.stages import shapes_of, with_weights
from distbench.strategies.torch_engine.findings import found_once
from distbench.strategies.torch_engine.modules import computing_layers
from distbench.strategies.torch_engine.stagewise import Computed
from distbench.workloads import weights
from distbench.workloads.base import mean_of
from distbench.workloads.stages import Stages

_WARM, _TIMED = 2, 5


def layer_ms(setting: Setting, strategy: PipelineParallel, model: Stages) -> list[float]:
    """Milliseconds of a forward and a backward pass of each layer over one micro-batch of the pipeline.

    The first with what comes before the layers, the last with what comes after them and the loss; each whole,
    the median of several. Rank 0 times them, while the others wait, once for all trials of the run: what it
    finds it keeps. A collective call.
    """
    case, samples = setting.case, setting.case.batch.micro_batch_size // strategy.micro_batches

    def decides() -> list[Any]:
        model_of = [case.workload.name, case.workload.options, samples, asdict(case.precision)]
        return [*model_of, case.activation_checkpointing, case.device, case.threads, case.environment]

    def find() -> list[float]:
        return [round(ms, 4) for ms in _timed(setting, model, samples)]

    return [float(ms) for ms in found_once(setting, "layers", decides, find)]


def _timed(setting: Setting, model: Stages, samples: int) -> Iterator[float]:
    """Milliseconds of each layer, of which one at a time is on the device."""
    is_cuda = setting.device.type == "cuda"
    whole = weights.cast(weights.skeleton(setting.workload), weights.DTYPES[setting.case.precision.master])
    # draws of the training come out as without it
    with torch.random.fork_rng([setting.device] if is_cuda else []), _any_algorithm():
        for number in range(len(model.layers)):
            part = setting.workload.stage(whole, range(number, number + 1))
            module = with_weights(setting, model, part)
            computing_layers(setting, module)
            yield _milliseconds(_passes(setting, model, module, number, samples), is_cuda=is_cuda)
            part.to("meta")
    if is_cuda:
        torch.cuda.empty_cache()


@contextmanager
def _any_algorithm() -> Iterator[None]:
    """Context in which algorithms need not be deterministic: a check, which asks for that, may come first."""
    strict = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warns)


def _passes(
    setting: Setting, model: Stages, module: nn.Module, number: int, samples: int
) -> Callable[[], None]:
    """A forward and a backward pass of *module*, which has the layer *number*, over random numbers."""
    is_last, classes = number == len(model.layers) - 1, setting.workload.shape.classes
    taken, given = shapes_of(setting, model.between, samples, is_first=number == 0, is_last=is_last)
    inputs = _random(taken, classes, setting.device)
    labels = torch.randint(classes, given.shape[:-1], device=setting.device)

    def run() -> None:
        output = module(inputs)
        if is_last:
            batch = {model.input: labels, "labels": labels}
            mean_of(setting.workload.loss(Computed(output), batch)).backward()
        else:
            output.backward(torch.ones_like(output))

    return run


def _random(like: torch.Tensor, classes: int, device: torch.device) -> torch.Tensor:
    if not like.is_floating_point():
        return torch.randint(classes, like.shape, device=device)
    return torch.randn(like.shape, dtype=like.dtype, device=device, requires_grad=like.requires_grad)


def _milliseconds(run: Callable[[], None], *, is_cuda: bool) -> float:
    """Median time of *run*, once it is warm."""
    taken = []
    for _ in range(_WARM + _TIMED):
        began = time.perf_counter()
        run()
        if is_cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken[_WARM:])
