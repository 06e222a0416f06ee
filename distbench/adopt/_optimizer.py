"""Script lines that create an optimizer and its learning rate schedule."""

from __future__ import annotations

from textwrap import indent

from distbench.adopt import base
from distbench.adopt._python import function, lines
from distbench.core import lr_schedule
from distbench.core.case import Case, OptimizerConfig

_JOINED = '''
class Joined(torch.optim.Optimizer):
    """Several optimizers, each with its own parameters, as one."""

    def __init__(self, *parts):
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.share()

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure else None
        for part in self.parts:
            part.step()
        return loss

    def __setstate__(self, state):
        super().__setstate__(state)
        self.share()

    def share(self):
        """Give the parts the current groups and state."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state
'''


def construction(spec: OptimizerConfig) -> tuple[str, str]:
    """Class of the optimizer, and its keyword arguments, all of them explicit."""
    class_, hyperparameters, kernel = base.optimizer(spec)
    arguments = {**hyperparameters, **kernel}
    return class_, ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def imports(spec: OptimizerConfig) -> str:
    """Import of the optimizer's package; empty if that is torch."""
    module = base.optimizer(spec)[0].rpartition(".")[0]
    return "" if module.startswith("torch.") else f"import {module}"


def make(case: Case, *, sharded: bool = False) -> str:
    """Statements that create the optimizer of *case* for all parameters of ``model``, with its schedule.

    *sharded*: each rank updates a share of them, with torch's ZeroRedundancyOptimizer.
    """
    spec = case.optimizer
    if sharded:
        return lines(_made_sharded(spec), follow_schedule(spec))
    made = _made_of_two(spec) if joined(spec) else f"optimizer = {_made(spec, 'model.parameters()')}"
    return lines(made, follow_schedule(spec))


def joined(spec: OptimizerConfig) -> str:
    """Class that combines two optimizers into one; empty if *spec* names just one."""
    return "" if base.second_optimizer(spec) is spec else _JOINED


def _made(spec: OptimizerConfig, parameters: str) -> str:
    class_, arguments = construction(spec)
    return f"{class_}(\n    {parameters}, {arguments}\n)"


def _made_sharded(spec: OptimizerConfig) -> str:
    class_, arguments = construction(spec)
    return lines(
        "optimizer = ZeroRedundancyOptimizer(",
        "    model.parameters(),",
        f"    {class_},",
        "    parameters_as_bucket_view=True,",
        f"    {arguments},",
        ")",
    )


def _made_of_two(spec: OptimizerConfig) -> str:
    parts = (
        _made(spec, "[p for p in model.parameters() if id(p) in hidden]"),
        _made(base.second_optimizer(spec), "[p for p in model.parameters() if id(p) not in hidden]"),
    )
    return lines(
        "hidden = {id(p) for layer in layers for p in layer.parameters() if p.ndim == 2}  # matrices",
        "optimizer = Joined(",
        *(indent(f"{part},", "    ") for part in parts),
        ")",
    )


def rate(spec: OptimizerConfig) -> str:
    """Function for the learning rate of each update as a fraction; empty if it is constant."""
    if not lr_schedule.is_scheduled(spec):
        return ""
    warm, begin, end = spec.warmup_steps, lr_schedule.decay_start(spec), spec.total_steps or 0
    progress = f"progress = min(max((update - {begin!r}) / {max(end - begin, 1)!r}, 0.0), 1.0)"
    fallen = f"return {spec.final_lr_fraction!r} + {1 - spec.final_lr_fraction!r} * "
    after = {
        "constant": "return 1.0",
        "inverse_sqrt": f"return math.sqrt({max(warm, 1)!r} / (update + 1))",
        "linear": lines(progress, f"{fallen}(1 - progress)"),
        "wsd": lines(progress, f"{fallen}(1 - progress)"),
        "cosine": lines(progress, f"{fallen}(0.5 * (1 + math.cos(math.pi * progress)))"),
    }
    warming = f"if update < {warm!r}:\n    return (update + 1) / {warm!r}" if warm else ""
    schedule = lr_schedule.schedule_text(spec)
    doc = f"Return the fraction of the learning rate that an update has, from 0 on: {schedule}."
    return function("rate(update)", doc, lines(warming, after[spec.schedule]))


def follow_schedule(spec: OptimizerConfig) -> str:
    """Statements that make ``optimizer`` follow ``rate``; empty if its learning rate is constant."""
    if not lr_schedule.is_scheduled(spec):
        return ""
    return lines(
        "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)",
        "optimizer.register_step_post_hook(lambda *_: scheduler.step())  # after each update",
    )
