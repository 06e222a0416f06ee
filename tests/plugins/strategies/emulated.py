from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Emulated(Strategy):
    """The ranks of data parallelism one after another in one process, with one mistake among them."""

    bug: Literal[
        "none",
        "gradients-times-1.0001",
        "gradients-one-step-late",
        "sign-of-one-element",
        "tied-embedding-counted-twice",
        "micro-batch-lost-at-step-15",
        "reduced-in-bf16",
        "clipped-at-1.01",
        "last-elements-never-updated",
        "decay-not-on-norms",
        "beta2-rounded-to-bf16",
        "eps-of-the-dtype",
        "moments-in-bf16",
        "momentum-zeroed-each-third-step",
        "buffers-not-synchronised",
        "gradients-scaled",
        "matrix-scaled",
        "norms-scaled",
        "half-of-rows-scaled",
        "rank-scaled",
        "partly-late",
        "updates-scaled",
        "decay-scaled",
        "rows-frozen",
    ] = "none"
    by: float = 0.0
    """Size of a mistake that has one: 0.05 scales by 1.05, or keeps 5% of the last step, or of the rows."""

    @property
    def engine_class(self) -> str:
        return "TorchEngine"

    @property
    def label(self) -> str:
        return f"emulated-{self.bug}" + (f"-{self.by:g}" if self.by else "")

    def processes(self, world_size: int) -> int:
        return 1

    def build(self, context: RankContext) -> Engine:  # noqa: C901 - one room for all the mistakes
        import torch

        from distbench.strategies.torch_engine.engine import TorchEngine
        from distbench.strategies.torch_engine.modules import load_plain_module

        bug, by, case = self.bug, self.by, context.case

        class InTurn(TorchEngine):
            """Each rank computes its part from the same weights and buffers; then they are averaged."""

            steps = 0
            _micro_of_rank = 0

            def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
                if self._micro_batch_count == 0:
                    self._sums = [torch.zeros_like(p) for p in self.module.parameters()]
                self._micro_batch_count += 1
                losses = torch.stack([self._rank(part) for part in self._in_turn(micro_batch)])
                if self._micro_batch_count == self._accumulation:
                    self._reduce()
                return losses.mean()

            def _in_turn(self, micro_batch: dict[str, torch.Tensor]):  # type: ignore[no-untyped-def]
                buffers = list(self.module.buffers())
                before, after = [b.clone() for b in buffers], []
                for rank in range(case.world_size):
                    for buffer, old in zip(buffers, before, strict=True):
                        buffer.copy_(old)
                    yield {name: x.chunk(case.world_size)[rank] for name, x in micro_batch.items()}
                    after.append([b.clone() for b in buffers])
                kept = after[:1] if bug == "buffers-not-synchronised" else after
                for buffer, of_ranks in zip(buffers, zip(*kept, strict=True), strict=True):
                    buffer.copy_(sum(of_ranks) / len(kept))

            def _rank(self, part: dict[str, torch.Tensor]) -> torch.Tensor:
                self.module.zero_grad(set_to_none=True)
                loss = self._loss(self.module, part)
                weight = 1 + by if bug == "rank-scaled" and self._micro_of_rank % 2 else 1
                self._micro_of_rank += 1
                (loss / self._divisor * weight).backward()
                lost = bug == "micro-batch-lost-at-step-15" and self.steps == 15
                if not (lost and self._micro_batch_count == self._accumulation):
                    for total, parameter in zip(self._sums, self.module.parameters(), strict=True):
                        if parameter.grad is not None:
                            total += parameter.grad
                return loss.detach()

            def _reduce(self) -> None:
                gradients = [total / case.world_size for total in self._sums]
                spoil(bug, gradients, by)
                late = getattr(self, "_late", gradients)
                if bug in ("gradients-one-step-late", "partly-late"):
                    self._late = gradients
                    share = by or 1
                    gradients = [now.lerp(old, share) for now, old in zip(gradients, late, strict=True)]
                for parameter, gradient in zip(self.module.parameters(), gradients, strict=True):
                    parameter.grad = gradient.clone()

            def clip(self, limit: float) -> None:
                super().clip(1.01 * limit if bug == "clipped-at-1.01" else limit)

            def step(self) -> None:
                matrix = max(self.module.parameters(), key=lambda p: p.numel()).data.flatten()
                last = matrix[-16:].clone()
                if bug == "momentum-zeroed-each-third-step" and self.steps % 3 == 2:
                    for state in self._optimizer.state.values():
                        state["exp_avg"].zero_()
                before = [p.detach().clone() for p in self.module.parameters()]
                super().step()
                decay = case.optimizer.lr * case.optimizer.weight_decay
                for parameter, old in zip(self.module.parameters(), before, strict=True):
                    spoil_update(bug, by, parameter.data, old, decay)
                if bug == "last-elements-never-updated":
                    matrix[-16:] = last
                if bug == "moments-in-bf16":
                    for state in self._optimizer.state.values():
                        for name in ("exp_avg", "exp_avg_sq"):
                            state[name].copy_(state[name].bfloat16())
                self.steps += 1

        engine = InTurn(context, *load_plain_module(context))
        for group in engine._optimizer.param_groups:
            if bug == "beta2-rounded-to-bf16" and "betas" in group:
                first, second = group["betas"]
                group["betas"] = (first, float(torch.tensor(second).bfloat16()))
            if bug == "eps-of-the-dtype" and "eps" in group:
                group["eps"] = torch.finfo(torch.float32).eps
        return engine


def spoil(bug: str, gradients: list[torch.Tensor], by: float) -> None:
    """Make the mistake *bug* in the averaged *gradients*, in place."""
    matrices = [gradient for gradient in gradients if gradient.ndim == 2]
    scaled = {
        "gradients-times-1.0001": gradients,
        "gradients-scaled": gradients,
        # the second is no embedding, of which most rows have no gradient
        "matrix-scaled": matrices[1:2],
        "norms-scaled": [gradient for gradient in gradients if gradient.ndim == 1],
        "half-of-rows-scaled": [matrix[: len(matrix) // 2] for matrix in matrices],
    }
    for gradient in scaled.get(bug, []):
        gradient *= 1 + (by or 1e-4)
    if bug == "sign-of-one-element":
        matrices[1].flatten()[0] *= -1
    if bug == "tied-embedding-counted-twice":
        matrices[0] *= 2
    if bug == "reduced-in-bf16":
        for gradient in gradients:
            gradient.copy_(gradient.bfloat16())


def spoil_update(bug: str, by: float, parameter: torch.Tensor, before: torch.Tensor, decay: float) -> None:
    """Make the mistake *bug* in the update of a *parameter* that was *before*, in place."""
    if bug == "decay-scaled":
        parameter -= by * decay * before
    if bug == "decay-not-on-norms" and parameter.ndim == 1:
        parameter += decay * before
    if bug == "updates-scaled":
        parameter += by * (parameter - before)
    if bug == "rows-frozen" and parameter.ndim == 2:
        rows = math.ceil(by * len(before))
        parameter[:rows] = before[:rows]
