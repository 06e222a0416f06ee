"""Tensor parallelism: split the layers of a module over the ranks of a mesh, and train it.

The layers are split by torch's styles. Every parameter becomes a DTensor of the mesh, so that norms and
optimizers treat all of them alike.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.torch_engine import modules, readback
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.workloads import weights
from distbench.workloads._names import modules_named
from distbench.workloads.base import Workload
from distbench.workloads.splits import TensorSplits

T = TypeVar("T")


def parallelize(
    module: nn.Module, workload: Workload, mesh: DeviceMesh, *, sequence_parallel: bool, loss_parallel: bool
) -> None:
    """Split *module* of *workload*, which is on the meta device, over the dimension ``tp`` of *mesh*.

    Args:
        sequence_parallel: Split activations between the layers by position (sequence parallelism,
            arXiv:2205.05198).
        loss_parallel: Leave the logits split by class, for ``loss_parallel``.

    Raises:
        UnsupportedCase: the workload does not declare how to split it, or names modules that it does not
            have.
    """
    check_plan(module, workload)
    parallelize_stage(
        module, workload, mesh, sequence_parallel=sequence_parallel, loss_parallel=loss_parallel
    )


def check_plan(module: nn.Module, workload: Workload) -> None:
    """Check that the full *module* has all modules that *workload* splits.

    Raises:
        UnsupportedCase: the workload does not declare them, or names modules that it does not have.
    """
    splits = _splits(workload)
    ends = (splits.embedding, splits.head)
    named = (*ends, *splits.colwise, *splits.rowwise, *splits.replicated, *splits.partial)
    modules.check_module_names(module, workload, named)


def _splits(workload: Workload) -> TensorSplits:
    if (splits := workload.tensor_splits()) is None:
        raise UnsupportedCase(f"{type(workload).__name__} does not declare how to split its layers")
    return splits


def parallelize_stage(
    module: nn.Module, workload: Workload, mesh: DeviceMesh, *, sequence_parallel: bool, loss_parallel: bool
) -> None:
    """``parallelize`` a stage of a pipeline, which has some of the modules."""
    splits = _splits(workload)
    tied = weights.tied_groups(module)
    between: Placement = Shard(1) if sequence_parallel else Replicate()
    logits = Shard(-1) if loss_parallel else Replicate()
    columns = _Columns(between)
    plan: dict[str, ParallelStyle] = {
        splits.embedding: RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        splits.head: ColwiseParallel(
            input_layouts=between, output_layouts=logits, use_local_output=not loss_parallel
        ),
        **dict.fromkeys(splits.colwise, columns),
        **{name: RowwiseParallel(output_layouts=between) for name in splits.rowwise},
        **{name: SequenceParallel() if sequence_parallel else _Replicated() for name in splits.replicated},
        **{name: _Partial() for name in splits.partial},
    }
    plan = {name: style for name, style in plan.items() if modules_named(module, name)}
    # no tensor has a value yet that the first rank could send to the others
    parallelize_module(module, mesh, plan, src_data_rank=None)
    weights.retie(module, tied)


def redistribute_gradients(module: nn.Module) -> None:
    """Convert each gradient to the placement of its parameter; a collective call for partial sums.

    Norms under sequence parallelism have partial sums, and the lookup of a split embedding a full table.
    """
    for parameter in module.parameters():
        gradient = parameter.grad
        if not isinstance(gradient, DTensor) or not isinstance(parameter, DTensor):
            continue
        if gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)


def tp_placement(parameter: DTensor) -> Placement:
    """Placement of *parameter* over the dimension ``tp`` of its mesh."""
    names = parameter.device_mesh.mesh_dim_names or ()
    return parameter.placements[names.index("tp")]


class _Replicated(ParallelStyle):
    """A module that every rank runs in full, its parameters as DTensors like those of all the others."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        # torch annotates the hook as returning nothing, but its return value is used
        enter: Any = _as_replicas
        return distribute_module(module, device_mesh, input_fn=enter, output_fn=_as_local)


