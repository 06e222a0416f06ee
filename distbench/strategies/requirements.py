"""Reasons why a case can't use a technique, shared by several strategies. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from distbench import optimizers
from distbench.core import registry
from distbench.core.case import Case
from distbench.core.errors import as_yaml
from distbench.optimizers import TensorLayout
from distbench.strategies.base import Strategy

_OWN_PACKAGE = "distbench."


def transform_problem(case: Case, technique: str) -> str | None:
    """Reason why *technique*, which takes layers apart, can't train *case*; None if it can."""
    if case.compile != "none":
        return f"compile is not supported with {technique}; use compile: false"
    if case.precision.float8 != "none":
        return f"float8 is not supported with {technique}; use precision: bf16"
    return None


def fused_sgd_problem(case: Case) -> str | None:
    """Reason why the optimizer of *case* can't update distributed tensors; None if it can."""
    if case.optimizer.name == "sgd" and case.optimizer.kernel == "fused":
        return "torch has no fused SGD for sharded tensors; set optimizer.kernel: foreach"
    return None


def reduce_dtype_problem(case: Case, strategy_name: str, alternative: str = "") -> str | None:
    """Reason why *strategy_name* can't reduce gradients in the dtype of *case*; None if it can.

    It reduces as DDP does. *alternative* is an alternative to giving both the same dtype.
    """
    precision = case.precision
    if precision.reduce == precision.master:
        return None
    return (
        f"{strategy_name} reduces gradients in the parameters' dtype, but precision.reduce = "
        f"{precision.reduce} and precision.master = {precision.master}; use the same dtype for "
        f"both{alternative and f', or {alternative}'}"
    )


def optimizer_problem(case: Case, layout: TensorLayout = "whole", strategy_name: str = "") -> str | None:
    """Reason why the optimizer of *case* can't be used as requested; None if it can.

    *layout* is the layout in which the strategy, *strategy_name*, passes tensors to it.
    """
    precision = case.precision
    if precision.optimizer_state != precision.master:
        return (
            "torch's optimizers keep their state in the dtype of the parameters: precision."
            f"optimizer_state = {precision.optimizer_state} needs the same precision.master"
        )
    return optimizers.layout_problem(case.optimizer, layout, strategy_name)


def undeclared_problem(
    case: Case, technique: str, parts: str, methods: str, alternative: str, option: str = ""
) -> str:
    """Reason why *technique* can't train the model of *case*, which does not declare its *parts*.

    Args:
        methods: Methods by which a workload declares them.
        alternative: A workload that declares them.
        option: Option of a suite that declares them, used in place of *methods*.
    """
    name, model = case.workload.name, case.workload.options.get("model")
    cls = registry.load_plugin("workloads", name)
    if option in {field.name for field in dataclasses.fields(cls)}:
        return (
            f"{technique}: workload.{name} has no {option}, which declares {parts}; add it "
            f'(docs/strategies.md, "Plans of models"), or use {alternative}'
        )
    which = f"workload.{name}.model = {model!r}" if model else f"the workload {name}"
    unread = ", and distbench does not import the model to find out" if model else ""
    if cls.__module__.startswith(_OWN_PACKAGE):
        write = f"write a plug-in, a subclass of {cls.__module__}.{cls.__name__} with {methods}"
    else:
        write = f"add {methods} to {cls.__name__}"
    return (
        f"{technique}: {which} does not declare {parts}{unread}; {write} (docs/plugins.md, "
        f'"A model that can be split"), or use {alternative}'
    )


def unused_option_problem(
    strategy: Strategy, defaults: Strategy, needs: Mapping[str, tuple[Any, str]]
) -> str | None:
    """Reason why an option of *strategy* has no effect beside its others; None if all have one.

    Args:
        defaults: The strategy without such options.
        needs: Option -> whether it has an effect, and what it needs to have one.
    """
    for option, (counts, needed) in needs.items():
        value = getattr(strategy, option)
        if not counts and value != getattr(defaults, option):
            return f"{option} = {as_yaml(value)} has no effect without {needed}; remove it"
    return None


def nearest_text(fitting: Iterable[int], number: int) -> str:
    """The three of the *fitting* numbers that are nearest to *number*, in words; empty: there is none."""
    return ", ".join(map(str, sorted(sorted(fitting, key=lambda each: abs(each - number))[:3])))
