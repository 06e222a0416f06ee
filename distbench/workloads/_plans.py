"""Convert plans of transformers to splits and stages, or to reasons why it can't be done. Without torch.

A plan names modules and the style of each split (``colwise``, ``rowwise``). Modules that it leaves out are
whole on every device; the embedding and the head are split by token ids in any case, as transformers splits
the head.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Iterator

from distbench.core.units import join_words
from distbench.data.base import DataShape
from distbench.workloads.layer_shapes import LayerShapes
from distbench.workloads.layouts import ModelLayout
from distbench.workloads.splits import TensorSplits
from distbench.workloads.stages import PipelineStages

COLWISE, ROWWISE, REPLICATED_WITH_GRAD_ALLREDUCE = "colwise", "rowwise", "replicated_with_grad_allreduce"
EMBEDDING_ROWWISE, COLWISE_GATHER_OUTPUT = "embedding_rowwise", "colwise_gather_output"
REPLICATE = "replicate"
_KNOWN_STYLES = (
    COLWISE,
    ROWWISE,
    REPLICATED_WITH_GRAD_ALLREDUCE,
    EMBEDDING_ROWWISE,
    COLWISE_GATHER_OUTPUT,
    REPLICATE,
)


def tensor_splits(layout: ModelLayout, shape: DataShape) -> TensorSplits:
    """Tensor-parallel split of a model with *layout*, or the reason why there is none."""
    never = layout.unsplit or "; ".join(_style_problems(layout))
    if never:
        return _unsupported_splits(never)
    columns, rows, partial = (
        _modules_of_style(layout, style) for style in (COLWISE, ROWWISE, REPLICATED_WITH_GRAD_ALLREDUCE)
    )
    (table,), (head,) = (
        _modules_of_style(layout, style) for style in (EMBEDDING_ROWWISE, COLWISE_GATHER_OUTPUT)
    )
    cut = {*columns, *rows, table, head}
    whole_modules = [owner for owner in _owners(layout) if owner not in cut and owner not in partial]
    classes, width = (layout.shape(f"{end}.weight")[place] for end, place in ((head, 0), (table, 1)))
    # the bias of a layer that is split by its inputs is added once, and so stays whole
    whole = [
        tensor
        for tensor in layout.parameters
        if _parent(tensor) in (*whole_modules, *partial)
        or (_parent(tensor) in rows and tensor.endswith(".bias"))
    ]
    return TensorSplits(
        colwise=_wildcard_names(columns),
        rowwise=_wildcard_names(rows),
        embedding=table,
        head=head,
        replicated=_wildcard_names(whole_modules),
        partial=_wildcard_names(partial),
        divisible_sizes=_divisible_sizes(layout, [*columns, *rows], table, head),
        regions=len(rows),
        layers=len(layout.layers),
        hidden_size=width,
        seq_len=shape.sample_length,
        vocab_size=classes,
        replicated_parameters=sum(math.prod(layout.parameters[name]) for name in whole),
        replicated_tensors=len(whole),
        padded_option=_option_of_size(layout, classes),
        tied=_weight_name(layout, head) == _weight_name(layout, table),
        sequence_parallel_problem=layout.sequence,
    )


def pipeline_stages(layout: ModelLayout, shape: DataShape) -> PipelineStages:
    """Pipeline split of a model with *layout*, or the reason why there is none."""
    never = layout.uncut or "; ".join(_stage_problems(layout))
    if never:
        return PipelineStages(
            layer_parameters=(),
            embedding_parameters=0,
            head_parameters=0,
            activation_shape=(),
            input_array=shape.inputs[0],
            unsupported_reason=never,
        )
    tied = {copy: plain for copy, plain in layout.tied.items() if _is_in(copy, layout.after)}
    copied = sum(math.prod(layout.parameters[plain]) for plain in tied.values())
    return PipelineStages(
        layer_parameters=tuple(_elements(layout, [layer]) for layer in layout.layers),
        embedding_parameters=_elements(layout, layout.before),
        head_parameters=_elements(layout, layout.after) + copied,
        activation_shape=layout.between,
        input_array=shape.inputs[0],
        tied_names=tied,
        tied_parameters=copied,
    )


def layer_shapes(layout: ModelLayout) -> LayerShapes:
    """Shapes of the parameters of a model with *layout*, by layer."""
    model = LayerShapes([], [[] for _ in layout.layers], [])
    numbers = {layer: number for number, layer in enumerate(layout.layers)}
    for name, shape in layout.parameters.items():
        number = next((numbers[each] for each in _owners_of(name) if each in numbers), None)
        if number is not None:
            model.layers[number].append(shape)
        else:
            (model.after if any(model.layers) else model.before).append(shape)
    return model


def _stage_problems(layout: ModelLayout) -> Iterator[str]:
    """Yield problems with parameters that no single stage of *layout* has, by its plan."""
    places = [layout.before, *((layer,) for layer in layout.layers), layout.after]
    of = {
        name: [place for place in places if _is_in(name, place)]
        for name in (*layout.parameters, *layout.tied)
    }
    if nowhere := _wildcard_names(name for name, inside in of.items() if not inside):
        yield f"its plan has no stage for {join_words(nowhere)}"
    for copy, plain in layout.tied.items():
        if of[copy] != of[plain] and not (_is_in(copy, layout.after) and _is_in(plain, layout.before)):
            yield (
                f"{copy} is tied to {plain}; in a pipeline, only a parameter after the layers can be "
                "tied to one before them, and the model must create that one first"
            )


def _style_problems(layout: ModelLayout) -> Iterator[str]:
    """Yield problems with the tensor plan of *layout* that distbench can't handle."""
    plan = {name: style for name, style in layout.tensor_plan.items() if style not in _KNOWN_STYLES}
    if plan:
        other = join_words([f"{name} ({style})" for name, style in plan.items()])
        only = f"only {join_words(_KNOWN_STYLES)}"
        yield f"distbench does not split {other} of its plan, {only}; use pp, fsdp or zero"
        return
    plain = {
        EMBEDDING_ROWWISE: layout.embeddings,
        COLWISE_GATHER_OUTPUT: layout.linear,
        COLWISE: layout.linear,
        ROWWISE: layout.linear,
    }
    for style, kind in plain.items():
        named = _modules_of_style(layout, style)
        if style in (EMBEDDING_ROWWISE, COLWISE_GATHER_OUTPUT) and len(named) != 1:
            yield f"its plan names {len(named)} modules as {style}, but must name exactly one"
        for name in _wildcard_names(each for each in named if each not in kind):
            what = "embedding whose rows are only looked up" if style == EMBEDDING_ROWWISE else "linear layer"
            yield f"{name} is {style} in its plan, but is not a plain {what}"
    for name in _wildcard_names(_unmentioned_modules(layout)):
        yield f"its plan does not say how to split {name}, or that it is {REPLICATE}"


