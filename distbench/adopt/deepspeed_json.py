"""``deepspeed``: the file that ``deepspeed.initialize(config=...)`` takes."""

from __future__ import annotations

from distbench.adopt import _zero
from distbench.adopt.base import COMMON_NOTES, Adopted, Measured, as_json, command, torchrun
from distbench.strategies.zero import Zero


def problem(measured: Measured) -> str | None:
    """Return why DeepSpeed's configuration can't say this case, or None."""
    if not isinstance(measured.strategy, Zero):
        return (
            f"{measured.case.strategy.name} is not DeepSpeed's engine; its stage 0 (data parallelism) or 3 "
            "(full sharding) would be another case than the one that was measured"
        )
    return None


def write(measured: Measured) -> Adopted:
    """Return the case as ``ds_config.json``."""
    case = measured.case
    words = ("deepspeed", f"--num_gpus={case.world_size}", "train.py")
    launch = torchrun(case, **_zero.variables(case)) if case.device == "cpu" else command(case, *words)
    notes = (
        f"In train.py: engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), "
        f'config="{_zero.FILE}"); then for each micro-batch engine.backward(loss) and engine.step().',
        *COMMON_NOTES,
        *_zero.notes(measured),
    )
    files = {_zero.FILE: as_json(_zero.config(measured))}
    return Adopted(files, launch, notes, tuple(_zero.differs(measured)))
