"""Python fragments for exported scripts."""

from __future__ import annotations

from textwrap import dedent, indent

from distbench.adopt.base import ExportedCase
from distbench.core.case import FLOAT8_ALIGNMENT, SELECTIVE_CHECKPOINT_OPS, TORCH_DTYPE_NAMES, Case

FLOAT8_IMPORT = "from torchao.float8 import Float8LinearConfig, convert_to_float8_training"

CAST = '''
def compute_in(module, dtype):
    """Let *module* compute on copies of its parameters in *dtype*; gradients keep the parameters' dtype.

    Layers first, then the model, which casts what is in no layer: recomputing a layer casts again.
    torch.autocast would keep some operations in fp32, which the measured case did not.
    """
    forward, places = module.forward, list(places_of(module))

    @functools.wraps(forward)
    def computed(*args, **kwargs):
        args = [cast_floats(value, dtype) for value in args]
        kwargs = {name: cast_floats(value, dtype) for name, value in kwargs.items()}
        parameters = [members[name] for members, name in places]
        copies = {parameter: parameter.to(dtype) for parameter in parameters}
        try:
            for (members, name), parameter in zip(places, parameters):
                members[name] = copies[parameter]
            return forward(*args, **kwargs)
        finally:
            for (members, name), parameter in zip(places, parameters):
                members[name] = parameter

    computed.casts = True
    module.forward = computed


def cast_floats(value, dtype):
    """Cast tensors of floating point; a value in which nothing is cast stays the same object."""
    leaves, structure = tree_flatten(value)
    cast = [x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in leaves]
    is_same = all(new is old for new, old in zip(cast, leaves))
    return value if is_same else tree_unflatten(cast, structure)


def places_of(module):
    """Places of the parameters in *module*, without those of modules that cast their own."""
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.is_floating_point():
            yield module._parameters, name
    for child in module.children():
        if not getattr(vars(child).get("forward"), "casts", False):
            yield from places_of(child)
'''

RECOMPUTE = '''
def recompute(layer, **options):
    """Let *layer* compute its activations again in the backward pass."""
    forward = layer.forward

    @functools.wraps(forward)
    def recomputed(*args, **kwargs):
        return checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)

    layer.forward = recomputed
'''

_KEEPING = """
# the rest of a layer is recomputed in the backward pass
KEPT = [
    {operations}
]
"""


def dtype(name: str) -> str:
    """Python code of distbench's dtype *name*."""
    return f"torch.{TORCH_DTYPE_NAMES[name]}"


def cast_to_master(case: Case, to: str = "") -> str:
    """Statement that converts ``model`` to the dtype of its master weights."""
    return f"model = model.to({to}{dtype(case.precision.master)})  # the master weights"


def determinism(case: Case) -> str:
    """Statements that fix the threads, the random numbers and the fp32 matmul precision of *case*."""
    seed = (
        f"torch.manual_seed({case.seed!r})  # before the model is built: all ranks start with equal weights"
    )
    matmul = case.precision.matmul
    products = f'torch.set_float32_matmul_precision("{matmul}")' if matmul != "highest" else ""
    return lines(f"torch.set_num_threads({case.threads!r})", seed, products)


def kept(case: Case) -> str:
    """Operations whose outputs ``recomputation`` keeps; empty if it keeps none."""
    if case.activation_checkpointing != "selective":
        return ""
    operations = "\n    ".join(f"torch.ops.aten.{name}.default," for name in SELECTIVE_CHECKPOINT_OPS)
    return _KEEPING.format(operations=operations)


def recomputation(case: Case) -> str:
    """Statement that makes ``layers`` recompute their activations; empty if they keep them."""
    options = {
        "none": "",
        "full": "",
        "selective": ", context_fn=partial(create_selective_checkpoint_contexts, KEPT)",
    }[case.activation_checkpointing]
    if case.activation_checkpointing == "none":
        return ""
    return f"for layer in layers:\n    recompute(layer{options})"


def float8(case: Case) -> str:
    """Statement that makes the linear layers inside ``layers`` multiply in float8; empty if none does."""
    if case.precision.float8 == "none":
        return ""
    return block(f"""
        for layer in layers:
            convert_to_float8_training(
                layer,
                config=Float8LinearConfig.from_recipe_name({case.precision.float8!r}),
                # GPUs multiply only these sizes
                module_filter_fn=lambda part, _: all(n % {FLOAT8_ALIGNMENT} == 0 for n in part.weight.shape),
            )
    """)


def compiled(case: Case) -> str:
    """Statement that compiles ``layers``; empty if they run uncompiled."""
    if case.compile == "none":
        return ""
    return f"for layer in layers:\n    layer.forward = torch.compile(layer.forward, mode={case.compile!r})"


def recomputation_imports(case: Case) -> str:
    """Imports for ``RECOMPUTE`` and ``recomputation``."""
    own = ", create_selective_checkpoint_contexts" if kept(case) else ""
    return f"from torch.utils.checkpoint import checkpoint{own}"


def lines(*pieces: str) -> str:
    """Non-empty *pieces*, one per line."""
    return "\n".join(piece for piece in pieces if piece)


def function(head: str, doc: str, body: str) -> str:
    """A function with its docstring."""
    return f'def {head}:\n    """{doc}"""\n{indent(body, "    ")}\n'


def block(text: str) -> str:
    """*text* without its common indentation."""
    return dedent(text).strip("\n")


def device_mesh(measured: ExportedCase) -> str:
    """Expression that creates the device mesh of the case."""
    case = measured.case
    sizes = measured.strategy.mesh_sizes(case.world_size)
    shape, names = (str(tuple(part)).replace("'", '"') for part in (sizes.values(), sizes))
    return f'init_device_mesh("{case.device}", {shape}, mesh_dim_names={names})'


