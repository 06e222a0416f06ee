"""Scripts rendered from templates, and the values that parts of several scripts need.

A template begins with every import that its script may need. A part with statements that several scripts
include, such as ``optimizer.py.j2``, is indented as in the body of a function.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench.adopt.exported_case import ExportedCase, optimizer, second_optimizer
from distbench.core import lr_schedule
from distbench.core.case import Case, OptimizerConfig
from distbench.core.dtypes import FLOAT8_ALIGNMENT, SELECTIVE_CHECKPOINT_OPS, TORCH_DTYPE_NAMES

if TYPE_CHECKING:
    import jinja2

_TEMPLATES = Path(__file__).parent / "templates"
_BLANK_LINES = re.compile(r"\n{4,}")


@dataclass(frozen=True)
class OptimizerCall:
    """Python code that constructs an optimizer."""

    import_path: str
    """Class with its package, such as ``torch.optim.AdamW``."""
    arguments: str
    """Keyword arguments, all of them explicit."""
    second: OptimizerCall | None = None
    """Optimizer of all parameters but the layers' matrices, if there is a separate one."""

    @classmethod
    def of(cls, spec: OptimizerConfig) -> OptimizerCall:
        """The call for *spec*."""
        import_path, hyperparameters, kernel = optimizer(spec)
        arguments = ", ".join(f"{key}={value!r}" for key, value in {**hyperparameters, **kernel}.items())
        second = second_optimizer(spec)
        return cls(import_path, arguments, cls.of(second) if second else None)

    @property
    def package(self) -> str:
        """Package to import; empty if that is torch."""
        module = self.import_path.rpartition(".")[0]
        return "" if module.startswith("torch.") else module


def render(template: str, context: Mapping[str, Any]) -> str:
    """Render a script: without imports that it does not use, and with at most two blank lines in a row."""
    text = _environment().get_template(template).render(context)
    return _BLANK_LINES.sub("\n\n\n", _without_unused_imports(text)).strip("\n") + "\n"


def script_context(measured: ExportedCase) -> dict[str, Any]:
    """Values for the parts of templates that several scripts include."""
    case = measured.case
    is_selective = case.activation_checkpointing == "selective"
    return {
        "case": case,
        "precision": case.precision,
        "on_gpu": case.device == "cuda",
        "accumulation": case.batch.gradient_accumulation_steps,
        "max_norm": case.optimizer.clip_grad_norm,
        "ddp": measured.ddp,
        "fsdp": measured.fsdp,
        "zero": measured.zero,
        "casts": False,
        "recomputes": case.activation_checkpointing != "none",
        "saved_operations": SELECTIVE_CHECKPOINT_OPS if is_selective else (),
        "float8_alignment": FLOAT8_ALIGNMENT,
        "mixed_precision": _mixed_precision(case),
        "optimizer": OptimizerCall.of(case.optimizer),
        "spec": case.optimizer,
        "parameters": "split_groups(model)" if measured.is_split_by_plan else "model.parameters()",
        "split_ranks": case.world_size if measured.is_split_by_plan else 0,
        "is_scheduled": lr_schedule.is_scheduled(case.optimizer),
        "schedule_text": lr_schedule.schedule_text(case.optimizer),
        "decay_start": lr_schedule.decay_start(case.optimizer),
    }


def _mixed_precision(case: Case) -> str:
    """Arguments of FSDP's mixed precision policy."""
    precision = case.precision
    compute = "None" if precision.compute == precision.master else torch_dtype(precision.compute)
    return f"param_dtype={compute}, reduce_dtype={torch_dtype(precision.reduce)}"


def torch_dtype(name: str) -> str:
    """Python code of distbench's dtype *name*."""
    return f"torch.{TORCH_DTYPE_NAMES[name]}"


def python_literal(value: Any) -> str:
    """Python code of *value*, with double quotes."""
    return 'float("inf")' if value == float("inf") else repr(value).replace("'", '"')


@functools.cache
def _environment() -> jinja2.Environment:
    # imported when a script is written: help and refusals need no templates
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"dtype": torch_dtype, "literal": python_literal}
    return environment


def _without_unused_imports(source: str) -> str:
    tree, lines = ast.parse(source), source.splitlines()
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in reversed(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [each for each in node.names if (each.asname or each.name.split(".")[0]) in used]
            lines[node.lineno - 1 : node.end_lineno] = [ast.unparse(node)] if node.names else []
    return "\n".join(lines)
