"""``deepspeed_removed``: what DeepSpeed could do once; planned with the reason, and never run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from distbench.case import Case
from distbench.env import Machine
from distbench.strategies.base import Engine, Refused, Setting, Strategy

_REMOVED_IN = (0, 19, 7)
_LAST = "0.19.6"
_ISSUE = "https://github.com/deepspeedai/DeepSpeed/issues/8489"
_COMPRESSED = "GPUs, as its compressed all-reduce is written for NCCL or MPI with cupy, not for gloo"
# by the sources of DeepSpeed 0.19.6
_NEEDS = {
    "onebit_adam": _COMPRESSED,
    "zero_one_adam": _COMPRESSED,
    "onebit_lamb": _COMPRESSED,
    "sparse_attention": "CUDA, triton 1.0.0 and a torch before 2.0",
    "mics": "a model built under deepspeed.zero.MiCS_Init",
}
_INSTEAD = {
    "sparse_attention": "; workload: {transformer: {attention: sliding_window}} leaves out attention as well",
    "mics": "; fsdp: {sharding: hybrid} shards inside groups and keeps copies across them as well",
}


@dataclass(frozen=True)
class RemovedFromDeepSpeed(Strategy):
    """Techniques that DeepSpeed removed in 0.19.7: each is planned with the reason, and none is run."""

    engine = "DeepSpeedEngine"
    packages = ("torch", "deepspeed")

    technique: Literal["onebit_adam", "zero_one_adam", "onebit_lamb", "sparse_attention", "mics"] = "mics"
    """onebit_adam, zero_one_adam, onebit_lamb: optimizers that reduce momentum in one bit a number
    (arXiv:2102.02888, 2202.06009, 2104.06069), another training by design. sparse_attention: attention within
    blocks. mics: ZeRO-3 inside groups of ranks, with copies across them (arXiv:2205.00119)."""

    @property
    def label(self) -> str:
        return self.technique.replace("_", "-")

    def problem(self, case: Case, machine: Machine) -> str:
        version, instead = machine.packages["deepspeed"], _INSTEAD.get(self.technique, "")
        if _release(version) >= _REMOVED_IN:
            return (
                f"{self.technique}: DeepSpeed {version} does not have it; {_LAST} was the last version that "
                f"had ({_ISSUE}){instead}"
            )
        return (
            f"{self.technique}: DeepSpeed {version} still has it, and it needs {_NEEDS[self.technique]}; "
            f"distbench has never run it, and has no engine for it{instead}"
        )

    def build(self, setting: Setting) -> Engine:
        raise Refused(f"{self.technique}: there is no engine for it")


def _release(version: str) -> tuple[int, ...]:
    """First three numbers of *version*: (0, 19, 8) of ``0.19.8+cpu``."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
