"""Title and facts of a run for the top of its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from distbench.analysis.run import RunAnalysis
from distbench.analysis.settings import merge_environments, version_differences, versions_by_environment
from distbench.core.case import CURRENT_ENVIRONMENT, Case
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_count, join_words
from distbench.record import Status

# options of the built-in workloads that describe the model
_MODEL = ("preset", "model", "model_type")
_LENGTHS = ("seq_len", "length")
# packages whose names differ from pip's
_WRITTEN = {"deepspeed": "DeepSpeed", "python": "Python"}


def page_title(run: RunAnalysis) -> str:
    """``5 strategies on 1 and 2 CPU ranks: transformer tiny``."""
    cases = [row.case for row in run.cases]
    if not cases:
        return "No cases"
    if run.info.is_trace:
        return f"Profiler traces of {_ranks(cases)}"
    if run.info.is_script:
        return f"{one_line(run.info.suite_name)} on {_ranks(cases)}"
    labels = list(dict.fromkeys(one_line(case.label) for case in cases))
    compared = labels[0] if len(labels) == 1 else format_count(len(labels), "configuration")
    return f"{compared} on {_ranks(cases)}: {_models(cases)}"


def header_facts(run: RunAnalysis) -> dict[str, str]:
    """Label -> fact on the training, the hardware and the trials; unknown facts give the reason."""
    cases = [row.case for row in run.cases]
    if not cases:
        return {}
    if run.info.is_trace:
        return {"devices": _devices(run, cases)}
    return {
        "model": f"{_models(cases)}, {_parameters(run)}",
        "batch": f"{_range_text(case.batch.global_batch_size for case in cases)} samples"
        f"{_length(cases)} per step",
        "precision": join_limited(_unique_lines(case.precision.label for case in cases)),
        "devices": _devices(run, cases),
        "software": _software(run),
        "trials": _trials(run),
    }


def _models(cases: list[Case]) -> str:
    chosen = [(case.workload.name, *map(case.workload.options.get, _MODEL)) for case in cases]
    return join_limited(
        _unique_lines(" ".join(str(word) for word in words if word) for words in chosen), limit=2
    )


def _parameters(run: RunAnalysis) -> str:
    trained = [
        row.representative_trial.effective.get("parameters") for row in run.cases if row.representative_trial
    ]
    known = {count for count in trained if isinstance(count, int)}
    if not known:
        return "number of parameters unknown (no trial reported it)"
    return f"{' to '.join(dict.fromkeys([_count(min(known)), _count(max(known))]))} parameters"


def _count(number: int) -> str:
    scale, word = next((pair for pair in ((1e9, " B"), (1e6, " M")) if number >= pair[0]), (1, ""))
    return f"{number:,}" if scale == 1 else f"{number / scale:.3g}{word}"


def _length(cases: list[Case]) -> str:
    options = [case.workload.options for case in cases]
    lengths = [each[name] for each in options for name in _LENGTHS if each.get(name)]
    return f" of {join_limited(_unique_lines(lengths))} tokens" if len(lengths) == len(cases) else ""


def _ranks(cases: list[Case]) -> str:
    sizes = [str(size) for size in sorted({case.world_size for case in cases})]
    kinds = _unique_lines("GPU" if case.device == "cuda" else "CPU rank" for case in cases)
    return f"{join_words(sizes)} {' or '.join(kinds)}{'s' * (sizes != ['1'])}"


def _devices(run: RunAnalysis, cases: list[Case]) -> str:
    """GPUs or CPU that the ranks saw; those of the launching machine if no rank reported any."""
    environments = [record.environment for record in run.timed_records if record.environment] or [
        run.info.machine
    ]
    all_cuda = all(case.device == "cuda" for case in cases)
    if any(case.device == "cuda" for case in cases):
        models = _unique_lines(name for each in environments for name in _list(each.get("gpus")))
    else:
        models = _unique_lines(f"{each['cpu']}{_cores(each)}" for each in environments if each.get("cpu"))
    nodes = {node for record in run.timed_records for node in record.nodes}
    of_nodes = f" of {format_count(len(nodes), 'node')}" if nodes else ""
    hardware = (join_limited(models, limit=2) or "hardware that was not recorded") + of_nodes
    return f"{_ranks(cases)}{': ' if all_cuda and models else ' on '}{hardware}"


def _cores(facts: Mapping[str, Any]) -> str:
    cores = facts.get("cpu_cores")
    return f" with {format_count(cores, 'core')}" if isinstance(cores, int) else ""


def _list(value: object) -> list[object]:
    # a foreign record may hold anything
    return value if isinstance(value, list) else []


def _software(run: RunAnalysis) -> str:
    own = [record for record in run.timed_records if record.case.environment == CURRENT_ENVIRONMENT]
    known = merge_environments(own, run.info.machine)
    versions = [f"torch {text}" for text in known.get("packages.torch", ())]
    versions += [f"DeepSpeed {text}" for text in known.get("packages.deepspeed", ()) if text != "none"]
    versions += [f"driver {text}" for text in known.get("gpu_driver", ()) if text != "none"]
    return "; ".join([", ".join(versions) or "not recorded", *_other_environments(run)])


def _other_environments(run: RunAnalysis) -> Iterator[str]:
    """Versions that differ in each other Python environment: ``@old: DeepSpeed 0.16.9``."""
    found = versions_by_environment(run.timed_records)
    ours = found.pop(CURRENT_ENVIRONMENT, {})
    for name, theirs in found.items():
        words = [
            f"{_WRITTEN.get(key, key)} {' or '.join(each)}"
            for key, each in version_differences(theirs, ours).items()
        ]
        yield f"@{name}: {join_limited(words) or 'the same versions'}"


def _trials(run: RunAnalysis) -> str:
    good = [record for record in run.timed_records if record.status is Status.MEASURED]
    failed = [record for record in run.timed_records if record.status.is_failure]
    noisy = sum(bool(record.degraded) for record in good)
    each = {row.trials for row in run.cases if row.trials}
    times = f", {_range_text(each)} per case" if each else ""
    return f"{len(good):,} measured{times}; {len(failed):,} failed, {noisy:,} noisy"


def _range_text(numbers: Iterable[int]) -> str:
    known = set(numbers)
    return " to ".join(dict.fromkeys([f"{min(known):,}", f"{max(known):,}"]))


def _unique_lines(values: Iterable[object]) -> list[str]:
    return list(dict.fromkeys(one_line(str(value), 60) for value in values))
