"""Perturb weights and gradients by rounding errors."""

from pathlib import Path

from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES


def write_perturbed_weights(context: RankContext, seed: int) -> Path:
    """Write the file of initial weights perturbed by rounding errors with *seed*.

    It has no weights: a rank perturbs those that it makes for itself. The caller removes the file.
    """
    file = context.trial_folder / f"moved-{seed}-rank{context.rank}.safetensors"
    move = weights.Perturbation(str(context.weights_file), seed, context.case.precision.compute)
    weights.write_perturbation(file, move)
    return file


def round_gradients(engine: Engine, compute: str) -> None:
    """Round the gradients of a torch engine to the dtype *compute*."""
    assert isinstance(engine, TorchEngine), "references are torch's own"
    for parameter in engine.module.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.to(DTYPES[compute]))


def clip_gradients(engine: Engine, limit: float, norm: float) -> None:
    """Scale the gradients of a torch engine down to *limit*; *norm* is their L2 norm, without error.

    The engine then finds nothing to clip. Its own norm may be far off: on CPUs torch adds the squares of a
    tensor in fp32, one after another, which is 0.1% too small for 20 million elements. The error is smaller
    in a framework that shards the tensor.
    """
    assert isinstance(engine, TorchEngine), "references are torch's own"
    if norm > limit:
        for parameter in engine.module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(limit / norm)
