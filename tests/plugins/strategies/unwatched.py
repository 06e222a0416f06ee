from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Unwatched(Strategy):
    """Data parallelism by hand with a mistake that it makes only while nobody looks."""

    mistake: Literal["none", "race", "missing-wait", "stale-gather", "half-batch", "skips-fourth"] = "none"
    """race: gradients arrive after the update, unless a look has waited for them. missing-wait: they do, too,
    and the next update takes them. stale-gather: the forward pass has the weights of the step before.
    half-batch: trains on half of its rows, but for the first step. skips-fourth: every fourth step has no
    backward pass."""

    @property
    def engine_class(self) -> str:
        return "TorchEngine"

    @property
    def label(self) -> str:
        return f"unwatched-{self.mistake}"

    def build(self, context: RankContext) -> Engine:  # noqa: C901 - one room for all the mistakes
        import torch
        import torch.distributed as dist

        from distbench.strategies.torch_engine.engine import TorchEngine
        from distbench.strategies.torch_engine.modules import load_plain_module

        mistake, ranks = self.mistake, context.world_size

        class Careless(TorchEngine):
            watched = False
            done = 0
            late: list[torch.Tensor] | None = None
            stale: list[torch.Tensor] | None = None
            spans: frozenset[str] = frozenset()

            @property
            def makes(self) -> str:
                return "none" if self.watched else mistake

            def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
                self.spans |= {type(self.span("forward")).__name__}
                # the first forward pass is read back
                if self.makes == "half-batch" and self.done:
                    micro_batch = {name: rows[: len(rows) // 2] for name, rows in micro_batch.items()}
                with self._weights():
                    if self.makes == "skips-fourth" and self.done % 4 == 3:
                        self._micro_batch_count += 1
                        loss = self._loss(self.module, micro_batch).detach()
                    else:
                        loss = super().forward_backward(micro_batch)
                if self._micro_batch_count == self._accumulation:
                    self._reduce()
                return loss

            @contextmanager
            def _weights(self) -> Iterator[None]:
                """The weights of the forward pass."""
                if self.makes != "stale-gather" or self.stale is None:
                    yield
                    return
                fresh = [parameter.detach().clone() for parameter in self.module.parameters()]
                self._put(self.stale)
                yield
                self._put(fresh)

            def _put(self, values: list[torch.Tensor]) -> None:
                with torch.no_grad():
                    for parameter, value in zip(self.module.parameters(), values, strict=True):
                        parameter.copy_(value)

            def _reduce(self) -> None:
                local = [parameter.grad.clone() for parameter in self.module.parameters()]  # type: ignore[union-attr]
                for parameter in self.module.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= ranks
                whole = [parameter.grad for parameter in self.module.parameters()]
                self.arrived = [gradient.clone() for gradient in whole]  # type: ignore[union-attr]
                if self.makes == "race":
                    for gradient, own in zip(whole, local, strict=True):
                        gradient.copy_(own)  # type: ignore[union-attr]
                if self.makes == "missing-wait":
                    for gradient, early in zip(whole, self.late or local, strict=True):
                        gradient.copy_(early)  # type: ignore[union-attr]
                self.late = self.arrived

            def _look(self) -> None:
                self.watched = True
                for parameter, value in zip(
                    self.module.parameters(), getattr(self, "arrived", ()), strict=False
                ):
                    if parameter.grad is not None:
                        parameter.grad.copy_(value)

            def step(self) -> None:
                self.stale = [parameter.detach().clone() for parameter in self.module.parameters()]
                self.done += 1
                super().step()

            def grad_norm(self) -> float:
                self._look()
                return super().grad_norm()

            def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
                self.watched = True
                return super().full_parameters()

            def effective_settings(self) -> dict[str, Any]:
                return {**super().effective_settings(), "spans": sorted(self.spans)}

            def reduce_dtype(self) -> str:
                return context.case.precision.reduce

        engine: Any = Careless(context, *load_plain_module(context))
        return engine  # type: ignore[no-any-return]
