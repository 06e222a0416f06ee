"""Stragglers: who is slowest over trials is named with its place, and who is by chance is not."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from distbench.analysis.ranks import SIGNIFICANCE, stragglers
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.findings import all_findings
from distbench.record import RankDevice, Record
from support.records import case, info, measured

EIGHT = case("ddp", 8)
NODES = {"node-01": [0, 1, 2, 3], "node-02": [4, 5, 6, 7]}
GPUS: list[RankDevice | None] = [RankDevice("cuda", rank % 4, f"GPU-{rank}") for rank in range(8)]


def trial(work: Sequence[float], round_: int = 0, **changes: object) -> Record:
    uneven = max(work) / statistics.median(work)
    placed = {"nodes": NODES, "devices": GPUS, **changes}
    record = measured(EIGHT, round_=round_, imbalance=uneven)
    return replace(record, samples={"work_s": [[seconds] for seconds in work]}, **placed)  # type: ignore[arg-type]


def slow_rank_trials(rank: int, excess: float = 1.2) -> list[float]:
    return [excess if each == rank else 1.0 + each / 1000 for each in range(8)]


def test_a_rank_that_is_slowest_in_nearly_all_trials_is_named_with_its_node_and_gpu():
    records = [trial(slow_rank_trials(5 if round_ else 2), round_) for round_ in range(10)]
    (found,) = stragglers(records)
    assert (found.name, found.slowest_trials, found.trials) == ("rank 5 on node-02 (GPU 1)", 9, 10)
    assert found.work_ratio == pytest.approx(1.2, abs=0.01)
    told = all_findings(RunAnalysis(info(EIGHT), records))
    assert any("rank 5 on node-02 (GPU 1) is slowest in 9 of 10 trials, with 1.20x" in each for each in told)


def test_a_node_is_named_if_its_ranks_take_turns_at_being_the_slowest():
    def turn(rank: int) -> list[float]:
        return [(1.3 if each == rank else 1.2) if each > 3 else 1.0 for each in range(8)]

    (found,) = stragglers([trial(turn(4 + round_ % 4), round_) for round_ in range(12)])
    assert (found.name, found.slowest_trials, found.trials) == ("node-02", 12, 12)
    assert found.work_ratio == pytest.approx(1.2)


def test_who_is_always_the_slowest_by_too_little_to_matter_is_not_named():
    assert stragglers([trial(slow_rank_trials(5, 1.03), round_) for round_ in range(20)]) == []


def test_three_trials_are_too_few_to_tell_two_ranks_apart():
    two = case("ddp", 2)
    records = [
        replace(measured(two, round_=i, imbalance=1.3), samples={"work_s": [[1.0], [2.0]]}) for i in range(3)
    ]
    assert stragglers(records) == []
    assert any("ranks are uneven" in each for each in all_findings(RunAnalysis(info(two), records)))


def test_a_rank_whose_rows_are_the_longest_in_each_trial_is_no_straggler():
    tokens = [[120.0 if rank == 5 else 100.0] * 2 for rank in range(8)]
    work = [[1.2 if rank == 5 else 1.0] * 2 for rank in range(8)]
    slow = [trial(slow_rank_trials(5), i) for i in range(10)]
    alike = [replace(each, samples={"work_s": work}) for each in slow]
    assert [each.name for each in stragglers(alike)] == ["rank 5 on node-02 (GPU 1)"]
    assert (
        stragglers([replace(each, samples={"work_s": work, "profile_tokens": tokens}) for each in alike])
        == []
    )


def test_noisy_trials_do_not_count():
    assert stragglers([trial(slow_rank_trials(5), i, degraded="a busy neighbour") for i in range(10)]) == []


def test_ranks_that_are_alike_are_hardly_ever_named():
    drawn = random.Random(3)
    named = 0
    for _ in range(300):
        records = [trial([drawn.lognormvariate(0, 0.3) for _ in range(8)], i) for i in range(8)]
        named += bool(stragglers(records))
    assert named <= 300 * SIGNIFICANCE


def test_the_chance_counts_all_that_could_be_named():
    (found,) = stragglers([trial(slow_rank_trials(5), round_) for round_ in range(10)])
    # one of 8 ranks and 2 nodes, the slowest in all trials
    assert found.p_value == pytest.approx(10 * (1 / 8) ** 10)


def test_the_place_of_a_rank_on_one_machine_is_its_gpu():
    here = [trial(slow_rank_trials(5), i, nodes={}) for i in range(10)]
    assert [each.name for each in stragglers(here)] == ["rank 5 (GPU 1)"]
    untold = [replace(record, devices=[]) for record in here]
    assert [each.name for each in stragglers(untold)] == ["rank 5"]
