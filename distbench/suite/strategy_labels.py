"""Labels that a suite gives its strategies: ``zero: {stage: 2, label: yours}``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.core.suite_mistakes import KeyPath, Problem
from distbench.suite.cells import LABEL_OPTION, StrategyVariant

LABEL_DOC = "Name of its cases in place of the strategy's own label, such as zero2+offload."
LABEL_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}"


def take_label(plugin: PluginChoice) -> tuple[PluginChoice, object]:
    """*plugin* without its label, and the label; None: it has none."""
    others = {key: value for key, value in plugin.options.items() if key != LABEL_OPTION}
    return PluginChoice(plugin.name, others), plugin.options.get(LABEL_OPTION)


def label_problem(label: object, variants: Sequence[StrategyVariant]) -> str | None:
    """Reason why *label* can't name the strategy that has these *variants*; None if it can."""
    if not isinstance(label, str) or not re.fullmatch(LABEL_PATTERN, label):
        return (
            "use at most 40 letters, digits, dots, dashes, underscores and plus signs, the first a letter or "
            "a digit, because the label becomes part of case names"
        )
    if label in registry.plugin_names("strategies"):
        return "is the name of a strategy; choose another label"
    if len(variants) > 1 or any(each.plugin.instance.mesh_variants(1) is not None for each in variants):
        return "names one strategy, but its options list several values; list each as a strategy of its own"
    return None


def repeated_labels(variants: Sequence[StrategyVariant]) -> Iterator[Problem]:
    """Yield a problem for each label of the suite that another of its strategies has."""
    count = Counter(each.label for each in variants)
    for each in variants:
        if each.given_label and count[each.label] > 1:
            yield Problem(
                label_path(each.origin), "another strategy has this label; choose another", each.label
            )


def label_path(origin: KeyPath) -> KeyPath:
    """Place of the label of the strategy at *origin*: ``strategies[0].zero``, or inside it."""
    return (*origin[:3], LABEL_OPTION)
