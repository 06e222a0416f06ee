"""Whether a case is the same training, by made-up records: what must be found, and what must not."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distbench.analysis.job_results import Verdict
from distbench.analysis.run import RunAnalysis
from distbench.core.case import PrecisionConfig
from distbench.jobs.equivalence.arms import DIFFERS, EQUIVALENT, NOT_CHECKED, ROUNDING
from distbench.jobs.equivalence.verdict import judge_cases
from distbench.record import Record, Status
from distbench.report.run_export import run_json
from support.check_records import DDP, Noise, none, reference, rounding, trained
from support.records import info
from support.runs import call
from support.simulations import drawn
from support.suites import write_suite

FALSE_ALARM = 0.001


def verdict(*records: Record) -> Verdict:
    return judge_cases(records, FALSE_ALARM)[DDP.id]


def with_error(where: tuple[int, str, str], size: float) -> Noise:
    """Rounding everywhere, and *size* at one place, (step, kind, tensor)."""
    return lambda *place: size if place == where else rounding(*place)


def test_a_training_without_any_difference_is_equivalent():
    found = verdict(reference(), trained(none))
    assert (found.word, found.sentence) == (EQUIVALENT, "equivalent (adamw)")


@drawn(300)
def test_trainings_that_differ_by_rounding_are_not_called_different(draws):
    # 300 cases at a stated rate of one false alarm in a thousand: more than three would be chance
    # of less than one in ten thousand
    words = [verdict(reference(seed), trained(rounding, seed + 1000)).word for seed in range(draws)]
    assert words.count(DIFFERS) <= 3
    assert set(words) <= {DIFFERS, ROUNDING}


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ((2, "loss", ""), "from step 2 on (adamw), first in loss"),
        ((3, "norm", ""), "from step 3 on (adamw), first in gradient norm"),
        ((0, "gradient", "layer"), "from step 0 on (adamw), first in gradient of layer"),
        ((4, "parameter", "head"), "from step 4 on (adamw), first in parameters of head"),
        ((-1, "parameter", "embedding"), "before the first step (adamw), first in parameters of embedding"),
    ],
)
def test_the_first_step_and_tensor_outside_of_the_envelope_are_named(where, told):
    found = verdict(reference(), trained(with_error(where, 1e-3)))
    assert found.word == DIFFERS
    assert found.sentence.startswith(f"differs {told}: relative error ")


@settings(max_examples=30)
@given(seed=st.integers(1, 10_000), size=st.floats(3e-5, 1e3))
def test_what_is_far_outside_is_found_wherever_the_dice_fall(seed, size):
    assert verdict(reference(seed), trained(with_error((0, "gradient", "head"), size))).word == DIFFERS


def test_a_tensor_that_is_missing_or_a_loss_that_is_no_number_differs():
    lacking = trained(none)
    rows = [row for row in lacking.tables["check_tensors"] if row["tensor"] != "layer"]
    broken = trained(none, status=Status.INVALID_NAN)
    curve = [{**row, "loss": None} if row["step"] == 3 else row for row in broken.tables["check_curve"]]
    for record, changed in ((lacking, {"check_tensors": rows}), (broken, {"check_curve": curve})):
        record = dataclasses.replace(record, tables={**record.tables, **changed})
        assert verdict(reference(), record).word == DIFFERS
        shown = run_json(RunAnalysis(info(DDP), [reference(), record]))
        # how far it is can't be said in JSON
        assert "Infinity" not in json.dumps(shown) and "NaN" not in json.dumps(shown)
        assert shown["cases"][0]["equivalence"]["verdict"] == DIFFERS


def test_copies_that_part_are_a_difference_even_where_rank_0_is_right():
    apart = trained(rounding)
    drift = [{"training": "case", "step": 1, "of_rank": 1, "tensor": "head"}]
    found = verdict(reference(), dataclasses.replace(apart, tables={**apart.tables, "check_replicas": drift}))
    assert "from step 1 on (adamw), first on rank 1, whose head" in found.sentence
    assert found.gravity == "bad" and found.invalidates


def test_without_a_reference_or_a_result_nothing_is_said_of_a_case():
    assert verdict(trained(rounding)).word == NOT_CHECKED
    crashed = trained(rounding, status=Status.CRASHED, reason="rank 1 in check: no")
    assert verdict(reference(), crashed).sentence == "not checked: crashed: rank 1 in check: no"


def in_bf16(record: Record) -> Record:
    """*record*, as of a reference that computes in bf16."""
    return dataclasses.replace(
        record, case=dataclasses.replace(record.case, precision=PrecisionConfig(compute="bf16"))
    )


def test_a_reference_whose_first_loss_in_16_bits_is_another_one_is_broken_and_nobody_is_blamed():
    far = in_bf16(reference(fp64=with_error((0, "loss", ""), 1.0)))
    for noise in (rounding, with_error((0, "gradient", "layer"), 0.5)):
        found = verdict(far, trained(noise))
        assert found.word == NOT_CHECKED
        assert "its reference is broken: its first loss is 4 in bf16 and" in found.sentence
        assert "the model computes different results in bf16" in found.sentence
    # what rounding explains is no reason
    near = in_bf16(reference(fp64=with_error((0, "loss", ""), 1e-4)))
    assert verdict(near, trained(rounding)).word == ROUNDING


def test_a_reference_that_has_no_gradient_where_more_exact_ones_have_one_is_broken():
    whole = in_bf16(reference())
    rows = [
        row
        for row in whole.tables["check_tensors"]
        if row["training"] == "fp64" or (row["of"], row["tensor"]) != ("gradient", "layer")
    ]
    broken = dataclasses.replace(whole, tables={**whole.tables, "check_tensors": rows})
    found = verdict(broken, trained(rounding))
    assert found.word == NOT_CHECKED
    assert "its reference is broken: layer has a gradient in fp64 and none in bf16" in found.sentence


def test_another_kernel_and_a_reference_that_is_not_repeatable_are_told():
    fused = {"optimizer": {"class": "torch.optim.AdamW", "kernel": "fused"}}
    other = {"optimizer": {"class": "deepspeed.DeepSpeedCPUAdam", "kernel": "DeepSpeedCPUAdam"}}
    unsteady = dataclasses.replace(reference(repeat=rounding), effective=fused)
    kernel, repeat = verdict(unsteady, trained(rounding, effective=other)).detail.arms[0].notes
    assert "DeepSpeedCPUAdam" in kernel
    assert "not bit-reproducible" in repeat


def test_operations_without_a_deterministic_form_are_told():
    loose = {"determinism": "non-deterministic operations were allowed"}
    assert verdict(reference(), trained(rounding, environment=loose)).detail.arms[0].notes == (
        loose["determinism"],
    )
    both = dataclasses.replace(reference(), environment=loose), trained(rounding, environment=loose)
    assert verdict(*both).detail.arms[0].notes == (loose["determinism"],)


SMALL = """
workload: {user: {model: "small:Small", length: 32}}
data: text
batch: {global_batch_size: 8, micro_batch_size: 2}
measure: {trials: 0}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("check: {stpes: 3}", "check.stpes = 3: unknown key; did you mean 'steps'?"),
        ("check: {steps: 0}", "check.steps = 0: must be at least 1"),
        ("check: {perturbed: 2}", "check.perturbed = 2: must be at least 4"),
        ("check: {false_alarm: 2}", "check.false_alarm = 2: must be at most 0.5"),
        ("check: often", "check = 'often': "),
        ("check: false", "measure.trials = 0: nothing to run"),
    ],
)
def test_a_mistake_in_what_to_check_is_named(text, message, tmp_path):
    suite = write_suite(tmp_path, f"{SMALL}\nstrategies: [ddp]\n{text}\n", "mine.yaml")
    done = call("plan", str(suite))
    assert done.returncode == 2
    assert f"{suite}:" in done.stderr
    assert message in done.stderr
