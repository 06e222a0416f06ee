"""Script lines that run a model as a pipeline, by torch.distributed.pipelining."""

from __future__ import annotations

from textwrap import indent

from distbench.adopt._python import block, function, lines
from distbench.adopt.base import Measured
from distbench.strategies._pipeline import stages_of
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.pp.cuts import ranges
from distbench.workloads.stages import Stages

NOTES = (
    "In train.py, with {file} next to it or pasted in: device = setup(); build the model; model, optimizer = "
    "prepare(model, layers, device, stage_of, loss_of); train(model, optimizer, batches) yields one loss "
    "per update. layers are those of the whole model, in order; loss_of(output, labels) returns a mean loss "
    "in fp32; batches are pairs of what the model takes and of labels, on the device, equal on all ranks.",
    "stage_of(model, numbers) returns the module of one stage: the layers of model with these numbers, and "
    "in the first stage what comes before them, in the last what comes after; it takes what the one before "
    "gives.",
    "STAGES has the numbers of the measured model's layers: put in those of yours.",
)
_TIED = "TIED names parameters of the measured model that are one tensor: put in those of yours."
_PIPELINE = '''
class Pipeline(nn.Module):
    """The stages that this rank has, and the schedule that runs them."""

    def __init__(self, model, layers, device, stage_of, loss_of):
        super().__init__()
        self.device, self.layers, self.parts, stages = device, [], nn.ModuleList(), []
        own = [number for number, rank in enumerate(RANKS) if rank == dist.get_rank()]
        self.takes, self.judges = 0 in own, len(STAGES) - 1 in own
{tie}        for number in own:
            part = stage_of(model, STAGES[number])
{find}            part, inside = computing(part, [layers[place] for place in STAGES[number]], device)
            self.parts.append(part)
            self.layers += inside
            stages.append(PipelineStage(part, number, len(STAGES), device))
        self.schedule = get_schedule_class("{schedule}")(
            {stages},
            {micro_batches},
            # gradients become means over an update
            loss_fn=lambda output, labels: loss_of(output, labels) / {divisor},
            scale_grads=False,
        )

    def run(self, taken, labels):
        """Run one of the batches of an update forward and backward; return its part of the loss."""
        losses = []
        self.schedule.step(
            *([taken] if self.takes else []),
            target=labels if self.judges else None,
            losses=losses if self.judges else None,
            return_outputs=False,
        )
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=self.device)
'''
_TIE = """        # both stages have a copy, and each gets the sum of their gradients
        self.tied, self.ends = [], dist.new_group([RANKS[0], RANKS[-1]])
"""
_FIND = """            if number in (0, len(STAGES) - 1):
                self.tied += [part.get_parameter(name) for name in (TIED.values() if number == 0 else TIED)]
"""
_CLIP = '''
def clip(model, limit):
    """Scale the gradients of all stages down to a global L2 norm of *limit*."""
    {counted}
    norm = nn.utils.get_total_norm([p.grad for p in {parameters} if p.grad is not None])
    square = norm.double() ** 2
    dist.all_reduce(square)
    nn.utils.clip_grads_with_norm_(model.parameters(), limit, square.sqrt().to(norm.dtype))
'''


def notes(measured: Measured, file: str) -> list[str]:
    """How *file* is used, and what in it is of the measured model."""
    return [note.format(file=file) for note in NOTES] + ([_TIED] if _ties(measured) else [])


IMPORTS = lines(
    "from torch.distributed.pipelining import PipelineStage",
    "from torch.distributed.pipelining.schedules import get_schedule_class",
)


def functions(measured: Measured, computing: str) -> str:
    """All that the others need; *computing* are statements on a stage ``model`` and its ``layers``."""
    strategy, case = measured.pipeline, measured.case
    assert strategy is not None, "of pipelines alone"
    clips = case.optimizer.clip_grad_norm is not None
    parts = (
        _constants(measured, strategy),
        function(
            "computing(model, layers, device)",
            "Return a stage and its layers on the device, computing as the case did.",
            lines(computing, "return model, layers"),
        ),
        _pipeline(measured, strategy),
        _clip(measured) if clips else "",
    )
    return "\n\n".join(part.strip("\n") + "\n" for part in parts if part)


