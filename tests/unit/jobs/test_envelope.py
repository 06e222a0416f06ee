"""What an envelope allows, what a verdict rests on, and what it would have seen."""

import dataclasses
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from distbench.analysis.job_results import Verdict
from distbench.core.case import OptimizerConfig, PrecisionConfig
from distbench.core.machine import Machine
from distbench.jobs.equivalence import CheckSection, EquivalenceJob
from distbench.jobs.equivalence.arms import (
    DIFFERS,
    EQUIVALENT,
    NOT_CHECKED,
    ROUNDING,
    EquivalenceArm,
    EquivalenceEvidence,
)
from distbench.jobs.equivalence.envelope import DetectionLimit
from distbench.jobs.equivalence.verdict import judge_cases
from distbench.record import NO_REFERENCE_TEXT, Record, Status
from support.check_records import DDP, PERTURBED, Noise, none, reference, rounding, trained
from support.records import with_options

SGD = OptimizerConfig(name="sgd")


HALF_PRECISION = dataclasses.replace(DDP, precision=PrecisionConfig(compute="bf16"))
"""A case in 16 bits, of which ``DDP`` is the same in fp32."""


def verdict(*records: Record) -> Verdict:
    """The verdict on the case that the last of *records* is of."""
    return judge_cases(records, 0.001)[records[-1].job.options.of]


def repeated_training(record: Record, name: str, **changes: Any) -> Record:
    """The same training as another arm, compared with the reference of the same *name*."""
    return dataclasses.replace(
        record, case=dataclasses.replace(record.case, **changes), job=with_options(record.job, reference=name)
    )


def with_sgd(record: Record, **changes: Any) -> Record:
    return dataclasses.replace(repeated_training(record, "sgd", optimizer=SGD), **changes)


def in_bf16(record: Record) -> Record:
    half = repeated_training(record, "bf16", precision=HALF_PRECISION.precision)
    return dataclasses.replace(half, job=with_options(half.job, of=HALF_PRECISION.id))


def in_fp32(record: Record, **changes: Any) -> Record:
    """The arm of a case in bf16 that is trained in fp32."""
    asked = dataclasses.replace(record, job=with_options(record.job, of=HALF_PRECISION.id, precision="fp32"))
    return dataclasses.replace(asked, **changes)


HONEST = reference(), trained(rounding)
"""An arm that is right."""


# what a verdict rests on


@pytest.mark.parametrize("status", [Status.CRASHED, Status.OOM_GPU, Status.OOM_HOST, Status.HANG])
def test_an_arm_that_broke_down_leaves_a_case_unchecked(status):
    broken = with_sgd(trained(rounding, status=status, reason="rank 1 in check: no"))
    found = verdict(*HONEST, with_sgd(reference()), broken)
    assert (found.word, found.gravity) == (NOT_CHECKED, "unknown")
    assert found.sentence == f"not checked: sgd: {status}: rank 1 in check: no"


def test_an_arm_whose_reference_broke_down_leaves_a_case_unchecked():
    failed = with_sgd(reference(), status=Status.CRASHED, reason="no")
    waiting = with_sgd(trained(rounding), status=Status.UNSUPPORTED, reason=f"{NO_REFERENCE_TEXT}: no")
    assert verdict(*HONEST, failed, waiting).word == NOT_CHECKED


def test_an_arm_that_can_not_run_here_is_left_out_and_named():
    unable = with_sgd(trained(rounding), status=Status.UNSUPPORTED, reason="this Adam is no SGD")
    found = verdict(*HONEST, with_sgd(reference()), unable)
    assert found.word == ROUNDING
    assert "; adamw, without sgd;" in found.sentence


def test_without_the_training_that_the_suite_asks_for_there_is_no_verdict():
    hidden = trained(rounding, status=Status.UNSUPPORTED, reason="Fancy can't gather its parameters")
    found = verdict(reference(), hidden, with_sgd(reference()), with_sgd(trained(rounding)))
    assert found.sentence == "not checked: adamw: Fancy can't gather its parameters"


