"""What a record keeps of its GPUs, through a fake of NVML, and what a report says of their power limits."""

from dataclasses import replace
from typing import Any

from distbench.analysis.wording.findings import all_findings
from distbench.metrics.telemetry.fake_nvml import FakeGpu, FakeNvml
from distbench.system.gpu_limits import gpu_facts
from support.records import case, measured, run_of

CUDA = case("ddp", device="cuda")


def test_limits_clocks_and_errors_are_in_units_of_their_own():
    (state,) = gpu_facts(FakeNvml(FakeGpu(power_limit_mw=350_000, uncorrected_errors=2)))["gpu_states"]
    assert state == {
        "power_limit_w": 350,
        "power_limit_default_w": 700,
        "sm_clock_most_hz": 1.98e9,
        "memory_clock_most_hz": 2.619e9,
        "has_ecc": True,
        "corrected_errors": 0,
        "uncorrected_errors": 2,
        "is_persistent": True,
        "pcie_lanes": 16,
    }


def test_what_a_gpu_does_not_say_is_absent_in_the_words_of_the_driver():
    (state,) = gpu_facts(FakeNvml(FakeGpu(power_limit_mw=None, ecc=None)))["gpu_states"]
    assert state["absent"] == dict.fromkeys(("power_limit_w", "has_ecc"), "NVML: Not Supported")
    assert state["power_limit_default_w"] == 700
    assert gpu_facts(FakeNvml(init_error="Driver Not Loaded")) == {}


def test_pairs_of_gpus_are_linked_by_nvlink_or_by_what_their_way_crosses():
    near, far, linked = FakeGpu(path=10), FakeGpu(path=50), FakeGpu(links=[True, True])
    links = gpu_facts(FakeNvml(near, FakeGpu(path=10), far, linked, linked))["gpu_links"]
    assert (links["0-1"], links["0-2"], links["3-4"]) == ("PCIe (PIX)", "PCIe (SYS)", "NVLink")
    assert links["0-3"].startswith("PCIe")
    assert len(links) == 10


def told(facts: dict[str, Any], of: Any = CUDA) -> list[str]:
    record = replace(measured(of), environment=facts)
    return [text for text in all_findings(run_of(record)) if "power limit" in text]


def test_a_power_limit_below_its_default_is_named_and_no_other():
    lowered = gpu_facts(FakeNvml(FakeGpu(), FakeGpu(power_limit_mw=500_000), FakeGpu(power_limit_mw=500_000)))
    (sentence,) = told(lowered)
    assert sentence.startswith("GPU 1, 2: the power limit is 500 W, below the default of 700 W")
    assert told(gpu_facts(FakeNvml(FakeGpu()))) == []
    assert told(lowered, case("ddp")) == [], "ranks on CPUs use no GPU"
    assert (
        told({"gpu_states": ["a foreign record", {"power_limit_w": "500", "power_limit_default_w": None}]})
        == []
    )
