"""The change of a step between runs with probes, split into the machine's part and the rest."""

import dataclasses
from typing import Any

import pytest

from distbench.core.case import Batch
from distbench.record import Record
from distbench.report import comparison, history_page
from distbench.report.history import MetricHistory, history_json, history_text
from support.probes import probe_of, probe_rows, slowed
from support.records import case, measured, run_of
from support.run_histories import occasion

DDP = case("ddp", batch=Batch(8, 4, 1))
MACHINE = ("matmul", "copy", "collective")
STEP = {"step_s": {"unit": "s", "better": "lower", "over_ranks": "max", "doc": "Step."}}
STEP_S = 0.1


def timed(seconds: float, round_: int = 0, of=DDP) -> Record:
    record = measured(of, 8 * 128 / seconds, round_=round_, step_s=seconds)
    return dataclasses.replace(record, columns={**record.columns, **STEP})


def run(factor: float, rows=None, **changes: Any):
    """Run whose steps take *factor* times as long, with a probe of these *rows* if there are any."""
    trials = [timed(STEP_S * factor * noise, i) for i, noise in enumerate((1, 1.004, 0.996))]
    return run_of(*([probe_of(DDP, rows)] if rows else []), *trials, **changes)


def compared(before, after):
    made = comparison.compare_runs(before, after)
    (told,) = comparison.comparison_json(made)["cases"]
    text = " ".join(comparison.comparison_text(made, 200).split())
    markdown = " ".join(comparison.comparison_markdown(made).split())
    return told["split"], text, markdown


def test_all_of_a_change_is_the_machines():
    split, text, markdown = compared(run(1, probe_rows()), run(2, slowed(probe_rows(), 2, *MACHINE)))
    assert split["step"]["value"] == pytest.approx(2)
    assert split["machine"]["value"] == pytest.approx(2)
    assert split["rest"]["low"] < 1 < split["rest"]["high"]
    assert "of +100.0% time per step the machine explains +100.0% (" in text
    assert "computation +100.0%" in text and "collectives +100.0%" in text
    assert "; the remaining +0.0% (" in text and "may be noise" in text
    assert "the machine explains" in markdown and "may be noise" in markdown


def test_none_of_a_change_is_the_machines():
    """The probe saw the model's passes take longer as well: they run the same code."""
    code = slowed(probe_rows(), 1.5, "forward_backward", "update", "collective_in_step")
    split, text, markdown = compared(run(1, probe_rows()), run(1.5, code))
    assert split["machine"]["low"] < 1 < split["machine"]["high"]
    assert 1 < split["rest"]["low"] < 1.5 < split["rest"]["high"]
    said = "the remaining +50.0% ("
    assert said in text
    assert said in markdown


def test_a_machine_that_hides_slower_code_is_told_although_the_step_is_the_same():
    faster = slowed(probe_rows(), 0.5, *MACHINE)
    split, text, _ = compared(run(1, probe_rows()), run(1, faster))
    assert split["machine"]["value"] == pytest.approx(0.5)
    assert "the machine explains -50.0%" in text
    assert "the remaining +100.0%" in text


def test_the_same_step_on_the_same_machine_needs_no_sentence():
    split, text, _ = compared(run(1, probe_rows()), run(1, probe_rows()))
    assert split["rest"]["value"] == pytest.approx(1)
    assert "the machine" not in text


@pytest.mark.parametrize(("before", "after"), [(None, probe_rows()), (probe_rows(), None), (None, None)])
def test_without_two_probes_nothing_is_said(before, after):
    split, text, _ = compared(run(1, before), run(2, after))
    assert split is None
    assert "machine" not in text.replace("The state of a machine may differ", "")


def test_probes_that_tell_nothing_have_a_reason():
    old = [row for row in probe_rows() if row["rate"] != "matmul"]
    split, text, _ = compared(run(1, old), run(2, probe_rows()))
    assert split["machine"] is None
    reason = "the probe of the first run has no rate matmul"
    assert split["reason"] == reason
    assert f"The change can't be attributed to machine or code: {reason} ({DDP.name})." in text


