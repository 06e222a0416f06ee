"""The table in the terminal and the text of the page, from records alone."""

import json
import re
from dataclasses import replace

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.core.errors import InfrastructureError
from distbench.record import Record, Status
from distbench.report import page
from distbench.report.drawer import case_details
from distbench.report.overview import overview_text
from distbench.views.charts.figures import MAX_CHART_CASES
from support.records import case, communicating, failed, info, measured, run_of, stored_run, unsupported

DDP, FSDP, DP = case("ddp"), case("fsdp"), case("dp")


def table(*records: Record, width: int = 80) -> str:
    return overview_text(run_of(*records), width)


def rendered(*records: Record) -> str:
    return page.render(run_of(*records))


def test_the_table_fits_eighty_columns():
    long = case(
        "zero3+offload-all-nvme+ds-adam", 128, name="zero3+offload-all-nvme+ds-adam/" + "long=1/" * 50
    )
    large = [measured(DDP, 123456789, round_=0), measured(DDP, 143456789, round_=1)]
    text = table(*large, measured(long, 1), failed(FSDP, "word " * 200), unsupported(DP))
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_table_shows_each_number_with_its_unit_and_the_spread():
    text = table(communicating(measured(DDP, 1000)), measured(DDP, 1100, round_=1))
    row = next(line for line in text.splitlines() if line.startswith("ddp "))
    assert row.split() == ["ddp", "measured", "1,050", "±83%", "1.00", "977", "KiB", "97.7", "KiB", "2.5000"]


def test_what_all_names_share_is_told_once_above_the_rows():
    text = table(measured(DDP), measured(FSDP))
    assert sum("ws2/mb4/fp32" in line for line in text.splitlines()) == 1


def test_a_number_that_is_not_known_is_a_dash():
    record = measured(DDP)
    del record.values["comm_bytes"]
    row = next(line for line in table(record).splitlines() if line.startswith("ddp "))
    assert row.split()[-2:] == ["–", "2.5000"]


def test_a_case_that_failed_shows_its_reason_and_its_log_instead_of_numbers():
    text = table(failed(DDP))
    assert "crashed: rank 1 in time: RuntimeError: no" in " ".join(text.split())
    assert f"  trials/ddp-ws2-mb4-fp32-{DDP.id}/0/rank1.log\n" in text


def test_a_run_that_was_stopped_has_no_failures_and_recommends_nothing_yet():
    stopped = failed(FSDP, "stopped by a signal", status=Status.CANCELLED)
    run = RunAnalysis(replace(info(DDP, FSDP), state="interrupted"), [stopped])
    text = overview_text(run)
    assert "Failed" not in text and "failed" not in text
    assert "Stopped before the end of a trial: fsdp/ws2/mb4/fp32." in text
    half = overview_text(replace(run, records=[stopped, replace(measured(DDP), degraded="busy")]))
    assert "Nothing can be recommended before the run is finished." in half
    assert "No recommendation" not in half
    assert "Train with ddp" in overview_text(replace(run, records=[stopped, measured(DDP)]))


def test_a_case_that_failed_in_part_shows_how_many_trials_its_numbers_are_from():
    text = table(measured(DDP), failed(DDP, "it broke", round_=1))
    assert "1/2 ok" in text
    assert "Partly failed: ddp/ws2/mb4/fp32: 1 of 2 trials failed: it broke" in " ".join(text.split())


def test_nothing_in_a_name_or_a_reason_acts_on_the_terminal():
    hostile = case("ev\x1b[2Jil\r\nline\u202e")
    text = table(measured(hostile), failed(FSDP, "\x1b]0;taken\x07\x1b[31mred \x07"))
    assert not set(text) & set("\x1b\r\x07\u202e")
    assert "red" in text
    assert "taken" not in text


def test_a_run_without_cases_has_a_table_that_says_so():
    assert "no cases" in table()


def test_a_column_that_nobody_knows_is_on_the_page_with_its_definition():
    columns = {"beats": {"unit": "beats", "better": "higher", "over_ranks": "sum", "doc": "Heart beats."}}
    text = rendered(replace(measured(DDP), columns=columns, values={"beats": 7.0}))
    assert ">7 beats<" in text
    assert "Heart beats." in text


def test_no_tag_or_entity_can_begin_in_the_data_of_the_charts():
    text = rendered(measured(case("</script><b>&amp;")))
    found = re.search(r'id="chart-data">(.*?)</script>', text)
    assert found is not None
    assert not set(found[1]) & set("<>&\u2028\u2029")
    assert json.loads(found[1])


def test_the_page_says_why_a_number_is_missing():
    record = replace(measured(DDP), absent={"comm_bytes": "nobody counted"})
    del record.values["comm_bytes"]
    assert "nobody counted" in rendered(record)


def test_the_page_says_what_was_not_the_same_in_all_trials():
    trials = [
        replace(measured(DDP, round_=i), environment={"packages": {"torch": v}}) for i, v in enumerate("12")
    ]
    assert "Not the same in all trials: <bdi>packages.torch</bdi>" in rendered(*trials)


@pytest.mark.parametrize("reason", ["caf\udce9", "lone \ud800", "nul \x00"])
def test_a_reason_with_bytes_that_are_no_text_does_not_cost_the_report(tmp_path, reason):
    run = stored_run(tmp_path, failed(DDP, reason))
    assert "failures-title" in page.write(run.folder, RunAnalysis.read(run)).read_text(encoding="utf-8")


def test_a_page_that_can_not_be_written_is_an_error_of_the_machine(tmp_path):
    run = stored_run(tmp_path, measured(DDP))
    (run.folder / "report.html").mkdir()
    with pytest.raises(InfrastructureError, match=r"report\.html: can't be written"):
        page.write(run.folder, RunAnalysis.read(run))


def test_the_page_tells_the_noise_that_its_intervals_rest_on():
    page_of_three = rendered(*(measured(DDP, speed, round_=i) for i, speed in enumerate((1000, 1020, 980))))
    assert "by 2.0% on 2 devices (" in page_of_three
    assert "on 2 devices (standard" not in rendered(measured(DDP))


def test_a_number_that_a_metric_could_not_give_is_explained_below_the_table():
    record = measured(DDP)
    del record.values["memory_peak"]
    text = table(replace(record, absent={"memory_peak": "the counting allocator was not built"}))
    told = "Peak memory is unknown for ddp: the counting allocator was not built."
    assert told in " ".join(text.split())
    assert "is unknown for" not in table(measured(DDP))


def test_what_a_chart_leaves_out_is_said_beside_it():
    count = MAX_CHART_CASES + 2
    text = rendered(*(measured(case(f"ddp{i}", seed=i), 1000 + i) for i in range(count)))
    told = f"Only the {MAX_CHART_CASES} fastest of {count} cases are shown."
    assert f'<p class="quiet small"><bdi>{told}</bdi></p>' in text


def test_a_page_of_many_cases_has_the_configurations_of_the_fastest():
    cases = [case("ddp", name=f"ddp/v{i}", seed=i) for i in range(102)]
    run = run_of(*(measured(each, 1000.0 + place) for place, each in enumerate(cases)))
    shown = case_details(run, [])["cases"]
    left_out = [
        each.id
        for each in cases
        if any("distbench adopt RUN" in str(one.get("problem")) for one in shown[each.id]["adopt"])
    ]
    assert left_out == [each.id for each in cases[:2]]
    assert shown[cases[0].id]["adopt"][0]["problem"] == (
        f"write it with: distbench adopt RUN {cases[0].id} --as {shown[cases[0].id]['adopt'][0]['format']}"
    )
