"""``huggingface``: a model of transformers, for one of four tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from distbench.core.bounds import Bound, Count
from distbench.core.errors import as_yaml, did_you_mean
from distbench.data.base import INPUT_ARRAYS, POSITION_IDS, DataKind, DataShape
from distbench.workloads import _hf_source
from distbench.workloads._hf_dimensions import decoder_dimensions
from distbench.workloads._hf_files import folder_problem, stored_configuration
from distbench.workloads._planned_workload import PlannedWorkload
from distbench.workloads.base import at_least_fp32, cross_entropy, model_output, takes_keyword
from distbench.workloads.batch_norm import Statistics, convert_batch_norm, device_problem
from distbench.workloads.splits import TensorSplits
from distbench.workloads.stages import PipelineStages

if TYPE_CHECKING:
    import torch
    from torch import nn

    from distbench.core.machine import Machine
    from distbench.workloads._dimensions import Dimensions
    from distbench.workloads._stage import PipelineCut

Task = Literal["causal-lm", "masked-lm", "seq2seq", "image-classification"]

_KINDS: dict[Task, DataKind] = {
    "causal-lm": "tokens",
    "masked-lm": "masked_tokens",
    "seq2seq": "pairs",
    "image-classification": "images",
}
# options of tokens and of images -> the key of configurations with the same meaning, and the default
_TOKEN_SIZES = {"vocab_size": ("vocab_size", 256)}
_IMAGE_SIZES = {
    "image_size": ("image_size", 32),
    "channels": ("num_channels", 3),
    "classes": ("num_labels", 10),
}
_DEFAULT_TARGET_LENGTH = 128


@dataclass(frozen=True)
class HuggingFace(PlannedWorkload):
    """A model of transformers from its configuration, with random weights or those in a local folder.

    Nothing is downloaded. Dropout of every kind is off unless a key of config turns it on: each strategy
    would drop something else. Parameters and FLOPs have no formula here; the ranks count both.
    """

    imports = ("transformers",)
    packages = ("transformers",)

    model_type: str | None = None
    """The name transformers has for the architecture: llama, gpt2, qwen2, ...; null: that of the
    configuration in a file or folder."""
    vocab_size: Count | None = None
    """Number of token ids; null: that of a configuration in a file or folder, otherwise 256, and 257 for
    masked-lm, whose last id is the mask."""
    seq_len: Count = 128
    """Tokens in one sample; for seq2seq those of the source."""
    config: dict[str, Any] | str = field(default_factory=dict)
    """Values that differ from the defaults of the architecture's configuration class, by their names there;
    or the path of a config.json, relative to the working directory. With from_pretrained, values that differ
    from the configuration of the folder."""
    task: Task = field(default="causal-lm", metadata={"since": 4})
    """Training task. causal-lm: predict the next token. masked-lm: predict the 15% of tokens that are masked,
    the same number in each row. seq2seq: predict the tokens that follow the source. image-classification:
    predict the class of an image."""
    from_pretrained: str | None = field(default=None, metadata={"since": 4})
    """Folder of a model (config.json and safetensors), relative to the working directory; every case starts
    from its weights. Null: random weights."""
    target_len: Count | None = field(default=None, metadata={"since": 4})
    """Tokens of the target of seq2seq; null: 128."""
    mask_token_id: Annotated[int, Bound(0)] | None = field(default=None, metadata={"since": 4})
    """Id of a masked token of masked-lm; null: the last of the vocabulary, which the data must not have."""
    image_size: Count | None = field(default=None, metadata={"since": 4})
    """Pixels of a side of an image; null: that of a configuration in a file or folder, otherwise 32."""
    channels: Count | None = field(default=None, metadata={"since": 4})
    """Channels of an image; null: those of a configuration in a file or folder, otherwise 3."""
    classes: Count | None = field(default=None, metadata={"since": 4})
    """Classes of images; null: those of a configuration in a file or folder, otherwise 10."""
    batch_norm: Statistics | None = field(default=None, metadata={"since": 4})
    """Statistics of BatchNorm if ranks have different rows. per_rank: intended to be those of the rows of a
    rank, so trainings are compared with one process that divides the batch in the same way. sync: those of
    all ranks, with torch's SyncBatchNorm, on GPUs. null: as in the model, compared with one process that has
    the whole batch."""

    @classmethod
    def default_data_for(cls, options: Mapping[str, Any]) -> str:
        """Digits as images, text for the others."""
        return "digits" if options.get("task") == "image-classification" else "text"

    @property
    def shape(self) -> DataShape:
        made, kind = self._resolved(), _KINDS[self.task]
        if kind == "images":
            return DataShape(kind, made.image_size or 0, made.classes or 0, channels=made.channels or 0)
        target = (self.target_len or _DEFAULT_TARGET_LENGTH) if kind == "pairs" else 0
        return DataShape(kind, self.seq_len, made.vocab_size or 0, target, mask=self.mask_token_id)

    @property
    def decoder_dimensions(self) -> Dimensions | None:
        found = self._decoder()
        return None if isinstance(found, str) else found

    @property
    def decoder_problem(self) -> str:
        found = self._decoder()
        return found if isinstance(found, str) else ""

    def _decoder(self) -> Dimensions | str:
        if self.task != "causal-lm":
            return f"the operators of task: {self.task} are not known before it runs"
        if problem := self.problem():
            return problem
        made = self._resolved()
        return decoder_dimensions(made.model_type, made._keys, made.vocab_size or 0, self.seq_len)

    def resolved_for(self, machine: Machine) -> HuggingFace:
        """The workload with the configuration of its file or folder, so that a case contains it."""
        return self if self.problem() else self._resolved()

    def problem(self) -> str | None:
        try:
            given = self._stored_keys()
        except ValueError as error:
            return str(error)
        return "; ".join([*self._type_problems(given), *self._option_problems()]) or None

    def with_length(self, length: int) -> HuggingFace:
        return replace(self, seq_len=length)

    def variable_length_problem(self) -> str | None:
        is_balanced = self.problem() is None and self._resolved()._keys.get("output_router_logits")
        return "output_router_logits: the balancing loss is one of whole rows" if is_balanced else None

    def device_problem(self, device: str) -> str | None:
        return device_problem(self.batch_norm, device)

    def module(self) -> nn.Module:
        return self._module(None)

    def pretrained(self) -> nn.Module | None:
        return self._module(self.from_pretrained) if self.from_pretrained else None

    def tensor_splits(self) -> TensorSplits | None:
        # the plans of transformers are those of decoders
        return super().tensor_splits() if self.task == "causal-lm" else None

    def pipeline_stages(self) -> PipelineStages | None:
        return super().pipeline_stages() if self.task == "causal-lm" else None

    def plan_fields(self, module: nn.Module) -> dict[str, Any]:
        from distbench.workloads._huggingface_plans import plan_fields

        return plan_fields(module)

    def pipeline_cut(self, module: nn.Module) -> PipelineCut:
        from distbench.workloads._huggingface_plans import pipeline_cut

        return pipeline_cut(module)

    def layers(self, module: nn.Module) -> list[nn.Module]:
        from distbench.workloads._hf_model import repeated_layers

        model: Any = module.model
        return repeated_layers(model)

    def takes_position_ids(self, module: nn.Module) -> bool:
        model: Any = module.model
        return takes_keyword(model, POSITION_IDS)

    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        # not by the shape, which takes time to make in every step
        output = model_output(module, batch, INPUT_ARRAYS[_KINDS[self.task]])
        if not isinstance(output, tuple):
            return cross_entropy(output, batch["labels"])
        logits, balance = output
        return cross_entropy(logits, batch["labels"]) + at_least_fp32(balance).mean()

    def _module(self, folder: str | None) -> nn.Module:
        from distbench.workloads import _hf_model

        made = self._resolved()
        sizes = {key: getattr(made, option) for option, (key, _) in self._sizes.items()}
        config = _hf_model.make_config(made.model_type or "", made._keys, {**sizes, "use_cache": False})
        model = _hf_model.make_model(self.task, config, folder)
        if self.task != "image-classification":
            _hf_model.check_positions(model, max(self.seq_len, self.shape.target_length))
        has_cache = self.task in ("causal-lm", "seq2seq")
        whole = _hf_model.TensorModel(model, self.shape.inputs, has_cache=has_cache)
        return convert_batch_norm(whole, self.batch_norm)

    @property
    def _sizes(self) -> dict[str, tuple[str, int]]:
        return _IMAGE_SIZES if self.task == "image-classification" else _TOKEN_SIZES

    @property
    def _keys(self) -> dict[str, Any]:
        """Keys of ``config``; none where it is a path."""
        return self.config if isinstance(self.config, dict) else {}

    def _stored_keys(self) -> dict[str, Any]:
        """Keys of the configuration of a file or folder; empty: there is none, or they are in ``config``.

        Raises:
            ValueError: it can't be read, or the weights beside it can't.
        """
        if isinstance(self.config, str):
            if self.from_pretrained is not None:
                raise ValueError(
                    "config is a path, but from_pretrained has a configuration; remove one of them"
                )
            return stored_configuration(f"config = {self.config!r}", Path(self.config))
        if self.from_pretrained is None or "model_type" in self.config:
            return {}
        named, folder = f"from_pretrained = {self.from_pretrained!r}", Path(self.from_pretrained)
        if problem := folder_problem(folder):
            raise ValueError(f"{named}: {problem}")
        return stored_configuration(named, folder / "config.json")

    def _resolved(self) -> HuggingFace:
        """The workload with the configuration of its file or folder, and no size left open."""
        whole = {**self._stored_keys(), **self._keys}
        model_type = self.model_type or whole.get("model_type")
        sizes = {option: self._size(option, whole) for option in self._sizes}
        lifted = {"id2label", *(key for key, _ in self._sizes.values())} if "model_type" in whole else set()
        config = {key: value for key, value in whole.items() if key not in lifted}
        if self.task == "causal-lm" and model_type and _hf_source.is_encoder(model_type):
            # part of the case, as the model differs without it
            config.setdefault("is_decoder", True)
        changes: dict[str, Any] = {"model_type": model_type, "config": config, **sizes}
        return replace(self, **changes)

    def _size(self, option: str, whole: dict[str, Any]) -> int:
        """Value of *option*, against which the data is checked as well."""
        own = getattr(self, option)
        return self._stored_size(option, whole) if own is None else int(own)

    def _stored_size(self, option: str, whole: dict[str, Any]) -> int:
        """Value of *option* in the configuration *whole*, or the default if that is incomplete."""
        key, usual = self._sizes[option]
        found: Any = None
        if option == "classes" and "model_type" in whole:
            # as in transformers: two if the configuration has no labels
            found = len(whole.get("id2label") or ()) or whole.get("num_labels") or 2
        elif "model_type" in whole:
            keys = _hf_source.config_keys(whole["model_type"])
            found = keys.value(key, whole) if keys else whole.get(key)
        if isinstance(found, list | tuple) and len(set(found)) == 1:
            # height and width
            found = found[0]
        has_own_mask = self.task == "masked-lm" and self.mask_token_id is None
        return found if isinstance(found, int) else usual + has_own_mask

    def _type_problems(self, given: dict[str, Any]) -> Iterator[str]:
        stored = given.get("model_type") or self._keys.get("model_type")
        model_type = self.model_type or stored
        if self.model_type is None and "model_type" in self._keys:
            # a whole configuration has it in both places
            yield "config: set model_type as an option of the workload"
            return
        if model_type is None:
            yield (
                "model_type is missing; set it to an architecture, or set config: config.json or "
                "from_pretrained: FOLDER"
            )
            return
        if stored not in (None, model_type):
            yield f"model_type = {model_type!r}, but the configuration has {stored!r}; remove model_type"
            return
        types = _hf_source.model_types_for(self.task)
        if types and model_type not in types:
            yield f"model_type = {model_type!r} {_hf_source.other_tasks_text(model_type, self.task, types)}"
            return
        yield from self._key_problems(model_type)
        if self.from_pretrained is not None and given:
            yield from self._weight_problems(model_type, given)

    def _key_problems(self, model_type: str) -> Iterator[str]:
        """Yield mistakes in keys of ``config``; a whole configuration is as transformers wrote it."""
        if "model_type" in self._keys:
            return
        for option, (key, _) in self._sizes.items():
            if key in self._keys:
                yield (
                    f"config: set {option} as an option of the workload, because the data is checked "
                    "against it"
                )
        is_bidirectional = self._keys.get("is_decoder") is False
        if self.task == "causal-lm" and is_bidirectional and _hf_source.is_encoder(model_type):
            yield (
                "config: is_decoder = false lets tokens attend to later tokens; remove it, or use task: "
                "masked-lm"
            )
        keys = _hf_source.config_keys(model_type)
        names = keys.names if keys else set(self._keys)
        if unknown := sorted(key for key in self._keys if key not in names and not key.endswith("_token_id")):
            hint = did_you_mean(unknown[0], keys.own if keys else names)
            yield f"config: {model_type} has no {', '.join(unknown)}; {hint}"

    def _weight_problems(self, model_type: str, given: dict[str, Any]) -> Iterator[str]:
        """Yield sizes that differ from the weights in the folder, whose configuration is *given*."""
        keys = _hf_source.config_keys(model_type) or _hf_source.ConfigKeys(given, {})
        for key, value in self._keys.items():
            stored = keys.value(key, given)
            # only integers are sizes of weights
            if type(value) is type(stored) is int and value != stored:
                yield f"config: {key} = {as_yaml(value)}, {self._size_mismatch_text(stored)}"
        for option in self._sizes:
            value, stored = getattr(self, option), self._stored_size(option, given)
            if value not in (None, stored):
                yield f"{option} = {as_yaml(value)}, {self._size_mismatch_text(stored)}"

    def _size_mismatch_text(self, stored: int) -> str:
        folder = f"from_pretrained = {self.from_pretrained!r}"
        return f"but the weights of {folder} belong to a model with {stored}; remove it"

    def _option_problems(self) -> Iterator[str]:
        tasks: dict[str, str] = {
            "target_len": "seq2seq",
            "mask_token_id": "masked-lm",
            **dict.fromkeys(_IMAGE_SIZES, "image-classification"),
        }
        for option, task in tasks.items():
            if getattr(self, option) is not None and self.task != task:
                yield f"{option} is only used with task: {task}, but task = {self.task}; remove it"
        if self.task == "image-classification":
            for option in ("vocab_size", "seq_len"):
                if getattr(self, option) != getattr(type(self), option):
                    yield (
                        f"{option} is only used with tokens, but task = image-classification has none; "
                        "remove it"
                    )
        sides = {**self._stored_keys(), **self._keys}.get("image_size")
        if isinstance(sides, list) and len(set(sides)) > 1 and self.image_size is None:
            yield (
                f"the configuration has images of {' x '.join(map(str, sides))}; set image_size to use "
                "square images"
            )
        if self.task == "masked-lm" and self.mask_token_id is not None:
            ids = self._size("vocab_size", {**self._stored_keys(), **self._keys})
            if self.mask_token_id >= ids:
                yield f"mask_token_id = {self.mask_token_id} is not in a vocabulary of vocab_size = {ids}"
