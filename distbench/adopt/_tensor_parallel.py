"""Script lines that cut layers over ranks which share rows, by torch's parallel styles."""

from __future__ import annotations

from distbench import registry
from distbench.adopt._python import block, lines
from distbench.adopt.base import Measured
from distbench.workloads.splits import Splits

NOTE = (
    "The plan in split() names the modules of the measured model: put in those of yours, to be cut alike. "
    "Neighbouring ranks share rows, {ranks} by {ranks}: rank // {ranks} says which micro-batches a rank gets."
)
_WHOLE = '''
class Whole(ParallelStyle):
    """A module that every rank runs whole; its parameters are DTensors, as those of all others."""

    def _apply(self, module, device_mesh):
        def enter(_, inputs, mesh):
            return tuple(DTensor.from_local(x, mesh, (Replicate(),), run_check=False) for x in inputs)

        def leave(_, output, mesh):
            return output.to_local()

        return distribute_module(module, device_mesh, input_fn=enter, output_fn=leave)
'''
_SPLIT = '''
def split(model, mesh):
    """Cut *model* over *mesh*, whose ranks share rows."""
    between = {between}  # what is between the layers

    def entered(name):
        """Make the first input of a module whole once for all layers inside."""
        inputs = inspect.signature(model.get_submodule(name).forward).parameters
        others = (None,) * (len(inputs) - 1)
        return PrepareModuleInput(
            input_layouts=(between, *others), desired_input_layouts=(Replicate(), *others)
        )

    plan = {{
        {plan}
    }}
    named = {{}}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        named.setdefault(id(parameter), []).append(name)
    parallelize_module(model, mesh, plan)
    for first, *tied in named.values():  # which that unties
        for name in tied:
            owner, _, leaf = name.rpartition(".")
            model.get_submodule(owner).register_parameter(leaf, model.get_parameter(first))
'''
_PLACE = '''
def place_gradients(model):
    """Bring each gradient into the placement of its parameter: norms have partial sums, the embedding all."""
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is not None and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
'''


def splits_of(measured: Measured) -> Splits | None:
    """How the measured model is cut; None: its workload is a plug-in, or cuts nothing."""
    workload = measured.case.workload
    if not measured.split or workload.name not in registry.built_in("workloads"):
        return None
    splits: Splits | None = registry.make("workloads", workload).splits()
    return splits


def note(measured: Measured) -> list[str]:
    """What to know of the plan and of the rows; nothing where no layer is cut."""
    ranks = measured.case.world_size // measured.data_ranks
    return [NOTE.format(ranks=ranks)] if measured.split else []


def imports(measured: Measured) -> str:
    """Imports for ``functions`` and ``cut``."""
    if not (strategy := measured.split):
        return ""
    sequence = strategy.sequence_parallel
    placements = ["Replicate", "Shard"] if sequence or strategy.loss_parallel else ["Replicate"]
    styles = ["ColwiseParallel", "PrepareModuleInput", "RowwiseParallel"]
    styles += ["SequenceParallel"] if sequence else []
    styles += ["loss_parallel"] if strategy.loss_parallel else []
    tensors = placements if sequence else ["DTensor", *placements, "distribute_module"]
    return lines(
        "from torch.distributed.device_mesh import init_device_mesh" if not measured.fsdp else "",
        f"from torch.distributed.tensor import {', '.join(tensors)}",
        f"from torch.distributed.tensor.parallel import {', '.join([*styles, 'parallelize_module'])}",
        "" if sequence else "from torch.distributed.tensor.parallel.style import ParallelStyle",
    )


def functions(measured: Measured) -> str:
    """``split`` and ``place_gradients``; empty where no layer is cut."""
    splits, strategy = splits_of(measured), measured.split
    if not splits or not strategy:
        return ""
    sequence, loss = strategy.sequence_parallel, strategy.loss_parallel
    whole = "SequenceParallel()" if sequence else "Whole()"
    logits = "Shard(-1), use_local_output=False" if loss else "Replicate()"
    styles = {
        splits.table: "RowwiseParallel(input_layouts=Replicate(), output_layouts=between)",
        splits.head: f"ColwiseParallel(input_layouts=between, output_layouts={logits})",
        **dict.fromkeys(splits.columns, "ColwiseParallel()"),
        **dict.fromkeys(splits.rows, "RowwiseParallel(output_layouts=between)"),
        **dict.fromkeys(splits.whole, whole),
        **{name: f'entered("{name.replace("*", "0")}")' for name in splits.entered},
    }
    plan = "\n        ".join(f'"{name}": {style},' for name, style in styles.items())
    cut = _SPLIT.format(between="Shard(1)" if sequence else "Replicate()", plan=plan)
    parts = ([] if sequence else [_WHOLE]) + [cut, _PLACE]
    return "\n\n".join(part.strip("\n") + "\n" for part in parts)


def cut(measured: Measured) -> str:
    """Statements that make the mesh and cut ``model``; empty where no layer is cut."""
    if not measured.split:
        return ""
    case = measured.case
    sizes = measured.strategy.dimensions(case.world_size)
    shape, names = (str(tuple(part)).replace("'", '"') for part in (sizes.values(), sizes))
    return block(f"""
        mesh = init_device_mesh("{case.device}", {shape}, mesh_dim_names={names})
        split(model, mesh["tp"])
    """)
