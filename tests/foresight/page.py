"""Write the tables of docs/foresight.md, and docs/foresight-rows.csv: python -m foresight.page, in tests/."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from foresight import extrapolation
from foresight.errors import Errors, Predicted, covered, error, errors, ordered, utilisation_errors
from foresight.published_rows import PublishedStep, predictions, read_rows

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "foresight.md"
ROWS = DOCS / "foresight-rows.csv"
WORST = 20


def written_page(text: str) -> str:
    """*text* of the page with its tables as they are now."""
    rows = read_rows()
    pairs = list(predictions(rows))
    tables = {
        "errors": _error_table(pairs, rows),
        "gates": _gate_table(pairs, rows),
        "order": _order_table(pairs),
        "choices": _choice_table(rows),
        "worst": _worst_table(pairs),
        "refused": _refusals(rows),
        "extrapolated": _extrapolation_table(list(extrapolation.pairs(rows))),
        "extrapolation-gates": _extrapolation_gates(list(extrapolation.pairs(rows))),
    }
    for name, lines in tables.items():
        block = f"<!-- {name} -->\n" + "\n".join(lines) + f"\n<!-- /{name} -->"
        text, count = re.subn(
            rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, b=block: b, text, flags=re.DOTALL
        )
        assert count == 1, f"{PAGE} has no place for {name}"
    return text


def written_rows() -> str:
    """Text of the CSV: each row with its prediction."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    described = ("row", "source", "where", "model", "length", "gpu", "gpus", "layout", "precision", "assumed")
    table.writerow([*described, "measured_s", "predicted_s", "low_s", "high_s", "error_percent"])
    for row in read_rows():
        facts, step = row.facts, row.predict()
        names = ("row", "source", "where", "model", "seq", "gpu", "gpus")
        cells = [facts[name] for name in names] + [_layout_text(row), facts["precision"], facts["assumed"]]
        if isinstance(step, str):
            table.writerow([*cells, facts["seconds"], "", "", "", ""])
            continue
        seconds = step.seconds
        numbers = [f"{each:.4g}" for each in (row.seconds, seconds.value, seconds.low, seconds.high)]
        table.writerow([*cells, *numbers, f"{100 * error((row, step)):+.1f}"])
    return out.getvalue()


def by_source(pairs: Sequence[Predicted]) -> dict[str, list[Predicted]]:
    found: dict[str, list[Predicted]] = {}
    for pair in pairs:
        found.setdefault(pair[0].source, []).append(pair)
    return found


def better_than_utilisation(
    pairs: Sequence[Predicted], rows: Sequence[PublishedStep], *, own_dtype: bool = False
) -> list[str]:
    """Sources whose median error is below that of one utilisation for all."""
    return [
        source
        for source, own in by_source(pairs).items()
        if errors(own).median < utilisation_errors(own, rows, own_dtype=own_dtype).median
    ]


def _percent(value: float, *, sign: bool = False) -> str:
    return f"{100 * value:+.1f}" if sign else f"{100 * value:.1f}"


def _three(values: Errors) -> str:
    return f"{_percent(values.median)} / {_percent(values.p90)} / {_percent(values.largest)}"


def _error_table(pairs: Sequence[Predicted], rows: Sequence[PublishedStep]) -> Iterator[str]:
    yield "| source | steps | bias | error | one HFU of 16 bits | one HFU of its dtype | in the interval |"
    yield "|---|---|---|---|---|---|---|"
    for source, own in {**by_source(pairs), "all": list(pairs)}.items():
        found = errors(own)
        simple = (_three(utilisation_errors(own, rows, own_dtype=own_dtype)) for own_dtype in (False, True))
        inside = f"{covered(own)} of {len(own)}"
        bias = _percent(found.bias, sign=True)
        yield f"| {source} | {len(own)} | {bias} | {_three(found)} | {' | '.join(simple)} | {inside} |"


def _gate_table(pairs: Sequence[Predicted], rows: Sequence[PublishedStep]) -> Iterator[str]:
    found, inside = errors(pairs), covered(pairs) / len(pairs)
    gates = [
        ("median error at most 10 %", f"{_percent(found.median)} %", found.median <= 0.10),
        ("p90 at most 22 %", f"{_percent(found.p90)} %", found.p90 <= 0.22),
    ]
    for name, own_dtype in (("16 bits", False), ("its dtype", True)):
        better = better_than_utilisation(pairs, rows, own_dtype=own_dtype)
        lacking = ", ".join(source for source in by_source(pairs) if source not in better)
        text = f"{len(better)} of 8{f'; not for {lacking}' if lacking else ''}"
        gates.append((f"median below that of one HFU of {name} in 6 of 8 sources", text, len(better) >= 6))
    gates.append(("90 % of steps in their interval", f"{_percent(inside)} %", inside >= 0.9))
    yield "| asked | found | |"
    yield "|---|---|---|"
    for asked, text, holds in gates:
        yield f"| {asked} | {text} | {'holds' if holds else 'missed'} |"


