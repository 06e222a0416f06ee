"""Options that change nothing, which would give one case two names. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distbench.core.errors import as_yaml
from distbench.strategies.base import Strategy


def unused_option_problem(
    strategy: Strategy, defaults: Strategy, needs: Mapping[str, tuple[Any, str]]
) -> str | None:
    """Why an option of *strategy* is refused that has no effect beside its others, or None.

    Args:
        defaults: The strategy without such options.
        needs: Option -> whether it counts, and what it needs to count.
    """
    for option, (counts, needed) in needs.items():
        value = getattr(strategy, option)
        if not counts and value != getattr(defaults, option):
            return f"{option} = {as_yaml(value)} has no effect without {needed}; leave it out"
    return None
