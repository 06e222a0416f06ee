"""``torch``: functions for a training script in plain torch, with DDP, FSDP2, FSDP1 or DeepSpeed."""

from __future__ import annotations

from distbench.adopt import (
    _fsdp,
    _lossy,
    _optimizer,
    _pipeline,
    _python,
    _tensor_parallel,
    base,
    deepspeed_json,
)
from distbench.adopt._python import lines
from distbench.adopt.base import ExportedCase, ExportedFiles
from distbench.core import lr_schedule
from distbench.strategies.dp import DataParallel
from distbench.strategies.single import Single

FILE = "adopted_torch.py"

_USE = (
    f"In train.py, with {FILE} next to it or pasted in: device = setup(); build the model; "
    "model, optimizer = prepare(model, layers, device), where layers are the modules to shard and "
    "checkpoint individually (such as list(model.layers)); then train(model, optimizer, batches, loss_of) "
    "yields one loss per update, where batches are this rank's micro-batches on its device and "
    "loss_of(model, batch) returns the mean loss of a micro-batch in fp32.",
)


def problems(measured: ExportedCase) -> list[str]:
    """Reasons why a script can't express this case."""
    name, pipeline = measured.case.workload.name, measured.pipeline
    by_plan = "the script can't split a model of transformers by the plans of its configuration"
    no_scale = "the script's pipeline does not support a loss scale"
    dynamic = "the script supports only a constant loss scale, not a dynamic one"
    sentences = {
        dynamic: measured.case.precision.is_scaled_dynamically and not measured.zero,
        by_plan: name == "huggingface" and (measured.tensor_parallelism or pipeline),
        no_scale: pipeline and measured.case.precision.loss_scale,
    }
    return base.applicable(sentences)


def write(measured: ExportedCase) -> ExportedFiles:
    """The case as a module to paste, with DeepSpeed's configuration if DeepSpeed is the engine."""
    use = _pipeline.notes(measured, FILE) if measured.pipeline else _USE
    notes = (*measured.size_notes, *use, *base.COMMON_NOTES, *base.matrix_optimizer_note(measured))
    notes = (*notes, *deepspeed_json.notes(measured), *_tensor_parallel.note(measured))
    differs = deepspeed_json.differs(measured, with_schedule=True)
    start = base.command(measured, "python", "train.py")
    launch = start if _alone(measured) else base.torchrun(measured)
    text = base.header(measured.case, launch, notes, differs) + "\n" + _script(measured)
    return ExportedFiles({FILE: text, **deepspeed_json.files(measured)}, launch, notes, tuple(differs))


def _alone(measured: ExportedCase) -> bool:
    return measured.strategy.processes(2) == 1 or isinstance(measured.strategy, Single)


def _script(measured: ExportedCase) -> str:
    case, zero = measured.case, measured.zero
    join = "deepspeed.init_distributed(dist_init_required=False)" if zero else ""
    parts = (
        _python.setup(case, alone=_alone(measured), join=join),
        _python.CAST if _python.casts(measured) else "",
        _python.kept(case),
        _python.RECOMPUTE if case.activation_checkpointing != "none" else "",
        _optimizer.rate(case.optimizer),
        "" if zero else _optimizer.joined(case.optimizer),
        *(_of_pipeline(measured) if measured.pipeline else _of_whole_model(measured)),
    )
    body = "\n\n".join(part.strip("\n") + "\n" for part in parts if part)
    return f"{_imports(measured, body)}\n\n\n{body}"


def _of_whole_model(measured: ExportedCase) -> tuple[str, ...]:
    train = _python.zero_train(measured.case) if measured.zero else _python.train(measured)
    return _tensor_parallel.functions(measured), _python.prepare(_prepare(measured)), train


def _of_pipeline(measured: ExportedCase) -> tuple[str, ...]:
    computing = lines(_computing(measured), _pipeline.joined(measured))
    functions = _tensor_parallel.functions(measured), _pipeline.functions(measured, computing)
    prepare = _pipeline.prepare(_optimizer.make(measured.case))
    return *functions, prepare, _pipeline.train(measured)


