"""Plans of transformers turned into splits and stages, or into the reason why they can't be. Without torch.

A plan names modules and says how each is cut (``colwise``, ``rowwise``). What it leaves out is whole on every
device; the embedding and the head are cut by token ids in any case, as transformers cuts the head.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Iterator

from distbench.core.units import list_text
from distbench.data.base import Shape
from distbench.workloads._layouts import Layout
from distbench.workloads.splits import Splits
from distbench.workloads.stages import Stages

COLUMNS, ROWS, PARTIAL = "colwise", "rowwise", "replicated_with_grad_allreduce"
TABLE, HEAD = "embedding_rowwise", "colwise_gather_output"
WHOLE = "replicate"
_KNOWN = (COLUMNS, ROWS, PARTIAL, TABLE, HEAD, WHOLE)


def splits(layout: Layout, shape: Shape) -> Splits:
    """What tensor parallelism cuts of a model of *layout*, or why it can cut nothing."""
    never = layout.unsplit or "; ".join(_misfits(layout))
    if never:
        return _unsplit(never)
    columns, rows, partial = (_named(layout, style) for style in (COLUMNS, ROWS, PARTIAL))
    (table,), (head,) = (_named(layout, style) for style in (TABLE, HEAD))
    cut = {*columns, *rows, table, head}
    whole_modules = [owner for owner in _owners(layout) if owner not in cut and owner not in partial]
    classes, width = (layout.shape(f"{end}.weight")[place] for end, place in ((head, 0), (table, 1)))
    # the bias of a layer that is cut by its inputs is added once, and so whole
    whole = [
        tensor
        for tensor in layout.parameters
        if _parent(tensor) in (*whole_modules, *partial)
        or (_parent(tensor) in rows and tensor.endswith(".bias"))
    ]
    return Splits(
        columns=_starred(columns),
        rows=_starred(rows),
        table=table,
        head=head,
        whole=_starred(whole_modules),
        partial=_starred(partial),
        counts=_counts(layout, [*columns, *rows], table, head),
        regions=len(rows),
        layers=len(layout.layers),
        width=width,
        positions=shape.length,
        classes=classes,
        whole_parameters=sum(math.prod(layout.parameters[name]) for name in whole),
        whole_tensors=len(whole),
        padded=_option(layout, classes),
        tied=_first(layout, head) == _first(layout, table),
        sequence=layout.sequence,
    )


def stages(layout: Layout, shape: Shape) -> Stages:
    """What pipeline parallelism cuts of a model of *layout*, or why it can cut nothing."""
    never = layout.uncut or "; ".join(_strays(layout))
    if never:
        return Stages(layers=(), before=0, after=0, between=(), input=shape.inputs[0], never=never)
    tied = {copy: plain for copy, plain in layout.tied.items() if _is_in(copy, layout.after)}
    copied = sum(math.prod(layout.parameters[plain]) for plain in tied.values())
    return Stages(
        layers=tuple(_elements(layout, [layer]) for layer in layout.layers),
        before=_elements(layout, layout.before),
        after=_elements(layout, layout.after) + copied,
        between=layout.between,
        input=shape.inputs[0],
        tied=tied,
        tied_parameters=copied,
    )


def _strays(layout: Layout) -> Iterator[str]:
    """Parameters that no single stage of *layout* has, by its plan."""
    places = [layout.before, *((layer,) for layer in layout.layers), layout.after]
    of = {
        name: [place for place in places if _is_in(name, place)]
        for name in (*layout.parameters, *layout.tied)
    }
    if nowhere := _starred(name for name, inside in of.items() if not inside):
        yield f"its plan has no stage for {list_text(nowhere)}"
    for copy, plain in layout.tied.items():
        if of[copy] != of[plain] and not (_is_in(copy, layout.after) and _is_in(plain, layout.before)):
            yield (
                f"{copy} is tied to {plain}; in stages only a parameter after the layers may be tied, to one "
                "before them, which the model has to make first"
            )


def _misfits(layout: Layout) -> Iterator[str]:
    """What of the plan of *layout* distbench can't do."""
    plan = {name: style for name, style in layout.tensor_plan.items() if style not in _KNOWN}
    if plan:
        other = list_text([f"{name} ({style})" for name, style in plan.items()])
        only = f"only what is {list_text(_KNOWN)}"
        yield f"distbench does not split {other} of its plan, {only}; use pp, fsdp or zero"
        return
    plain = {TABLE: layout.embeddings, HEAD: layout.linear, COLUMNS: layout.linear, ROWS: layout.linear}
    for style, kind in plain.items():
        named = _named(layout, style)
        if style in (TABLE, HEAD) and len(named) != 1:
            yield f"its plan names {len(named)} modules as {style}, where there must be one"
        for name in _starred(each for each in named if each not in kind):
            what = "embedding, each of whose rows is only looked up" if style == TABLE else "linear layer"
            yield f"{name} is {style} in its plan, and no plain {what}"
    for name in _starred(_unknown(layout)):
        yield f"its plan does not say how {name} is split, or that it is {WHOLE}"


