"""Refusals for options without effect, which would give one case two names. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distbench.core.errors import as_yaml
from distbench.strategies.base import Strategy


def unused_option_problem(
    strategy: Strategy, defaults: Strategy, needs: Mapping[str, tuple[Any, str]]
) -> str | None:
    """Reason why an option of *strategy* has no effect beside its others; None if all have one.

    Args:
        defaults: The strategy without such options.
        needs: Option -> whether it has an effect, and what it needs to have one.
    """
    for option, (counts, needed) in needs.items():
        value = getattr(strategy, option)
        if not counts and value != getattr(defaults, option):
            return f"{option} = {as_yaml(value)} has no effect without {needed}; remove it"
    return None