_STANDARD = {
    "fnmatch.": "import fnmatch",
    "functools.": "import functools",
    "itertools.": "import itertools",
    "math.": "import math",
    "os.environ": "import os",
    "weakref.": "import weakref",
    "nullcontext(": "from contextlib import nullcontext",
    "partial(": "from functools import partial",
}
_FOREIGN = {
    "deepspeed.": "import deepspeed",
    "torch.": "import torch",
    "dist.": "import torch.distributed as dist",
    "nn.": "from torch import nn",
    "init_device_mesh(": "from torch.distributed.device_mesh import init_device_mesh",
    "convert_to_float8_training(": _python.FLOAT8_IMPORT,
    "PipelineStage": _pipeline.IMPORTS,
    "tree_flatten(": "from torch.utils._pytree import tree_flatten, tree_unflatten",
}


def _imports(measured: ExportedCase, body: str) -> str:
    """Imports that *body* needs."""
    case = measured.case
    hooks = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"
    standard = lines(*(line for used, line in _STANDARD.items() if used in body))
    foreign = lines(
        "" if measured.zero else _optimizer.imports(measured.case.optimizer),
        *(line for used, line in _FOREIGN.items() if used in body),
        _python.recomputation_imports(case) if "recompute(" in body else "",
        hooks if measured.ddp and _python.compresses(measured) else "",
        _lossy.imports(measured.ddp) if measured.ddp else "",
        "from torch.distributed.optim import ZeroRedundancyOptimizer" if _is_sharded(measured) else "",
        "from torch.nn.parallel import DistributedDataParallel" if "DistributedDataParallel(" in body else "",
        _fsdp.imports(measured.fsdp) if measured.fsdp else "",
        _pipeline.imports(measured),
        _tensor_parallel.imports(measured),
    )
    return f"{standard}\n\n{foreign}" if standard else foreign


def _is_sharded(measured: ExportedCase) -> bool:
    """True if each rank updates only some of the parameters that all ranks have."""
    return bool(measured.ddp and measured.ddp.sharded_optimizer)


def _prepare(measured: ExportedCase) -> str:
    case = measured.case
    float8 = _python.float8(case)
    checkpoint = lines(_python.recomputation(case), _python.compiled(case))
    make = _optimizer.make(case, sharded=_is_sharded(measured))
    if measured.ddp:
        make = lines(make, _lossy.average(measured.ddp))
    if measured.zero:
        scheduled = lr_schedule.is_scheduled(case.optimizer)
        rate = "lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, rate)"
        initialize = lines(
            "model, optimizer, *_ = deepspeed.initialize(",
            f'    model=model, model_parameters=model.parameters(), config="{deepspeed_json.FILE}",',
            f"    lr_scheduler={rate}," if scheduled else "",
            ")",
        )
        return lines(float8, checkpoint, initialize)
    if measured.fsdp:
        wrap = _fsdp.wrap(measured, measured.fsdp)
        return lines(_python.cast_to_master(case), _cut(measured), float8, checkpoint, wrap, make)
    return lines(_computing(measured), _replicate(measured), make)


def _cut(measured: ExportedCase) -> str:
    """Statements that create ``mesh``, unless a pipeline has, and split the layers of ``model``."""
    if not (cut := _tensor_parallel.cut(measured)) or measured.pipeline:
        return cut
    return lines(f"mesh = {_python.device_mesh(measured)}", cut)


def _computing(measured: ExportedCase) -> str:
    """Statements that move ``model`` to the device and make its ``layers`` compute like the case."""
    case = measured.case
    to = lines(_python.cast_to_master(case, "device, "), _cut(measured), _python.float8(case))
    checkpoint = lines(_python.recomputation(case), _python.compiled(case))
    if not _python.casts(measured):
        return lines(to, checkpoint)
    compute = _python.dtype(case.precision.compute)
    return lines(to, f"for module in [*layers, model]:\n    compute_in(module, {compute})", checkpoint)


def _replicate(measured: ExportedCase) -> str:
    case = measured.case
    if isinstance(measured.strategy, DataParallel):
        return f"model = nn.DataParallel(model, device_ids=list(range({case.world_size!r})))"
    if not (ddp := measured.ddp):
        return ""
    wrapped = _python.block(f"""
        model = DistributedDataParallel(
            model,
            device_ids={"[device]" if case.device == "cuda" else None},
            bucket_cap_mb={ddp.explicit_bucket_cap_mb!r},
            gradient_as_bucket_view={ddp.gradient_as_bucket_view!r},
            static_graph={ddp.static_graph!r},
            find_unused_parameters={ddp.find_unused_parameters!r},
        )
    """)
    hook = f"model.register_comm_hook(None, default_hooks.{case.precision.reduce}_compress_hook)"
    return lines(wrapped, hook if _python.compresses(measured) else "", _lossy.register(ddp))
