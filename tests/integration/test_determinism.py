"""Deterministic algorithms: what torch has none for is refused, until a job needs it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    import torch

    mode = torch.get_deterministic_debug_mode()
    yield
    torch.set_deterministic_debug_mode(mode)


def alone(lacking: str) -> str:
    """What one rank agrees on with itself."""
    return lacking


def test_a_job_that_needs_no_other_algorithm_is_done_once_and_strictly():
    import torch

    from distbench.worker.determinism import run_deterministically

    assert run_deterministically(torch.get_deterministic_debug_mode, alone) == (2, "strict")


def test_a_job_that_does_is_done_again_and_says_what_it_needs():
    import torch

    from distbench.worker.determinism import run_deterministically

    began = []

    def job() -> float:
        began.append(torch.get_deterministic_debug_mode())
        return float(torch.zeros(2).put_(torch.tensor([1]), torch.ones(1)).sum())

    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        done = run_deterministically(job, alone)
    told = "were allowed: torch has no deterministic implementation of put_ here"
    assert done == (1.0, f"non-deterministic operations {told}")
    assert began == [2, 1]


def test_any_other_error_is_the_jobs_own():
    from distbench.worker.determinism import run_deterministically

    began = []

    def job() -> None:
        began.append(1)
        raise RuntimeError("a mistake of the model")

    with pytest.raises(RuntimeError, match="a mistake of the model"):
        run_deterministically(job, alone)
    assert began == [1]


def agreements(patience_s: float) -> list[Any]:
    import torch.distributed as dist

    from distbench.worker.rendezvous import StoreExchange

    store = dist.HashStore()
    return [StoreExchange(store, rank, 2, patience_s) for rank in range(2)]


@pytest.mark.parametrize(
    ("lacking", "agreed"), [(("", ""), ""), (("put_", ""), "put_"), (("put_", "put_"), "put_")]
)
def test_what_one_rank_lacks_is_allowed_on_all_or_on_none(lacking, agreed):
    from distbench.worker.determinism import share_nondeterministic_operation

    with ThreadPoolExecutor(2) as ranks:
        assert list(ranks.map(share_nondeterministic_operation, agreements(60), lacking)) == [agreed, agreed]


def test_a_rank_that_lacks_what_the_others_do_without_is_refused():
    from distbench.strategies.base import UnsupportedCase
    from distbench.worker.determinism import share_nondeterministic_operation

    _, second = agreements(0.01)
    with pytest.raises(UnsupportedCase, match=r"rank 1 uses put_, .* and other ranks don't"):
        share_nondeterministic_operation(second, "put_")


def test_a_job_that_another_rank_has_to_do_again_is_done_again_here():
    import torch

    from distbench.worker.determinism import run_deterministically

    began = []

    def job() -> int:
        began.append(torch.get_deterministic_debug_mode())
        return len(began)

    done, told = run_deterministically(job, lambda lacking: "put_")
    assert (done, began) == (2, [2, 1])
    assert "no deterministic implementation of put_" in told
