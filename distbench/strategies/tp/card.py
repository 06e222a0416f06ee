"""Card of tensor parallelism."""

from __future__ import annotations

from distbench.strategies.description import USE_IF, Card, Claim

_MEGATRON = "https://arxiv.org/abs/1909.08053"
_SEQUENCE = "https://arxiv.org/abs/2205.05198"
_USE_IF = Claim(
    USE_IF,
    "a layer is too large for one device, or sharding leaves too few samples per device; and the devices "
    "have fast links (NVLink), as every layer waits for its reduction.",
    _MEGATRON,
)
_SHARDS = (
    "Every matrix of a layer, with its gradients and optimizer state, and the activations inside the layer. "
    "All ranks process the same samples."
)

PLAIN = Card(
    shards="every layer",
    claims=(
        Claim("shards", _SHARDS, _MEGATRON),
        Claim(
            "moves",
            "Activations, not gradients: four all-reduces per block and two more, each of batch x positions "
            "x width elements, and the logits once.",
            _MEGATRON,
        ),
        Claim(
            "keeps",
            "Model states except norms divided by the ranks; activations between layers replicated.",
            _MEGATRON,
        ),
        _USE_IF,
    ),
)
SEQUENCE = Card(
    shards="every layer, and activations between them",
    claims=(
        Claim("shards", f"{_SHARDS} Activations between the layers are split by position.", _SEQUENCE),
        Claim(
            "moves",
            "An all-gather and a reduce-scatter in place of each all-reduce: the same bytes on the wire.",
            _SEQUENCE,
        ),
        Claim(
            "keeps",
            "Model states except norms divided by the ranks; activations divided by the ranks.",
            _SEQUENCE,
        ),
        _USE_IF,
    ),
)
