"""Card of context parallelism."""

from __future__ import annotations

from distbench.strategies.description import ALL_STATES_TEXT, USE_IF, ZERO_PAPER, Card, Claim

_ULYSSES = "https://arxiv.org/abs/2309.14509"
_RING = "https://arxiv.org/abs/2310.01889"
_FSDP = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
_SHARDING = Claim(
    "shards",
    "Every sequence, by position: a rank computes some positions, and in attention all positions for some "
    "of the heads.",
    _ULYSSES,
)

PLAIN = Card(
    shards="sequences, by position",
    claims=(
        _SHARDING,
        Claim(
            "moves",
            "Four all-to-alls per layer forward and four backward (queries, keys, values and outputs, each "
            "of batch x positions / ranks x width elements), and an all-reduce of the gradients.",
            _ULYSSES,
        ),
        Claim("keeps", f"{ALL_STATES_TEXT} Activations divided by the ranks.", ZERO_PAPER),
        Claim(
            USE_IF,
            "sequences are so long that the activations of one do not fit on a device, but the model does; "
            "and the number of heads is divisible by the number of ranks.",
            _ULYSSES,
        ),
    ),
)
RING = Card(
    shards="sequences, by position",
    claims=(
        Claim(
            "shards",
            "Every sequence, by position: a rank has a chunk from the front and one from the back, whose "
            "queries see the keys and values of all ranks.",
            _RING,
        ),
        Claim(
            "moves",
            "Keys and values to all ranks, forward and backward, and the gradients of both around the ring; "
            "and an all-reduce of the parameters' gradients.",
            _RING,
        ),
        Claim("keeps", f"{ALL_STATES_TEXT} Activations divided by the ranks.", ZERO_PAPER),
        Claim(
            USE_IF,
            "sequences are so long that the activations of one do not fit on a device, and there are more "
            "ranks than heads.",
            _RING,
        ),
    ),
)
SHARDED = Card(
    shards="sequences, by position; all model states",
    claims=(
        Claim(
            "shards", f"{_SHARDING.text} Model states are sharded over all ranks, layer by layer.", _ULYSSES
        ),
        Claim(
            "moves",
            "The all-to-alls of cp, plus FSDP's traffic: each layer is all-gathered for the forward and for "
            "the backward pass, and its gradients are reduce-scattered.",
            _ULYSSES,
        ),
        Claim("keeps", "Model states and activations divided by the ranks, and an unsharded layer.", _FSDP),
        Claim(
            USE_IF,
            "sequences are so long that the activations of one do not fit on a device, nor does the whole "
            "model; and the number of heads is divisible by the number of ranks that share a sequence.",
            _ULYSSES,
        ),
    ),
)
