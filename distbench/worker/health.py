"""Detect loss spikes, broken gradients and diverging replicas of a training.

Findings have step, rank and module. Nothing here touches the model while it trains. Gradients and parameters
are inspected every few steps through the engine's own calls; hooks are set only to trace a loss that is not
finite.
"""

import math
import statistics
from collections import deque
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from distbench.core.gradient_overflow import overflow_text
from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.strategies.torch_engine import readback
from distbench.worker.sketch import hash_tensors
from distbench.worker.trainer import differing_ranks
from distbench.workloads.base import mean_of
from distbench.workloads.weights import plain_name

# no layer's gradient should grow to a hundred times its own median
_EXPLODING_FACTOR = 100.0
# below the rounding of fp32 relative to the largest: adding it changes nothing
_VANISHING_FRACTION = 1e-7
_MIN_NORMS = 3
# OLMo 2's "spike score" (arXiv 2501.00656): seven standard deviations from the mean of the last 1000
_DEVIATIONS, _WINDOW = 7.0, 1000
# fewer values give no usable standard deviation
_MIN_VALUES = 20


class TrainingHealth:
    """Monitor of one training on one rank; every call is a collective call."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._loss_spikes = LossSpikeDetector()
        self._norms: dict[str, list[float]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._skipped_steps = 0
        self._first_overflow = ""
        """Tensor whose gradient overflowed first in this step; empty: none, or not inspected."""
        self.findings: list[dict[str, Any]] = []
        """Rows with step, rank, module, kind and text."""

    def check_loss(self, step: int, loss: float) -> None:
        """Check the mean loss of *step*, the same number on every rank."""
        if rule := self._loss_spikes.check(loss):
            self._add(step, 0, "", "loss spike", f"loss {loss:.4g}; {rule}")

    def check_skipped_steps(self, step: int, engine: Engine) -> None:
        """Report steps that were skipped because gradients overflowed under the loss scale."""
        skipped, self._skipped_steps = engine.skipped_steps - self._skipped_steps, engine.skipped_steps
        if skipped:
            first, overflow = self._first_overflow, overflow_text(self._context.case.precision)
            where = f", that of {first} first" if first else ""
            self._add(step, 0, _module_of(first), "loss scale", f"{overflow}{where}: the step was skipped")
        self._first_overflow = ""

    def check_gradients(self, step: int, engine: Engine) -> tuple[float | None, dict[str, Any] | None]:
        """Check the gradients; return their norm and, if one is not finite, a description.

        To be called between the last ``forward_backward`` and ``step``.
        """
        try:
            squares = {name: readback.sum_of_squares(tensor) for name, tensor in engine.full_gradients()}
        except NotImplementedError:
            # the norm is absent then, and the training continues
            return None, None
        # rank 0 has them all, the others may have none; this waits for the device only once
        roots = torch.stack([*squares.values()]).sqrt().tolist() if squares else []
        norms = dict(zip(squares, roots, strict=True))
        shared: list[Any] = [norms]
        dist.broadcast_object_list(shared, src=0)
        norms = shared[0]
        scaled = self._context.case.precision.loss_scale is not None
        broken = [name for name, norm in norms.items() if not math.isfinite(norm)]
        # parameters are named in the order of the forward pass; the backward pass starts at the last
        if broken:
            if scaled:
                # an overflow, and the step is skipped
                self._first_overflow = broken[-1]
                return None, None
            return None, self._report_broken_gradient(step, broken, norms)
        largest = max(norms.values(), default=0.0)
        for name, norm in norms.items():
            self._check_layer(step, name, norm, largest)
        return math.sqrt(math.fsum(norm * norm for norm in norms.values())), None

    def check_replicas(self, step: int, engine: Engine) -> None:
        """Compare the full parameters of every rank that has its own copy with those of rank 0."""
        own = hash_tensors(engine.full_parameters())
        for rank, names in differing_ranks(own):
            text = f"{len(names)} of {len(own)} parameters differ from rank 0's"
            self._add(step, rank, _module_of(names[0]), "ranks apart", text)

    def locate_non_finite(
        self, step: int, rank: int, engine: Engine, batches: list[dict[str, torch.Tensor]]
    ) -> str:
        """Repeat the forward pass of *step*; report the first module of *rank* with non-finite output."""
        if engine.updates_in_backward:
            text = (
                "the first non-finite module is unknown, because the backward pass has already updated the "
                "parameters"
            )
            self._add(step, rank, "", "not finite", text)
            return text
        # every rank repeats all of them, as the modules of some strategies communicate
        firsts = [engine.evaluate(partial(self._first_non_finite, batch)) for batch in batches]
        of_ranks: list[Any] = [None] * self._context.world_size
        dist.all_gather_object(of_ranks, next(filter(None, firsts), None))
        module, text = of_ranks[rank] or ("", "the values were finite when the step was repeated")
        self._add(step, rank, module, "not finite", text)
        return text

    def _first_non_finite(self, batch: dict[str, torch.Tensor], module: nn.Module) -> tuple[str, str] | None:
        first: list[tuple[str, str]] = []
        broken: set[str] = set()
        # in evaluation mode a module may compute something else and not break
        module.train()
        with ExitStack() as hooks:
            for name, part in module.named_modules():
                plain = _plain_module_name(name)
                hooks.enter_context(part.register_forward_pre_hook(partial(_parameter_hook, plain, broken)))
                hooks.enter_context(part.register_forward_hook(partial(_output_hook, plain, broken, first)))
            loss = mean_of(self._context.workload.loss(module, batch))
        if first:
            return first[0]
        if not bool(torch.isfinite(loss)):
            return "", "every module was finite; the loss function was not"
        return None

    def _check_layer(self, step: int, name: str, norm: float, largest: float) -> None:
        earlier = self._norms.setdefault(name, [])
        if len(earlier) >= _MIN_NORMS:
            median, tiny = statistics.median(earlier), _VANISHING_FRACTION * largest
            if norm > _EXPLODING_FACTOR * median > 0:
                text = f"norm {norm:.3g}, {norm / median:.0f}x its median so far"
                self._add_once(step, name, "gradient explodes", text)
            if norm <= tiny and earlier[-1] <= tiny:
                text = f"norm {norm:.3g} twice in a row; the largest is {largest:.3g}"
                self._add_once(step, name, "gradient vanishes", text)
        earlier.append(norm)

    def _report_broken_gradient(
        self, step: int, broken: list[str], norms: dict[str, float]
    ) -> dict[str, Any]:
        last = broken[-1]
        text = f"gradients of {len(broken)} of {len(norms)} tensors; the backward pass reached {last} first"
        self._add(step, 0, _module_of(last), "not finite", text)
        return {"step": step, "value": str(norms[last]), "what": f"gradient of {last}", "where": text}

    def _add_once(self, step: int, name: str, kind: str, text: str) -> None:
        if (kind, name) not in self._reported:
            self._reported.add((kind, name))
            self._add(step, 0, _module_of(name), kind, f"{name}: {text}")

    def _add(self, step: int, rank: int, module: str, kind: str, text: str) -> None:
        self.findings.append({"step": step, "rank": rank, "module": module, "kind": kind, "text": text})


def _parameter_hook(name: str, broken: set[str], module: nn.Module, _inputs: Any) -> None:
    if not all(bool(torch.isfinite(p).all()) for p in module.parameters(recurse=False)):
        broken.add(name)


def _output_hook(
    name: str, broken: set[str], first: list[tuple[str, str]], _module: nn.Module, _inputs: Any, output: Any
) -> None:
    parts = output if isinstance(output, tuple) else (output,)
    tensors = [x for x in parts if isinstance(x, torch.Tensor) and x.is_floating_point()]
    if first or all(bool(torch.isfinite(x).all()) for x in tensors):
        return
    why = "an update broke its parameters" if name in broken else "its parameters were finite"
    first.append((name, f"first not finite: the output of {name or 'the model'} ({why})"))


def _plain_module_name(name: str) -> str:
    plain = plain_name(name) if name else ""
    return "" if plain == "module" else plain


def _module_of(parameter: str) -> str:
    """Module of a parameter: ``layers.0.up`` of ``layers.0.up.weight``."""
    return parameter.rpartition(".")[0]


class LossSpikeDetector:
    """Detector of values far above the earlier ones."""

    def __init__(self) -> None:
        self._earlier: deque[float] = deque(maxlen=_WINDOW)

    def check(self, value: float) -> str:
        """Describe why *value* is a spike; empty: it is none. Then add it to the earlier values."""
        limit = math.inf
        if len(self._earlier) >= _MIN_VALUES:
            mean, deviation = statistics.fmean(self._earlier), statistics.pstdev(self._earlier)
            limit = mean + _DEVIATIONS * deviation
        self._earlier.append(value)
        rule = f"above {limit:.4g}, {_DEVIATIONS:g} standard deviations over the mean of the earlier steps"
        return rule if value > limit else ""