def _order_table(pairs: Sequence[Predicted]) -> Iterator[str]:
    yield "| pairs of one source, more than 10 % apart in tokens/s of a GPU | order predicted |"
    yield "|---|---|"
    for text, same_model in (
        ("all", False),
        ("same model, length of rows and GPUs; the layout differs", True),
    ):
        right, total = ordered(pairs, same_model=same_model)
        yield f"| {text} | {right} of {total} ({100 * right / total:.1f} %) |"


def _choice_table(rows: Sequence[PublishedStep]) -> Iterator[str]:
    yield "| choice | all: median / p90 / largest |"
    yield "|---|---|"
    for text, changed in (
        ("as it is", rows),
        ("Hopper and Blackwell sustain 0.92, too", [_with_sustained_rate(row) for row in rows]),
        ("MPT's attention as FlashAttention-2", [_with_flash_attention(row) for row in rows]),
        ("DGX-2 with 8 cards of 100 Gb/s a node", [_with_all_cards(row) for row in rows]),
    ):
        yield f"| {text} | {_three(errors(predictions(list(changed))))} |"


def _with_sustained_rate(row: PublishedStep) -> PublishedStep:
    hardware = row.hardware
    if hardware.generation not in ("hopper", "blackwell"):
        return row
    sheet, more = hardware.sheet, 0.92 / 0.83
    faster = dataclasses.replace(
        sheet,
        achieved_share=sheet.achieved_share and sheet.achieved_share * more,
        float8_achieved_share=sheet.float8_achieved_share and sheet.float8_achieved_share * more,
    )
    return dataclasses.replace(row, hardware=dataclasses.replace(hardware, sheet=faster))


def _with_flash_attention(row: PublishedStep) -> PublishedStep:
    if row.facts["engine"] != "mpt":
        return row
    return dataclasses.replace(row, kernels=dataclasses.replace(row.kernels, attention="flash"))


def _with_all_cards(row: PublishedStep) -> PublishedStep:
    if row.source != "deepspeed":
        return row
    return dataclasses.replace(row, hardware=dataclasses.replace(row.hardware, between=50e9 / 8))


def _worst_table(pairs: Sequence[Predicted]) -> Iterator[str]:
    yield "| step | what | measured | predicted | error |"
    yield "|---|---|---|---|---|"
    for row, step in sorted(pairs, key=lambda pair: -abs(error(pair)))[:WORST]:
        facts, seconds = row.facts, step.seconds
        what = f"{facts['model']}, {facts['seq']} tokens, {facts['gpus']} {facts['gpu']}, {_layout_text(row)}"
        numbers = f"{row.seconds:.4g} s | {seconds.value:.4g} s | {_percent(error((row, step)), sign=True)} %"
        yield f"| {row.name} | {what}, {facts['precision']} | {numbers} |"


def _refusals(rows: Sequence[PublishedStep]) -> Iterator[str]:
    for row in rows:
        if isinstance(reason := row.predict(), str):
            yield f"- {row.name}: {reason}"


def _extrapolation_table(pairs: Sequence[extrapolation.PublishedPair]) -> Iterator[str]:
    yield "| samples of a GPU | GPUs | pairs | bias | error | same tokens/s of a GPU | in the interval |"
    yield "|---|---|---|---|---|---|---|"
    for text, is_same in (("the same", True), ("others", False)):
        for factor in (2, 4, 8):
            own = [pair for pair in pairs if pair.ratio.is_same_work == is_same and pair.factor >= factor]
            found, flat = extrapolation.errors(own), extrapolation.flat_errors(own)
            numbers = f"{len(own)} | {_percent(found.bias, sign=True)} | {_three(found)} | {_three(flat)}"
            inside = f"{extrapolation.covered(own)} of {len(own)}"
            yield f"| {text} | {factor} x or more | {numbers} | {inside} |"


def _extrapolation_gates(pairs: Sequence[extrapolation.PublishedPair]) -> Iterator[str]:
    far = [pair for pair in pairs if pair.ratio.is_same_work and pair.factor >= 4]
    found, flat = extrapolation.errors(far).median, extrapolation.flat_errors(far).median
    inside = extrapolation.covered(pairs) / len(pairs)
    without = extrapolation.covered_without_own_model(pairs) / len(pairs)
    yield "| asked | found | |"
    yield "|---|---|---|"
    for asked, text, holds in (
        ("median error at most 2 %, same samples, 4 x or more", f"{_percent(found)} %", found <= 0.02),
        ("at most half of that of the same tokens/s", f"{found / flat:.2f} of it", found <= flat / 2),
        ("90 % of steps in their interval", f"{_percent(inside)} %", inside >= 0.9),
        ("likewise, with widths from other models and GPUs", f"{_percent(without)} %", without >= 0.9),
    ):
        yield f"| {asked} | {text} | {'holds' if holds else 'missed'} |"


def _layout_text(row: PublishedStep) -> str:
    facts = row.facts
    sizes = [f"{name}{facts[name]}" for name in ("tp", "pp", "vpp", "cp") if facts[name] != "1"]
    return "+".join([facts["data"], *sizes])


def main() -> None:
    PAGE.write_text(written_page(PAGE.read_text()))
    ROWS.write_text(written_rows())


if __name__ == "__main__":
    main()
