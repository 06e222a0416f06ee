"""Group items by key."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def group_pairs(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Second items of *pairs* by their first items, in the order of *pairs*."""
    groups: dict[K, list[T]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """*items* by their key; groups and items keep the order of *items*."""
    return group_pairs((key(item), item) for item in items)
