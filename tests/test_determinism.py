"""Deterministic algorithms: what torch has none for is refused, until a job needs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    import torch

    mode = torch.get_deterministic_debug_mode()
    yield
    torch.set_deterministic_debug_mode(mode)


def test_a_job_that_needs_no_other_algorithm_is_done_once_and_strictly() -> None:
    import torch

    from distbench.worker.determinism import deterministically

    assert deterministically(torch.get_deterministic_debug_mode) == (2, "strict")


def test_a_job_that_does_is_done_again_and_says_what_it_needs() -> None:
    import torch

    from distbench.worker.determinism import deterministically

    began = []

    def job() -> float:
        began.append(torch.get_deterministic_debug_mode())
        return float(torch.zeros(2).put_(torch.tensor([1]), torch.ones(1)).sum())

    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        done = deterministically(job)
    told = "were allowed: the training needs put_, of which torch has none here"
    assert done == (1.0, f"operations without a deterministic form {told}")
    assert began == [2, 1]


def test_any_other_error_is_the_jobs_own() -> None:
    from distbench.worker.determinism import deterministically

    began = []

    def job() -> None:
        began.append(1)
        raise RuntimeError("a mistake of the model")

    with pytest.raises(RuntimeError, match="a mistake of the model"):
        deterministically(job)
    assert began == [1]