def test_what_is_not_checked_is_told_of_the_arm_that_the_verdict_lacks():
    half = in_bf16(reference()), in_bf16(trained(rounding))
    unable = with_sgd(trained(rounding), status=Status.UNSUPPORTED, reason="this Adam is no SGD")
    unable = dataclasses.replace(unable, job=with_options(unable.job, of=HALF_PRECISION.id))
    broken = in_fp32(trained(rounding), status=Status.CRASHED, reason="rank 1 in check: no")
    found = verdict(*half, unable, reference(), broken)
    assert found.sentence == "not checked: adamw in fp32: crashed: rank 1 in check: no"
    # what can't run is known before anything has run
    early = verdict(unable)
    assert (early.word, early.sentence) == (NOT_CHECKED, "not checked: this Adam is no SGD")


def test_a_verdict_names_the_arms_that_it_rests_on():
    found = verdict(*HONEST, with_sgd(reference()), with_sgd(trained(rounding)))
    assert "; adamw and sgd;" in found.sentence
    same = verdict(reference(), trained(none), with_sgd(reference()), with_sgd(trained(none)))
    assert same.sentence == "equivalent (adamw and sgd)"


def test_a_difference_in_fp32_decides_on_a_case_in_16_bits():
    wrong = trained(lambda step, kind, tensor: 1e-3 if kind == "gradient" else 0)
    half = in_bf16(reference()), in_bf16(trained(rounding))
    found = verdict(*half, reference(), in_fp32(wrong))
    assert found.word == DIFFERS
    assert "differs from step 0 on (adamw in fp32), first in gradient of " in found.sentence
    assert (
        "; adamw in bf16, adamw in fp32;" in verdict(*half, reference(), in_fp32(trained(rounding))).sentence
    )


@pytest.mark.parametrize(("status", "word"), [(Status.OOM_GPU, ROUNDING), (Status.CRASHED, NOT_CHECKED)])
def test_a_model_that_fits_in_16_bits_only_is_judged_in_16_bits(status, word):
    half = in_bf16(reference()), in_bf16(trained(rounding))
    found = verdict(*half, reference(), in_fp32(trained(rounding), status=status, reason="no"))
    assert found.word == word
    failed = dataclasses.replace(reference(), status=status, reason="no")
    waiting = in_fp32(trained(rounding), status=Status.UNSUPPORTED, reason=f"{NO_REFERENCE_TEXT}: no")
    assert verdict(*half, failed, waiting).word == word


def test_a_suite_that_asks_for_both_dtypes_trains_the_longer_one_once():
    half = in_bf16(reference()), in_bf16(trained(rounding))
    wrong = trained(lambda step, kind, tensor: 1e-3 if kind == "gradient" else 0)
    assert verdict(reference(), wrong, *half).sentence.startswith("differs from step 0 on (adamw in fp32)")
    machine = Machine("cpu", 2, {}, has_libaio=False, has_compiler=False)
    tasks = [
        task.key for task in EquivalenceJob().planned_trials(CheckSection(), [HALF_PRECISION, DDP], machine)
    ]
    assert len(tasks) == len(set(tasks)) == 8


# causes


def verdict_with_claim(*texts: str) -> Record:
    record = reference()
    notes = [{"training": "fp64", "text": text} for text in texts]
    return dataclasses.replace(record, tables={**record.tables, "check_notes": notes})


def test_a_cause_that_another_case_of_the_run_disproves_is_not_told():
    shifted = trained(lambda step, kind, tensor: 1e-2)
    alone = verdict(verdict_with_claim("no data-parallel training is equivalent"), shifted)
    assert alone.word == DIFFERS and "no data-parallel training" in alone.sentence
    other = trained(rounding)
    other = dataclasses.replace(other, job=with_options(other.job, of="fsdp"))
    beside = verdict(verdict_with_claim("no data-parallel training is equivalent"), other, shifted)
    assert beside.word == DIFFERS and "no data-parallel training" not in beside.sentence


