"""Versions of DeepSpeed that distbench has to tell apart. Without torch."""

from __future__ import annotations

import re

REMOVED_IN = (0, 19, 7)
"""First version without what ``deepspeed_removed`` lists."""
LAST = "0.19.6"
"""The last one with it."""
REMOVAL = "https://github.com/deepspeedai/DeepSpeed/issues/8489"


def release(version: str) -> tuple[int, ...]:
    """First three numbers of *version*: (0, 19, 8) of ``0.19.8+cpu``."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
