"""Findings on cases that ran out of GPU memory: what they need by formulas, and what needs less."""

import dataclasses

from distbench.analysis.wording.findings import all_findings
from distbench.core.case import Batch, PluginChoice
from distbench.core.units import format_bytes
from distbench.prediction import memory_advice, predict_memory
from distbench.record import Status
from support.records import case, failed, run_of

TINY = PluginChoice("transformer", {"preset": "tiny"})
SMALLER, FULL = "batch.micro_batch_size: 2", "activation_checkpointing: full"


def gpu_case(label="ddp", **changes):
    return case(label, device="cuda", **{"workload": TINY, "data": PluginChoice("synthetic"), **changes})


def needs(of, status=Status.OOM_GPU):
    found = all_findings(run_of(failed(of, "rank 0 in time: out of memory", status=status)))
    return [sentence for sentence in found if sentence.startswith("By formulas")]


def test_a_case_out_of_memory_has_what_it_and_smaller_ones_need():
    of = gpu_case()
    peak, advice = predict_memory(of).peak, dict(memory_advice(of, None))
    assert list(advice) == [SMALLER, FULL, f"{SMALLER} with {FULL}"]
    least = ", ".join(f"{text} needs {format_bytes(each.value)}" for text, each in advice.items())
    assert needs(of) == [
        f"By formulas a rank of {of.name} needs {format_bytes(peak.value)} for tensors; {least}."
    ]


def test_what_nothing_lowers_has_its_need_alone():
    of = gpu_case(batch=Batch(2, 1, 1), activation_checkpointing="full")
    peak = format_bytes(predict_memory(of).peak.value)
    assert needs(of) == [f"By formulas a rank of {of.name} needs {peak} for tensors."]


def test_without_a_formula_nothing_is_said():
    assert needs(gpu_case(workload=PluginChoice("mlp"), data=PluginChoice("digits"))) == []
    # of another version, or of plug-ins that are not here
    assert needs(gpu_case(workload=PluginChoice("transformer", {"gone": 1}))) == []
    assert needs(dataclasses.replace(gpu_case(), strategy=PluginChoice("theirs"))) == []


def test_other_failures_have_no_need():
    assert needs(gpu_case(), Status.CRASHED) == []
    assert needs(gpu_case(), Status.OOM_HOST) == []
