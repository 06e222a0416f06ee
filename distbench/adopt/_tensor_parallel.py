"""Script lines that split layers across ranks with torch's parallel styles."""

from __future__ import annotations

from distbench.adopt._python import lines
from distbench.adopt.base import ExportedCase
from distbench.core import registry
from distbench.workloads.splits import TensorSplits

_PLAN = "The plan in split() names the modules of the measured model: replace them with yours."
_ROWS = (
    "Groups of {ranks} neighbouring ranks process the same samples: rank // {ranks} selects a rank's "
    "micro-batches."
)
_WHOLE = '''
class Whole(ParallelStyle):
    """A module replicated on every rank; its parameters are DTensors, like all others."""

    def _apply(self, module, device_mesh):
        def enter(_, inputs, mesh):
            return tuple(DTensor.from_local(x, mesh, (Replicate(),), run_check=False) for x in inputs)

        def leave(_, output, mesh):
            return output.to_local()

        return distribute_module(module, device_mesh, input_fn=enter, output_fn=leave)
'''
_COLUMNS = '''
class Columns(ColwiseParallel):
    """Linear layers split by outputs; those with the same input replicate it, and sum its gradient, once."""

    def __init__(self, between):
        super().__init__()
        self.between, self.last = between, None

    def _apply(self, module, device_mesh):
        def enter(_, inputs):
            return (self.shared(inputs[0], device_mesh), *inputs[1:])

        module.register_forward_pre_hook(enter)
        return super()._apply(module, device_mesh)

    def shared(self, x, mesh):
        if not self.last or self.last[0]() is not x or self.last[1] != torch.is_grad_enabled():
            placed = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, (self.between,))
            whole = placed.redistribute(placements=(Replicate(),))
            self.last = weakref.ref(x, self.forget), torch.is_grad_enabled(), whole
        return self.last[2]

    def forget(self, tensor):
        if self.last and self.last[0] is tensor:
            self.last = None
'''
_SPLIT = '''
def split(model, mesh):
    """Split *model* across *mesh*, whose ranks process the same samples."""
    between = {between}  # layout of the activations between layers
    columns = Columns(between)
    plan = {{
        {plan}
    }}
{some}    named = {{}}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        named.setdefault(id(parameter), []).append(name)
    parallelize_module(model, mesh, plan)
    for first, *tied in named.values():  # parallelize_module unties them
        for name in tied:
            owner, _, leaf = name.rpartition(".")
            model.get_submodule(owner).register_parameter(leaf, model.get_parameter(first))
'''
_SOME = """    # a stage has some of them
    names = [name for name, _ in model.named_modules()]
    plan = {pattern: style for pattern, style in plan.items() if fnmatch.filter(names, pattern)}
"""
_PLACE = '''
def place_gradients(model):
    """Redistribute gradients to their parameters' placements: norms have partial sums, the embedding all."""
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is not None and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
'''


def splits_of(measured: ExportedCase) -> TensorSplits | None:
    """Tensor splits of the measured model; None: its workload is a plug-in, or no layer is split."""
    workload = measured.case.workload
    if not measured.tensor_parallelism or workload.name not in registry.built_in_plugins("workloads"):
        return None
    splits: TensorSplits | None = registry.create_plugin("workloads", workload).tensor_splits()
    return splits


def note(measured: ExportedCase) -> list[str]:
    """Notes on the plan, and outside pipelines on the samples of a rank; none if no layer is split."""
    if not (cut := measured.tensor_parallelism):
        return []
    return [_PLAN if measured.pipeline else f"{_PLAN} {_ROWS.format(ranks=cut.ranks)}"]


def imports(measured: ExportedCase) -> str:
    """Imports for ``functions`` and ``cut``."""
    if not (cut := measured.tensor_parallelism):
        return ""
    sequence = cut.sequence_parallel
    placements = ["Replicate", "Shard"] if sequence or cut.loss_parallel else ["Replicate"]
    styles = ["ColwiseParallel", "RowwiseParallel"]
    styles += ["SequenceParallel"] if sequence else []
    styles += ["loss_parallel"] if cut.loss_parallel else []
    tensors = ["DTensor", *placements] + ([] if sequence else ["distribute_module"])
    return lines(
        f"from torch.distributed.tensor import {', '.join(tensors)}",
        f"from torch.distributed.tensor.parallel import {', '.join([*styles, 'parallelize_module'])}",
        "" if sequence else "from torch.distributed.tensor.parallel.style import ParallelStyle",
    )


def functions(measured: ExportedCase) -> str:
    """``split`` and ``redistribute_gradients``; empty if no layer is split."""
    splits, cut = splits_of(measured), measured.tensor_parallelism
    if not splits or not cut:
        return ""
    whole = "SequenceParallel()" if cut.sequence_parallel else "Whole()"
    logits = "Shard(-1), use_local_output=False" if cut.loss_parallel else "Replicate()"
    styles = {
        splits.embedding: "RowwiseParallel(input_layouts=Replicate(), output_layouts=between)",
        splits.head: f"ColwiseParallel(input_layouts=between, output_layouts={logits})",
        **dict.fromkeys(splits.colwise, "columns"),
        **dict.fromkeys(splits.rowwise, "RowwiseParallel(output_layouts=between)"),
        **dict.fromkeys(splits.replicated, whole),
    }
    plan = "\n        ".join(f'"{name}": {style},' for name, style in styles.items())
    between, some = "Shard(1)" if cut.sequence_parallel else "Replicate()", _SOME if measured.pipeline else ""
    split = _SPLIT.format(between=between, plan=plan, some=some)
    parts = [_COLUMNS, "" if cut.sequence_parallel else _WHOLE, split, _PLACE]
    return "\n\n".join(part.strip("\n") + "\n" for part in parts if part)


def cut(measured: ExportedCase) -> str:
    """Statement that splits ``model`` over a dimension of ``mesh``; empty if no layer is split."""
    return 'split(model, mesh["tp"])' if measured.tensor_parallelism else ""
