"""Expert layers of a model, in which each token takes some experts. Without torch."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.workloads.splits import divisibility_problem


@dataclass(frozen=True)
class ExpertLayers:
    """Layers of a model with experts (a mixture of experts), as expert parallelism sees them.

    The modules of the experts have their parameters stacked, the expert first. They are called with tokens
    (tokens, width), sorted by expert, and the number of tokens of each expert (experts,), and return outputs
    in the same order. They use only the experts that those counts are of.
    """

    modules: str
    """Names of the modules that have the experts of a layer; ``*`` stands for any number."""
    routers: str
    """Names of the modules that choose the experts; for tokens (batch, seq, width) they return weights and
    indices of experts, each (batch, seq, experts of a token)."""
    experts: int
    """Experts of a layer."""
    layers: int
    """Layers that have experts."""
    parameters: int
    """Parameters of the experts of all layers."""
    tensors: int
    """Number of stacked tensors of those parameters."""
    routed_tokens: int
    """Tokens of one sample for the experts of a layer; a token counts once for each of its experts."""
    hidden_size: int
    """Elements of a token's vector."""
    capacity: int | None = None
    """Maximum tokens of one sample for an expert; None: all that are sent to it."""

    def problem(self, ranks: int) -> str | None:
        """Reason why the experts can't be distributed over that many *ranks*; None if they can."""
        return divisibility_problem({"experts": self.experts}, ranks)