def _as_replicas(_module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
    return tuple(DTensor.from_local(x, mesh, (Replicate(),), run_check=False) for x in inputs)


def _as_local(_module: nn.Module, output: Any, _mesh: DeviceMesh) -> Any:
    return output.to_local()


class _Partial(ParallelStyle):
    """A norm over each head, of which a rank has some: its gradients are sums over the ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        enter: Any = _as_shards
        return distribute_module(module, device_mesh, input_fn=enter, output_fn=_as_local)


def _as_shards(_module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
    # the dimension of the heads does not matter to a norm over the last one
    return tuple(DTensor.from_local(x, mesh, (Shard(x.ndim - 2),), run_check=False) for x in inputs)


class _Columns(ColwiseParallel):
    """Layers that are split by output; those with the same input gather it once.

    So its gradient is summed once, rather than once for each of them.
    """

    def __init__(self, between: Placement) -> None:
        super().__init__()
        self._between = between
        self._last: tuple[weakref.ref[torch.Tensor], Any, DTensor] | None = None

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            first, *others = inputs
            return (self._shared_input(first, device_mesh), *others)

        module.register_forward_pre_hook(enter)
        return super()._apply(module, device_mesh)

    def _shared_input(self, x: torch.Tensor, mesh: DeviceMesh) -> DTensor:
        if isinstance(x, DTensor) and x.placements == (Replicate(),):
            return x
        # after a change in place, or without a graph, it is a different input
        state = (None if x.is_inference() else x._version, torch.is_grad_enabled())
        if self._last and self._last[0]() is x and self._last[1] == state:
            return self._last[2]
        whole = _gather_replicated(x, mesh, self._between)
        self._last = (weakref.ref(x, self._forget), state, whole)
        return whole

    def _forget(self, tensor: weakref.ref[torch.Tensor]) -> None:
        """Free the gathered copy of a *tensor* that no longer exists."""
        if self._last and self._last[0] is tensor:
            self._last = None


def _gather_replicated(x: torch.Tensor, mesh: DeviceMesh, between: Placement) -> DTensor:
    """*x*, with the placement *between* layers, gathered on every rank; its gradient is summed."""
    # under sequence parallelism the norm before it returns a DTensor
    placed = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, (between,), run_check=False)
    return placed.redistribute(placements=(Replicate(),))


class TensorParallelBaseEngine(TorchEngine):
    """Engine of a module split by ``parallelize``; a mix-in for engines that wrap it."""

    def __init__(self, context: RankContext, module: nn.Module, layers: list[nn.Module], *more: Any) -> None:
        super().__init__(context, module, layers, *more)
        self._forward_probe = _ForwardProbe(module, layers)

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = super().forward_backward(micro_batch)
        if self._micro_batch_count == self._accumulation:
            with self.span("backward"):
                self._place_gradients()
        return readback.full_tensor(loss)

    def evaluate(self, score: Callable[[nn.Module], T]) -> T:
        with self.module.register_forward_hook(lambda _module, _inputs, output: readback.full_tensor(output)):
            return super().evaluate(score)

    def effective_settings(self) -> dict[str, Any]:
        placed = [p for p in self.module.parameters() if isinstance(p, DTensor)]
        return {
            **super().effective_settings(),
            "mesh": readback.tensor_mesh_sizes(placed[0]),
            "split_tensors": sum(isinstance(tp_placement(p), Shard) for p in placed),
            "sequence_parallel": self._forward_probe.positions != self._context.workload.shape.sample_length,
            "loss_parallel": self._forward_probe.logits_are_split,
        }

    def _gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        return _both(
            super()._gradient_sync(last), loss_parallel() if self._uses_loss_parallel() else nullcontext()
        )

    def _place_gradients(self) -> None:
        """Give the gradients of a step the placements of their parameters."""
        redistribute_gradients(self.module)

    def _uses_loss_parallel(self) -> bool:
        """True if the loss is computed from logits that are split by class."""
        raise NotImplementedError


class _ForwardProbe:
    """Probe activation shape and logits sharding in the first forward pass."""

    def __init__(self, module: nn.Module, layers: list[nn.Module]) -> None:
        self.positions: int | None = None
        self.logits_are_split = False
        self._hooks = [
            layers[0].register_forward_hook(self._layer),
            module.register_forward_hook(self._model),
        ]

    def _layer(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        self.positions = output.shape[1]

    def _model(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        self.logits_are_split = isinstance(output, DTensor)
        for hook in self._hooks:
            hook.remove()


@contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with outer, inner:
        yield
