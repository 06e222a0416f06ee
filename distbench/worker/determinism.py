"""Run a job with deterministic algorithms, as far as torch has them.

An operation without a deterministic implementation is an error, unless a model turns out to need it. With
warnings only, attention on CUDA keeps a backward pass that adds in any order although it has another one
(ATen, attention_backward.cu), so no training would be bitwise reproducible for the sake of a few models.
"""

import os
import re
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from distbench.ipc.trial_files import STRICTLY_DETERMINISTIC
from distbench.strategies.base import UnsupportedCase
from distbench.worker.rendezvous import StoreExchange

T = TypeVar("T")

# ATen's alertNotDeterministic, and torch._prims_common.alert_not_deterministic
_NONDETERMINISTIC_OPERATION = re.compile(r"(\S+) does not have a deterministic implementation")


def fix_cublas_workspace() -> None:
    """Give cuBLAS the workspace that its deterministic mode needs, before this process first uses cuBLAS.

    Source: docs.nvidia.com/cuda/cublas, "Results reproducibility".
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"


def share_nondeterministic_operation(exchange: StoreExchange, operation: str) -> str:
    """Return an operation that any rank lacks, if this one lacks *operation*; empty: none lacks one.

    Raises:
        UnsupportedCase: this rank lacks one, and others neither lack one nor are done.
    """
    try:
        return next(filter(None, exchange.all_gather("determinism", operation)), "")
    except dist.DistStoreError as error:
        if not operation:
            raise
        raise UnsupportedCase(
            f"rank {exchange.rank} uses {operation}, for which torch has no deterministic "
            "implementation here, and other ranks don't: the model does different work on each rank, "
            "so its trainings can't be compared"
        ) from error


def run_deterministically(job: Callable[[], T], share: Callable[[str], str]) -> tuple[T, str]:
    """Run *job* with deterministic algorithms; return its result and the level of determinism.

    The level is ``STRICTLY_DETERMINISTIC``, or a text about the exception. If torch names an operation
    without a deterministic implementation, *job* runs again with such operations allowed. All ranks do so
    or none: *share* maps the operation that this rank lacks (empty: none) to one that any rank lacks.

    Raises:
        UnsupportedCase: one rank alone lacks an operation.
    """
    torch.use_deterministic_algorithms(True)
    result, lacking = _try_strict(job)
    if not (lacking := share(lacking)):
        return result[0], STRICTLY_DETERMINISTIC
    # outside of the handler, as the error holds the engine in which it was raised
    result.clear()
    torch.use_deterministic_algorithms(True, warn_only=True)
    needed = f"torch has no deterministic implementation of {lacking} here"
    return job(), f"non-deterministic operations were allowed: {needed}"


def match_nondeterministic_operation(error: Exception) -> re.Match[str] | None:
    """Match of the operation without a deterministic implementation in torch's *error*, as group 1."""
    # a compiler wraps what torch raises
    return _NONDETERMINISTIC_OPERATION.search(str(error))


def _try_strict(job: Callable[[], T]) -> tuple[list[T], str]:
    """Result of *job*, or the operation that has no deterministic implementation."""
    try:
        return [job()], ""
    except Exception as error:
        if lacking := match_nondeterministic_operation(error):
            return [], lacking[1]
        raise
