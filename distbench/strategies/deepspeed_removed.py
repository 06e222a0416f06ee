"""``deepspeed_removed``: techniques that DeepSpeed no longer has; planned with the reason, never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distbench.core.case import Case
from distbench.core.machine import Machine, parse_release
from distbench.strategies._deepspeed.releases import (
    FIRST_WITHOUT_ONEBIT,
    LAST_WITH_ONEBIT,
    REMOVAL_ISSUE,
)
from distbench.strategies.base import RankContext, Strategy, UnsupportedCase
from distbench.strategies.engine import Engine

_REQUIREMENTS = {
    # from the source of DeepSpeed 0.19.6
    "sparse_attention": 'CUDA, triton 1.0.0 and an old torch ("requires a torch version >= 1.5 and < 2.0")',
}
_OLDER_RELEASE_TEXT = f" in an environment with DeepSpeed up to {LAST_WITH_ONEBIT}"
_ONEBIT_ALTERNATIVE = f"; use onebit: {{{{algorithm: {{}}}}}}{_OLDER_RELEASE_TEXT}"
_ALTERNATIVES = {
    "onebit_adam": _ONEBIT_ALTERNATIVE.format("adam"),
    "zero_one_adam": _ONEBIT_ALTERNATIVE.format("zero_one_adam"),
    "onebit_lamb": _ONEBIT_ALTERNATIVE.format("lamb"),
    "sparse_attention": "; workload: {transformer: {attention: sliding_window}} also skips part of attention",
    "mics": f"; use zero: {{mics_shard_size: 2}}{_OLDER_RELEASE_TEXT}, or fsdp: {{sharding: hybrid}}, "
    "which also shards inside groups and replicates across them",
}


@dataclass(frozen=True)
class RemovedFromDeepSpeed(Strategy):
    """Techniques that DeepSpeed removed in 0.19.7: each is planned as unsupported, with what runs it where an
    older DeepSpeed is installed."""

    engine_class = "DeepSpeedEngine"
    packages = ("torch", "deepspeed")

    technique: Literal["onebit_adam", "zero_one_adam", "onebit_lamb", "sparse_attention", "mics"] = "mics"
    """onebit_adam, zero_one_adam, onebit_lamb: optimizers that reduce momentum with one bit per element
    (arXiv:2102.02888, 2202.06009, 2104.06069), a different training by design. sparse_attention: attention
    within blocks. mics: ZeRO-3 inside groups of ranks, with replicas across them (arXiv:2205.00119)."""

    @property
    def label(self) -> str:
        return self.technique.replace("_", "-")

    def problem(self, case: Case, machine: Machine) -> str:
        version, instead = machine.packages.get("deepspeed"), _ALTERNATIVES[self.technique]
        if version is None or parse_release(version) >= FIRST_WITHOUT_ONEBIT:
            what = f"DeepSpeed {version} does not have it; " if version else ""
            return (
                f"{self.technique}: {what}{LAST_WITH_ONEBIT} was the last version of DeepSpeed that had it "
                f"({REMOVAL_ISSUE}){instead}"
            )
        # which is this one
        instead = instead.replace(_OLDER_RELEASE_TEXT, "")
        has = f"{self.technique}: this DeepSpeed ({version}) still supports it"
        if needs := _REQUIREMENTS.get(self.technique):
            has += f", and it needs {needs}; distbench does not support it"
        return has + instead

    def build(self, context: RankContext) -> Engine:
        raise UnsupportedCase(f"{self.technique}: distbench does not support it")
