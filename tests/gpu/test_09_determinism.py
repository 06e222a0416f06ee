"""In deterministic mode a training repeats itself bit for bit, whichever kernels its precision takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_report import Check, Report
from gpu_runs import PRECISIONS, records, work

from distbench.record import Record

HEADS = {"grouped": "kv_heads: 2", "all": "kv_heads: 8"}


@pytest.mark.minutes(4)
@pytest.mark.parametrize("heads", sorted(HEADS))
@pytest.mark.parametrize("precision", sorted(PRECISIONS))
def test_the_reference_repeats_itself(
    precision: str, heads: str, check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    shape = f"{{dim: 512, depth: 2, heads: 8, {HEADS[heads]}, seq_len: 256}}"
    suite = (
        f"{work(shape, 8)}strategies: [ddp]\nprecision: {PRECISIONS[precision]}\n"
        "measure: {trials: 0}\ncheck: {steps: 3, perturbed: 4, fp32: false}\n"
    )
    checked = records(tmp_path, suite, gpu_report).get("check", [])
    references = [record for record in checked if record.job.options.role == "reference"]
    assert references and all(record.status == "measured" for record in references), [
        r.reason for r in checked
    ]
    for record in references:
        arm = record.case.optimizer.name
        differing = unlike(record)
        check.figure(f"{arm}: tensors that differ in the repeat", len(differing))
        check.figure(
            f"{arm}: notes", "; ".join(row["text"] for row in record.tables["check_notes"]) or "none"
        )
        told = record.environment["deterministic"] is not True or record.tables["check_notes"]
        assert not differing or told, f"differs in silence: {sorted(differing)[:3]}"


def unlike(record: Record) -> set[tuple[int, str, str]]:
    """Tensors whose bits differ between the reference and its repeat."""
    digests: dict[str, dict[tuple[int, str, str], str]] = {"reference": {}, "repeat": {}}
    for row in record.tables["check_tensors"]:
        if row["training"] in digests:
            digests[row["training"]][row["step"], row["of"], row["tensor"]] = row["digest"]
    first, again = digests.values()
    assert first.keys() == again.keys() and first
    return {key for key, digest in first.items() if again[key] != digest}
