"""Engines shared by the strategies of plain torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from distbench.strategies.base import Batch, RankContext, UnsupportedCase
from distbench.strategies.engine import Engine, TrainingState
from distbench.strategies.torch_engine import checkpoint, float8, modules, optimizer, readback
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.strategies.torch_engine.loss_scale import LossScale
from distbench.workloads.weights import plain_name

T = TypeVar("T")

# DDP's error for parameters without gradient in the step before, by index
_UNUSED_PARAMETERS = re.compile(
    r"Parameter indices which did not receive grad for rank \d+: (?P<numbers>[\d ]+)"
)


class TorchEngine(Engine):
    """A module and a torch optimizer; the engine of ``single`` and the base of the wrapped ones."""

    def __init__(self, context: RankContext, module: nn.Module, layers: list[nn.Module]) -> None:
        self._context = context
        self._case = context.case
        self._loss: Callable[[nn.Module, Batch], torch.Tensor] = GlobalMean(context)
        self.module = module
        self._optimizer = self.make_optimizer(layers)
        self._scheduler = self.make_scheduler()
        self._accumulation = self._case.batch.gradient_accumulation_steps
        self._micro_batch_count = 0
        self._loss_scale = LossScale(self._case.precision)
        self._clip = self._case.optimizer.clip_grad_norm
        self._unscaled_norm: torch.Tensor | None = None
        """Global L2 norm of the gradients of this step, if their loss scale was taken off."""
        self._probe = modules.ComputeProbe(self.forward_module, layers)
        self._skipped = 0

    @property
    def framework_engine(self) -> object:
        return self

    @property
    def _scale(self) -> float:
        return self._loss_scale.value

    @property
    def _divisor(self) -> float:
        return self._accumulation / self._scale

    @property
    def forward_module(self) -> nn.Module:
        """Module that a forward pass on this rank, or on the first of its devices, calls with samples."""
        return self.module

    def make_optimizer(self, layers: list[nn.Module]) -> torch.optim.Optimizer:
        """Make the optimizer of the module, whose layers are *layers*."""
        return optimizer.make_optimizer(self.module, layers, self._case.optimizer)

    def make_scheduler(self) -> LambdaLR | None:
        """Make the scheduler of the optimizer; None if the rate never changes."""
        return optimizer.make_scheduler(self._optimizer, self._case.optimizer)

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer with this rank's states: the one that steps, or one inside it."""
        return self._optimizer

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if self._micro_batch_count == 0:
            self._zero_grad()
        self._micro_batch_count += 1
        with self._gradient_sync(self._micro_batch_count == self._accumulation):
            with self.span("forward"):
                loss = self._loss(self.module, micro_batch)
            with self.span("backward"):
                self._backward(loss)
        return loss.detach()

    def step(self) -> None:
        self._micro_batch_count = 0
        with self.span("optimizer"):
            if self._case.precision.loss_scale:
                is_fine = self._unscale()
                self._loss_scale.update(overflowed=not is_fine)
                if not is_fine:
                    self._skipped += 1
                    return
            if self._clip is not None:
                self.clip(self._clip)
            self._step_optimizer()
            if self._scheduler:
                self._scheduler.step()

    def grad_norm(self) -> float:
        return readback.l2_norm(self._gradients()) / self._scale

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                gradient = readback.full_tensor(parameter.grad)
                yield plain_name(name), gradient if self._scale == 1 else gradient / self._scale

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            yield plain_name(name), readback.full_tensor(parameter.detach())

    def buffers(self) -> dict[str, torch.Tensor]:
        return {plain_name(name): buffer.detach().cpu() for name, buffer in self.module.named_buffers()}

    def evaluate(self, score: Callable[[nn.Module], T]) -> T:
        return modules.run_evaluation(self.module, score)

    @property
    def skipped_steps(self) -> int:
        return self._skipped

    def effective_settings(self) -> dict[str, Any]:
        return {
            "engine": type(self.framework_engine).__qualname__,
            "world_size": dist.get_world_size(),
            **readback.parameter_counts(self.module.parameters()),
            "optimizer": optimizer.describe_optimizer(self.inner_optimizer),
            "dtypes": {
                "parameters": readback.dtype_name(p.dtype for p in self.module.parameters()),
                "compute": self._probe.dtype,
                "gradients": readback.dtype_name(gradient.dtype for gradient in self._gradients()) or None,
                "reduce": self.reduce_dtype(),
                "master": readback.dtype_name(
                    p.dtype for p in optimizer.optimized_tensors(self.inner_optimizer)
                ),
                "optimizer_state": optimizer.state_dtype(self.inner_optimizer),
            },
            **self._loss_scale.describe(),
            "clip_grad_norm": self._clip,
            "global_batch_size": (self._probe.samples or 0)
            * self._accumulation
            * self._context.data_parallel_size,
            "micro_batch_size": self._probe.samples,
            "gradient_accumulation_steps": self._accumulation,
            **modules.describe_checkpointing(self.module),
            **modules.describe_compilation(self.module),
            **float8.describe_float8(self.module),
            "parameters_on": readback.device_name(self.module.parameters()),
            "optimizer_state_on": readback.device_name(optimizer.moments(self.inner_optimizer)),
            **({"remarks": remarks} if (remarks := self.remarks()) else {}),
        }

    def remarks(self) -> list[str]:
        """Sentences on unexpected behavior of the strategy."""
        return []

    def save_sharded(self, folder: Path) -> None:
        checkpoint.save(self.module, self._optimizer, folder, optimizer.scheduled_updates(self._scheduler))

    def load_sharded(self, folder: Path) -> None:
        optimizer.restore_schedule(self._scheduler, checkpoint.load(self.module, self._optimizer, folder))

    def gather_state(self) -> TrainingState:
        return TrainingState(
            readback.copy_to_host(self.full_parameters()),
            self.buffers(),
            checkpoint.gather_optimizer(self.module, self._optimizer),
            optimizer.scheduled_updates(self._scheduler),
        )

    def scatter_state(self, state: TrainingState) -> None:
        checkpoint.scatter_state(self.module, self._optimizer, state)
        optimizer.restore_schedule(self._scheduler, state.scheduled_updates)

    def memory_by_kind(self) -> dict[str, int]:
        ledger = readback.StorageCounter(self._context.device)
        self.count_storages(ledger)
        return ledger.bytes

    def count_storages(self, counter: readback.StorageCounter) -> None:
        """Count the storages of this engine; each is counted once."""
        counter.count("parameters", self.module.parameters())
        counter.count("optimizer_state", self.inner_optimizer.state)
        # tensors that the optimizer updates and that are no parameters
        counter.count("master", optimizer.optimized_tensors(self.inner_optimizer))
        updated = (*self.module.parameters(), *optimizer.optimized_tensors(self.inner_optimizer))
        counter.count("gradients", [parameter.grad for parameter in updated])

    def reduce_dtype(self) -> str | None:
        """Dtype in which the live engine reduces gradients; None if it reduces nothing."""
        return None

    def total_norm(self) -> torch.Tensor:
        """Global L2 norm of the current gradients (a DTensor if sharded), used to detect an overflow.

        Computed by torch; ``grad_norm`` reports it in fp64. An engine without the gradients of the full model
        overrides both.
        """
        return nn.utils.get_total_norm(self._gradients())

    def clip(self, limit: float) -> None:
        """Scale the gradients down to a global L2 norm of *limit*."""
        # a second norm would be a second pass, and a second reduction over the ranks
        norm = self.total_norm() if self._unscaled_norm is None else self._unscaled_norm
        nn.utils.clip_grads_with_norm_(self.module.parameters(), limit, norm)

    def _gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        """Context of a micro-batch; gradients need reducing only after the *last*."""
        return nullcontext()

    def _zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def _backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a micro-batch, whose *loss* counts as a part of the step."""
        (loss if self._divisor == 1 else loss / self._divisor).backward()

    def _step_optimizer(self) -> None:
        """Update the parameters by their gradients."""
        self._optimizer.step()

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self.module.parameters() if p.grad is not None]

    def _unscale(self) -> bool:
        """Divide the gradients by the loss scale; return False if they overflowed."""
        norm = self.total_norm()
        if not torch.isfinite(readback.full_tensor(norm)):
            return False
        self._unscaled_norm = norm / self._scale
        if gradients := self._gradients():
            # a stage of a pipeline may have nothing to train
            torch._foreach_div_(gradients, self._scale)
        return True


class WrappedEngine(TorchEngine):
    """Base of engines whose module is a framework's wrapper, which is what runs."""

    @property
    def framework_engine(self) -> object:
        return self.module