def _unknown(layout: Layout) -> Iterator[str]:
    """Modules that the plan leaves out, and that are no norms or embeddings away from what it splits."""
    named = {name for style in _KNOWN for name in _named(layout, style)}
    beside = {_parent(name) for name in _named(layout, COLUMNS)}
    for owner in _owners(layout):
        own = [shape for name, shape in layout.parameters.items() if _parent(name) == owner]
        is_whole = owner in layout.embeddings or all(len(shape) == 1 for shape in own)
        if not owner:
            # a parameter of the model itself, which no style can replace
            yield list_text([name for name in layout.parameters if not _parent(name)])
        elif owner not in named and (not is_whole or _is_in(owner, beside)):
            yield owner


def _unsplit(never: str) -> Splits:
    nothing: dict[str, int] = {}
    return Splits(
        columns=(), rows=(), table="", head="", whole=(), counts=nothing, regions=0, layers=0,
        width=0, positions=0, classes=0, whole_parameters=0, whole_tensors=0, never=never,
    )  # fmt: skip


def _counts(layout: Layout, cut: Iterable[str], table: str, head: str) -> dict[str, int]:
    """What a number of devices has to divide, by the names of options, and of layers that no option sets."""
    counts = dict(layout.sizes)
    rows = _named(layout, ROWS)
    for name in cut:
        size = layout.shape(f"{name}.weight")[1 if name in rows else 0]
        option = _option(layout, size)
        # what divides the heads divides a layer that has some numbers for each
        if option or all(size % heads for heads in layout.sizes.values()):
            counts[option or f"the size of {_stars(name)}"] = size
    for end in (table, head):
        size = layout.shape(f"{end}.weight")[0]
        counts[_option(layout, size) or f"the size of {end}"] = size
    return counts


def _first(layout: Layout, module: str) -> str:
    """First name of the weight of *module*."""
    return layout.tied.get(f"{module}.weight", f"{module}.weight")


def _option(layout: Layout, size: int) -> str:
    """The option that sets *size*; empty: none is known."""
    return next((option for option, known in layout.options.items() if known == size), "")


def _named(layout: Layout, style: str) -> list[str]:
    """Modules of the model that its plan cuts in that *style*."""
    patterns = [name for name, known in layout.tensor_plan.items() if known == style]
    return [owner for owner in _owners(layout) if any(fnmatch.fnmatchcase(owner, each) for each in patterns)]


def _owners(layout: Layout) -> list[str]:
    """Modules that have parameters of their own."""
    return list(dict.fromkeys(_parent(name) for name in (*layout.parameters, *layout.tied)))


def _elements(layout: Layout, modules: Iterable[str]) -> int:
    """Parameters inside *modules*."""
    inside = [*modules]
    return sum(math.prod(shape) for name, shape in layout.parameters.items() if _is_in(name, inside))


def _is_in(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _stars(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _starred(names: Iterable[str]) -> tuple[str, ...]:
    """*names* with ``*`` in the place of numbers, each once."""
    return tuple(dict.fromkeys(map(_stars, names)))
