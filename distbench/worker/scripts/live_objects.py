"""Find the live objects of a script's training: models, optimizers, loss scalers, the engine around them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FullyShardedV1
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

MODEL_DIMENSIONS = ("tp", "cp", "pp", "ep", "sp")
"""Names of dimensions of a device mesh whose ranks divide the model or its sequences, not the samples."""


@dataclass(frozen=True)
class LiveTraining:
    """Objects of the training in this process."""

    models: list[nn.Module]
    """Outermost modules with parameters that an optimizer updates."""
    optimizers: list[torch.optim.Optimizer]
    scalers: list[Any]
    """``torch.amp.GradScaler``."""

    @classmethod
    def find(cls, optimizer: torch.optim.Optimizer | None) -> LiveTraining:
        """Find the objects of this process; *optimizer* is one that has updated parameters, if any has."""
        # isinstance would call properties of lazy objects that libraries put into memory
        every = [each for each in gc.get_objects() if _is_relevant(type(each))]
        optimizers = [each for each in every if issubclass(type(each), torch.optim.Optimizer)]
        if optimizer is not None and not any(each is optimizer for each in optimizers):
            optimizers.append(optimizer)
        # wrappers of a framework have the parameters of another
        held = {id(parameter) for each in optimizers for parameter in _parameters(each)}
        modules = [each for each in every if issubclass(type(each), nn.Module)]
        inside = {id(child) for each in modules for child in each._modules.values() if child is not None}
        roots = [each for each in modules if id(each) not in inside and _is_trained(each)]
        own = [each for each in roots if is_deepspeed(each) or any(id(p) in held for p in each.parameters())]
        scalers = [each for each in every if issubclass(type(each), torch.amp.GradScaler)]
        return cls(own or roots, _unwrapped(optimizers, optimizer), scalers)

    @property
    def deepspeed(self) -> Any:
        """DeepSpeed's engine; None: there is none."""
        return next((model for model in self.models if is_deepspeed(model)), None)

    @property
    def has_scaled_losses(self) -> bool:
        """True if the losses of backward passes have a scale that only DeepSpeed knows."""
        return self.deepspeed is not None and bool(self.deepspeed.fp16_enabled())

    def deepspeed_norm(self) -> list[Any]:
        """Norm of the gradients of DeepSpeed's update, not read from the GPU yet; empty: none is known."""
        norm = (
            None if self.deepspeed is None else getattr(self.deepspeed.optimizer, "_global_grad_norm", None)
        )
        return [] if norm is None else [norm]

    def deepspeed_clipping(self) -> float | None:
        """Norm to which DeepSpeed clips the gradients; None: it does not."""
        return None if self.deepspeed is None else float(self.deepspeed.gradient_clipping()) or None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters of all models, each once."""
        return list({id(each): each for model in self.models for each in model.parameters()}.values())

    @property
    def device(self) -> torch.device:
        """Device of the training: a GPU, if any parameter is on one or the engine computes on one."""
        kinds = {parameter.device.type for parameter in self.parameters}
        if "cuda" in kinds or (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def modules_of(self, kind: type) -> Iterator[Any]:
        """Modules of class *kind* in all models."""
        return (each for model in self.models for each in model.modules() if isinstance(each, kind))

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """The wrapper of the first replicated model; None: none is."""
        return next(self.modules_of(DistributedDataParallel), None)

    @property
    def mesh_sizes(self) -> dict[str, int]:
        """Named dimensions of the device mesh of the parameters, and their sizes."""
        sizes: dict[str, int] = {}
        for parameter in self.parameters:
            if isinstance(parameter, DTensor):
                mesh = parameter.device_mesh
                sizes |= dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=False))
        return sizes

    @property
    def model_parallel_ranks(self) -> int:
        """Number of ranks that share the rows of a batch, as they divide the model."""
        sizes = self.mesh_sizes
        named = [size for name, size in sizes.items() if name in MODEL_DIMENSIONS]
        product = 1
        for size in named:
            product *= size
        if named or not self._has_plan:
            return product
        # a plan over a mesh without names
        meshes = [p.device_mesh for p in self.parameters if isinstance(p, DTensor)]
        return max(mesh.size() for mesh in meshes)

    @property
    def _has_plan(self) -> bool:
        """True if parameters are divided by a plan of tensor parallelism alone."""
        has_units = next(self.modules_of(FSDPModule), None) is not None
        return not has_units and any(isinstance(each, DTensor) for each in self.parameters)

    @property
    def replicates(self) -> bool:
        """True if each rank has all parameters, so that ranks should have equal ones."""
        is_stage_3 = self.deepspeed is not None and self.deepspeed.zero_optimization_stage() == 3
        sharded = next(self.modules_of(FullyShardedV1), None) is not None or is_stage_3
        return not sharded and not any(isinstance(each, DTensor) for each in self.parameters)

    def unused_parameters(self) -> list[str]:
        """Names of trained parameters without a gradient after an update; none if DeepSpeed keeps them."""
        if self.deepspeed is not None:
            return []
        named = [pair for model in self.models for pair in model.named_parameters()]
        # FSDP1 leaves a rank no element of some parameters
        trained = [(name, each) for name, each in named if each.requires_grad and each.numel()]
        return [_own_name(name) for name, each in trained if each.grad is None]

    def strategy(self) -> tuple[str, dict[str, Any]]:
        """Strategy with distbench's name and options for it, as far as the live objects tell.

        ``script``: several ranks without a wrapper that is known, so that the script itself communicates.
        """
        engine = self.deepspeed
        sizes = {name: size for name, size in self.mesh_sizes.items() if name in MODEL_DIMENSIONS}
        if engine is not None:
            return "zero", _zero_options(engine)
        if next(self.modules_of(FSDPModule), None) is not None:
            tp = {name: size for name, size in sizes.items() if name == "tp" and size > 1}
            return "fsdp", {"mesh": tp} if tp else {}
        if next(self.modules_of(FullyShardedV1), None) is not None:
            return "fsdp", {"version": 1}
        if self.ddp is not None:
            return "ddp", _ddp_options(self.ddp, self.optimizers)
        if self._has_plan:
            return "tp", {}
        if next(self.modules_of(nn.DataParallel), None) is not None:
            return "dp", {}
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return "script", {}
        return "single", {}


def _own_name(name: str) -> str:
    """Name of a parameter in the script's own model, without the wrappers of torch."""
    return name.replace("_orig_mod.", "").replace("_fsdp_wrapped_module.", "")


