"""What pipeline parallelism shards, moves and keeps by theory."""

from __future__ import annotations

from distbench.strategies.description import TAKE_IT, Card, Claim
from distbench.strategies.pp.schedules import SCHEDULES, Name

_MEGATRON = "https://arxiv.org/abs/2104.04473"
_WAITS: dict[str, str] = {
    "1F1B": "As in GPipe, a rank waits (p - 1) / (m + p - 1) of the step for p ranks and m micro-batches, "
    "but keeps activations of p micro-batches at most.",
    "GPipe": "A rank waits (p - 1) / (m + p - 1) of the step for p ranks and m micro-batches, and keeps "
    "activations of all of them.",
    "Interleaved1F1B": "With v stages on a rank it waits (p - 1) / (v m + p - 1) of the step, and sends v "
    "times as much.",
    "LoopedBFS": "With v stages on a rank it waits (p - 1) / (v m + p - 1) of the step, and keeps "
    "activations of all micro-batches.",
    "InterleavedZeroBubble": "Gradients of weights are computed where a rank would wait.",
    "ZBVZeroBubble": "Each rank has a stage from the front and one from the back; gradients of weights are "
    "computed where it would wait.",
    "DualPipeV": "As ZBVZeroBubble, with forward passes of some micro-batches beside backward passes of "
    "others.",
}


def card_of(schedule: Name) -> Card:
    """Card of the pipeline with *schedule*."""
    return Card(
        shards="whole layers",
        claims=(
            Claim(
                "shards",
                "The row of layers: each rank has some, with their gradients and optimizer state. All ranks "
                "work on the same rows, one part of the batch after another.",
                _MEGATRON,
            ),
            Claim(
                "moves",
                "Activations of every sample over each border between stages, and as many gradients back.",
                _MEGATRON,
            ),
            Claim("keeps", f"The model states of its layers. {_WAITS[schedule]}", SCHEDULES[schedule].source),
            Claim(
                TAKE_IT,
                "the model is too large for one device, and links between devices are slow, which only "
                "activations cross; and the batch is large enough for many micro-batches.",
                _MEGATRON,
            ),
        ),
    )
