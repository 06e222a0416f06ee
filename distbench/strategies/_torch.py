"""What the strategies of plain torch share: the loop's engine, the optimizer, casting, reading back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as checkpointing
from torch.optim.optimizer import _default_to_fused_or_foreach

from distbench.case import TORCH_NAMES, Case, Optimizer
from distbench.strategies import _checkpoint
from distbench.strategies._memory import Ledger, gradients
from distbench.strategies.base import Engine, FullState, Setting
from distbench.workloads._weights import loaded, plain_name

T = TypeVar("T")

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, known) for name, known in TORCH_NAMES.items()}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class TorchEngine(Engine):
    """A module and a torch optimizer; ``single`` as it stands, the base of the wrapped ones."""

    def __init__(self, setting: Setting, module: nn.Module, layers: list[nn.Module]) -> None:
        self._setting = setting
        self._case = setting.case
        self._loss = setting.workload.loss
        self.module = module
        self._optimizer = make_optimizer(module.parameters(), self._case.optimizer)
        self._accumulation = self._case.batch.gradient_accumulation_steps
        self._micro = 0
        self._divisor = self._accumulation / (self._case.precision.loss_scale or 1.0)
        self._clip = self._case.optimizer.clip_grad_norm
        self._compute = ComputeProbe(layers or [module])
        self._skipped = 0

    @property
    def live(self) -> object:
        return self

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if self._micro == 0:
            self._optimizer.zero_grad(set_to_none=True)
        self._micro += 1
        with self._synchronised(self._micro == self._accumulation):
            with self.span("forward"):
                loss = self._loss(self.module, micro_batch)
            with self.span("backward"):
                (loss if self._divisor == 1 else loss / self._divisor).backward()
        return loss.detach()

    def step(self) -> None:
        self._micro = 0
        with self.span("optimizer"):
            if self._case.precision.loss_scale and not self._unscale():
                self._skipped += 1
                return
            if self._clip is not None:
                self.clip(self._clip)
            self._optimizer.step()

    def grad_norm(self) -> float:
        scale = self._case.precision.loss_scale or 1.0
        return float(full(self.total_norm())) / scale

    def full_gradients(self) -> dict[str, torch.Tensor]:
        scale = self._case.precision.loss_scale or 1.0
        return {
            plain_name(name): full(parameter.grad).cpu() / scale
            for name, parameter in self.module.named_parameters()
            if parameter.grad is not None
        }

    def full_state(self) -> dict[str, torch.Tensor]:
        return {
            plain_name(name): full(parameter.detach()).cpu()
            for name, parameter in self.module.named_parameters()
        }

    def evaluate(self, judge: Callable[[nn.Module], T]) -> T:
        return evaluated(self.module, judge)

    @property
    def skipped_steps(self) -> int:
        return self._skipped

    def effective(self) -> dict[str, Any]:
        return {
            "engine": type(self.live).__qualname__,
            "world_size": dist.get_world_size(),
            "parameters": sum(parameter.numel() for parameter in self.module.parameters()),
            "trainable_tensors": trainable_tensors(self.module),
            "optimizer": describe_optimizer(self._optimizer),
            "dtypes": {
                "parameters": dtype_name(p.dtype for p in self.module.parameters()),
                "compute": self._compute.dtype,
                "gradients": dtype_name(gradient.dtype for gradient in self._gradients()) or None,
                "reduce": self.reduce_dtype(),
                "master": dtype_name(p.dtype for p in _optimized(self._optimizer)),
                "optimizer_state": state_dtype(self._optimizer),
            },
            "loss_scale": told_scale(self._accumulation / self._divisor),
            "clip_grad_norm": self._clip,
            "global_batch_size": (self._compute.rows or 0) * self._accumulation * dist.get_world_size(),
            "micro_batch_size": self._compute.rows,
            "gradient_accumulation_steps": self._accumulation,
            **describe_checkpointing(self.module),
            "parameters_on": device_name(self.module.parameters()),
            "optimizer_state_on": device_name(_moments(self._optimizer)),
        }

    def save(self, folder: Path) -> None:
        _checkpoint.save(self.module, self._optimizer, folder)

    def load(self, folder: Path) -> None:
        _checkpoint.load(self.module, self._optimizer, folder)

    def consolidate(self) -> FullState:
        return FullState(
            self.full_state(),
            {plain_name(name): buffer.detach().cpu() for name, buffer in self.module.named_buffers()},
            _checkpoint.gather_optimizer(self.module, self._optimizer),
        )

    def load_full(self, state: FullState) -> None:
        _checkpoint.spread(self.module, self._optimizer, state)

    def memory(self) -> dict[str, int]:
        ledger = Ledger(self._setting.device)
        self.book(ledger)
        return ledger.bytes

    def book(self, ledger: Ledger) -> None:
        """Book what this engine keeps; what has been claimed before stays where it is."""
        ledger.book("parameters", self.module.parameters())
        ledger.book("optimizer_state", self._optimizer.state)
        # whatever the optimizer updates beside the parameters themselves
        ledger.book("master", _optimized(self._optimizer))
        ledger.book("gradients", gradients(self.module.parameters()), gradients(_optimized(self._optimizer)))

    def reduce_dtype(self) -> str | None:
        """Return the dtype in which the live engine reduces gradients; None: it reduces nothing."""
        return None

    def total_norm(self) -> torch.Tensor:
        """Return the global L2 norm of the gradients as they stand (a DTensor where sharded)."""
        return nn.utils.get_total_norm(self._gradients())

    def clip(self, limit: float) -> None:
        """Scale the gradients down to a global L2 norm of *limit*."""
        nn.utils.clip_grad_norm_(self.module.parameters(), limit)

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch; gradients need reducing after the *last* only."""
        return nullcontext()

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self.module.parameters() if p.grad is not None]

    def _unscale(self) -> bool:
        """Take the loss scale out of the gradients; return False if they overflowed."""
        if not torch.isfinite(full(self.total_norm())):
            return False
        torch._foreach_div_(self._gradients(), self._case.precision.loss_scale or 1.0)
        return True


