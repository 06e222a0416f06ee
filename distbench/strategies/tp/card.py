"""What tensor parallelism shards, moves and keeps by theory."""

from __future__ import annotations

from distbench.strategies.description import TAKE_IT, Card, Claim

_MEGATRON = "https://arxiv.org/abs/1909.08053"
_SEQUENCE = "https://arxiv.org/abs/2205.05198"
_TAKE = Claim(
    TAKE_IT,
    "a layer is too large for one device, or sharding leaves too few samples per device; and the devices are "
    "joined by fast links (NVLink), as every layer waits for its reduction.",
    _MEGATRON,
)
_SHARDS = (
    "Every matrix of a layer, and with it gradients, optimizer state and the activations inside the layer. "
    "All ranks work on the same rows."
)

PLAIN = Card(
    shards="every layer",
    claims=(
        Claim("shards", _SHARDS, _MEGATRON),
        Claim(
            "moves",
            "Activations, not gradients: four all-reduces a block and two more, each of batch x positions x "
            "width numbers, and the logits once.",
            _MEGATRON,
        ),
        Claim(
            "keeps",
            "Model states divided by the ranks, but for norms; what is between layers whole on every rank.",
            _MEGATRON,
        ),
        _TAKE,
    ),
)
SEQUENCE = Card(
    shards="every layer, and activations between them",
    claims=(
        Claim("shards", f"{_SHARDS} What is between the layers is cut by positions.", _SEQUENCE),
        Claim(
            "moves",
            "An all-gather and a reduce-scatter in place of each all-reduce: as many bytes on the wire.",
            _SEQUENCE,
        ),
        Claim(
            "keeps",
            "Model states divided by the ranks, but for norms; activations divided by the ranks.",
            _SEQUENCE,
        ),
        _TAKE,
    ),
)
