"""Predicted step time of a case on GPUs that are not at hand, from data sheets."""

from __future__ import annotations

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.prediction.case_layout import kernels_of, step_layout
from distbench.prediction.decoder import DecoderShape
from distbench.prediction.estimates import StepPrediction
from distbench.prediction.hardware import hardware_of
from distbench.prediction.step_time import predicted_step
from distbench.strategies.base import Strategy
from distbench.workloads.base import workload_of


def data_sheet_step(case: Case, machine: Machine) -> StepPrediction | str:
    """Predicted time of a step of *case* on *machine*, or the reason why data sheets do not decide it."""
    hardware = hardware_of(machine)
    if isinstance(hardware, str):
        return hardware
    decoder = decoder_of(case)
    if isinstance(decoder, str):
        return decoder
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    layout = step_layout(case, strategy)
    if isinstance(layout, str):
        return layout
    return predicted_step(decoder, layout, hardware, kernels_of(case))


def decoder_of(case: Case) -> DecoderShape | str:
    """Dimensions of the decoder of *case*, or the reason why its operators are unknown in advance."""
    workload = workload_of(case)
    shape = workload.decoder_dimensions
    if shape is None:
        return (
            workload.decoder_problem
            or f"the operators of workload {case.workload.name} are not known before it runs"
        )
    if shape.experts is not None:
        return "the time of experts depends on how evenly tokens are routed, which only a run shows"
    if shape.window is not None:
        return "attention in a sliding window has no published rate"
    return DecoderShape(
        layers=shape.depth,
        hidden=shape.dim,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        ffn=shape.ffn_dim,
        vocab=shape.vocab_size,
        gated=True,
        tied=shape.tied,
    )
