"""DeepSpeed releases with a feature removal. Imports no torch."""

from __future__ import annotations

import re

FIRST_WITHOUT_ONEBIT = (0, 19, 7)
"""First version without the techniques of ``deepspeed_removed``."""
LAST_WITH_ONEBIT = "0.19.6"
"""Last version with them."""
REMOVAL_ISSUE = "https://github.com/deepspeedai/DeepSpeed/issues/8489"


def parse_release(version: str) -> tuple[int, ...]:
    """First three numbers of *version*: (0, 19, 8) for ``0.19.8+cpu``."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
