"""Whether a training repeats itself bit for bit in deterministic mode, whichever kernels it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_runs import PRECISIONS, work

from distbench.record import Record, records_of_kind
from distbench.record.run_folder import Run
from support.gpu_report import Check, Report
from support.runs import run_in

HEADS = {"grouped": "kv_heads: 2", "all": "kv_heads: 8"}


@pytest.mark.minutes(4)
@pytest.mark.parametrize("heads", sorted(HEADS))
@pytest.mark.parametrize("precision", sorted(PRECISIONS))
def test_a_reference_repeats_itself_bit_for_bit(
    precision: str, heads: str, check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    shape = f"{{dim: 512, depth: 2, heads: 8, {HEADS[heads]}, seq_len: 256}}"
    suite = (
        f"{work(shape, 8)}strategies: [ddp]\nprecision: {PRECISIONS[precision]}\n"
        "measure: {trials: 0}\ncheck: {steps: 3, perturbed: 4, fp32: false}\n"
    )
    done = run_in(tmp_path, suite)
    (verdict,) = (case["equivalence"]["verdict"] for case in done.cases.values())
    checked = records_of_kind(Run(done.folder).records(), "check")
    references = [record for record in checked if record.job.options.role == "reference"]
    assert references and all(record.status == "measured" for record in references), [
        r.reason for r in checked
    ]
    differing = {record.case.optimizer.name: unlike(record) for record in references}
    check.figure("verdict", verdict)
    for record in references:
        arm = record.case.optimizer.name
        gpu_report.note(record.environment)
        check.figure(f"{arm}: tensors that differ in the repeat", len(differing[arm]))
        check.figure(
            f"{arm}: notes", "; ".join(row["text"] for row in record.tables["check_notes"]) or "none"
        )
        check.figure(f"{arm}: determinism", record.environment["determinism"])
    # strictly, attention's backward pass takes its deterministic form
    assert {record.environment["determinism"] for record in references} == {"strict"}
    assert not any(differing.values())
    assert verdict in ("equivalent", "equivalent within rounding")


def unlike(record: Record) -> set[tuple[int, str, str]]:
    """Tensors whose bits differ between the reference and its repeat."""
    digests: dict[str, dict[tuple[int, str, str], str]] = {"reference": {}, "repeat": {}}
    for row in record.tables["check_tensors"]:
        if row["training"] in digests:
            digests[row["training"]][row["step"], row["of"], row["tensor"]] = row["digest"]
    first, again = digests.values()
    assert first.keys() == again.keys() and first
    return {key for key, digest in first.items() if again[key] != digest}