def test_a_single_trial_leaves_the_rest_without_an_interval():
    slower = slowed(probe_rows(), 2, *MACHINE)
    before, after = (
        run_of(probe_of(DDP, rows), timed(seconds)) for seconds, rows in ((0.1, None), (0.2, slower))
    )
    split, text, _ = compared(before, after)
    assert split["rest"] == {"value": pytest.approx(1), "low": None, "high": None}
    assert "+0.0% remains unexplained; its spread is unknown" in text


def test_differing_software_is_no_part_of_the_machine():
    split, text, _ = compared(
        run(1, probe_rows(), machine={"packages": {"torch": "2.12.1"}, "cpu": "x"}),
        run(2, slowed(probe_rows(), 2, *MACHINE), machine={"packages": {"torch": "2.13.0"}, "cpu": "y"}),
    )
    assert split["software"] == ["packages.torch"]
    assert "the machine and its software (packages.torch) explains" in text


def days(factors, rows_of_day) -> MetricHistory:
    runs = [
        occasion(day, timed(STEP_S * factor * (1 + 0.002 * (day % 3))), *rows_of_day(day))
        for day, factor in enumerate(factors)
    ]
    return MetricHistory.of(runs, "tokens_per_s", 0.03)


SLOWER_FROM = 8


def probes_of(*rates: str):
    def on(day: int) -> list[Record]:
        later = slowed(probe_rows(), 1.5, *rates)
        return [probe_of(DDP, probe_rows() if day < SLOWER_FROM else later)]

    return on


@pytest.mark.parametrize(
    ("rates", "said"),
    [(MACHINE, "may be noise"), (("forward_backward",), "the remaining +50.")],
    ids=["machine", "code"],
)
def test_a_shift_over_runs_is_split_by_the_probes_beside_it(tmp_path, rates, said):
    history = days([1] * SLOWER_FROM + [1.5] * 8, probes_of(*rates))
    (series,) = history_json(history)["series"]
    (step,) = series["steps"]
    assert step["place"] == SLOWER_FROM
    assert step["split"]["step"]["value"] == pytest.approx(1.5, rel=0.01)
    assert step["split"]["machine"]["value"] == pytest.approx(1.5 if rates == MACHINE else 1)
    assert step["split"]["rest"]["low"] is not None
    text = " ".join(history_text(history, 200).split())
    assert "from run day008 (2026-01-09) on, of +50." in text
    assert said in text
    file = tmp_path / "history.html"
    history_page.write([history], [], file)
    assert said in file.read_text()


def test_runs_without_probes_beside_a_shift_tell_nothing_of_the_machine():
    history = days([1] * SLOWER_FROM + [1.5] * 8, lambda day: [probe_of(DDP)] if day < 3 else [])
    (series,) = history_json(history)["series"]
    assert [step["split"] for step in series["steps"]] == [None]
    assert "machine explains" not in history_text(history, 200)


def test_the_nearest_probes_before_and_after_count():
    def on(day: int) -> list[Record]:
        rows = {
            2: slowed(probe_rows(), 9, *MACHINE),
            6: probe_rows(),
            10: slowed(probe_rows(), 1.5, *MACHINE),
        }
        return [probe_of(DDP, rows[day])] if day in rows else []

    (series,) = history_json(days([1] * SLOWER_FROM + [1.5] * 8, on))["series"]
    (step,) = series["steps"]
    assert step["split"]["machine"]["value"] == pytest.approx(1.5)


def test_memory_is_not_split():
    history = days([1] * SLOWER_FROM + [1.5] * 8, probes_of(*MACHINE))
    runs = [
        dataclasses.replace(occasion(day, measured(DDP, memory_peak=1e6 * (1 + (day >= 8))), probe_of(DDP)))
        for day in range(16)
    ]
    (series,) = history_json(MetricHistory.of(runs, "memory_peak", 0.03))["series"]
    (step,) = series["steps"]
    assert step["split"] is None
    assert history.splits[DDP.id]
