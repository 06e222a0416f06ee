"""Buckets in which engines reduce gradients, and the number of their reductions. Imports no torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.strategies.description import UNKNOWN_CALLS, CallCount
from distbench.workloads.base import workload_of

MIB = 1 << 20
_DDP_LIMITS = (MIB, 25 * MIB)
"""Torch's own limits of DDP's buckets in bytes (2.13): of the first, and of all others."""
_WITH_EMBEDDING = ("tokens", "masked_tokens", "pairs")
"""Kinds of data of which the first parameter of a model is an embedding."""


@dataclass(frozen=True)
class Gradient:
    """Gradient of a parameter."""

    shape: tuple[int, ...]
    is_product: bool
    """True if matrices are multiplied just before it is ready, as for a matrix that is no embedding. With a
    bias, which is ready before its matrix, both products come before the bias."""
    is_ambiguous: bool = False
    """True if the workload does not tell whether it is the bias of the matrix that becomes ready next."""

    @property
    def elements(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)


def parameter_elements(case: Case) -> list[int] | None:
    """Elements of each parameter of *case*; None: the workload does not report their shapes."""
    shapes = workload_of(case).tensor_shapes()
    return None if shapes is None else [math.prod(shape) for shape in shapes]


def ready_gradients(case: Case) -> list[Gradient] | None:
    """Gradients of *case* in the order in which they become ready.

    None: the workload does not report the shapes of its parameters, or compiled layers decide the order.
    """
    workload = workload_of(case)
    shapes, has_biases = workload.tensor_shapes(), workload.has_biases
    if shapes is None or case.compile != "none":
        return None
    has_embedding, ready = workload.shape.kind in _WITH_EMBEDDING, []
    for place, shape in enumerate(shapes):
        is_matrix = len(shape) > 1 and not (has_embedding and place == 0)
        follows = len(shape) == 1 and place > 0 and shapes[place - 1][0] == shape[0]
        is_product = follows if has_biases and len(shape) == 1 else is_matrix and not has_biases
        ready.append(Gradient(shape, is_product, follows and has_biases is None))
    return ready[::-1]


def ready_gradients_of_copies(case: Case) -> list[Gradient] | None:
    """Gradients of *case* in the order in which they become ready, in strategies of torch without sharding.

    If it computes in another dtype, modules cast their parameters before their forward pass (``compute_in``):
    each layer its own, and before it the whole module all others. The gradients of the copies are cast back
    at the end of the backward pass of the layer, or of the module. None: as in ``ready_gradients``.
    """
    if case.precision.compute == case.precision.master:
        return ready_gradients(case)
    model = workload_of(case).layer_shapes()
    if model is None or case.compile != "none":
        return None
    ready = []
    for layer in reversed(model.layers):
        # all products of a layer come before the first of its gradients
        ready += [Gradient(shape, is_product=number == 0) for number, shape in enumerate(reversed(layer))]
    return [*ready, *(Gradient(shape, is_product=False) for shape in reversed(model.outside))]


def ddp_reductions(
    case: Case, gradients: Sequence[Gradient] | None, bucket_bytes: int | None = None
) -> CallCount:
    """All-reduces of DDP for *gradients*, in the order in which they become ready.

    Args:
        bucket_bytes: Limit of all buckets; None: torch's own.
    """
    if gradients is None:
        return UNKNOWN_CALLS
    # a bucket is reduced once its last gradient is ready
    places = ddp_bucket_ends(case, gradients, bucket_bytes)
    return CallCount(len(places), synchronization_count(gradients, places))


def ddp_bucket_ends(case: Case, gradients: Sequence[Gradient], bucket_bytes: int | None = None) -> list[int]:
    """Place of the last of *gradients* in each of DDP's buckets; see ``ddp_buckets``."""
    buckets = ddp_buckets(case, [each.elements for each in gradients], bucket_bytes)
    return [end - 1 for end in itertools.accumulate(map(len, buckets))]


def ddp_buckets(case: Case, elements: Iterable[int], bucket_bytes: int | None = None) -> list[list[int]]:
    """Bytes of the tensors in each of DDP's buckets, of tensors of *elements* in their order.

    Args:
        bucket_bytes: Limit of all buckets; None: torch's own.
    """
    sizes = (size * DTYPE_BYTES[case.precision.master] for size in elements)
    return buckets_up_to(sizes, _DDP_LIMITS if bucket_bytes is None else (bucket_bytes,))


def synchronization_count(gradients: Sequence[Gradient], places: Sequence[int]) -> int | None:
    """Number of synchronizations of reductions that start when the gradients at *places* are ready.

    Matrices are multiplied before the first one, in the forward pass. None: shapes do not tell whether some
    are multiplied between two of them.
    """
    if any(gradients[place].is_ambiguous for place in places[:-1]):
        return None
    between = (gradients[here + 1 : there + 1] for here, there in itertools.pairwise(places))
    return bool(places) + sum(any(each.is_product for each in part) for part in between)


def buckets_up_to(sizes: Iterable[int], limits: Sequence[int]) -> list[list[int]]:
    """*sizes* in buckets that are closed as soon as they reach their limit.

    Each bucket has the next of *limits*, and the last of them once there are no more.
    """
    buckets: list[list[int]] = [[]]
    for size in sizes:
        buckets[-1].append(size)
        if sum(buckets[-1]) >= limits[min(len(buckets), len(limits)) - 1]:
            buckets.append([])
    return [bucket for bucket in buckets if bucket]


def buckets_within(sizes: Iterable[int], limit: int) -> list[list[int]]:
    """*sizes* in buckets that are closed before they exceed *limit*; a larger size has one of its own."""
    buckets: list[list[int]] = [[]]
    for size in sizes:
        if buckets[-1] and sum(buckets[-1]) + size > limit:
            buckets.append([])
        buckets[-1].append(size)
    return [bucket for bucket in buckets if bucket]
