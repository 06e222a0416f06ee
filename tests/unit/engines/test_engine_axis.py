"""The key ``engine`` of a suite: an axis of the same work, what a framework can't do, and mistakes."""

from dataclasses import replace

import pytest

from distbench.core.case import NATIVE_ENGINE, Case
from distbench.core.errors import SuiteError
from distbench.core.machine import Machine
from distbench.core.measurement import SuiteLimits
from distbench.plan import make_plan
from distbench.plan.references import reference_case
from distbench.plan.time_limits import prepare_limit
from distbench.suite.suite import parse_suite_text
from support.runs import PLUGINS

PACKAGES = dict.fromkeys(("torch", "deepspeed", "accelerate", "lightning-fabric"), "9")
CPU = Machine("cpu", 2, PACKAGES, has_libaio=False, has_compiler=True)
SUITE = """
workload: {transformer: {preset: tiny, seq_len: 32}}
data: text
batch: {global_batch_size: 16, micro_batch_size: 2}
world_sizes: [2]
"""


def planned(sections: str, strategies: str = "[ddp]", machine: Machine = CPU) -> dict[str, str | None]:
    """Reason why each case can't run by its name."""
    suite = parse_suite_text(f"{SUITE}strategies: {strategies}\n{sections}")
    return {item.case.name: item.problem for item in make_plan(suite, machine).cases}


def cases(sections: str) -> list[Case]:
    suite = parse_suite_text(f"{SUITE}strategies: [ddp]\n{sections}")
    return [item.case for item in make_plan(suite, CPU).cases]


def test_each_engine_is_a_case_of_the_same_work():
    several = cases("engine: [native, accelerate, fabric]\n")
    assert [each.name.rpartition("/")[2] for each in several] == [
        "engine=native",
        "engine=accelerate",
        "engine=fabric",
    ]
    assert len({each.id for each in several}) == 3
    assert len({each.work_key(["engine"]) for each in several}) == 1


def test_a_case_with_native_steps_keeps_its_id():
    (without,) = cases("")
    (native,) = cases("engine: native\n")
    assert without.engine == NATIVE_ENGINE
    assert native.id == without.id


def test_no_framework_takes_the_steps_of_a_reference():
    (case,) = cases("engine: accelerate\n")
    assert reference_case(case).engine == NATIVE_ENGINE


def test_include_and_exclude_know_engines():
    names = planned("include: [{strategy: ddp, engine: fabric}]\n")
    assert list(names) == ["ddp/ws2/mb2/fp32", "ddp/ws2/mb2/fp32/engine=fabric"]
    left = planned("engine: [native, accelerate, fabric]\nexclude: [{engine: accelerate}]\n")
    assert [name.rpartition("=")[2] for name in left] == ["native", "fabric"]


@pytest.mark.parametrize(
    ("engine", "strategy", "reason"),
    [
        ("accelerate", "fsdp", "engine accelerate has no strategy fsdp; it has ddp, tp, zero"),
        ("fabric", "zero", "engine fabric has no strategy zero; it has ddp, fsdp"),
        ("accelerate", "{ddp: {sharded_optimizer: true}}", "runs DDP as it is, not ddp+zero1"),
        ("fabric", "{ddp: {powersgd_rank: 2}}", "runs DDP as it is, not "),
        ("accelerate", "{zero: {stage: 1, mesh: {tp: 2}}}", "runs ZeRO over all ranks, not "),
        ("fabric", "{fsdp: {version: 1}}", "engine fabric has fsdp with version: 2"),
        ("fabric", "{fsdp: {mesh: {tp: 2}}}", "without tensor parallelism"),
        ("accelerate", "single", "engine accelerate has no strategy single"),
        ("accelerate", "tp", "engine accelerate has tp for models of transformers, which have a plan"),
        ("fabric", "tp", "engine fabric has no strategy tp; it has ddp, fsdp"),
        ("horovod", "fsdp", "engine horovod has no strategy fsdp; it has ddp"),
        ("horovod", "{ddp: {sharded_optimizer: true}}", "ddp.sharded_optimizer has no counterpart in "),
        ("horovod", "{ddp: {powersgd_rank: 2}}", "ddp.powersgd_rank has no counterpart in engine horovod"),
        ("horovod", "{ddp: {bucket_cap_mb: 1}}", "ddp.bucket_cap_mb has no counterpart in engine horovod"),
        ("horovod", "{ddp: {find_unused_parameters: true}}", "ddp.find_unused_parameters has no counterpart"),
    ],
)
def test_what_a_framework_can_t_do_is_a_reason(engine, strategy, reason):
    (problem,) = planned(f"engine: {engine}\n", f"[{strategy}]").values()
    assert problem
    assert reason in problem
    assert "engine: native" in problem


