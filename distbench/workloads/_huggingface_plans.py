"""What the models of transformers say of how they are split, and the stages that are made of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from distbench.workloads._plans import HEAD, TABLE

_CHAIN = [
    (["input_ids"], ["inputs_embeds"]),
    (["hidden_states", "attention_mask"], ["hidden_states"]),
    (["hidden_states"], ["hidden_states"]),
]
"""Inputs and outputs of embedding, layers and norm in a plan of which distbench makes stages."""
_HEADS = ("num_attention_heads", "num_key_value_heads")
_OPTIONS = ("intermediate_size", "vocab_size")
_SEQUENCE = (
    "transformers makes positions and masks for the positions that a rank has, as if they were a whole row"
)


def plans(module: nn.Module) -> dict[str, Any]:
    """Fields of ``Layout`` that *module*, a causal LM, says by its configuration."""
    model: Any = module.model
    config = model.config.get_text_config()
    name = type(config).__name__
    names = {id(part): path for path, part in module.named_modules()}
    table, head = names[id(model.get_input_embeddings())], names.get(id(model.get_output_embeddings()), "")
    tensor = {f"model.{path}": style for path, style in (model.tp_plan or {}).items()}
    missing = not type(config).base_model_tp_plan and f"{name} of transformers has no base_model_tp_plan"
    return {
        "tensor_plan": {**tensor, table: TABLE, head: HEAD},
        "sizes": _sizes(config, _HEADS),
        "options": _sizes(config, _OPTIONS),
        "ends": (table, *(f"model.{path}" for path in _after(model)), head),
        "unsplit": missing or "",
        "uncut": _uncut(model),
        "sequence": _SEQUENCE,
    }


def _sizes(config: Any, options: Iterable[str]) -> dict[str, int]:
    return {option: size for option in options if isinstance(size := getattr(config, option, None), int)}


class CausalLMStage(nn.Module):
    """Some layers of a causal LM: the first of all with the embedding, the last with norm and head.

    Layers of other stages are there without parameters and give what they take, so that the model's own code
    runs, and parameters have the names that they have in the whole.
    """

    def __init__(self, model: Any, layers: range) -> None:
        super().__init__()
        base, embedding, container, norm = _parts(model)
        every = list(base.get_submodule(container))
        is_last = layers.stop == len(every)
        self._is_first = layers.start == 0
        inner = _shell(base)
        for name, child in base.named_children():
            if name not in (embedding, container, norm):
                # whoever fills one stage must not empty another's
                inner.add_module(name, copy.deepcopy(child))
        chosen = [layer if place in layers else _Absent(layer) for place, layer in enumerate(every)]
        inner.add_module(container, nn.ModuleList(chosen))
        inner.add_module(embedding, base.get_submodule(embedding) if self._is_first else None)
        inner.add_module(norm, base.get_submodule(norm) if is_last else nn.Identity())
        self.model = _shell(model)
        self.model.add_module(model.base_model_prefix, inner)
        self._runs: Callable[..., Any] = self._logits if is_last else self._between
        if not is_last:
            _without(self.model, model.get_output_embeddings())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Token ids (batch, seq), or what the layer before gives, to what the next one takes, or logits."""
        taken = "input_ids" if self._is_first else "inputs_embeds"
        out: torch.Tensor = self._runs(**{taken: x}, use_cache=False)
        return out

    def _logits(self, **inputs: Any) -> Any:
        return self.model(**inputs).logits

    def _between(self, **inputs: Any) -> Any:
        model: Any = self.model
        return model.base_model(**inputs).last_hidden_state


class _Absent(nn.Module):
    """A layer that another stage has: what a model asks of it besides running it is as in *layer*."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        own = self.__dict__
        own.update({name: value for name, value in vars(layer).items() if name not in own})

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """The hidden states, as they are."""
        return hidden_states


class _Stub(_Absent):
    """A layer that makes a tensor of its own, by which one sees where it goes."""

    taken: torch.Tensor | None = None
    given: torch.Tensor | None = None

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Hidden states that are no others."""
        self.taken, self.given = hidden_states, torch.empty_like(hidden_states)
        return self.given


def _uncut(model: Any) -> str:
    """Why no stages can be made of *model*; empty: they can."""
    config = model.config.get_text_config()
    name, plan = type(config).__name__, type(config).base_model_pp_plan
    if not plan:
        return f"{name} of transformers has no base_model_pp_plan"
    if [(list(taken), list(given)) for taken, given in plan.values()] != _CHAIN:
        return f"base_model_pp_plan of {name} is more than an embedding, layers and a norm: {', '.join(plan)}"
    if getattr(config, "output_router_logits", False):
        return "the balancing loss takes the routers of all layers (config.output_router_logits: true)"
    return _carried(model)


def _carried(model: Any) -> str:
    """What *model* does between its layers besides passing on hidden states; empty: nothing."""
    base, embedding, container, norm = _parts(model)
    probe = CausalLMStage(model, range(len(base.get_submodule(container))))
    inner: Any = probe.model.get_submodule(model.base_model_prefix)
    stubs = [_Stub(layer) for layer in base.get_submodule(container)]
    inner.add_module(container, nn.ModuleList(stubs))
    seen: dict[str, Any] = {}
    hooks = [
        inner.get_submodule(embedding).register_forward_hook(lambda _m, _i, out: seen.update(embedded=out)),
        inner.get_submodule(norm).register_forward_hook(
            lambda _m, given, out: seen.update(normed=given[0], out=out)
        ),
    ]
    try:
        # fake, so that transformers asks for no values of positions
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            ids = torch.zeros(1, 2, dtype=torch.int64, device="meta")
            last = inner(input_ids=ids, use_cache=False).last_hidden_state
    except Exception as error:
        # the model's own code, run without its layers
        return f"its layers pass on more than hidden states ({type(error).__name__}: {error})"
    finally:
        for hook in hooks:
            hook.remove()
    taken, given = [stub.taken for stub in stubs], [stub.given for stub in stubs]
    if taken[0] is not seen["embedded"]:
        return f"{type(base).__name__} changes what its embedding gives before the first layer takes it"
    if [*map(id, taken[1:])] != [*map(id, given[:-1])] or seen["normed"] is not given[-1]:
        return f"{type(base).__name__} changes hidden states between its layers"
    if last is not seen["out"]:
        return f"{type(base).__name__} changes hidden states after its norm"
    return ""


def _parts(model: Any) -> tuple[Any, str, str, str]:
    """The model without its head, and the names of its embedding, layers and norm in it."""
    embedding, layers, norm = type(model.config.get_text_config()).base_model_pp_plan
    return model.base_model, embedding, layers, norm


def _after(model: Any) -> list[str]:
    """Paths in *model* of what comes after its layers, without the head."""
    if not (plan := type(model.config.get_text_config()).base_model_pp_plan):
        return []
    return [f"{model.base_model_prefix}.{[*plan][-1]}"]


def _shell(module: Any) -> Any:
    """A copy of *module* with the same submodules, of which some may be exchanged."""
    shell = copy.copy(module)
    for own in ("_modules", "_parameters", "_buffers"):
        shell.__dict__[own] = dict(vars(module)[own])
    return shell


def _without(model: nn.Module, part: nn.Module) -> None:
    for name, child in model.named_children():
        if child is part:
            model.add_module(name, None)
