"""Script lines that run a model as a pipeline, with torch.distributed.pipelining."""

from __future__ import annotations

from textwrap import indent

from distbench.adopt import _fsdp
from distbench.adopt import _pipeline_stages as stages
from distbench.adopt._python import device_mesh, function, lines
from distbench.adopt.base import ExportedCase

NOTES = (
    "In train.py, with {file} next to it or pasted in: device = setup(); build the model; model, optimizer = "
    "prepare(model, layers, device, stage_of, loss_of); train(model, optimizer, batches) yields one loss "
    "per update. layers are those of the whole model, in order; loss_of(output, labels) returns a mean loss "
    "in fp32; batches are pairs of model input and labels, on the device, {rows}.",
    "stage_of(model, numbers) returns the module of one stage: the layers of model with these numbers, plus "
    "all before them in the first stage and all after them in the last; its input is the output of the "
    "previous stage.",
    "STAGES has the layer numbers of the measured model, TAKEN, PASSED and GIVEN the shapes of its tensors: "
    "replace them with yours.",
)
_TIED = "TIED names the tied parameters of the measured model: replace them with yours."
_IDENTICAL_DATA = "the same on all ranks"
_DEALT = "the same on all ranks of a pipeline: {number} selects one of the {several} parts of the batch"
_PIPELINE = '''
class Pipeline(nn.Module):
    """This rank's stages, and the schedule that runs them."""

    def __init__(self, model, layers, device, stage_of, loss_of):
        super().__init__()
        mesh = {mesh}
        # the ranks that have the stages of one copy of the model
        self.group = mesh.get_group("pp")
        own = [number for number, place in enumerate(PLACES) if place == self.group.rank()]
        self.takes, self.judges = 0 in own, len(STAGES) - 1 in own
        self.device, self.layers, self.parts, self.stages = device, [], nn.ModuleList(), []
{tie}        for number in own:
            bare = stage_of(model, STAGES[number])
            part, inside = computing(bare, [layers[place] for place in STAGES[number]], device, mesh)
{find}            self.parts.append(part)
            self.layers += inside
            takes = TAKEN if number == 0 else PASSED
            gives = GIVEN if number == len(STAGES) - 1 else PASSED
            self.stages.append(
                {stage}(part, number, len(STAGES), device, takes, gives, group=self.group)
            )
        self.schedule = get_schedule_class("{schedule}")(
            {stages},
            {micro_batches},
            # gradients become means over an update
            loss_fn=lambda output, labels: loss_of(output, labels) / {divisor},
            scale_grads=False,
        )

    def run(self, taken, labels{late}):
        """Run one of the batches of an update forward and backward; return its part of the loss."""
        losses = []
{ends}{run}        return sum(losses).detach() if losses else torch.zeros((), device=self.device)
'''
_RUN = """
self.schedule.step(
    *([taken] if self.takes else []),
    target=labels if self.judges else None,
    losses=losses if self.judges else None,
    return_outputs=False,
)
"""
_ENDS = """        for stage in self.stages:
            stage.ends_update = ends_update
"""
_TIE = """        # both stages have a copy, and each gets the sum of their gradients
        self.tied = []
"""
_ENDS_APART = """        lines = mesh.mesh.reshape(self.group.size(), -1).T.tolist()
        self.ends, _ = dist.new_subgroups_by_enumeration(
            [[line[PLACES[0]], line[PLACES[-1]]] for line in lines]
        )
"""
_FIND = """            if number in (0, len(STAGES) - 1):
                self.tied += [bare.get_parameter(name) for name in (TIED.values() if number == 0 else TIED)]
"""
_STAGE = '''
class Stage(PipelineStage):
    """A stage whose copies reduce their gradients once an update."""

    ends_update = False

    def backward_one_chunk(self, *inputs, last_backward=False, **options):
        super().backward_one_chunk(*inputs, last_backward=last_backward and self.ends_update, **options)
'''
_CLIP = '''
def clip(model, limit):
    """Scale the gradients of all stages down to a global L2 norm of *limit*."""
    {counted}
    norm = nn.utils.get_total_norm([p.grad for p in {parameters} if p.grad is not None]){whole}
    square = norm.double() ** 2
    dist.all_reduce(square, group=model.group)
    nn.utils.clip_grads_with_norm_(model.parameters(), limit, square.sqrt().to(norm.dtype))
'''


def notes(measured: ExportedCase, file: str) -> list[str]:
    """Instructions for *file*, and its parts that depend on the measured model."""
    several, cut = measured.data_ranks, measured.mesh.get("tp", 1)
    rank = f"rank // {cut}" if cut > 1 else "rank"
    rows = _DEALT.format(number=f"{rank} % {several}", several=several) if several > 1 else _IDENTICAL_DATA
    told = [note.format(file=file, rows=rows) for note in NOTES]
    return [*told, _TIED] if stages.has_tied_copies(measured) else told


IMPORTS = lines(
    "from torch.distributed.pipelining import PipelineStage",
    "from torch.distributed.pipelining.schedules import get_schedule_class",
)


def imports(measured: ExportedCase) -> str:
    """Imports for ``joined``."""
    is_sharded = measured.pipeline and "dp_shard" in measured.mesh
    return "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard" if is_sharded else ""


