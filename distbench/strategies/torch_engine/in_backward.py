"""Optimizer in the backward pass: each gradient is freed as soon as its parameter is updated.

Uses torch's public hook, ``Tensor.register_post_accumulate_grad_hook``, which FSDP2 calls too: with the shard
of a parameter, once its gradient is reduced.
https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from distbench.strategies.base import UnsupportedCase
from distbench.strategies.torch_engine import optimizer, readback
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.workloads.weights import plain_name


class InBackwardEngine(TorchEngine):
    """Updates parameters in the backward pass; a mix-in for engines that reduce gradients before that."""

    updates_in_backward = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        trained = ((name, p) for name, p in self.module.named_parameters() if p.requires_grad)
        self._names: dict[torch.Tensor, str] = {p: plain_name(name) for name, p in trained}
        self._dtypes: dict[torch.Tensor, torch.dtype] = {}
        """Dtypes of the gradients of the first step."""
        self._retained: dict[torch.Tensor, torch.Tensor] = {}
        """Copies of the gradients that will be requested."""
        self._is_first = True
        for parameter in self._names:
            parameter.register_post_accumulate_grad_hook(self._update)

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self._retained.clear()
        return super().forward_backward(micro_batch)

    def step(self) -> None:
        self._micro_batch_count, self._is_first = 0, False
        with self.span("optimizer"):
            if self._scheduler:
                self._scheduler.step()

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        self._require_retained()
        # in the same order on all ranks, because gathering one is a collective call
        kept = ((name, self._retained[p]) for p, name in self._names.items() if p in self._retained)
        return ((name, readback.full_tensor(gradient)) for name, gradient in kept)

    def grad_norm(self) -> float:
        self._require_retained()
        return readback.l2_norm(self._retained[p] for p in self._names if p in self._retained)

    def effective_settings(self) -> dict[str, Any]:
        settings = super().effective_settings()
        gradients = {"gradients": readback.dtype_name(self._dtypes.values())}
        # after a step, other engines still have them
        is_freed = bool(self._dtypes) and not self._gradients()
        return {
            **settings,
            "dtypes": {**settings["dtypes"], **gradients},
            "optimizer_in_backward": is_freed,
        }

    def _update(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None, "torch calls this when it has accumulated one"
        if self._is_first:
            self._note_dtype(parameter, gradient.dtype)
        if self.retain_gradients:
            self._retained[parameter] = gradient.clone()
        with self.span("optimizer"):
            optimizer.step_parameter(self._optimizer, parameter)
        parameter.grad = None

    def _note_dtype(self, parameter: torch.Tensor, dtype: torch.dtype) -> None:
        if parameter in self._dtypes:
            raise UnsupportedCase(
                f"optimizer_in_backward: {self._names[parameter]} got two partial gradients in one "
                "backward pass (for example because a sharded layer is called twice in forward); set "
                "optimizer_in_backward: false"
            )
        self._dtypes[parameter] = dtype

    def _require_retained(self) -> None:
        if not self.retain_gradients:
            raise NotImplementedError(
                "optimizer_in_backward has freed the gradients; set Engine.keeps_gradients before the step"
            )
