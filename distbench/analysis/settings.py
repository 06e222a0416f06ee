"""Effective settings and software of a trial, and their meaning for a fair comparison.

Records of earlier versions describe neither their settings nor their strategy; they are read with the current
descriptions of distbench's own strategies.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from distbench.core import registry
from distbench.core.case import CURRENT_ENVIRONMENT, Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.grouping import group_pairs
from distbench.core.text import one_line
from distbench.engines.base import FRAMEWORK_SETTINGS
from distbench.record import Record
from distbench.strategies.description import (
    ENGINE_SETTINGS,
    IntendedDifference,
    SettingMeaning,
    StrategyDescription,
)

SettingKind = Literal["work", "speed", "strategy", "unknown"]

_PRECISION = SettingMeaning("work", "multiplies fp32 matrices in a different precision")
_PROCESS_SETTINGS = {
    "seed": SettingMeaning("work", "different seed"),
    "tf32": _PRECISION,
    "matmul_precision": _PRECISION,
    "convolution_precision": SettingMeaning("work", "convolves in fp32 in a different precision"),
    "rnn_precision": SettingMeaning("work", "computes fp32 RNNs in a different precision"),
    "attention": SettingMeaning("work", "may choose from different attention kernels"),
    "attention_ran": SettingMeaning("speed", "ran different attention kernels"),
    "deterministic": SettingMeaning("speed", "different choice of algorithms"),
    "determinism": SettingMeaning("speed", "refuses other operations that are not deterministic"),
    "threads": SettingMeaning("speed", "different number of threads per rank"),
    "warm": SettingMeaning("speed", "ranks started differently"),
}
_UNKNOWN: tuple[SettingKind, str] = ("unknown", "unclassified setting")


def effective_settings(record: Record) -> dict[str, Any]:
    """Effective settings of a trial by flat name: ``optimizer.lr``, ``process.threads``."""
    effective, process = _reported_settings(record)
    known = {f"process.{key}": value for key, value in process.items() if value is not None}
    return {**dict(_flatten(effective, "")), **known}


def software_versions(record: Record) -> dict[str, str]:
    """Versions of ``python`` and of the relevant packages on the ranks of a trial."""
    versions = {"python": record.environment.get("python")}
    # a foreign record may hold anything
    packages = record.environment.get("packages")
    versions |= packages if isinstance(packages, dict) else {}
    return {
        one_line(str(name)): setting_text(version)
        for name, version in versions.items()
        if version is not None
    }


def varying_settings(records: Sequence[Record]) -> dict[str, tuple[str, ...]]:
    """Settings that differ among *records* of one case, with their values."""
    first = records[0]
    if all(_reported_settings(record) == _reported_settings(first) for record in records):
        return {}
    trials = [effective_settings(record) for record in records]
    values = {
        key: tuple(
            dict.fromkeys(setting_text(trial[key]) if key in trial else "not reported" for trial in trials)
        )
        for key in sorted({key for trial in trials for key in trial})
    }
    return {key: different for key, different in values.items() if len(different) > 1}


def setting_text(value: Any) -> str:
    """Text of a setting's value, which may come from a foreign plug-in."""
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return one_line(", ".join(map(setting_text, value)))
    return str(value).lower() if isinstance(value, bool) else one_line(str(value))


