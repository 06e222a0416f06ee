"""The section ``loader`` of a suite: an axis that leaves the work the same, and its mistakes."""

from dataclasses import replace
from typing import Any

import pytest

from distbench.core.case import Case, LoaderConfig
from distbench.core.errors import SuiteError
from distbench.core.machine import Machine
from distbench.plan import make_plan
from distbench.suite.suite import parse_suite_text

CPU = Machine("cpu", 2, {"torch": "9"}, has_libaio=False, has_compiler=True)
SUITE = """
workload: {transformer: {preset: tiny, seq_len: 32}}
data: text
batch: {global_batch_size: 16, micro_batch_size: 2}
strategies: [ddp]
world_sizes: [2]
"""


def cases(sections: str, machine: Machine = CPU) -> list[Case]:
    return [item.case for item in make_plan(parse_suite_text(SUITE + sections), machine).cases]


def problems(sections: str) -> str:
    with pytest.raises(SuiteError) as refused:
        cases(sections)
    return str(refused.value)


def test_each_loader_is_a_case_of_the_same_work():
    (without,) = cases("")
    several = cases("loader: {workers: [0, 2], prefetch_factor: 4}\nexclude: [{loader.workers: 0}]\n")
    several += cases("loader: {workers: [0, 1, 2]}\n")
    assert without.loader == LoaderConfig()
    assert [each.loader.workers for each in several] == [2, 0, 1, 2]
    assert len({each.id for each in [without, *several]}) == 5
    assert all(each.work_key(["loader"]) == without.work_key(["loader"]) for each in several)
    assert [each.name.rpartition("/")[2] for each in several[1:]] == ["workers=0", "workers=1", "workers=2"]


def test_a_case_without_a_loader_keeps_its_id():
    (without,) = cases("")
    assert cases("loader: {}\n")[0].id == cases("loader: {workers: null}\n")[0].id == without.id


def test_memory_is_pinned_only_for_a_gpu():
    suite = parse_suite_text(SUITE + "loader: {workers: 2, pin_memory: true}\n")
    (on_cpu,) = make_plan(suite, CPU).cases
    assert on_cpu.problem and "loader.pin_memory is for copies to a GPU" in on_cpu.problem
    (on_gpu,) = make_plan(suite, replace(CPU, device="cuda")).cases
    assert "pin_memory" not in (on_gpu.problem or "")


@pytest.mark.parametrize(("warmup", "is_long_enough"), [(1, False), (4, False), (5, True)])
def test_a_warm_up_uses_up_what_workers_make_ahead(warmup, is_long_enough):
    # 4 workers x 4 micro-batches are those of 4 steps; the first step may wait for none
    sections = f"loader: {{workers: [0, 4], prefetch_factor: 4}}\nmeasure: {{warmup: {warmup}}}\n"
    sections += "exclude: [{loader.workers: 0}]\n"
    if is_long_enough:
        assert len(cases(sections)) == 1
    else:
        assert "make 16 micro-batches ahead" in problems(sections)
        assert "use a warm-up of 5 or more steps" in problems(sections)


MISTAKES: dict[str, tuple[Any, str]] = {
    "negative": ("{workers: -1}", "loader.workers = -1: must be at least 0"),
    "text": ("{workers: two}", "expected a whole number"),
    "name of torch": ("{num_workers: 2}", "did you mean 'workers'?"),
    "number": ("2", "loader = 2: expected a mapping"),
    "nothing ahead": ("{workers: 1, prefetch_factor: 0}", "must be at least 1"),
    "no workers": ("{pin_memory: true}", "there is no loader without loader.workers"),
    "ahead without workers": ("{workers: 0, prefetch_factor: 4}", "only workers read it"),
    "persistent without workers": ("{workers: 0, persistent_workers: true}", "only workers read it"),
    "word": ("{workers: 1, pin_memory: always}", "expected true or false"),
    "empty": ("{workers: []}", "expected a list of at least one value"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_remedy(name):
    given, expected = MISTAKES[name]
    assert expected in problems(f"loader: {given}\n")
