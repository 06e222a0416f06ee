"""Mistakes that are planted among ranks emulated in this process: which of them a check finds."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from distbench.analysis.job_results import Verdict
from distbench.core import registry
from distbench.core.case import Batch, Case, OptimizerConfig, PluginChoice
from distbench.jobs.equivalence import ADVICE, CheckSection
from distbench.jobs.equivalence.arms import DIFFERS, NOT_CHECKED, ROUNDING
from support.emulation import BIASED, CLASSIFIER, DECODER, KEEPING, Laboratory, emulated, laboratory

DOCS = Path(__file__).parents[2] / "docs" / "equivalence-evidence.md"

# mistake -> the arms that find it in 17 steps
FOUND = {
    "gradients-times-1.0001": "adamw in fp32, sgd in fp32",
    "gradients-one-step-late": "adamw in bf16, sgd in bf16, adamw in fp32, sgd in fp32",
    "sign-of-one-element": "adamw in fp32, sgd in fp32",
    "tied-embedding-counted-twice": "adamw in bf16, sgd in bf16, adamw in fp32, sgd in fp32",
    "micro-batch-lost-at-step-15": "adamw in bf16, sgd in bf16, adamw in fp32, sgd in fp32",
    "reduced-in-bf16": "adamw in fp32, sgd in fp32",
    "clipped-at-1.01": "sgd in fp32",
    "last-elements-never-updated": "adamw in fp32, sgd in fp32",
    "decay-not-on-norms": "adamw in bf16, adamw in fp32",
    "beta2-rounded-to-bf16": "adamw in fp32",
    "eps-of-the-dtype": "adamw in bf16, adamw in fp32",
    "moments-in-bf16": "adamw in fp32",
    "momentum-zeroed-each-third-step": "adamw in bf16, adamw in fp32",
}
SHORT = CheckSection(steps=3, perturbed=5)


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Laboratory]:
    with laboratory(tmp_path_factory.mktemp("emulated")) as made:
        yield made


@pytest.fixture(scope="module")
def in_fp32(lab) -> Mapping[str, Verdict]:
    """Verdicts on the decoder in fp32 after a few steps, by mistake."""
    bugs = [bug for bug in FOUND if bug != "micro-batch-lost-at-step-15"]
    return by_bug(lab.verdicts([emulated(bug) for bug in ("none", *bugs)], SHORT))


def by_bug(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    return {label.partition("-")[2]: verdict for label, verdict in verdicts.items()}


def finders(verdict: Verdict) -> str:
    """The arms that differ."""
    evidence = verdict.detail
    return ", ".join(evidence.arm_label(arm) for arm in evidence.arms if arm.word == DIFFERS)


@pytest.mark.parametrize("bug", [bug for bug in FOUND if bug != "micro-batch-lost-at-step-15"])
def test_a_mistake_is_found_in_fp32_by_the_training_that_it_is_in(bug, in_fp32):
    expected = [arm.partition(" ")[0] for arm in FOUND[bug].split(", ") if arm.endswith("fp32")]
    assert finders(in_fp32[bug]) == ", ".join(expected), in_fp32[bug].sentence


def test_emulated_ranks_without_a_mistake_are_the_same_training(in_fp32):
    honest = in_fp32["none"]
    assert honest.word == ROUNDING
    assert honest.detail.limit_share < 1
    assert re.search(r"; adamw and sgd; an error of \S+% of a gradient or \S+% of an update", honest.sentence)


@pytest.mark.deep
def test_the_table_in_the_docs_says_which_arm_finds_what(lab):
    found = by_bug(
        lab.verdicts([emulated(bug, compute="bf16") for bug in ("none", *FOUND)], CheckSection(steps=17))
    )
    assert found.pop("none").word == ROUNDING
    for bug, verdict in found.items():
        print(bug, [(arm.optimizer, arm.compute, arm.limit_share) for arm in verdict.detail.arms])  # noqa: T201
    # at 1.01 of the limit
    on_the_edge = {"clipped-at-1.01": "sgd in bf16, "}
    finding = {bug: finders(verdict) for bug, verdict in found.items()}
    assert {bug: told.removeprefix(on_the_edge.get(bug, "")) for bug, told in finding.items()} == FOUND


def test_the_docs_have_every_mistake_that_is_planted_here():
    told = DOCS.read_text()
    assert [bug for bug in FOUND if bug.replace("-", " ") not in told] == []


# rounding that Adam blows up


def zeroed(workload: PluginChoice, seed: int) -> list[Case]:
    bugs = ("none", "momentum-zeroed-each-third-step")
    return [emulated(bug, workload, "bf16", seed=seed) for bug in bugs]


def check_limits(lab: Laboratory, cases: list[Case], check: CheckSection) -> str:
    """The honest one of *cases* is within its limits, all of which are of use; return who finds the other."""
    found = by_bug(lab.verdicts(cases, check))
    honest, wrong = found["none"], found["momentum-zeroed-each-third-step"]
    assert honest.word == ROUNDING, honest.sentence
    assert honest.detail.limit_share < 1
    assert wrong.word == DIFFERS, wrong.sentence
    return finders(wrong)


def test_adam_in_bf16_hides_no_momentum_that_is_lost(lab):
    """One element whose gradient is within rounding of zero once widened every limit to 12,000 and more."""
    assert check_limits(lab, zeroed(BIASED, seed=1), CheckSection(steps=6, fp32=False)) == "adamw"


@pytest.mark.parametrize("compute", ["bf16", pytest.param("fp16", marks=pytest.mark.deep)])
def test_mistakes_of_a_few_percent_are_found_in_16_bits_alone(compute, lab):
    """By sizes: the distance of a gradient that is scaled by 1.05 is within its limit in bf16."""
    mistakes = ("gradients-scaled", "matrix-scaled", "rank-scaled", "updates-scaled", "partly-late")
    cases = [emulated(compute=compute), *(emulated(bug, compute=compute, by=0.05) for bug in mistakes)]
    found = by_bug(lab.verdicts(cases, CheckSection(steps=6, fp32=False)))
    assert found.pop("none").word == ROUNDING
    assert len(found) == len(mistakes)
    assert {bug: verdict.word for bug, verdict in found.items()} == dict.fromkeys(found, DIFFERS)


@pytest.mark.deep
@pytest.mark.parametrize("workload", [BIASED, DECODER, CLASSIFIER], ids=["biased", "decoder", "classifier"])
def test_momentum_that_is_lost_is_found_with_any_seed(workload, lab):
    judged = 0
    for seed in range(1, 21):
        found = by_bug(lab.verdicts(zeroed(workload, seed), CheckSection()))
        honest, wrong = found["none"], found["momentum-zeroed-each-third-step"]
        assert wrong.word == DIFFERS, wrong.sentence
        assert "adamw in fp32" in finders(wrong)
        assert honest.word in (ROUNDING, NOT_CHECKED), honest.sentence
        judged += honest.word == ROUNDING and honest.detail.limit_share < 1
    # where rounding takes a unit across its kink, bf16 says that it can't tell
    assert judged >= 19


# buffers


def test_buffers_that_are_not_synchronised_are_found(lab):
    cases = [
        dataclasses.replace(emulated(bug, KEEPING), batch=Batch(8, 4, 1))
        for bug in ("none", "buffers-not-synchronised")
    ]
    found = by_bug(lab.verdicts(cases, SHORT))
    assert found["none"].word == ROUNDING, found["none"].sentence
    assert "from step 0 on" in found["buffers-not-synchronised"].sentence
    assert "first in buffer of mean: relative error" in found["buffers-not-synchronised"].sentence
    assert "it accumulates statistics of the batch" in found["buffers-not-synchronised"].sentence


# causes


@pytest.mark.parametrize(
    ("loss", "cause"),
    [("in_fp32", ""), ("over_letters", "not the mean of the losses of its parts (in fp64")],
)
def test_a_cast_to_fp32_in_a_loss_is_no_cause(loss, cause, lab):
    model = PluginChoice("user", {"model": "small:Small", "loss_function": f"odd:{loss}", "length": 16})
    case = emulated(workload=model, optimizer=OptimizerConfig(name="sgd", lr=0.1))
    reference, _ = lab.records([case], CheckSection(steps=1, perturbed=4))
    notes = [row["text"] for row in reference.tables["check_notes"] if row["training"] != ADVICE]
    assert len(notes) == bool(cause)
    assert all(cause in note for note in notes)


# without fp64


def test_without_room_for_fp64_a_check_takes_fp32_and_says_so(lab):
    cases = [emulated("none"), emulated("gradients-one-step-late")]
    found = by_bug(lab.verdicts(cases, dataclasses.replace(SHORT, fp64=False)))
    assert found["none"].word == ROUNDING, found["none"].sentence
    assert finders(found["gradients-one-step-late"]) == "adamw, sgd"
    for arm in found["none"].detail.arms:
        assert arm.from_fp64 is None
        assert (
            "the fp64 training was skipped, so bounds are wider: the suite disables it (check.fp64)"
            in arm.notes
        )
        assert arm.cause == ""


@pytest.mark.parametrize(("preset", "told"), [("tiny", ""), ("70b", "GiB on rank 0, and ")])
def test_whether_fp64_fits_is_known_before_it_is_tried(preset, told, lab, tmp_path):
    import torch

    from distbench.strategies.base import RankContext
    from distbench.worker.fp64_memory import fp64_memory_problem

    case = emulated(workload=PluginChoice("transformer", {"preset": preset}))
    workload = registry.create_plugin("workloads", case.workload)
    setting = RankContext(case, workload, tmp_path / "none", torch.device("cpu"), 0, 1, tmp_path)
    lacking = fp64_memory_problem(setting)
    assert told in lacking
    assert bool(lacking) == bool(told)


# how moves are weighted


def started(name: str, start: Any, gradient: Any) -> Any:
    from distbench.worker.update_sizes import WeightedUpdates

    moves = WeightedUpdates()
    moves.record_start(name, start)
    moves.next_step()
    moves.add_gradient(name, gradient)
    return moves


def test_a_sign_that_rounding_flips_moves_nothing_far():
    import torch

    random = torch.Generator().manual_seed(1)
    exact = torch.randn(100, 16, generator=random)
    # of each small tensor one element has a gradient within rounding of zero
    exact[:, 0] *= 1e-3
    plain, weighted = [], []
    for gradient in exact:
        noisy = gradient * (1 + 1e-3 * torch.randn(16, generator=random))
        noisy += 1e-3 * torch.randn(16, generator=random)
        told = []
        for seen in (gradient, noisy):
            moves = started("bias", torch.zeros(16), seen)
            told.append(torch.cat([*moves.weighted_chunks("bias", -seen.sign())]))
        plain.append(float((gradient.sign() - noisy.sign()).norm()))
        weighted.append(float((told[0] - told[1]).norm() / told[0].norm()))
    assert max(plain) == 2.0
    assert max(weighted) < 10 * sorted(weighted)[50]


def test_an_element_without_any_gradient_counts_whole():
    import torch

    moves = started("embedding", torch.ones(4), torch.tensor([0.0, 0.0, 1.0, -1.0]))
    moved = torch.cat([*moves.weighted_chunks("embedding", torch.full((4,), 0.9))])
    assert torch.allclose(moved[:2], torch.full((2,), -0.1), atol=1e-7)
    assert (moved[2:].abs() < 0.1).all()


def test_a_gradient_that_cancels_to_zero_weighs_as_little_as_one_that_nearly_does():
    """Of a large tensor there is always one, and it is another one in each training."""
    import torch

    def told(first: float) -> torch.Tensor:
        moves = started("gate", torch.zeros(5), torch.tensor([1.0, -1.0, first, 1.0, -1.0]))
        moves.next_step()
        moves.add_gradient("gate", torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0]))
        return torch.cat([*moves.weighted_chunks("gate", torch.ones(5))])

    assert torch.allclose(told(0.0), told(1e-9), atol=1e-6)
    assert float(told(0.0)[2]) < 1e-6
    assert float(told(1.0)[2]) == pytest.approx(0.5)
    # nor does it by decay, which in a small tensor of ones is as far as any mistake
    moves = started("norm", torch.ones(3), torch.tensor([1.0, 0.0, -1.0]))
    assert float(torch.cat([*moves.weighted_chunks("norm", torch.full((3,), 0.9))])[1]) == 0


def test_a_row_that_comes_late_is_seen():
    import torch

    row = torch.tensor([1.0, -1.0, 1.0])
    moves = started("embedding", torch.zeros(2, 3), torch.stack([row, 0 * row]))
    moves.next_step()
    moves.add_gradient("embedding", torch.stack([0 * row, row]))
    moved = torch.cat([*moves.weighted_chunks("embedding", torch.ones(2, 3))])
    assert (moved[3:] > 0.3).all()