@pytest.mark.parametrize("missing", ["gradient", "update", "buffer"])
def test_what_is_missing_is_called_missing(missing):
    record = trained(rounding)
    rows = [
        row
        for row in record.tables["check_tensors"]
        if (row["of"], row["tensor"]) not in MISSING_ARM[missing]
    ]
    found = verdict(reference(), dataclasses.replace(record, tables={**record.tables, "check_tensors": rows}))
    assert found.word == DIFFERS
    assert found.sentence.endswith("which is missing")


MISSING_ARM = {
    "gradient": {("gradient", "layer")},
    "update": {("update", "layer")},
    "buffer": {("buffer", "running_mean")},
}


def test_what_should_be_nothing_and_is_something_has_no_relative_error():
    still: Noise = lambda step, kind, tensor: 0.0  # noqa: E731
    record = reference()
    nothing = dataclasses.replace(record, tables={**record.tables, "check_tensors": unchanged_tensor(record)})
    found = verdict(nothing, trained(still))
    assert found.word == DIFFERS
    assert "where the reference's is 0" in found.sentence
    assert "inf" not in found.sentence and "nan" not in found.sentence


def unchanged_tensor(record: Record) -> list[dict[str, Any]]:
    return [
        {name: 0.0 if name[0] == "s" and name[1:].isdigit() else value for name, value in row.items()}
        if (row["of"], row["tensor"]) == ("gradient", "layer")
        else row
        for row in record.tables["check_tensors"]
    ]


# limits


def one_changed_element(step: int, kind: str, tensor: str) -> float:
    """Rounding, but that one small tensor jumps."""
    return 1e-3 if (kind, tensor) == ("parameter", "head") else rounding(step, kind, tensor)


def test_a_quantity_that_scatters_widens_no_limit_but_its_own():
    jumpy = reference(**{"perturbed 3": one_changed_element})
    for kind in ("loss", "norm", "gradient"):
        wrong = trained(
            lambda step, of, tensor, kind=kind: 2e-5 if of == kind else rounding(step, of, tensor)
        )
        found = verdict(jumpy, wrong)
        assert found.word == DIFFERS, (kind, found.sentence)


def off_by_a_sum(step: int, kind: str, tensor: str) -> float:
    """Far more than rounding scatters, as the order of a long sum that all trainings share."""
    return 100 * rounding(step, kind, tensor) if step >= 0 else 0.0


def half_as_far(step: int, kind: str, tensor: str) -> float:
    return off_by_a_sum(step, kind, tensor) / 2


def test_a_case_may_be_as_far_from_the_reference_as_that_is_from_the_truth():
    case = trained(half_as_far)
    assert verdict(reference(), case).word == DIFFERS
    erring = reference(fp64=off_by_a_sum)
    assert verdict(erring, case).word == ROUNDING
    assert verdict(erring, trained(lambda *at: 30 * off_by_a_sum(*at))).word == DIFFERS
    # what one sees is told with that error
    honest = {sight.family: sight.typical for sight in verdict(*HONEST).detail.arms[0].sights}
    told = {sight.family: sight.typical for sight in verdict(erring, case).detail.arms[0].sights}
    assert all(told[family] > 10 * honest[family] for family in ("gradient", "parameter"))


@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_a_training_in_fp64_that_breaks_down_excuses_nothing(broken):
    erring = reference(fp64=lambda step, kind, tensor: broken if step > 0 else 0.0)
    assert verdict(erring, trained(off_by_a_sum)).word == DIFFERS


def test_in_16_bits_the_truth_excuses_nothing_that_all_trainings_share():
    """There every honest training rounds the same weights alike."""
    half = [in_bf16(record) for record in (reference(fp64=off_by_a_sum), trained(off_by_a_sum))]
    assert verdict(*half).word == DIFFERS