def _unmentioned_modules(layout: ModelLayout) -> Iterator[str]:
    """Yield modules that the plan omits, except norms and embeddings that are not beside its splits."""
    named = {name for style in _KNOWN_STYLES for name in _modules_of_style(layout, style)}
    beside = {_parent(name) for name in _modules_of_style(layout, COLWISE)}
    for owner in _owners(layout):
        own = [shape for name, shape in layout.parameters.items() if _parent(name) == owner]
        is_whole = owner in layout.embeddings or all(len(shape) == 1 for shape in own)
        if not owner:
            # a parameter of the model itself, which no style can replace
            yield join_words([name for name in layout.parameters if not _parent(name)])
        elif owner not in named and (not is_whole or _is_in(owner, beside)):
            yield owner


def _unsupported_splits(reason: str) -> TensorSplits:
    nothing: dict[str, int] = {}
    return TensorSplits(
        colwise=(), rowwise=(), embedding="", head="", replicated=(), divisible_sizes=nothing,
        regions=0, layers=0, hidden_size=0, seq_len=0, vocab_size=0,
        replicated_parameters=0, replicated_tensors=0, unsupported_reason=reason,
    )  # fmt: skip


def _divisible_sizes(layout: ModelLayout, cut: Iterable[str], embedding: str, head: str) -> dict[str, int]:
    """Sizes that the number of devices must divide, by option, or by layer if no option sets it."""
    counts = dict(layout.sizes)
    rows = _modules_of_style(layout, ROWWISE)
    for name in cut:
        size = layout.shape(f"{name}.weight")[1 if name in rows else 0]
        option = _option_of_size(layout, size)
        # a divisor of the heads divides a layer that has the same size for each head
        if option or all(size % heads for heads in layout.sizes.values()):
            counts[option or f"the size of {_wildcard_name(name)}"] = size
    for end in (embedding, head):
        size = layout.shape(f"{end}.weight")[0]
        counts[_option_of_size(layout, size) or f"the size of {end}"] = size
    return counts


def _weight_name(layout: ModelLayout, module: str) -> str:
    """First name of the weight of *module*."""
    return layout.tied.get(f"{module}.weight", f"{module}.weight")


def _option_of_size(layout: ModelLayout, size: int) -> str:
    """The option that sets *size*; empty: none is known."""
    return next((option for option, known in layout.options.items() if known == size), "")


def _modules_of_style(layout: ModelLayout, style: str) -> list[str]:
    """Modules of the model that its plan splits in that *style*."""
    patterns = [name for name, known in layout.tensor_plan.items() if known == style]
    return [owner for owner in _owners(layout) if any(fnmatch.fnmatchcase(owner, each) for each in patterns)]


def _owners(layout: ModelLayout) -> list[str]:
    """Modules that have parameters of their own."""
    return list(dict.fromkeys(_parent(name) for name in (*layout.parameters, *layout.tied)))


def _elements(layout: ModelLayout, modules: Iterable[str]) -> int:
    """Number of parameters inside *modules*."""
    inside = [*modules]
    return sum(math.prod(shape) for name, shape in layout.parameters.items() if _is_in(name, inside))


def _is_in(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _owners_of(name: str) -> Iterator[str]:
    """Yield the modules that *name* is in, the innermost first."""
    while name := _parent(name):
        yield name


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _wildcard_name(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _wildcard_names(names: Iterable[str]) -> tuple[str, ...]:
    """*names* with ``*`` in the place of numbers, each once."""
    return tuple(dict.fromkeys(map(_wildcard_name, names)))