class CastCompute(nn.Module):
    """Runs a module on copies of its parameters in another dtype; gradients keep the master's.

    What FSDP2's mixed precision does, for strategies that have none of their own: the same
    compute in the same dtype everywhere, which autocast (it keeps some operations in fp32) is not.
    It stands around each layer and around the rest, so that recomputing a layer casts again.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self._cast_module = module
        self._dtype = dtype
        inner = [name for name, child in module.named_modules() if isinstance(child, CastCompute)]
        self._names = [
            name
            for name, _ in module.named_parameters()
            if not any(name.startswith(f"{prefix}.") for prefix in inner)
        ]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return ``module(*inputs)`` computed in the dtype; floating inputs are cast too."""
        module = self._cast_module
        parameters = {name: module.get_parameter(name).to(self._dtype) for name in self._names}
        cast = [x.to(self._dtype) if x.is_floating_point() else x for x in inputs]
        result: torch.Tensor = torch.func.functional_call(module, parameters, tuple(cast))
        return result


class ComputeProbe:
    """Learns from the first forward pass in which dtype, and on how many rows, a layer computes."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self.dtype: str | None = None
        self.rows: int | None = None
        self._hook = layers[0].register_forward_hook(self._look)

    def _look(self, module: nn.Module, inputs: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        self.dtype = _DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype))
        self.rows = tensor.shape[0]
        self._hook.remove()


def evaluated(module: nn.Module, judge: Callable[[nn.Module], T]) -> T:
    """Return ``judge(module)``, with *module* in evaluation mode and no gradients kept."""
    module.eval()
    try:
        with torch.no_grad():
            return judge(module)
    finally:
        module.train()


def plain_module(setting: Setting) -> tuple[nn.Module, list[nn.Module]]:
    """Return the whole module with its weights on the device, in its master dtype, and its layers."""
    precision = setting.case.precision
    module = loaded(setting.workload, setting.weights, setting.device).to(DTYPES[precision.master])
    layers = setting.workload.layers(module)
    if precision.compute == precision.master:
        return module, checkpointed_layers(setting.case, module, layers)
    dtype = DTYPES[precision.compute]
    layers = wrap_layers(module, layers, lambda layer: CastCompute(layer, dtype))
    return CastCompute(module, dtype), checkpointed_layers(setting.case, module, layers)


def wrap_layers(
    module: nn.Module, layers: list[nn.Module], wrap: Callable[[nn.Module], nn.Module]
) -> list[nn.Module]:
    """Replace each of *layers* inside *module* by what *wrap* makes of it; return those."""
    chosen, made = {id(layer) for layer in layers}, []

    def wrap_one(layer: nn.Module) -> nn.Module:
        made.append(wrap(layer))
        return made[-1]

    checkpointing.apply_activation_checkpointing(
        module, checkpoint_wrapper_fn=wrap_one, check_fn=lambda layer: id(layer) in chosen
    )
    return made


def checkpointed_layers(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """Wrap *layers* inside *module* to recompute activations if *case* says so; return the layers."""
    if case.activation_checkpointing == "none":
        return layers
    return wrap_layers(module, layers, checkpointing.checkpoint_wrapper)


def describe_checkpointing(module: nn.Module) -> dict[str, Any]:
    """Return whether and how many layers of the live module recompute their activations."""
    wrapped = sum(isinstance(m, checkpointing.CheckpointWrapper) for m in module.modules())
    return {"activation_checkpointing": "full" if wrapped else "none", "checkpointed_layers": wrapped}


def trainable_tensors(module: nn.Module) -> int:
    """Return how many parameters the live module trains; tied weights count once."""
    return sum(parameter.requires_grad for parameter in module.parameters())


def told_scale(scale: float) -> float | None:
    """Return a live loss scale as ``effective`` tells it: None where it changes nothing."""
    return None if scale == 1 else scale


def make_optimizer(parameters: Iterable[torch.Tensor], spec: Optimizer) -> torch.optim.Optimizer:
    """Return torch's optimizer with every hyper-parameter given."""
    kernel = {"fused": spec.kernel == "fused", "foreach": spec.kernel == "foreach"}
    if spec.name == "adamw":
        return torch.optim.AdamW(
            parameters,
            lr=spec.lr,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            **kernel,
        )
    return torch.optim.SGD(
        parameters, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, **kernel
    )