def test_a_limit_beyond_use_gives_no_verdict_but_what_is_beyond_it_differs():
    jumpy = reference(**{"perturbed 3": one_changed_element})
    found = verdict(jumpy, trained(rounding))
    assert found.word == NOT_CHECKED
    assert found.sentence.startswith("not checked: one perturbed training of the reference deviates ")
    assert "times as much as the others in parameters; the limit is 50 times" in found.sentence
    assert verdict(jumpy, trained(lambda step, kind, tensor: 1.0)).word == DIFFERS
    assert verdict(jumpy, trained(none)).word == EQUIVALENT


def test_where_rounding_hides_a_lost_gradient_nothing_is_called_equivalent():
    def far(step: int, kind: str, tensor: str) -> float:
        return 0.5 if kind in ("gradient", "parameter") and step >= 0 else rounding(step, kind, tensor)

    blind = reference(**{f"perturbed {i + 1}": far for i in range(PERTURBED)})
    found = verdict(blind, trained(far))
    assert (found.word, found.gravity) == (NOT_CHECKED, "unknown")
    assert found.sentence.startswith(
        "not checked: the check can't detect errors: rounding separates the trainings of the reference "
        "so far that a gradient off by "
    )
    assert verdict(blind, trained(none)).word == EQUIVALENT


def test_a_verdict_in_16_bits_rests_on_what_16_bits_see():
    seen = DetectionLimit("gradient", 1e-5, 1e-5, "layer"), DetectionLimit("parameter", 1e-5, 1e-5, "layer")
    blind = DetectionLimit("gradient", 3.0, 3.0, "layer"), DetectionLimit("parameter", 1e-5, 1e-5, "layer")
    fp32 = EquivalenceArm("adamw", ROUNDING, compute="fp32", sights=seen)

    def reason(*sights: DetectionLimit) -> str:
        arm = EquivalenceArm("adamw", ROUNDING, compute="bf16", sights=sights)
        return EquivalenceEvidence(ROUNDING, (arm, fp32)).insensitivity

    assert reason(*seen) == ""
    assert reason(*blind).startswith("the check can't detect errors in bf16: rounding separates")
    # a lost gradient changes its mean size
    assert reason(*blind, DetectionLimit("mean_size", 0.01, 0.01, "layer")) == ""
    assert "in bf16" in reason(*blind, DetectionLimit("mean_size", 2.0, 2.0, "layer"))


def test_a_buffer_is_compared():
    wrong = trained(lambda step, kind, tensor: 1e-3 if (kind, step) == ("buffer", 2) else 0)
    found = verdict(reference(), wrong)
    assert found.sentence.startswith("differs from step 2 on (adamw), first in buffer of running_mean: ")


def test_buffers_that_an_engine_hides_are_told_and_not_compared():
    hiding = trained(lambda step, kind, tensor: 1e-3 if kind == "buffer" else 0)
    note = {"training": "case", "text": "buffers are not compared: Fancy does not provide its buffers"}
    found = verdict(reference(), dataclasses.replace(hiding, tables={**hiding.tables, "check_notes": [note]}))
    assert found.word == ROUNDING
    assert note["text"] in found.detail.arms[0].notes


# sizes in 16 bits


def in_any_direction(step: int, kind: str, tensor: str) -> float:
    return 0.003 if step >= 0 and kind != "buffer" else 0.0


ROUNDED = ["fp64", *(f"perturbed {i + 1}" for i in range(PERTURBED))]
HALF_REFERENCE = in_bf16(reference(**dict.fromkeys(ROUNDED, in_any_direction)))
HALF_CASE = in_bf16(trained(in_any_direction))


def with_rows(record: Record, rows: list[dict[str, Any]]) -> Record:
    return dataclasses.replace(record, tables={**record.tables, "check_tensors": rows})