class DdpWrappedEngine(TorchEngine):
    """Reduces gradients once per step, with DDP; a mix-in for engines that define the rest."""

    module: DistributedDataParallel
    unused_parameter_advice: ClassVar[str] = "freeze them, or use fsdp or zero"
    """Advice for a model some of whose parameters receive no gradient."""

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with self.explained_errors():
            return super().forward_backward(micro_batch)

    @contextmanager
    def explained_errors(self) -> Iterator[None]:
        """Context of a forward pass, which names the parameters that DDP waits for in vain."""
        try:
            yield
        except RuntimeError as error:
            if found := _UNUSED_PARAMETERS.search(str(error)):
                raise UnsupportedCase(
                    self._unused_parameter_text([int(number) for number in found["numbers"].split()])
                ) from error
            raise

    def reduce_dtype(self) -> str:
        return readback.dtype_name(p.dtype for p in self.module.parameters())

    def count_storages(self, counter: readback.StorageCounter) -> None:
        """Count the reducer's buckets too: C++ owns them, so their size is taken from DDP's log data."""
        super().count_storages(counter)
        # before the last micro-batch, gradients exist beside the buckets, even if they become views of them
        are_views = self.module.gradient_as_bucket_view and all(each._is_view() for each in self._gradients())
        inside = counter.bytes["gradients"] if are_views else 0
        # rebuilding after the first step changes only their order
        sizes: str = self.module._get_ddp_logging_data()["bucket_sizes"]
        counter.add_bytes("buffers", sum(map(int, sizes.split(","))) - inside)

    def _gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.module.no_sync()

    def _unused_parameter_text(self, numbers: list[int]) -> str:
        """Reason why DDP stops: the parameters *numbers*, as it counts them, received no gradient."""
        ignored = self.module.parameters_to_ignore
        parameters = self.module.module.named_parameters()
        reduced = [name for name, p in parameters if p.requires_grad and name not in ignored]
        names = [plain_name(reduced[number]) for number in numbers]
        return (
            "torch's DDP waits for the gradients of all trained tensors, but the loss does not use "
            f"{len(names):,} of {len(reduced):,} ({modules.listed(names)}); {self.unused_parameter_advice}"
        )
