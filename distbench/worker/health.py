"""Whether a training is in good health: findings with step, rank and module.

Nothing here touches the model while it trains. Gradients and parameters are looked at every so
many steps through the engine's own calls; hooks are set only to trace a loss that is not finite.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from distbench.strategies.base import Engine, Setting
from distbench.worker.sketch import describe
from distbench.worker.spikes import Spikes
from distbench.workloads._weights import plain_name

# a layer whose gradient grows a hundredfold over its own median was never meant to
_EXPLODED = 100.0
# below the rounding of fp32 beside the largest: adding it changes nothing
_VANISHED = 1e-7
_LEAST_LOOKS = 3


class Health:
    """Watches one training on one rank; every call is a collective call."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._losses = Spikes()
        self._norms: dict[str, list[float]] = {}
        self._told: set[tuple[str, str]] = set()
        self._skipped = 0
        self.findings: list[dict[str, Any]] = []
        """Rows with step, rank, module, kind and text."""

    def loss(self, step: int, loss: float) -> None:
        """Take note of the mean loss of *step*, the same number on every rank."""
        if self._losses.is_spike(loss):
            self._add(step, 0, "", "loss spike", f"loss {loss:.4g}; {self._losses.told()}")

    def skipped(self, step: int, engine: Engine) -> None:
        """Take note of steps that overflowed under the loss scale."""
        skipped, self._skipped = engine.skipped_steps - self._skipped, engine.skipped_steps
        if skipped:
            scale = self._setting.case.precision.loss_scale
            text = f"gradients overflowed under loss scale {scale}: the step was not taken"
            self._add(step, 0, "", "loss scale", text)

    def gradients(self, step: int, engine: Engine) -> tuple[float | None, dict[str, Any] | None]:
        """Return the norm of all gradients and, if one is not finite, what is told of that.

        Between the last ``forward_backward`` and ``step``.
        """
        try:
            whole = engine.full_gradients()
        except NotImplementedError:
            # the norm is absent then, and the training goes on
            return None, None
        norms = {name: float(tensor.double().norm()) for name, tensor in whole.items()}
        # rank 0 has them all, the others may have none
        seen: list[Any] = [norms]
        dist.broadcast_object_list(seen, src=0)
        norms = seen[0]
        scaled = self._setting.case.precision.loss_scale is not None
        broken = [name for name, norm in norms.items() if not math.isfinite(norm)]
        if broken:
            # with a loss scale that is an overflow, and the step is skipped; else the training is over
            return None, None if scaled else self._broken_gradient(step, broken, norms)
        for name, norm in norms.items():
            self._layer(step, name, norm, max(norms.values()))
        return math.sqrt(math.fsum(norm * norm for norm in norms.values())), None

    def replicas(self, step: int, engine: Engine) -> None:
        """Compare the whole parameters of every rank that has its own with those of rank 0."""
        mine = {name: describe(name, tensor)["digest"] for name, tensor in engine.full_state().items()}
        seen: list[dict[str, str]] = [{}] * self._setting.world_size
        dist.all_gather_object(seen, mine)
        for rank, theirs in enumerate(seen):
            apart = [name for name, digest in theirs.items() if digest != seen[0].get(name)]
            if apart:
                text = f"{len(apart)} of {len(theirs)} parameters are not those of rank 0"
                self._add(step, rank, _module(apart[0]), "ranks apart", text)

    def trace(self, step: int, rank: int, engine: Engine, batches: list[dict[str, torch.Tensor]]) -> str:
        """Run *step* forward again and return which module of *rank* was the first that was not finite."""
        first = None
        for batch in batches:
            first = first or engine.evaluate(lambda module, batch=batch: self._first(module, batch))  # type: ignore[misc]
        seen: list[Any] = [None] * self._setting.world_size
        dist.all_gather_object(seen, first)
        module, text = seen[rank] or ("", "the step run again was finite in every module")
        self._add(step, rank, module, "not finite", text)
        return text

    def _first(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[str, str] | None:
        found: list[tuple[str, str]] = []
        handles = []
        broken: set[str] = set()

        # a module that trains otherwise than it is judged must break again
        module.train()
        for name, part in module.named_modules():
            plain = _plain(name)
            handles.append(part.register_forward_pre_hook(_parameters_into(plain, broken)))
            handles.append(part.register_forward_hook(_outputs_into(plain, broken, found)))
        try:
            loss = self._setting.workload.loss(module, batch)
        finally:
            for handle in handles:
                handle.remove()
        if found:
            return found[0]
        if not bool(torch.isfinite(loss)):
            return "", "every module was finite; the loss function was not"
        return None

    def _layer(self, step: int, name: str, norm: float, largest: float) -> None:
        before = self._norms.setdefault(name, [])
        looked = len(before) >= _LEAST_LOOKS
        if looked and norm > _EXPLODED * statistics.median(before) > 0:
            times = norm / statistics.median(before)
            self._once(
                step, name, "gradient explodes", f"norm {norm:.3g}, {times:.0f} times its median so far"
            )
        tiny = norm <= _VANISHED * largest
        if tiny and looked and before[-1] <= _VANISHED * largest:
            self._once(
                step,
                name,
                "gradient vanishes",
                f"norm {norm:.3g} twice in a row; the largest is {largest:.3g}",
            )
        before.append(norm)

    def _broken_gradient(self, step: int, broken: list[str], norms: dict[str, float]) -> dict[str, Any]:
        # backward goes from the end to the beginning, and parameters are named in the order of forward
        last = broken[-1]
        text = f"the gradients of {len(broken)} of {len(norms)} tensors; the backward pass met {last} first"
        self._add(step, 0, _module(last), "not finite", text)
        return {"step": step, "value": str(norms[last]), "what": f"gradient of {last}", "where": text}

    def _once(self, step: int, name: str, kind: str, text: str) -> None:
        if (kind, name) not in self._told:
            self._told.add((kind, name))
            self._add(step, 0, _module(name), kind, f"{name}: {text}")

    def _add(self, step: int, rank: int, module: str, kind: str, text: str) -> None:
        self.findings.append({"step": step, "rank": rank, "module": module, "kind": kind, "text": text})


def _parameters_into(name: str, broken: set[str]) -> Any:
    def look(module: nn.Module, _inputs: Any) -> None:
        if not all(bool(torch.isfinite(p).all()) for p in module.parameters(recurse=False)):
            broken.add(name)

    return look


def _outputs_into(name: str, broken: set[str], found: list[tuple[str, str]]) -> Any:
    def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
        tensors = [
            x for x in (output if isinstance(output, tuple) else (output,)) if isinstance(x, torch.Tensor)
        ]
        if found or all(bool(torch.isfinite(x).all()) for x in tensors if x.is_floating_point()):
            return
        why = (
            "its parameters were not: the update before broke them"
            if name in broken
            else "its parameters were"
        )
        found.append((name, f"first not finite: the output of {name or 'the model'} ({why})"))

    return look


def _plain(name: str) -> str:
    plain = plain_name(name) if name else ""
    return "" if plain == "module" else plain


def _module(parameter: str) -> str:
    """Return the module of a parameter: ``layers.0.up`` of ``layers.0.up.weight``."""
    return parameter.rpartition(".")[0]