def setup(case: Case, *, alone: bool, join: str = "") -> str:
    """Function that makes a process join the others; *alone*: there are none."""
    rank = "0" if alone else 'int(os.environ["LOCAL_RANK"])'
    device = f'torch.device("cuda", {rank})' if case.device == "cuda" else 'torch.device("cpu")'
    backend = "cpu:gloo,cuda:nccl" if case.device == "cuda" else "gloo"
    body = lines(
        determinism(case),
        f"device = {device}",
        "torch.cuda.set_device(device)" if case.device == "cuda" else "",
        "" if alone else f'dist.init_process_group("{backend}")',
        join,
        "return device",
    )
    return function("setup()", "Join the other processes; return this one's device.", body)


def prepare(body: str) -> str:
    """Function that prepares a model for training."""
    doc = "Return the wrapped model and its optimizer; *layers* are sharded and checkpointed individually."
    return function("prepare(model, layers, device)", doc, lines(body, "return model, optimizer"))


def train(measured: ExportedCase) -> str:
    """Training loop of a plain torch case."""
    case = measured.case
    number = case.batch.gradient_accumulation_steps
    divisor = number / (case.precision.first_loss_scale or 1.0)
    backward = "loss.backward()" if divisor == 1 else f"(loss / {divisor:g}).backward()"
    if case.precision.loss_scale:
        backward = (
            f"(loss / {divisor!r}).backward()  # a constant loss scale of {case.precision.loss_scale!r}"
        )
    micro_batch = lines("loss = loss_of(model, batch)", backward)
    if measured.tensor_parallelism and measured.tensor_parallelism.loss_parallel:
        micro_batch = lines("with loss_parallel():", indent(micro_batch, "    "), "loss = loss.full_tensor()")
    if number == 1:
        body = lines(
            "for batch in batches:",
            "    optimizer.zero_grad(set_to_none=True)",
            indent(micro_batch, "    "),
            indent(_update(measured), "    "),
            "    yield loss.detach()",
        )
    else:
        sync, context = _synchronised(measured, number)
        guarded = lines(context, indent(micro_batch, "    ")) if context else micro_batch
        body = lines(
            "batches = iter(batches)",
            f"while len(step := list(itertools.islice(batches, {number!r}))) == {number!r}:",
            "    optimizer.zero_grad(set_to_none=True)",
            "    losses = []",
            "    for number, batch in enumerate(step, 1):",
            indent(lines(sync, guarded, "losses.append(loss.detach())"), " " * 8),
            indent(_update(measured), "    "),
            "    yield torch.stack(losses).mean()",
        )
    return _loop(number, body)


def zero_train(case: Case) -> str:
    """Training loop over DeepSpeed's engine, which counts micro-batches itself."""
    number = case.batch.gradient_accumulation_steps
    body = lines(
        "losses = []",
        "for batch in batches:",
        "    loss = loss_of(model, batch)",
        "    model.backward(loss)",
        "    model.step()  # clips and updates only after the last micro-batch",
        "    losses.append(loss.detach())",
        f"    if len(losses) == {number!r}:",
        "        yield torch.stack(losses).mean()",
        "        losses = []",
    )
    return _loop(number, body)


def _loop(number: int, body: str) -> str:
    doc = f"Yield this rank's mean loss per update; an update uses {number} of *batches*."
    return function("train(model, optimizer, batches, loss_of)", doc, body)


def _synchronised(measured: ExportedCase, number: int) -> tuple[str, str]:
    """Line before and context around a micro-batch that reduce gradients only once per update."""
    fsdp = measured.fsdp
    if fsdp and fsdp.version == 2 and not fsdp.reduce_each_micro_batch:
        return f"model.set_requires_gradient_sync(number == {number!r})  # reduce once per update", ""
    if measured.ddp or (fsdp and not fsdp.reduce_each_micro_batch):
        context = f"nullcontext() if number == {number!r} else model.no_sync()"
        return "", f"with {context}:  # reduce once per update"
    return "", ""


def _update(measured: ExportedCase) -> str:
    limit, scale = measured.case.optimizer.clip_grad_norm, measured.case.precision.loss_scale
    version = measured.fsdp.version if measured.fsdp else None
    clip = f"nn.utils.clip_grad_norm_(model.parameters(), {limit!r})"
    clip = f"model.clip_grad_norm_({limit!r})" if version == 1 else clip
    step = lines("" if limit is None else clip, "optimizer.step()")
    if measured.tensor_parallelism and scale is None:
        step = lines("place_gradients(model)", step)
    if scale is None:
        return step
    norm = "nn.utils.get_total_norm(gradients)" + (
        ".full_tensor()" if version == 2 or measured.tensor_parallelism else ""
    )
    norm = 'model.clip_grad_norm_(float("inf"))' if version == 1 else norm
    return lines(
        "place_gradients(model)" if measured.tensor_parallelism else "",
        "gradients = [p.grad for p in model.parameters() if p.grad is not None]",
        f"if torch.isfinite({norm}):  # otherwise they overflowed: no update",
        f"    torch._foreach_div_(gradients, {scale!r})",
        indent(step, "    "),
    )


def casts(measured: ExportedCase) -> bool:
    """True if the script must cast parameters itself; FSDP and DeepSpeed do it themselves."""
    by_engine = measured.fsdp or measured.zero or (measured.pipeline and "dp_shard" in measured.mesh)
    return measured.is_mixed and not by_engine


def compresses(measured: ExportedCase) -> bool:
    """True if DDP reduces gradients in a different dtype than their own."""
    return measured.case.precision.reduce != measured.case.precision.master
