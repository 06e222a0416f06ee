"""Cards of strategies: found by the choice that a record keeps, without a trial."""

from __future__ import annotations

from distbench import registry
from distbench.case import Choice
from distbench.strategies.description import Card


def card_of(choice: Choice) -> Card | None:
    """Card of a strategy of distbench's own with these options; None: another one, or of another version."""
    if choice.name not in registry.built_in("strategies"):
        return None
    try:
        card: Card | None = registry.built_in("strategies")[choice.name](**choice.options).card
    except (TypeError, ValueError, LookupError):
        # options of anybody's record
        return None
    return card
