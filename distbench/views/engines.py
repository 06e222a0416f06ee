"""The view ``engines``: the price of a framework per step."""

from __future__ import annotations

from distbench.analysis.framework_price import FrameworkPrice, framework_prices
from distbench.analysis.run import RunAnalysis
from distbench.core.case import NATIVE_ENGINE
from distbench.core.units import format_number
from distbench.tables.table import PERCENT, Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells


class EnginesView(View):
    """A row for each measured case whose steps a framework takes."""

    title = "Price of frameworks"
    order = 48
    compares_cases = True
    caption = (
        "step: length of a step of the framework, the slowest rank's. native step: the same case with "
        "distbench's own steps. price: what the framework adds, with its 95% interval, which is that of the "
        "ratio of the two steps. A price whose interval contains 0 may be noise."
    )
    fields = (
        *CASE_FIELDS,
        Field("engine", "engine", "Framework that takes the steps.", type="varchar"),
        Field("step_s", "step", "Length of a step of the framework, the slowest rank's.", "s", "lower"),
        Field("native_step_s", "native step", "Length of a step of the same case without it.", "s", "lower"),
        Field("price_s", "price", "Time that the framework adds to a step.", "s", "lower"),
        Field("price_low_s", "", "Lower end of the 95% interval of the price.", "s"),
        Field("price_high_s", "", "Upper end of the 95% interval of the price.", "s"),
        Field("price", "share", "Price over the native step.", better="lower", format=PERCENT),
    )

    def table(self, run: RunAnalysis) -> Table:
        prices = framework_prices(run.cases)
        if not prices:
            note = "No measured case has a framework; list them: engine: [native, accelerate]."
            if self.is_requested(run):
                note = "No case with a framework was measured; the overview has the reasons."
            return self.make_table([], [note])
        names = run.short_names([price.row for price in prices])
        notes = [text for price in prices if (text := _note(price, names[price.row.case.id]))]
        return self.make_table([_row(price, names[price.row.case.id]) for price in prices], notes)

    def is_requested(self, run: RunAnalysis) -> bool:
        return any(row.case.engine != NATIVE_ENGINE for row in run.cases)


def _row(price: FrameworkPrice, name: str) -> TableRow:
    added, low, high = price.seconds or (None, None, None)
    known = price.ratio is not None and price.ratio.half_log_width is not None
    step = price.row.values.get("step_s")
    native = price.native.values.get("step_s") if price.native else None
    return TableRow(
        {
            **case_cells(price.row.case, name),
            "engine": price.row.case.engine.name,
            "step_s": TableCell(step.value if step else None),
            "native_step_s": TableCell(native.value if native else None, reason=price.absence),
            "price_s": TableCell(added, _price_text(price), price.absence),
            "price_low_s": TableCell(low if known else None, reason=price.absence),
            "price_high_s": TableCell(high if known else None, reason=price.absence),
            "price": TableCell(price.ratio.value - 1 if price.ratio else None, reason=price.absence),
        }
    )


def _price_text(price: FrameworkPrice) -> str:
    """The price with its interval, in the digits that it supports: ``1.2 ms (0.9 to 1.6 ms)``."""
    if price.seconds is None:
        return ""
    added, low, high = price.seconds
    texts = [format_number(each * 1000, (high - low) / 2 * 1000) for each in (added, low, high)]
    return f"{texts[0]} ms ({texts[1]} to {texts[2]} ms)" if high > low else f"{texts[0]} ms (spread unknown)"


def _note(price: FrameworkPrice, name: str) -> str:
    """Sentence on a price, or on why there is none."""
    if price.seconds is None or price.ratio is None:
        return f"{name}: no price, because {price.absence}."
    if not price.is_settled:
        return f"{name}: the price may be noise; set measure.trials higher."
    verb = "costs" if price.seconds[0] > 0 else "saves"
    share = abs(price.ratio.value - 1)
    amount = _price_text(price).partition(" (")[0].removeprefix("-")
    return f"{name}: the framework {verb} {amount} per step, {share:.1%}."
