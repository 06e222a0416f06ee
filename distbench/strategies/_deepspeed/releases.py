"""Versions of DeepSpeed that distbench has to tell apart. Without torch."""

from __future__ import annotations

import re

FIRST_WITHOUT_ONEBIT = (0, 19, 7)
"""First version without what ``deepspeed_removed`` lists."""
LAST_WITH_ONEBIT = "0.19.6"
"""The last one with it."""
REMOVAL_ISSUE = "https://github.com/deepspeedai/DeepSpeed/issues/8489"


def parse_release(version: str) -> tuple[int, ...]:
    """First three numbers of *version*: (0, 19, 8) of ``0.19.8+cpu``."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
