"""Bytes that a rank sends in a step, from the collectives of a record and from its theory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distbench.analysis.mesh_dimensions import dimension_traffic
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wire_traffic import WIRE_BYTES, WIRE_BYTES_THEORY, wire_sentence, wire_values
from distbench.record import Record
from support.records import case, info, measured

PAYLOAD = 1200.0


def collective(
    op: str, ran: str | None = None, size: float = PAYLOAD, **changes: object
) -> dict[str, object]:
    wire = {} if ran is None else {"ran": ran, "wire_bytes": sent(ran, size)}
    row = {"rank": 0, "step": 0, "place": 0, "op": op, "group": "0-3", "group_size": 4, "dtype": "fp32"}
    return {**row, "dimension": "dp_shard", "bytes": size, **wire, **changes}


def sent(ran: str, size: float) -> float:
    """Bytes that each of four ranks sends in a ring."""
    return (
        size * {"all_reduce": 6 / 4, "all_gather": 3 / 4, "reduce_scatter": 3 / 4, "send": 1, "recv": 1}[ran]
    )


def record(
    *rows: dict[str, object], theory: list[dict[str, object]] | None = None, device: str = "cpu"
) -> Record:
    of = case("fsdp", 4, device=device)
    expected = {} if theory is None else {"comm_bytes_theory": sum(row["bytes"] for row in theory)}
    made = measured(of, comm_bytes=sum(row["bytes"] for row in rows), **expected)
    return replace(made, tables={"collectives": [*rows], "collectives_theory": theory or []})


def test_an_all_reduce_sends_twice_as_much_as_a_reduce_scatter_of_the_same_payload():
    theory = [{"op": "reduce_scatter", "bytes": PAYLOAD, "dimension": "dp_shard"}]
    as_asked = record(collective("reduce_scatter", "reduce_scatter"), theory=theory)
    assert wire_values(as_asked)[0] == {WIRE_BYTES: 900, WIRE_BYTES_THEORY: 900}
    assert wire_sentence(as_asked) == "900 B sent (theory: 900 B)"
    replaced = record(collective("reduce_scatter", "all_reduce"), theory=theory)
    assert wire_values(replaced)[0] == {WIRE_BYTES: 1800, WIRE_BYTES_THEORY: 900}
    assert "ran all_reduce for 1.17 KiB of reduce_scatter, which sends twice as much" in wire_sentence(
        replaced
    )


def test_a_message_counts_where_it_is_sent():
    both = record(collective("send", "send"), collective("recv", "recv", place=1))
    assert wire_values(both)[0][WIRE_BYTES] == PAYLOAD


@pytest.mark.parametrize(
    ("op", "device", "expected"),
    [("all_gather", "cpu", 900), ("reduce_scatter", "cuda", 900), ("reduce_scatter", "cpu", None)],
)
def test_without_a_trace_only_gloos_reduce_scatter_is_unknown(op, device, expected):
    values, reasons = wire_values(record(collective(op), device=device))
    assert values.get(WIRE_BYTES) == expected
    assert ("measure.profile_steps: 0" in reasons.get(WIRE_BYTES, "")) == (expected is None)


def test_a_record_with_sums_alone_sends_an_unknown_number_of_bytes():
    values, reasons = wire_values(measured(case()))
    assert WIRE_BYTES not in values
    assert reasons[WIRE_BYTES]


def test_theory_of_two_dimensions_uses_the_size_of_each_group():
    theory = [
        {"op": "all_reduce", "bytes": PAYLOAD, "dimension": "dp_replicate"},
        {"op": "all_gather", "bytes": PAYLOAD, "dimension": "dp_shard"},
        {"op": "all_reduce", "bytes": 8.0, "dimension": None},
    ]
    pair = {"group": "0,2", "group_size": 2}
    made = record(
        collective("all_reduce", dimension="dp_replicate", **pair),
        collective("all_gather", dimension="dp_shard", **pair, place=1),
        theory=theory,
    )
    # over two ranks an all-reduce sends the whole array, an all-gather half of it; the flag over all four
    assert wire_values(made)[0] == {WIRE_BYTES: 1800, WIRE_BYTES_THEORY: 1812}
    assert {each.dimension: each.sent for each in dimension_traffic(made)} == {
        "dp_replicate": 1200,
        "dp_shard": 600,
    }
    unseen = record(collective("all_gather", **pair), theory=theory)
    assert WIRE_BYTES_THEORY in wire_values(unseen)[1], (
        "the size of a group that was never used is not guessed"
    )


def test_a_case_has_the_bytes_of_its_collectives_and_their_definition():
    made = record(collective("all_reduce", "all_reduce"))
    (row,) = RunAnalysis(info(made.case), [made]).cases
    assert row.values[WIRE_BYTES].value == 1800
    assert row.values["comm_bytes"].value == PAYLOAD
    assert "rings" in row.columns[WIRE_BYTES]["doc"]
    assert row.absence_reasons[WIRE_BYTES_THEORY]
