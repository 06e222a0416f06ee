"""Which part of a model are experts, of which each token takes some. Without torch."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.workloads.splits import divisibility_problem


@dataclass(frozen=True)
class ExpertLayers:
    """A model whose layers have experts (a mixture of experts), as expert parallelism sees it.

    The modules of the experts have their parameters stacked, the expert first, and are called with tokens
    (tokens, width), sorted by expert, and how many each expert takes (experts,); they give what comes out in
    the same order. They use no more than the experts that those counts are of.
    """

    modules: str
    """Names of the modules that have the experts of a layer; ``*`` stands for any number."""
    routers: str
    """Names of the modules that choose the experts; of tokens (batch, seq, width) they give weights and
    numbers of experts, each (batch, seq, experts of a token)."""
    experts: int
    """Experts of a layer."""
    layers: int
    """Layers that have experts."""
    parameters: int
    """Parameters of the experts of all layers."""
    tensors: int
    """Stacked tensors in which those are."""
    routed_tokens: int
    """Tokens that the experts of a layer take of one sample, one that several take counted for each."""
    hidden_size: int
    """Numbers of a token."""
    capacity: int | None = None
    """Tokens of one sample that an expert takes at most; None: all that are sent to it."""

    def problem(self, ranks: int) -> str | None:
        """Why the experts can't be spread over that many *ranks*, or None if they can."""
        return divisibility_problem({"experts": self.experts}, ranks)