def joined(measured: ExportedCase) -> str:
    """Statements that train a stage ``model`` and its ``layers`` on several ranks of ``mesh``."""
    strategy = stages.strategy_of(measured)
    if "dp_shard" in measured.mesh:
        return _fsdp.stage(measured, again=strategy.reshard_after_forward)
    if "dp_replicate" not in measured.mesh:
        return ""
    return lines(
        "model = DistributedDataParallel(",
        "    model,",
        f"    device_ids={'[device]' if measured.case.device == 'cuda' else None},",
        '    process_group=mesh.get_group("dp_replicate"),',
        ")",
    )


def functions(measured: ExportedCase, computing: str) -> str:
    """Functions that the others need; *computing* are statements on a stage ``model`` and its ``layers``."""
    parts = (
        stages.constants(measured),
        function(
            "computing(model, layers, device, mesh)",
            "Return a stage and its layers on the device, computing as the case did.",
            lines(computing, "return model, layers"),
        ),
        _STAGE if _reduces_late(measured) else "",
        _pipeline(measured),
        "" if measured.case.optimizer.clip_grad_norm is None else _clip(measured),
    )
    return "\n\n".join(part.strip("\n") + "\n" for part in parts if part)


def prepare(optimizer: str) -> str:
    """Function that prepares a model; *optimizer* are statements that create one for ``model``."""
    made = lines(
        "model = Pipeline(model, layers, device, stage_of, loss_of)",
        "layers = model.layers" if "layers" in optimizer else "",
        optimizer,
    )
    doc = "Return this rank's stages of the model, and their optimizer."
    return function(
        "prepare(model, layers, device, stage_of, loss_of)", doc, lines(made, "return model, optimizer")
    )


def train(measured: ExportedCase) -> str:
    """The training loop."""
    number, limit = measured.case.batch.gradient_accumulation_steps, measured.case.optimizer.clip_grad_norm
    runs = "[model.run(*batch) for batch in step]"
    if _reduces_late(measured):
        runs = f"[model.run(*batch, number == {number!r}) for number, batch in enumerate(step, 1)]"
    update = lines(
        "optimizer.zero_grad(set_to_none=True)",
        f"loss = torch.stack({runs}).sum()",
        "place_gradients(model)" if measured.tensor_parallelism else "",
        _sum_of_copies(measured) if stages.has_tied_copies(measured) else "",
        "" if limit is None else f"clip(model, {limit!r})",
        "optimizer.step()",
        "dist.broadcast(loss, group=model.group, group_src=PLACES[-1])",
        "yield loss",
    )
    body = lines(
        "batches = iter(batches)",
        f"while len(step := list(itertools.islice(batches, {number!r}))) == {number!r}:",
        indent(update, "    "),
    )
    whose = "on every rank" if measured.data_ranks == 1 else "of this rank's rows"
    doc = f"Yield the mean loss per update {whose}; an update uses {number} of *batches*."
    return function("train(model, optimizer, batches)", doc, body)


def _reduces_late(measured: ExportedCase) -> bool:
    """True if DDP must not reduce before the last batch of an update."""
    copies_alone = "dp_replicate" in measured.mesh and "dp_shard" not in measured.mesh
    return copies_alone and measured.case.batch.gradient_accumulation_steps > 1


def _pipeline(measured: ExportedCase) -> str:
    strategy, batch = stages.strategy_of(measured), measured.case.batch
    step = _RUN.strip("\n")
    if measured.tensor_parallelism and measured.tensor_parallelism.loss_parallel:
        whole = "losses = [loss.full_tensor() for loss in losses]"
        step = lines("with loss_parallel():", indent(step, "    "), whole)
    return _PIPELINE.format(
        mesh=device_mesh(measured),
        stage="Stage" if _reduces_late(measured) else "PipelineStage",
        schedule=strategy.schedule,
        stages="self.stages[0]" if 1 in strategy.schedule_rules.stages_per_rank else "self.stages",
        micro_batches=strategy.micro_batches,
        divisor=strategy.micro_batches * batch.gradient_accumulation_steps,
        tie=(_TIE + ("" if stages.first_and_last_on_one_rank(measured) else _ENDS_APART))
        if stages.has_tied_copies(measured)
        else "",
        find=_FIND if stages.has_tied_copies(measured) else "",
        late=", ends_update" if _reduces_late(measured) else "",
        ends=_ENDS if _reduces_late(measured) else "",
        run=indent(step, " " * 8) + "\n",
    )


def _sum_of_copies(measured: ExportedCase) -> str:
    """Statements that give both copies of each tied weight the sum of their gradients."""
    part = ".grad.to_local()" if stages.has_dtensor_parameters(measured) else ".grad"
    if not stages.first_and_last_on_one_rank(measured):
        return lines(
            "for parameter in model.tied:", f"    dist.all_reduce(parameter{part}, group=model.ends)"
        )
    return lines(
        "for first, last in zip(model.tied[:len(TIED)], model.tied[len(TIED):]):",
        f"    first{part}.add_(last{part})",
        f"    last{part}.copy_(first{part})",
    )


def _clip(measured: ExportedCase) -> str:
    whole = ".full_tensor()" if stages.has_dtensor_parameters(measured) else ""
    if not stages.has_tied_copies(measured):
        clip = _CLIP.replace("    {counted}\n", "")
        return clip.format(parameters="model.parameters()", whole=whole)
    copies = (
        "model.tied[len(TIED):]"
        if stages.first_and_last_on_one_rank(measured)
        else "([] if model.takes else model.tied)"
    )
    counted = lines(
        "# a copy of a tied weight is counted in the first stage",
        f"    copies = {{id(parameter) for parameter in {copies}}}",
        "    counted = [p for p in model.parameters() if id(p) not in copies]",
    )
    return _CLIP.format(counted=counted, parameters="counted", whole=whole)
