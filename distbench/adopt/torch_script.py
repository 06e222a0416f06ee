"""``torch``: functions for a training script in plain torch, with DDP, FSDP2, FSDP1 or DeepSpeed."""

from __future__ import annotations

from distbench.adopt import _fsdp, _python, base, deepspeed_json
from distbench.adopt._python import lines
from distbench.adopt.base import Adopted, Measured
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.dp import DataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.single import Single
from distbench.strategies.zero import Zero

STRATEGIES = (Single, DataParallel, DistributedDataParallel, FullyShardedDataParallel, Zero)
FILE = "adopted_torch.py"

_NOTES = (
    f"In train.py, with {FILE} next to it or pasted in: device = setup(); build the model; "
    "model, optimizer = prepare(model, layers, device), where layers are the modules to shard and "
    "checkpoint individually (such as list(model.layers)); then train(model, optimizer, batches, loss_of) "
    "yields one loss per update, where batches are this rank's micro-batches on its device and "
    "loss_of(model, batch) returns the mean loss of a micro-batch in fp32.",
    *base.COMMON_NOTES,
)


def problem(measured: Measured) -> str | None:  # noqa: ARG001 - the same call as in the others
    """None: plain torch can express every case."""
    return None


def write(measured: Measured) -> Adopted:
    """The case as a module to paste, with DeepSpeed's configuration if DeepSpeed is the engine."""
    case, strategy = measured.case, measured.strategy
    notes, differs, files = list(_NOTES), [], {}
    launch = base.torchrun(case)
    if isinstance(strategy, Zero):
        launch = base.torchrun(case, **deepspeed_json.variables(case))
        notes += deepspeed_json.notes(measured)
        differs = deepspeed_json.differs(measured)
        files = {deepspeed_json.FILE: base.as_json(deepspeed_json.config(measured))}
    elif _alone(measured):
        launch = base.command(case, "python", "train.py")
    text = base.commented(base.header(case, launch, notes, differs)) + "\n" + _script(measured)
    return Adopted({FILE: text, **files}, launch, tuple(notes), tuple(differs))


def _alone(measured: Measured) -> bool:
    return measured.strategy.processes(2) == 1 or isinstance(measured.strategy, Single)


def _script(measured: Measured) -> str:
    case = measured.case
    is_zero = isinstance(measured.strategy, Zero)
    casts = _python.casts(measured) and not is_zero
    wraps = casts or case.activation_checkpointing == "full"
    join = "deepspeed.init_distributed(dist_init_required=False)" if is_zero else ""
    parts = (
        _python.setup(case, alone=_alone(measured), join=join),
        _python.CAST if casts else "",
        _python.WRAP_LAYERS if wraps else "",
        _python.prepare(_prepare(measured)),
        _python.zero_train(case) if is_zero else _python.train(measured),
    )
    body = "\n\n".join(part.strip("\n") + "\n" for part in parts if part)
    return f"{_imports(measured, wraps, body)}\n\n\n{body}"


_STANDARD = {
    "itertools.": "import itertools",
    "os.environ": "import os",
    "nullcontext(": "from contextlib import nullcontext",
}
_FOREIGN = {
    "deepspeed.": "import deepspeed",
    "torch.": "import torch",
    "dist.": "import torch.distributed as dist",
    "nn.": "from torch import nn",
}


def _imports(measured: Measured, wraps: bool, body: str) -> str:
    """Imports that *body* needs."""
    standard = lines(*(line for used, line in _STANDARD.items() if used in body))
    foreign = lines(
        *(line for used, line in _FOREIGN.items() if used in body),
        _python.checkpoint_imports(measured.case, wraps),
        _wrapper_imports(measured),
    )
    return f"{standard}\n\n{foreign}" if standard else foreign


def _wrapper_imports(measured: Measured) -> str:
    case, strategy = measured.case, measured.strategy
    match strategy:
        case DistributedDataParallel():
            hook = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"
            return lines(
                hook if case.precision.reduce != case.precision.master else "",
                "from torch.nn.parallel import DistributedDataParallel",
            )
        case FullyShardedDataParallel():
            return _fsdp.imports(strategy)
    return ""


def _prepare(measured: Measured) -> str:
    case, strategy = measured.case, measured.strategy
    checkpoint = _python.CHECKPOINT if case.activation_checkpointing == "full" else ""
    make = _python.make_optimizer(case)
    if isinstance(strategy, Zero):
        initialize = _python.block(f"""
            model, optimizer, *_ = deepspeed.initialize(
                model=model, model_parameters=model.parameters(), config="{deepspeed_json.FILE}"
            )
        """)
        return lines(checkpoint, initialize)
    dtype = _python.dtype(case.precision.master)
    if isinstance(strategy, FullyShardedDataParallel):
        to = f"model = model.to({dtype})  # the master weights"
        return lines(to, checkpoint, _fsdp.wrap(case, strategy), make)
    to = f"model = model.to(device, {dtype})  # the master weights"
    if not _python.casts(measured):
        return lines(to, checkpoint, _replicate(measured), make)
    compute = _python.dtype(case.precision.compute)
    layers = f"layers = wrap_layers(model, layers, lambda layer: Cast(layer, {compute}))"
    return lines(
        to, layers, f"cast = Cast(model, {compute})", checkpoint, "model = cast", _replicate(measured), make
    )


def _replicate(measured: Measured) -> str:
    case, strategy = measured.case, measured.strategy
    match strategy:
        case DataParallel():
            return f"model = nn.DataParallel(model, device_ids=list(range({case.world_size})))"
        case DistributedDataParallel():
            wrapped = _python.block(f"""
                model = DistributedDataParallel(
                    model,
                    device_ids={"[device]" if case.device == "cuda" else None},
                    bucket_cap_mb={strategy.bucket_cap_mb!r},
                    gradient_as_bucket_view={strategy.gradient_as_bucket_view},
                    static_graph={strategy.static_graph},
                )
            """)
            reduce = case.precision.reduce
            hook = f"model.register_comm_hook(None, default_hooks.{reduce}_compress_hook)"
            return lines(wrapped, hook if reduce != case.precision.master else "")
    return ""
