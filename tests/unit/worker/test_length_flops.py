"""Mean FLOPs of samples that differ in length: by formula, or between a few lengths that are counted."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from distbench.data.base import DataShape
from distbench.worker.length_flops import Flops, mean_flops
from distbench.workloads.base import Workload
from distbench.workloads.transformer import Transformer


@dataclass(frozen=True)
class Counted(Workload):
    """A model without formulas."""

    length: int = 64

    @property
    def shape(self) -> DataShape:
        return DataShape("tokens", self.length, 256)

    def with_length(self, length: int) -> Workload:
        return replace(self, length=length)

    def module(self) -> Any:
        raise NotImplementedError

    def layers(self, module: Any) -> Any:
        raise NotImplementedError

    def loss(self, module: Any, batch: Any) -> Any:
        raise NotImplementedError


class OfOneLength(Counted):
    def with_length(self, length: int) -> None:  # type: ignore[override]
        return None


def counter(formula: Callable[[int], int], seen: list[int]) -> Callable[[Workload], Flops]:
    def count(workload: Workload) -> Flops:
        seen.append(workload.shape.sample_length)
        return Flops(formula(seen[-1]), seen[-1])

    return count


def test_a_formula_is_asked_for_each_length():
    whole = Transformer(seq_len=64)
    seen: list[int] = []

    def by_formula(workload: Workload) -> Flops:
        seen.append(workload.shape.sample_length)
        return Flops(workload.flops_per_sample(), 0)

    found = mean_flops({17: 3, 40: 1}, 4, whole, by_formula)
    short, long = (Transformer(seq_len=length).flops_per_sample() for length in (17, 40))
    assert seen == [17, 40]
    assert found == Flops(round((3 * short + long) / 4), 0)


def test_other_lengths_follow_from_four_that_are_counted():
    seen: list[int] = []
    found = mean_flops({17: 1, 40: 3, 64: 4}, 8, Counted(), counter(lambda n: 10 + 6 * n + 12 * n * n, seen))
    assert sorted(seen) == [16, 32, 48, 64]
    expected = [10 + 6 * n + 12 * n * n for n in (17, *[40] * 3, *[64] * 4)]
    assert found == Flops(round(sum(expected) / 8), round((17 + 3 * 40 + 4 * 64) / 8))


def test_other_growth_is_not_guessed():
    found = mean_flops({17: 1}, 1, Counted(), counter(lambda n: n**3, []))
    assert found.model is None
    assert "no polynomial of the second degree in the length" in found.unknown


@pytest.mark.parametrize(
    ("workload", "lengths", "why"),
    [(OfOneLength(), {17: 1}, "OfOneLength does not say how FLOPs depend"), (Counted(), {}, "no step was")],
)
def test_what_is_not_known_has_a_reason(workload, lengths, why):
    found = mean_flops(lengths, 1, workload, counter(lambda n: n, []))
    assert found.model is None and why in found.unknown


def test_what_can_t_be_counted_keeps_its_reason():
    found = mean_flops({17: 1}, 1, Counted(), lambda _: Flops(None, None, "a kernel without a formula"))
    assert found == Flops(None, None, "a kernel without a formula")
    half = mean_flops(
        {17: 1}, 1, Counted(), lambda workload: Flops(workload.shape.sample_length, None, "why")
    )
    assert half == Flops(17, None, "why")


def test_a_packed_sample_has_the_flops_of_its_documents():
    found = mean_flops({16: 4, 32: 2}, 2, Counted(), counter(lambda n: 12 * n * n, []))
    assert found.model == (4 * 12 * 16**2 + 2 * 12 * 32**2) // 2 < 12 * 64**2