def _reported_settings(record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    return record.effective, {key: record.environment.get(key) for key in _PROCESS_SETTINGS}


def _flatten(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{one_line(str(key))}" if prefix else one_line(str(key)))
    else:
        yield prefix, list(value) if isinstance(value, tuple) else value


def setting_meaning(key: str, *records: Record) -> tuple[SettingKind, str]:
    """Meaning of a difference in setting *key*, with the reason, by *records* that have it."""
    described = [record.described_strategy.settings for record in records if record.described_strategy]
    parts = key.split(".")
    names = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    for known in (*described, _own_settings()):
        for name in names:
            if name in known:
                return known[name].kind, known[name].why
    return _UNKNOWN


@functools.cache
def _own_settings() -> Mapping[str, SettingMeaning]:
    """Meanings of all settings of distbench's own strategies and its process."""
    known = {"effective": SettingMeaning("work", "its effect is unknown"), **ENGINE_SETTINGS}
    known["data"] = SettingMeaning(
        "work",
        (
            "may train on different data, because versions of numpy may draw different numbers from "
            "the same seed"
        ),
    )
    known |= {f"process.{key}": each for key, each in _PROCESS_SETTINGS.items()}
    known |= FRAMEWORK_SETTINGS
    known["env"] = SettingMeaning("speed", "different environment variable of the ranks")
    known["software"] = SettingMeaning("strategy", "different version, as in another Python environment")
    for strategy in registry.built_in_plugins("strategies").values():
        known |= strategy.settings
    return known


def flatten_facts(data: dict[str, Any]) -> dict[str, str]:
    """Flatten nested facts: ``packages.torch`` -> ``2.13.0``."""
    return {key: setting_text(value) for key, value in _flatten(data, "")}


def merge_environments(records: Sequence[Record], machine: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Facts of the ranks of a run with all their values; of the launching machine if no rank reported any."""
    sources = [record.environment for record in records if record.environment] or [machine]
    every = group_pairs(fact for source in sources for fact in flatten_facts(source).items())
    return {key: tuple(dict.fromkeys(values)) for key, values in every.items()}


def fact_differences(
    before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]]
) -> dict[str, tuple[str, str]]:
    """Facts that differ between two runs, with their value in each."""
    return {
        key: (_values(before, key), _values(after, key))
        for key in dict.fromkeys((*before, *after))
        if set(before.get(key, ())) != set(after.get(key, ()))
    }


def _values(of: dict[str, tuple[str, ...]], key: str) -> str:
    return " or ".join(of[key]) if key in of else "not recorded"


def strategy_description(case: Case, record: Record | None) -> StrategyDescription:
    """Description in *record*, else that of distbench's own strategy of that name: old records have none."""
    if record and record.described_strategy:
        return record.described_strategy
    strategy = registry.decode_built_in("strategies", case.strategy)
    return strategy.description() if strategy else StrategyDescription()


def design_difference(case: Case, record: Record | None) -> IntendedDifference | None:
    """Intended difference of the training of *case*; None if it is meant to equal others.

    By its strategy, or because the suite rounds gradients to a shorter dtype than they are computed in.
    """
    if design := strategy_description(case, record).by_design:
        return design
    compute, reduce = case.precision.compute, case.precision.reduce
    if DTYPE_BYTES[reduce] < DTYPE_BYTES[compute] and not _reduces_nothing(record):
        return IntendedDifference(f"gradients are rounded to {reduce} to be reduced (precision.reduce)")
    return None


def _reduces_nothing(record: Record | None) -> bool:
    """True if the live engine reported that it reduces no gradients, as a single process does."""
    return record is not None and effective_settings(record).get("dtypes.reduce", "") is None


def offloads_to_same_memory(case: Case, record: Record | None) -> bool:
    """True if training state is moved from CPU memory to CPU memory."""
    return case.device == "cpu" and set(strategy_description(case, record).offloads) == {"cpu"}


PackageVersions = Mapping[str, tuple[str, ...]]
"""Package or ``python`` -> its versions: one, unless it was changed between sessions."""


def versions_by_environment(records: Sequence[Record]) -> dict[str, PackageVersions]:
    """Environment -> versions that the ranks of its trials reported, the current one first."""
    names = sorted(
        {record.case.environment for record in records}, key=lambda name: name != CURRENT_ENVIRONMENT
    )
    return {
        name: versions
        for name in names
        if (versions := _versions([record for record in records if record.case.environment == name]))
    }


def version_differences(theirs: PackageVersions, ours: PackageVersions) -> dict[str, tuple[str, ...]]:
    """Versions in *theirs* that *ours* does not have."""
    return {package: versions for package, versions in theirs.items() if versions != ours.get(package)}


def _versions(records: Sequence[Record]) -> PackageVersions:
    every = group_pairs(pair for record in records for pair in software_versions(record).items())
    return {package: tuple(dict.fromkeys(versions)) for package, versions in every.items()}
