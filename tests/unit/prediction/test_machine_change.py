"""What the rates of a machine make of a step: those that no model's code enters, and no others."""

import dataclasses

import pytest

from distbench.core.case import Batch, PluginChoice
from distbench.prediction.machine_change import MachineChange, machine_change
from support.probes import ALONE_S, IN_STEP_S, PASS_S, UPDATE_S, probe_of, probe_rows, rate_row, slowed
from support.records import case

DDP = case("ddp", batch=Batch(8, 4, 1))
SINGLE = case("single", 1, batch=Batch(8, 8, 1))
COMPUTED_S = 4 * PASS_S + 4 * 1_016_960 / 1e6 * UPDATE_S
COLLECTIVES_S = 2 * IN_STEP_S
COMPUTING = ("matmul", "copy")
MACHINE = (*COMPUTING, "collective")
OF_CODE = ("forward_backward", "update", "collective_in_step")


def change(rows, of=DDP, before=None) -> MachineChange:
    found = machine_change(of, [probe_of(of, before)], [probe_of(of, rows)])
    assert isinstance(found, MachineChange), found
    assert found.step.low < found.step.value < found.step.high
    return found


def test_a_machine_half_as_fast_doubles_the_step():
    found = change(slowed(probe_rows(), 2, *MACHINE))
    assert found.step.value == pytest.approx(2)
    assert found.computation.value == pytest.approx(2)
    assert found.collectives and found.collectives.value == pytest.approx(2)
    # spreads of 2 % on both sides
    assert 1.8 < found.step.low < found.step.high < 2.2


def test_what_the_code_of_a_model_enters_tells_nothing_of_the_machine():
    found = change(slowed(probe_rows(), 2, *OF_CODE))
    assert found.step.value == pytest.approx(1)
    assert 0.9 < found.step.low < 1 < found.step.high < 1.1


def test_slower_collectives_lengthen_their_part_of_the_step():
    found = change(slowed(probe_rows(), 2, "collective"))
    assert found.computation.value == pytest.approx(1)
    assert found.step.value == pytest.approx(1 + COLLECTIVES_S / (COLLECTIVES_S + COMPUTED_S))


def test_computation_is_between_arithmetic_and_memory():
    found = change(slowed(probe_rows(1), 2, "copy"), SINGLE)
    assert found.collectives is None
    assert found.step.value == pytest.approx(2**0.5)
    assert found.step.low < 1 < 2 < found.step.high


def test_on_one_device_nothing_has_to_be_known_of_the_model():
    user = PluginChoice("user", {"model": "m:M"})
    found = change(slowed(probe_rows(1), 3, *COMPUTING), dataclasses.replace(SINGLE, workload=user))
    assert found.step == found.computation
    assert found.step.value == pytest.approx(3)


def test_a_spread_of_repetitions_is_that_of_one_of_them():
    """A step is at another moment than the probe, and meets what one repetition meets."""
    noisy = [{**row, "relative_sd": 0.2, "repetitions": 1000} for row in probe_rows()]
    found = change(noisy, before=noisy)
    assert found.step.low == pytest.approx(1 / found.step.high)
    assert 1.5 < found.step.high < 1.7


def test_an_operation_probed_only_alone_changes_by_what_it_takes_alone():
    ulysses = case("cp", strategy=PluginChoice("cp", {}), batch=Batch(8, 8, 1))
    found = change(slowed(probe_rows(), 3, *MACHINE), ulysses)
    assert found.collectives and found.collectives.value == pytest.approx(3)
    assert ALONE_S < IN_STEP_S


def without(rate: str, rows=None):
    return [row for row in rows or probe_rows() if row["rate"] != rate]


@pytest.mark.parametrize(
    ("of", "before", "after", "reason"),
    [
        (DDP, probe_rows(), without("matmul"), "the probe of the second run has no rate matmul"),
        (DDP, without("copy"), probe_rows(), "the probe of the first run has no rate copy"),
        (
            DDP,
            probe_rows(),
            [*without("copy"), rate_row("copy", 1 << 20, 0.02)],
            "the two probes multiplied or copied arrays of other sizes",
        ),
        (DDP, probe_rows(), without("collective"), "the probe did not measure all_reduce among 2 ranks"),
        (
            dataclasses.replace(DDP, strategy=PluginChoice("fsdp", {"cpu_offload": True})),
            probe_rows(),
            probe_rows(),
            "the probe does not measure offload",
        ),
        (
            dataclasses.replace(DDP, workload=PluginChoice("user", {"model": "m:M"})),
            probe_rows(),
            probe_rows(),
            "the size of the model is known only to its own code",
        ),
        (
            case("zero", 1, strategy=PluginChoice("zero", {"stage": 2, "offload_optimizer": "cpu"})),
            probe_rows(1),
            probe_rows(1),
            "the probe does not measure offload",
        ),
        (DDP, slowed(probe_rows(), 1e-99, "copy"), slowed(probe_rows(), 1e300, "copy"), "differ too much"),
        (
            SINGLE,
            slowed(probe_rows(1), 1e-99, "copy"),
            slowed(probe_rows(1), 1e300, "copy"),
            "differ too much",
        ),
        (
            DDP,
            slowed(probe_rows(), 1e-99, "collective"),
            slowed(probe_rows(), 1e300, "collective"),
            "differ too much",
        ),
        (
            dataclasses.replace(DDP, strategy=PluginChoice("ddp", {"powersgd_rank": 2})),
            probe_rows(),
            probe_rows(),
            "lossy communication",
        ),
    ],
)
def test_what_is_unknown_has_a_reason(of, before, after, reason):
    found = machine_change(of, [probe_of(of, before)], [probe_of(of, after)])
    assert isinstance(found, str)
    assert reason in found


def test_a_probe_of_other_devices_is_none_of_this_case():
    found = machine_change(DDP, [probe_of(DDP)], [probe_of(SINGLE)])
    assert found == "no probe on 2 devices in the second run"