def is_deepspeed(module: nn.Module) -> bool:
    """True if *module* is DeepSpeed's engine."""
    return any(cls.__name__ == "DeepSpeedEngine" for cls in type(module).__mro__)


def elements(parameter: torch.Tensor) -> int:
    """Elements of *parameter*, all shards included."""
    # ZeRO-3 empties what it has sharded
    whole = getattr(parameter, "ds_numel", None)
    return parameter.numel() if whole is None else int(whole)


def _is_relevant(cls: type) -> bool:
    return issubclass(cls, nn.Module | torch.optim.Optimizer | torch.amp.GradScaler)


def _is_trained(module: nn.Module) -> bool:
    is_graph = issubclass(type(module), torch.fx.GraphModule)
    return not is_graph and any(parameter.requires_grad for parameter in module.parameters())


def _unwrapped(
    optimizers: list[torch.optim.Optimizer], updating: torch.optim.Optimizer | None
) -> list[torch.optim.Optimizer]:
    """*optimizers* without wrappers of Accelerate and Fabric, which share the groups of what they wrap."""
    inner: dict[int, torch.optim.Optimizer] = {}
    for each in sorted(optimizers, key=lambda each: (each is not updating, len(type(each).__mro__))):
        groups = getattr(each, "param_groups", each)
        inner.setdefault(id(groups), each)
    return [each for each in optimizers if any(each is one for one in inner.values())]


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"])


def _zero_options(engine: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"stage": int(engine.zero_optimization_stage())}
    for key, config in {
        "offload_optimizer": engine.zero_offload_optimizer(),
        "offload_parameters": engine.zero_offload_param(),
    }.items():
        place = getattr(config, "device", None)
        name = str(getattr(place, "value", place))
        if name in ("cpu", "nvme"):
            options[key] = name
    return options


def _ddp_options(wrapper: DistributedDataParallel, optimizers: list[Any]) -> dict[str, Any]:
    # DDP: its own name for the size that it was given; the first bucket is smaller unless one was given
    cap = float(f"{wrapper.bucket_bytes_cap / 2**20:.3g}")
    is_default = bool(getattr(wrapper, "bucket_bytes_cap_default", cap == 25))
    options: dict[str, Any] = {} if is_default else {"bucket_cap_mb": cap}
    for name in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters"):
        if getattr(wrapper, name, False):
            options[name] = True
    if any(type(each).__name__ == "ZeroRedundancyOptimizer" for each in optimizers):
        options["sharded_optimizer"] = True
    return options
