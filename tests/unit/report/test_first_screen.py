"""The first screen of a page, from records alone: what was compared, the ranked table, the drawing."""

from dataclasses import replace

from distbench.core.case import Batch, Case, PluginChoice
from distbench.record import Record
from distbench.report import header
from distbench.report.case_table import CaseRow, CaseTable, make_case_table
from distbench.report.scatter_plot import HEIGHT, WIDTH, scatter_plot
from support.records import COLUMNS, case, failed, measured, run_of, unsupported

GIB = 2**30
H100 = {
    "gpus": ["NVIDIA H100 80GB HBM3"] * 2,
    "gpu_memory_bytes": [80 * GIB, 79 * GIB],
    "gpu_driver": "580.65.06",
    "packages": {"torch": "2.13.0+cu130"},
}


def on_gpus(label: str, speed: float, memory: float, world_size: int = 2, **values: float) -> Record:
    workload = PluginChoice("transformer", {"preset": "gpt2-small", "seq_len": 1024})
    record = measured(case(label, world_size, device="cuda", workload=workload), speed, memory_peak=memory)
    record.values.update(values)
    return replace(record, environment=H100, effective={"parameters": 124_439_808})


def table_lines(table: CaseTable) -> list[CaseRow]:
    return [line for group in table.groups.values() for line in group]


def cell_text(table: CaseTable, line: CaseRow, heading: str) -> str:
    column = next(column for column in table.columns if column.heading == heading)
    return column.text(line.cells[column.name])


def test_the_title_and_the_facts_name_the_model_the_devices_and_the_software():
    run = run_of(on_gpus("ddp", 900, 20 * GIB), on_gpus("zero2", 800, 18 * GIB, 1), failed(case("fsdp", 4)))
    assert (
        header.page_title(run)
        == "3 configurations on 1, 2 and 4 GPU or CPU ranks: transformer gpt2-small, transformer"
    )
    run = run_of(on_gpus("ddp", 900, 20 * GIB), on_gpus("zero2", 800, 18 * GIB))
    assert header.page_title(run) == "2 configurations on 2 GPUs: transformer gpt2-small"
    assert header.header_facts(run) == {
        "model": "transformer gpt2-small, 124 M parameters",
        "batch": "8 samples of 1024 tokens per step",
        "precision": "fp32",
        "devices": "2 GPUs: NVIDIA H100 80GB HBM3",
        "software": "torch 2.13.0+cu130, driver 580.65.06",
        "trials": "2 measured, 1 per case; 0 failed, 0 noisy",
    }


def test_a_fact_that_nobody_recorded_says_so():
    facts = header.header_facts(run_of(failed(case("ddp", batch=Batch(16, 8, 1))), unsupported(case("dp"))))
    assert facts == {
        "model": "transformer, number of parameters unknown (no trial reported it)",
        "batch": "8 to 16 samples per step",
        "precision": "fp32",
        "devices": "2 CPU ranks on hardware that was not recorded",
        "software": "not recorded",
        "trials": "0 measured; 1 failed, 0 noisy",
    }
    assert header.header_facts(run_of()) == {}


def test_noisy_trials_are_counted_among_the_facts():
    noisy = replace(measured(case("ddp")), degraded="others computed")
    assert header.header_facts(run_of(noisy, measured(case("fsdp"))))["trials"].endswith("0 failed, 1 noisy")


def test_the_table_is_ranked_in_groups_of_devices_and_marks_the_answer():
    table = make_case_table(
        run_of(
            measured(case("single", 1), 900),
            failed(case("zero2")),
            measured(case("fsdp"), 500),
            measured(case("ddp"), 700),
        )
    )
    assert list(table.groups) == ["2 devices · micro-batch 4 · fp32", "1 device · micro-batch 4 · fp32"]
    assert [(line.name, line.standing, line.row.outcome) for line in table_lines(table)] == [
        ("ddp", "recommended", "measured"),
        ("fsdp", "", "measured"),
        ("zero2", "", "crashed"),
        ("single", "", "measured"),
    ]
    ddp, fsdp, *_ = table_lines(table)
    assert (cell_text(table, ddp, "× ddp"), cell_text(table, fsdp, "× ddp")) == ("1.00", "0.71")
    assert [line.shares["tokens_per_s"] for line in (ddp, fsdp)] == [1.0, 500 / 700], "bars within the group"


def test_what_is_known_of_no_case_is_left_out_of_the_table_with_the_reason():
    columns = {**COLUMNS, "mfu": {"unit": "", "better": "higher", "doc": "Utilisation."}}
    row = replace(measured(case("ddp")), columns=columns, absent={"mfu": "peak_flops is unknown"})
    table = make_case_table(run_of(row))
    assert "MFU" not in [column.heading for column in table.columns]
    assert table.unknown["MFU"] == "peak_flops is unknown"
    assert "limit" in table.unknown["headroom"]


def test_without_ddp_readers_may_still_choose_what_cases_are_relative_to():
    table = make_case_table(run_of(measured(case("fsdp"), 500), measured(case("zero2"), 400)))
    assert [cell_text(table, line, "× ddp") for line in table_lines(table)] == ["–", "–"]
    assert table.bases == ["fsdp", "zero2"]


def test_headroom_is_what_the_smallest_gpu_has_beyond_the_need():
    known = on_gpus("ddp", 900, 20 * GIB, memory_reserved_peak=30 * GIB, gpu_memory_own=32 * GIB)
    table = make_case_table(run_of(known))
    assert cell_text(table, table_lines(table)[0], "headroom") == "47.0 GiB (59%)"
    old = replace(known, environment={**H100, "gpu_memory_bytes": []})
    assert "the memory of a device is not recorded" in make_case_table(run_of(old)).unknown["headroom"]


def test_the_drawing_rings_the_pick_and_has_every_mark_and_label_inside():
    cases: list[Case] = [case(f"strategy{i}") for i in range(30)]
    run = run_of(
        *(
            measured(each, 100 + (i * 37) % 30, memory_peak=1e9 + (i * 11) % 30 * 1e7)
            for i, each in enumerate(cases)
        ),
        measured(case("alone", 1), 900),
    )
    drawing = scatter_plot(run)
    assert drawing
    (picked,) = [mark for mark in drawing.marks if mark.picked]
    assert picked.name == next(
        line.name for line in table_lines(make_case_table(run)) if line.standing == "recommended"
    )
    assert len(drawing.marks) == 30, "only those on as many devices"
    assert all(0 < mark.x < WIDTH and 0 < mark.y < HEIGHT for mark in drawing.marks)
    boxes = [
        (
            label.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor] * 6.6 * len(mark.name),
            label.y,
            mark.name,
        )
        for mark in drawing.marks
        if (label := mark.label)
    ]
    assert 1 < len(boxes) <= 14
    for i, (x, y, name) in enumerate(boxes):
        assert 0 <= x <= WIDTH - 6.6 * len(name)
        others = [other for other in boxes[:i] if abs(other[1] - y) < 12]
        assert all(x + 6.6 * len(name) <= left or left + 6.6 * len(other) <= x for left, _, other in others)


def test_one_case_or_none_has_no_drawing_and_equal_ones_have():
    assert scatter_plot(run_of()) is None
    assert scatter_plot(run_of(measured(case("ddp")), failed(case("fsdp")))) is None
    drawing = scatter_plot(run_of(measured(case("ddp")), measured(case("fsdp"))))
    assert drawing
    assert drawing.memory
    assert drawing.speed
