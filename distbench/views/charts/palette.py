"""Colors of the page: each has one meaning in all charts.

All contrast with the white and the dark background (WCAG 2.2, 1.4.11: at least 3 : 1). Strategies have
strong colors, and a symbol each; parts of a step and kinds of memory have muted ones, related if the
things are related: optimizer and optimizer states, forward pass and activations, buckets and communication.
Parts that stand in one bar differ by at least 20 (CIE76), also for readers without red or green cones.
"""

from __future__ import annotations

# after Okabe & Ito's palette, which color-blind readers can distinguish; yellow and the blues darker
STRATEGIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B37A00", "#3A92C8", "#8C6D31", "#777777")
GREY = "#888888"
"""References that values are compared with."""

_FORWARD, _BACKWARD, _OPTIMIZER, _REST = "#5799C4", "#3A6C82", "#8C9A26", "#8A8F8E"
_EXPOSED, _WAITING = "#A74A30", "#B2862B"
STEP_PARTS = {
    "data": "#A38F6C",
    "forward": _FORWARD,
    "backward": _BACKWARD,
    "optimizer": _OPTIMIZER,
    "exposed_comm": _EXPOSED,
    "other": "#4663AC",
    "idle": _REST,
}
"""Parts of a step."""
PREDICTED_TERMS = {
    "compute": _FORWARD,
    "communication": _EXPOSED,
    "bubble": _REST,
    "update": _OPTIMIZER,
}
"""Terms of a predicted step, in the colors of the parts of a measured one."""
PASSES = {"F": _FORWARD, "B": _BACKWARD, "I": "#5B8F5A", "W": "#A9802F"}
"""Passes of a pipeline: forward, backward, and the halves of backward for the input and for the weights."""
COMMUNICATION = {"exposed": _EXPOSED, "hidden": "#A6767C", "transfer": _EXPOSED, "waiting": _WAITING}
"""Parts of the time of communication."""
COLLECTIVES = {
    "all_reduce": "#C0607F",
    "all_gather": "#9A6BB0",
    "reduce_scatter": "#C77A52",
    "broadcast": "#6F7DBB",
    "all_to_all": "#A9743F",
    "reduce": "#8F6072",
    "send": "#7B72C9",
    "recv": "#5F86A8",
    "send_recv": "#7B72C9",
}
"""Operations; ``collective_color`` has a color for any other."""
_OTHER_COLLECTIVE = "#9C6A74"
DIMENSIONS = {
    "pp": "#7A6FC2",
    "dp_replicate": "#BA5B7C",
    "dp_shard": "#956AAA",
    "cp": "#5E84A2",
    "tp": "#C2754E",
    "ep": "#A46F3D",
}
"""Dimensions of a device mesh; ``dimension_color`` has a color for combinations."""
COPIES = "#7F74A8"
"""Copies to, from and on a device."""
MEMORY = {
    "parameters": "#3096F2",
    "gradients": _BACKWARD,
    "optimizer_state": _OPTIMIZER,
    "master": "#4963AD",
    "buffers": "#AF6E4E",
    "activations": _FORWARD,
    "other": _REST,
}
"""Kinds of memory."""
PEAK_HOLDERS = {
    "before": MEMORY["parameters"],
    "forward": _FORWARD,
    "backward": _BACKWARD,
    "step": _OPTIMIZER,
    "internal": MEMORY["buffers"],
    "transient": MEMORY["other"],
}
"""Holders of memory at a peak."""
EFFICIENCY = {"efficiency": "#678EAD", "transfer": _EXPOSED, "waiting": _WAITING, "work": "#8C786A"}
"""Parts of the efficiency on several devices, and of its loss."""
QUANTITIES = {
    "loss": "#B0568C",
    "grad_norm": "#7C9A8E",
    "gradient": MEMORY["gradients"],
    "size": "#B98A2E",
    "parameter": MEMORY["parameters"],
    "buffer": MEMORY["buffers"],
}
"""Compared quantities of a training, in the color of the same quantity in memory."""
VERDICTS = {"better": "#5E8C31", "worse": "#C2413B", "other": "#8A6BB0"}
"""Directions of a change."""
# one hue, light to dark: the order must not depend on distinguishing hues
SEQUENTIAL_SCALE = ((0.0, "#DCEBF7"), (0.5, "#5BA3D0"), (1.0, "#08306B"))
"""Low to high."""


def collective_color(operation: str) -> str:
    """Color of a collective *operation*."""
    return COLLECTIVES.get(operation, _OTHER_COLLECTIVE)


def dimension_color(name: str) -> str:
    """Color of a dimension of a device mesh, or of several."""
    return DIMENSIONS.get(name, _OTHER_COLLECTIVE)


def faded(color: str) -> str:
    """Paler shade of *color*, halfway to grey, which keeps its contrast with both backgrounds."""
    parts = ([int(text[at : at + 2], 16) for at in (1, 3, 5)] for text in (color, GREY))
    return "#" + "".join(f"{(own + grey) // 2:02X}" for own, grey in zip(*parts, strict=True))