def sized(record: Record, of: str, factor: float) -> Record:
    """*record*, whose gradients or updates are so many times as long."""
    rows = record.tables["check_tensors"]
    return with_rows(
        record, [{**row, "norm": row["norm"] * factor} if row["of"] == of else row for row in rows]
    )


@pytest.mark.parametrize("of", ["gradient", "update"])
def test_sizes_show_a_scale_that_the_rounding_of_16_bits_hides(of):
    assert verdict(HALF_REFERENCE, HALF_CASE).word == ROUNDING
    found = verdict(HALF_REFERENCE, sized(HALF_CASE, of, 1.001))
    assert found.word == DIFFERS
    assert f"first in size of {of} of embedding: relative error 0.001, rounding" in found.sentence


def scattered(record: Record, random: np.random.Generator) -> Record:
    """*record* with the gradients of 200 more tensors, whose lengths rounding moves by 0.1%."""
    rows = record.tables["check_tensors"]
    first = [row for row in rows if row["of"] == "gradient" and row["tensor"] == "layer"]
    more = [
        {**row, "tensor": f"layer {i}", "norm": row["norm"] * (1 + 1e-3 * random.normal())}
        for row in first
        for i in range(200)
    ]
    exact = {f"layer {i}": row["norm"] for row in first for i in range(200)}
    kept = [{**row, "norm": exact[row["tensor"]]} if row["training"] == "reference" else row for row in more]
    return with_rows(record, [*rows, *kept])


def test_a_mean_of_sizes_shows_what_no_tensor_shows_alone():
    random = np.random.default_rng(1)
    many, case = scattered(HALF_REFERENCE, random), scattered(HALF_CASE, random)
    assert verdict(many, case).word == ROUNDING
    found = verdict(many, sized(case, "gradient", 1.003))
    assert found.word == DIFFERS
    arm = found.detail.arms[0]
    beyond = {worst.place.family for worst in arm.worst if worst.of_limit > 1}
    assert "mean_size" in beyond
    told = [worst for worst in arm.worst if worst.place.family == "mean_size"]
    assert [(worst.place.tensor, round(worst.error, 3)) for worst in told] == [("all gradients", 0.003)]


def test_in_fp32_sizes_are_not_looked_at():
    assert verdict(reference(), sized(trained(rounding), "gradient", 2.0)).word == ROUNDING


def test_a_size_that_is_no_number_differs():
    found = verdict(HALF_REFERENCE, sized(HALF_CASE, "update", math.nan))
    assert found.word == DIFFERS
    assert found.sentence.endswith("which is not a number")


# what would have been seen


def test_each_verdict_states_the_smallest_error_that_it_would_have_seen():
    found = verdict(*HONEST)
    (arm,) = found.detail.arms
    (sight,) = (sight for sight in arm.sights if sight.family == "gradient")
    assert f"an error of {Decimal(f'{100 * sight.typical:.1g}'):f}% of a gradient or " in found.sentence
    assert sight.typical <= sight.coarsest < 1e-4
    words = {
        share: {
            verdict(reference(), trained(error_of(sight.tensor, share * sight.coarsest), seed)).word
            for seed in range(20)
        }
        for share in (0.3, 3.0)
    }
    assert words == {0.3: {ROUNDING}, 3.0: {DIFFERS}}


def error_of(tensor: str, error: float) -> Noise:
    place = (0, "gradient", tensor)
    return lambda *where: error if where == place else 0.0


def test_a_record_of_another_version_is_not_compared_with_one_of_this():
    record = trained(rounding)
    rows = [
        {**row, "of": "parameter" if row["of"] == "update" else row["of"]}
        for row in record.tables["check_tensors"]
    ]
    old = dataclasses.replace(record, tables={**record.tables, "check_tensors": rows})
    assert "another version of distbench" in verdict(reference(), old).sentence
    assert math.isfinite(verdict(*HONEST).detail.limit_share)
