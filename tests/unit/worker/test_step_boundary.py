"""The update that ends a step, of one optimizer and of several."""

import itertools

import pytest

from distbench.worker.scripts.step_boundary import StepBoundary

CRITIC, GENERATOR = 1, 2


def ends(boundary: StepBoundary, updates: list[tuple[int, int]]) -> list[bool]:
    return [boundary.ends_step(optimizer, passes) for optimizer, passes in updates]


def test_each_update_of_the_only_optimizer_ends_a_step():
    boundary = StepBoundary(1)
    assert ends(boundary, [(CRITIC, 1), (CRITIC, 2), (CRITIC, 3)]) == [True] * 3


def test_updates_without_a_backward_pass_between_them_are_one():
    """DeepSpeed updates groups of parameters one by one."""
    assert ends(StepBoundary(1), [(CRITIC, 2), (CRITIC, 2), (CRITIC, 4), (CRITIC, 4)]) == [
        *(True, False),
        *(True, False),
    ]


@pytest.mark.parametrize("critics", [1, 3, 5])
def test_of_several_optimizers_the_rarest_ends_a_step(critics):
    boundary, passes = StepBoundary(2), 0
    ended = []
    for _ in range(12):
        for optimizer in [CRITIC] * critics + [GENERATOR]:
            passes += 1
            if boundary.ends_step(optimizer, passes):
                ended.append((optimizer, passes))
    assert boundary.is_chosen and len(ended) >= 4
    assert {optimizer for optimizer, _ in ended} == {GENERATOR}
    assert {later - earlier for (_, earlier), (_, later) in itertools.pairwise(ended)} == {critics + 1}


def test_optimizers_that_update_equally_often_end_a_step_together():
    """Muon for matrices and AdamW for the rest: both update after one backward pass."""
    boundary = StepBoundary(2)
    updates = [(optimizer, passes) for passes in range(1, 20) for optimizer in (CRITIC, GENERATOR)]
    ended = [update for update, is_end in zip(updates, ends(boundary, updates), strict=True) if is_end]
    assert len(ended) >= 8 and len({optimizer for optimizer, _ in ended}) == 1