@pytest.mark.parametrize(("engine", "extra"), [("accelerate", "accelerate"), ("fabric", "fabric")])
def test_a_missing_framework_is_a_reason_with_the_command_that_installs_it(engine, extra):
    machine = replace(CPU, packages={"torch": "9"})
    native, framed = planned(f"engine: [native, {engine}]\n", machine=machine).values()
    assert native is None
    assert framed
    assert "is not installed" in framed
    assert f"pip install -e '.[{extra}]'" in framed


def test_a_framework_that_is_too_old_for_a_strategy_is_a_reason():
    machine = replace(CPU, packages={**PACKAGES, "accelerate": "1.14.1"})
    ddp, tp = planned("engine: accelerate\n", "[ddp, tp]", machine).values()
    assert ddp is None
    assert tp == (
        "engine accelerate with tp needs accelerate 1.15 or newer, but 1.14.1 is installed; install a newer "
        "one, or use engine: native"
    )


def test_fp16_is_scaled_by_deepspeed_alone():
    sections = "precision: fp16\nengine: accelerate\n"
    ddp, zero = planned(sections, "[ddp, {zero: {stage: 2}}]").values()
    assert "engine accelerate trains in fp16 with zero alone; use bf16 or fp32" in (ddp or "")
    assert "engine accelerate" not in (zero or "")


HOROVOD = {
    "fp16 gradients": ("precision: {reduce: fp16}", None),
    "bf16": ("precision: bf16", None),
    "bf16 gradients": (
        "precision: {reduce: bf16, master: bf16, optimizer_state: bf16}",
        "precision.reduce = bf16 with precision.master = bf16: engine horovod reduces gradients of fp32 "
        "parameters in fp32 or fp16",
    ),
    "fp16": ("precision: fp16", "engine horovod does not scale losses for fp16; use precision: bf16 or fp32"),
    "two optimizers": ("optimizer: {name: muon}", "optimizer.name = muon: engine horovod keeps what"),
}


@pytest.mark.parametrize("name", HOROVOD)
def test_horovod_is_built_where_it_is_needed_and_says_what_it_can_t_do(name):
    sections, reason = HOROVOD[name]
    (problem,) = planned(f"{sections}\nengine: horovod\n").values()
    assert problem == reason or reason in problem


def test_horovod_has_no_build_for_gpus():
    gpu = replace(CPU, device="cuda", device_memory=2**36)
    (problem,) = planned("engine: horovod\n", machine=gpu).values()
    assert problem == ("engine horovod is built for CPUs (gloo); use device: cpu, or engine: native")


def test_a_preparation_has_time_to_build_a_framework():
    native, built = (
        prepare_limit(SuiteLimits(), cases(f"engine: {name}\n")) for name in ("native", "horovod")
    )
    assert built - native == 2700
    assert prepare_limit(SuiteLimits(prepare=5), cases("engine: horovod\n")) == 5


MISTAKES = {
    "unknown": ("acelerate", "did you mean 'accelerate'?"),
    "number": ("3", "engine = 3: expected a name"),
    "an option that it has not": ("{accelerate: {steps: 3}}", "unknown"),
    "two in a mapping": ("{accelerate: {}, fabric: {}}", "expected a name, or a name with options"),
    "empty": ("[]", "expected a list of at least one value"),
    "twice": ("[native, native]", "native"),
    "a strategy": ("ddp", "Allowed: accelerate, fabric, horovod, native"),
    "a list in a list": ("[[native]]", "expected a name"),
    "a truth": ("true", "engine = true: expected a name"),
    "upper case": ("Accelerate", "did you mean 'accelerate'?"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_the_key_and_what_is_allowed(name):
    value, told = MISTAKES[name]
    with pytest.raises(SuiteError) as refused:
        cases(f"engine: {value}\n")
    assert "engine" in str(refused.value)
    assert told in str(refused.value)


def test_an_engine_is_added_by_one_file(monkeypatch):
    monkeypatch.setenv("DISTBENCH_PLUGINS", PLUGINS)
    (case,) = cases("engine: {ends: {code: 7}}\n")
    assert (case.engine.name, case.engine.options) == ("ends", {"code": 7})
    # a package that only this plug-in names is looked up where the command runs
    assert list(planned("engine: ends\n").values()) == [None]
