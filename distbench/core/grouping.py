"""Items in groups."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def group_pairs(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """The second of each of *pairs* by the first, in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """*items* by their key, groups and items in the order in which they come."""
    return group_pairs((key(item), item) for item in items)