def describe_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the class, kernel and hyper-parameters of a live optimizer.

    Raises:
        ValueError: its parameter groups differ, so there is no one answer.
    """
    names = ("lr", "betas", "eps", "momentum", "weight_decay", "fused", "foreach", *_VARIANTS)
    groups = [{k: group[k] for k in names if k in group} for group in optimizer.param_groups]
    if any(group != groups[0] for group in groups):
        raise ValueError(f"parameter groups with different hyper-parameters: {groups}")
    found = groups[0]
    kernel = _kernel(optimizer, found.pop("fused", None), found.pop("foreach", None))
    variants = [name for name in _VARIANTS if found.pop(name, None)]
    if "betas" in found:
        # AdamW's weight decay; DeepSpeed keeps its choice beside the groups
        decoupled = getattr(optimizer, "adam_w_mode", "decoupled_weight_decay" in variants)
        found["decoupled_weight_decay"] = bool(decoupled)
    return {
        "class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        "kernel": kernel,
        **found,
        "variants": [name for name in variants if name != "decoupled_weight_decay"],
        "steps": _steps(optimizer),
    }


# ways in which an algorithm is another one when they are switched on
_VARIANTS = ("amsgrad", "maximize", "nesterov", "dampening", "decoupled_weight_decay")


def _kernel(optimizer: torch.optim.Optimizer, fused: bool | None, foreach: bool | None) -> str:
    if not type(optimizer).__module__.startswith("torch."):
        # its own kernel, whatever its groups say in torch's words
        return type(optimizer).__qualname__
    if fused is None and foreach is None:
        # nobody chose, so torch does, by the device
        fused, foreach = _default_to_fused_or_foreach(_optimized(optimizer), differentiable=False)
    return "fused" if fused else "foreach" if foreach else "loop"


def _steps(optimizer: torch.optim.Optimizer) -> int | str | None:
    """Return the updates that the optimizer has counted, each number if they differ; None: it counts none."""
    counts = sorted({int(state["step"]) for state in optimizer.state.values() if "step" in state})
    return counts[0] if len(counts) == 1 else "+".join(map(str, counts)) or None


def state_dtype(optimizer: torch.optim.Optimizer) -> str | None:
    """Return the dtype of the optimizer's moments, or None if it keeps none."""
    moments = _moments(optimizer)
    return dtype_name(moment.dtype for moment in moments) if moments else None


def device_name(tensors: Iterable[torch.Tensor]) -> str | None:
    """Return the type of device that the tensors are on, or of each: ``cpu+cuda``; None: no tensors."""
    return "+".join(sorted({tensor.device.type for tensor in tensors})) or None


def dtype_name(dtypes: Iterable[torch.dtype]) -> str:
    """Return the short name of the dtype, or of each if they are mixed: ``bf16+fp32``."""
    return "+".join(sorted({_DTYPE_NAMES.get(dtype, str(dtype)) for dtype in dtypes}))


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a DTensor, or the tensor itself. A collective call where sharded."""
    return tensor.full_tensor() if isinstance(tensor, dist.tensor.DTensor) else tensor


def _moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        value
        for state in optimizer.state.values()
        for name, value in state.items()
        if name != "step" and isinstance(value, torch.Tensor)
    ]


def _optimized(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
