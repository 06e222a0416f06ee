"""Mixture of experts in place of a decoder's feed-forward network, by the rules of ``_decoder``.

Every expert takes part in every pass, even without a token, so code that waits for all gradients gets them.
There is no auxiliary loss to balance the load: its usual form is a product of means over a rank's own
tokens, so its value would depend on the number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from distbench.workloads._dimensions import Dimensions


class Router(nn.Module):
    """Router: chooses the experts of each token, and their weights.

    Not an ``nn.Linear``: a conversion of those to float8 would also convert it.
    """

    def __init__(self, dims: Dimensions, std: float) -> None:
        super().__init__()
        self._top_k = dims.top_k
        self.weight = nn.Parameter(torch.empty(dims.experts or 0, dims.dim))
        nn.init.normal_(self.weight, std=std)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and indices of the experts of *x* (batch, seq, dim), each (batch, seq, top_k).

        Weights are the softmax over the chosen scores (Mixtral, arXiv:2401.04088, section 2.1). With one
        expert per token it is over all scores (Switch, arXiv:2101.03961, section 2.1), as otherwise it would
        be 1 whatever the router learns.
        """
        logits = functional.linear(x, self.weight)
        scores = logits if logits.dtype == torch.float64 else logits.float()
        # stable: among equal scores, which are frequent in 16 bits, the first expert wins on every device
        ordered = scores.sort(dim=-1, descending=True, stable=True)
        best, chosen = (each[..., : self._top_k] for each in ordered)
        weights = best.softmax(-1) if self._top_k > 1 else scores.softmax(-1).gather(-1, chosen)
        return weights.to(x.dtype), chosen


class Experts(nn.Module):
    """SwiGLU networks (arXiv:2002.05202) side by side, their matrices stacked."""

    def __init__(self, dims: Dimensions, std: float, residual_std: float) -> None:
        super().__init__()
        into = (dims.experts or 0, dims.dim, dims.ffn_dim)
        self.gate, self.up = (nn.Parameter(torch.empty(into)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(into[0], dims.ffn_dim, dims.dim))
        for matrices, deviation in ((self.gate, std), (self.up, std), (self.down, residual_std)):
            nn.init.normal_(matrices, std=deviation)

    def forward(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Outputs of the experts for *tokens* (tokens, dim), which are sorted by expert.

        *counts* (experts,) has the number of tokens of each. The host reads them, and a GPU waits for that;
        ``functional.grouped_mm`` would avoid it, but has no fp64 (torch 2.13).
        """
        stacked = zip(self.gate.unbind(), self.up.unbind(), self.down.unbind(), strict=True)
        parts = zip(tokens.split(counts.tolist()), stacked, strict=True)
        made = [(functional.silu(part @ gate) * (part @ up)) @ down for part, (gate, up, down) in parts]
        return torch.cat(made)


class MixtureOfExperts(nn.Module):
    """A router and its experts.

    Each sample has its own capacity, so samples train alike on any rank. Whether a token is dropped depends
    only on the tokens before it, so the model stays causal.
    """

    def __init__(self, dims: Dimensions, std: float, residual_std: float) -> None:
        super().__init__()
        self._dims = dims
        self.router = Router(dims, std)
        self.experts = Experts(dims, std, residual_std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tensor shaped like *x* (batch, seq, dim); 0 for a token that all of its experts have dropped."""
        weights, chosen = self.router(x)
        slots, counts = (
            self._sorted_slots(chosen) if self._dims.capacity_factor is None else self._capacity_slots(chosen)
        )
        total = len(x) * self._dims.routed_tokens(x.shape[1])
        # one more slot, for all dropped tokens
        sent = x.new_zeros(total + 1, x.shape[-1]).index_copy(0, slots, _repeat_tokens(x, chosen.shape[-1]))
        made = self.experts(sent[:-1], counts)
        back = torch.cat([made, made.new_zeros(1, x.shape[-1])])[slots].view(*chosen.shape, -1)
        mixed: torch.Tensor = (weights.unsqueeze(-1) * back).sum(-2)
        return mixed

    def _sorted_slots(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Slot of each choice when all are sorted by expert, and number of tokens of each expert."""
        flat = chosen.flatten()
        return flat.argsort(stable=True).argsort(), flat.bincount(minlength=self._dims.experts or 0)

    def _capacity_slots(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Slot of each choice if every expert has its capacity for each sample, and slots of each expert."""
        (samples, positions), experts = chosen.shape[:2], self._dims.experts or 0
        capacity, flat = self._dims.expert_capacity(positions), chosen.flatten(1)
        is_mine = functional.one_hot(flat, experts)
        place = ((is_mine.cumsum(1) - 1) * is_mine).sum(-1)
        sample = torch.arange(samples, device=chosen.device).unsqueeze(1)
        slots = (flat * samples + sample) * capacity + place
        slots = slots.where(place < capacity, experts * samples * capacity)
        return slots.flatten(), torch.full((experts,), samples * capacity, device=chosen.device)


def _repeat_tokens(x: torch.Tensor, times: int) -> torch.Tensor:
    """Every token of *x* (batch, seq, dim), repeated once per expert (batch * seq * times, dim)."""
    return x.unsqueeze(2).expand(-1, -1, times, -1).reshape(-1, x.shape[-1])