def prepare(optimizer: str) -> str:
    """The function that prepares a model; *optimizer* are statements that make one for ``model``."""
    made = lines(
        "model = Pipeline(model, layers, device, stage_of, loss_of)",
        "layers = model.layers" if "layers" in optimizer else "",
        optimizer,
    )
    doc = "Return this rank's stages of the model, and their optimizer."
    return function(
        "prepare(model, layers, device, stage_of, loss_of)", doc, lines(made, "return model, optimizer")
    )


def train(measured: Measured) -> str:
    """The training loop."""
    number, limit = measured.case.batch.gradient_accumulation_steps, measured.case.optimizer.clip_grad_norm
    tied = lines("for parameter in model.tied:", "    dist.all_reduce(parameter.grad, group=model.ends)")
    update = lines(
        "optimizer.zero_grad(set_to_none=True)",
        "loss = torch.stack([model.run(*batch) for batch in step]).sum()",
        tied if _ties(measured) else "",
        "" if limit is None else f"clip(model, {limit!r})",
        "optimizer.step()",
        "dist.broadcast(loss, src=RANKS[-1])",
        "yield loss",
    )
    body = lines(
        "batches = iter(batches)",
        f"while len(step := list(itertools.islice(batches, {number!r}))) == {number!r}:",
        indent(update, "    "),
    )
    doc = f"Yield the mean loss per update on every rank; an update uses {number} of *batches*."
    return function("train(model, optimizer, batches)", doc, body)


def _model(measured: Measured) -> Stages:
    model: Stages | None = stages_of(measured.case)
    assert model is not None, "what can't be cut was not trained so"
    return model


def layers_of_stages(measured: Measured, strategy: PipelineParallel) -> list[range]:
    """Numbers of the layers of each stage: as the live engine told, which may have measured them."""
    if knows_stages(measured):
        return ranges(measured.effective["layers_of_stages"])
    return strategy.layers_of_stages(_model(measured), strategy.sizes(measured.case.world_size).size("pp"))


def knows_stages(measured: Measured) -> bool:
    """Whether the record says which stage has which layers."""
    told = measured.effective.get("layers_of_stages")
    return isinstance(told, list) and all(type(count) is int for count in told)


def _ties(measured: Measured) -> bool:
    """Whether two ranks have copies of one tensor."""
    strategy = measured.pipeline
    # where one rank has both ends, both are the same tensor there
    return strategy is not None and not strategy.order.is_v and bool(_model(measured).tied)


def _constants(measured: Measured, strategy: PipelineParallel) -> str:
    ranks = measured.case.world_size
    cut = layers_of_stages(measured, strategy)
    owners = [strategy.order.owner(number, ranks) for number in range(len(cut))]
    tied = ", ".join(f'"{copy}": "{first}"' for copy, first in _model(measured).tied.items())
    return lines(
        f"STAGES = {cut!r}  # numbers of the layers of each stage",
        f"RANKS = {owners!r}  # that have them",
        f"TIED = {{{tied}}}  # in the last stage -> in the first" if _ties(measured) else "",
    )


def _pipeline(measured: Measured, strategy: PipelineParallel) -> str:
    micro_batches = strategy.micro_batches
    return _PIPELINE.format(
        schedule=strategy.schedule,
        stages="stages[0]" if 1 in strategy.order.per_rank else "stages",
        micro_batches=micro_batches,
        divisor=micro_batches * measured.case.batch.gradient_accumulation_steps,
        tie=_TIE if _ties(measured) else "",
        find=_FIND if _ties(measured) else "",
    )


def _clip(measured: Measured) -> str:
    counted = block("""
        # a copy of a tied weight is counted in the first stage
        copies = set() if model.takes else {id(parameter) for parameter in model.tied}
        counted = [p for p in model.parameters() if id(p) not in copies]
    """)
    if not _ties(measured):
        return _CLIP.replace("    {counted}\n", "").format(parameters="model.parameters()")
    return _CLIP.format(counted=indent(counted, "    ").strip(), parameters="counted")
