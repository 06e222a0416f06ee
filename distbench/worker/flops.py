"""FLOPs of any model: torch's ``FlopCounterMode`` over a forward and a backward pass of fake tensors.

They have shapes and no memory, so nothing is computed. A product counts two FLOPs per multiplication and
addition, a convolution and attention likewise; nothing is deducted for causal masking, and attention counts
as its matrix products (with a fused kernel the counter would add the scores that its backward pass
recomputes). The gradient of a frozen parameter is not computed, and so not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.units import join_words
from distbench.data.base import POSITION_IDS, DataSource
from distbench.metrics.base import TokenCount
from distbench.metrics.profile.flop_formulas import FORMULAS, may_multiply
from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine.findings import compute_once
from distbench.strategies.torch_engine.modules import checkpoint_layers
from distbench.worker.length_flops import Flops, mean_flops
from distbench.worker.user_code import user_code_digest
from distbench.workloads import weights
from distbench.workloads.base import Workload, mean_of, workload_of

_ROWS = 2
"""Samples of the pass: a single one is a special case for batch normalisation."""
_MAX_REASON_LENGTH = 300
"""Maximum characters of a reason."""
_GROUPED_MM = torch.ops.aten._grouped_mm


def flops_of(context: RankContext, tokens: Sequence[TokenCount] = ()) -> Flops:
    """FLOPs of a sample of the case, by its workload's formulas, or counted. A collective call.

    If samples differ in length, it is the mean over those of the steps that *tokens* describes, of all ranks.
    A packed sample has the FLOPs of its documents: attention between them is not part of the model.
    """
    source: DataSource = registry.create_plugin("data", context.case.data)
    if source.length_multiple is None and not source.packs_rows:
        return _flops_of_length(context, context.workload)
    own = Counter(length for count in tokens for length in count.lengths), sum(c.samples for c in tokens)
    of_ranks: list[tuple[Counter[int], int]] = [own] * dist.get_world_size()
    dist.all_gather_object(of_ranks, own)
    return mean_flops(
        sum((lengths for lengths, _ in of_ranks), Counter()),
        sum(samples for _, samples in of_ranks),
        context.workload,
        lambda workload: _flops_of_length(context, workload),
    )


def _flops_of_length(context: RankContext, workload: Workload) -> Flops:
    """FLOPs of a sample of the length that *workload* has. A collective call if it has no formulas."""
    recomputes = context.case.activation_checkpointing
    model = workload.flops_per_sample()
    # what ``selective`` keeps is all that the formulas count
    again = workload.recomputed_flops_per_sample() if recomputes == "full" else 0
    if model is not None and again is not None:
        return Flops(model, again)
    case = context.case

    def decides() -> list[Any]:
        data_of = [case.workload.name, case.workload.options, case.data.name, case.data.options]
        return [
            *data_of,
            workload.shape.sample_length,
            recomputes,
            case.device,
            case.environment,
            user_code_digest(case.workload, case.data),
        ]

    found = compute_once(
        context, "flops", decides, lambda: asdict(count_flops(case, workload, context.device))
    )
    flops = Flops(**found)
    return flops if model is None else Flops(model, flops.again, flops.unknown)


def count_flops(case: Case, workload: Workload, device: torch.device) -> Flops:
    """Count the FLOPs of a sample of *case* with torch, on fake tensors on *device*."""
    model = None
    try:
        model = _count(case, workload, device, checkpoints=False)
        if case.activation_checkpointing == "none":
            return Flops(model, 0)
        return Flops(model, _count(case, workload, device, checkpoints=True) - model)
    except _UncountedError as error:
        return Flops(model, None, str(error))
    except Exception as error:
        # an arbitrary model, run in a way that its author did not foresee
        message = (str(error).strip().splitlines() or [""])[0][:_MAX_REASON_LENGTH]
        why = f"FLOPs can't be counted: the model raised {type(error).__name__} on tensors without values"
        return Flops(model, None, f"{why}: {message}" if message else why)


def _count(case: Case, workload: Workload, device: torch.device, *, checkpoints: bool) -> int:
    """FLOPs of a sample; with *checkpoints*, including those that *case* recomputes.

    Raises:
        _UncountedError: the model runs operators whose work is unknown.
    """
    rows = _rows(case, workload)
    module = weights.meta_module(workload)
    if checkpoints:
        checkpoint_layers(case, list(dict.fromkeys(workload.layers(module))))
    # tensors that a model keeps beside its parameters and buffers are real
    with FakeTensorMode(allow_non_fake_inputs=True):
        _make_fake(module, device)
        batch = {
            name: torch.empty(array.shape, dtype=torch.from_numpy(array[:0]).dtype, device=device)
            for name, array in rows.items()
        }
        counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
        with _without_fused_kernels(), _UncountedOperators(counter.flop_registry) as uncounted, counter:
            mean_of(workload.loss(module, batch)).backward()
    if uncounted.names:
        raise _UncountedError(sorted(uncounted.names))
    return round(counter.get_total_flops() / _ROWS)


def _rows(case: Case, workload: Workload) -> dict[str, np.ndarray]:
    """Arrays of the first samples of *case*, in the length that *workload* has."""
    source: DataSource = registry.create_plugin("data", case.data)
    if source.length_multiple is None and not source.packs_rows:
        return source.open(workload.shape, case.seed, _ROWS)(0, range(_ROWS))
    # of one document each, of another length than the case has
    rows = source.open(workload_of(case).shape, case.seed, _ROWS)(0, range(_ROWS))
    shape = (_ROWS, workload.shape.sample_length)
    return {name: np.empty(shape, array.dtype) for name, array in rows.items() if name != POSITION_IDS}


@contextmanager
def _without_fused_kernels() -> Iterator[None]:
    """Run attention and recurrent layers as plain matrix products inside the context."""
    libraries: list[Any] = [torch.backends.mkldnn, torch.backends.cudnn]
    were = [library.enabled for library in libraries]
    for library in libraries:
        library.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for library, was in zip(libraries, were, strict=True):
            library.enabled = was


def _make_fake(module: nn.Module, device: torch.device) -> None:
    """Replace the tensors of *module* by fake ones on *device*; a tied one is made once."""
    made: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    fake = torch.empty_like(tensor, device=device)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
                tensors[name] = made[id(tensor)]  # type: ignore[assignment]


class _UncountedError(Exception):
    """A model runs operators whose work is unknown."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"FLOPs can't be counted: torch's FlopCounterMode has no formula for {join_words(names)}; "
            "register one with torch.utils.flop_counter.register_flop_formula in the module of the "
            "model"
        )


class _UncountedOperators(TorchDispatchMode):
    """Recorder of operators that multiply and for which a counter has no formula."""

    def __init__(self, known: Any) -> None:
        super().__init__()
        self._known = known
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func._overloadpacket
        if packet not in self._known and may_multiply(func):
            self.names.add(str(func.name()).partition(".")[0])
        if packet is _GROUPED_MM:
            # torch 2.13 infers its shape only for bf16, but has kernels for other dtypes too
            return _grouped_mm_output(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _grouped_mm_output(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, *_: Any, **__: Any
) -> torch.Tensor:
    """Output of a grouped product, whose groups of rows, columns or inner elements end at *offs*."""
    groups = [] if offs is None or a.ndim != b.ndim else [len(offs)]
    stacked = [len(a)] if a.ndim == b.ndim == 3 else groups
    return a.new_empty(*stacked, a.shape[-2], b.shape[-1])
