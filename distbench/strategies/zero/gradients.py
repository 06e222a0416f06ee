"""Gradients of DeepSpeed's engine: their loss scale, and full gradients, one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from deepspeed.utils import safe_get_full_grad

from distbench.strategies.torch_engine import readback
from distbench.strategies.zero import rank_partitions


def loss_scale(engine: Any) -> float:
    """Factor by which the live engine divides gradients before an update; 1 if it has none."""
    return float(getattr(engine.optimizer, "loss_scale", 1.0))


def describe_scale(engine: Any) -> dict[str, float | str | None]:
    """Loss scale of the live engine, as ``effective`` reports it."""
    # of stages 1 to 3, and of stage 0
    scaler: Any = getattr(engine.optimizer, "loss_scaler", None)
    config: Any = getattr(engine.optimizer, "loss_scale_config", None)
    if getattr(scaler, "dynamic", False) or getattr(config, "dynamic_loss_scale", False):
        window = scaler.scale_window if scaler is not None else config.scale_window
        return {"loss_scale": "dynamic", "loss_scale_window": int(window)}
    return {"loss_scale": readback.effective_scale(loss_scale(engine))}


def scale_loss(engine: Any, loss: torch.Tensor) -> torch.Tensor:
    """*loss* as ``engine.backward`` needs it, so that the gradients contain the loss scale.

    DeepSpeed itself multiplies by the scale only for the optimizers of stages 1 to 3. Those of stage 0 in 16
    bits still divide, so that without this function the update, and the norm for clipping, are too small by
    the scale (found with 0.19.8).
    """
    scale = loss_scale(engine)
    return loss if scale == 1 or hasattr(engine.optimizer, "scale_if_loss") else loss * scale


def full_gradients(engine: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Plain name and full gradient of each parameter, on its device, with the loss scale in it.

    Collective call. At most one is gathered at a time, unless the caller keeps them.
    """
    for name, parameter in rank_partitions.named_parameters(engine):
        if (gradient := safe_get_full_grad(parameter)) is not None:
            yield name, rank_partitions.unpartition(parameter, gradient.detach())


def unscale(engine: Any, gradient: torch.Tensor) -> torch.Tensor:
    """*gradient* without the loss scale; not in 16 bits, in which a small one would be 0."""
    scale = loss_scale(engine)
    return gradient.float() if scale == 1 else gradient.float() / scale


def gradient_dtype(engine: Any) -> str:
    """Dtype in which the live engine accumulates gradients; it has freed the tensors themselves."""
    # stages 1 to 3 store it, the optimizer of bf16 with fp32 gradients under another name; in stage 0
    # autograd accumulates, in the dtype of the parameters
    for name in ("gradient_accumulation_dtype", "grad_acc_dtype"):
        if accumulates_in := getattr(engine.optimizer, name, None):
            return readback.dtype_name([accumulates_in])
    return readback.dtype_name(parameter.dtype for parameter in engine.module.parameters())
