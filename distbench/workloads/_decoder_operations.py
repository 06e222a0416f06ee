"""Operations of the decoder, with what torch keeps for the backward pass of each. Without torch.

As its kernels for CPUs do it, and so as a trace counts: RMSNorm is several operations, in fp32 at least, and
attention is one. On CUDA RMSNorm is one kernel, which keeps less (``RowSplit.fuses_norms``).
"""

from __future__ import annotations

from collections.abc import Iterator

from distbench.core.dtypes import DTYPE_BYTES
from distbench.workloads._dimensions import Dimensions
from distbench.workloads.operations import ModelOperations, Operation, RowSplit

_FP32 = DTYPE_BYTES["fp32"]


def model_operations(dims: Dimensions, seq_len: int, split: RowSplit) -> ModelOperations:
    """Operations of the decoder for *split*."""
    return _DecoderOperations(dims, seq_len, split).model()


class _DecoderOperations:
    def __init__(self, dims: Dimensions, seq_len: int, split: RowSplit) -> None:
        self._dims, self._split = dims, split
        self._positions = seq_len // split.context
        self._tokens = split.rows * self._positions
        self._element, self._wide = split.element, max(_FP32, split.element)

    def model(self) -> ModelOperations:
        dims, table = self._dims, self._dims.vocab_size * self._dims.dim // self._split.tensor
        activation = self._bytes(dims.dim) / self._between
        return ModelOperations(
            first=(Operation("y", (), activation, parameters=table, rows=table // dims.dim),),
            layer=(*self._attention(), *self._feed_forward()),
            layers=dims.depth,
            last=(self._norm("x", "h"), *self._head(table)),
            loss=tuple(self._loss()),
            activation=activation,
            # cos and sin of half a head
            shared=self._positions * dims.head_dim * self._element,
            partial_parameters=dims.vocab_size * dims.dim if self._split.tensor > 1 else 0,
            tied_parameters=table if dims.tied else 0,
        )

    @property
    def _between(self) -> int:
        """Ranks that split the tensors between layers by position."""
        return self._split.tensor if self._split.sequence_parallel else 1

    def _bytes(self, width: float) -> float:
        """Bytes of *width* elements of the compute dtype for each token."""
        return self._tokens * width * self._element

    def _norm(self, source: str, result: str) -> Operation:
        """RMSNorm: its normalized input and the factor of each token, both in fp32 at least.

        In 16 bits also the input in fp32, of which it is a copy; otherwise the input itself.
        """
        dim, is_cast, tokens = self._dims.dim, self._element < self._wide, self._tokens / self._between
        if self._split.fuses_norms:
            size = tokens * dim * self._element
            return Operation(result, (source,), size, (source,), tokens * self._wide, dim, dim)
        wide = tokens * dim * self._wide
        return Operation(
            result,
            (source,),
            tokens * dim * self._element,
            saved_tensors=() if is_cast else (source,),
            saved_bytes=wide * (1 + is_cast) + tokens * self._wide,
            parameters=dim,
            rows=dim,
            workspace=wide * is_cast,
            backward_workspace=wide * (1 + is_cast),
        )

    def _linear(self, source: str, result: str, into: int, out: int, *, copied: bool = False) -> Operation:
        """Product with a weight of *out* x *into* elements, both those of this rank.

        *copied*: the gradient of its result is a view with transposed axes, which it copies.
        """
        size = self._bytes(out)
        return Operation(
            result,
            (source,),
            size,
            saved_tensors=(source,),
            parameters=into * out,
            rows=out,
            backward_workspace=size if copied else 0.0,
        )

    def _gathered(self, source: str, result: str) -> Iterator[Operation]:
        """All positions of *source*, joined from what the all-gather got; nothing if a rank has all."""
        if self._between > 1:
            whole = self._bytes(self._dims.dim)
            yield Operation(result, (source,), whole, workspace=whole, backward_workspace=2 * whole)

    def _summed(self, source: str, result: str) -> Iterator[Operation]:
        """Sum over the ranks that split a layer, or their part of it; nothing without them."""
        whole = self._bytes(self._dims.dim)
        if self._between > 1:
            # rearranged for the reduce-scatter, which copies it; all parts of the gradient, then joined
            yield Operation(
                result, (source,), whole / self._between, workspace=2 * whole, backward_workspace=whole
            )
        elif self._split.tensor > 1:
            yield Operation(result, (source,), whole, passes_gradient=True)

    def _attention(self) -> Iterator[Operation]:
        dims, parts = self._dims, self._split.tensor
        queries, keys = dims.dim // parts, dims.kv_heads * dims.head_dim // parts
        yield self._norm("x", "a0")
        gathered = [*self._gathered("a0", "a")]
        yield from gathered
        source = "a" if gathered else "a0"
        yield self._linear(source, "q", dims.dim, queries, copied=True)
        yield self._linear(source, "k", dims.dim, keys, copied=True)
        yield self._linear(source, "v", dims.dim, keys)
        for name, width in (("q", queries), ("k", keys)):
            # halves, their products with cos and sin, and the sums of those
            size = self._bytes(width)
            yield Operation(f"{name}r", (name,), size, workspace=size, backward_workspace=size)
        # the logarithm of each query's sum, in fp32 at least
        sums = self._tokens * dims.heads / parts * self._wide
        yield Operation(
            "o",
            ("qr", "kr", "v"),
            self._bytes(queries),
            saved_tensors=("qr", "kr", "v", "o"),
            saved_bytes=sums,
        )
        # heads beside each other
        yield Operation("c", ("o",), self._bytes(queries), passes_gradient=True)
        yield self._linear("c", "w0", queries, dims.dim)
        summed = [*self._summed("w0", "w")]
        yield from summed
        yield self._sum("x", "w" if summed else "w0", "x1")

    def _sum(self, one: str, other: str, result: str) -> Operation:
        size = self._bytes(self._dims.dim) / self._between
        return Operation(result, (one, other), size, passes_gradient=True)

    def _feed_forward(self) -> Iterator[Operation]:
        dims, width = self._dims, self._dims.ffn_dim // self._split.tensor
        yield self._norm("x1", "b0")
        gathered = [*self._gathered("b0", "b")]
        yield from gathered
        source = "b" if gathered else "b0"
        yield self._linear(source, "gate", dims.dim, width)
        yield Operation("silu", ("gate",), self._bytes(width), saved_tensors=("gate",))
        yield self._linear(source, "up", dims.dim, width)
        yield Operation("product", ("silu", "up"), self._bytes(width), saved_tensors=("silu", "up"))
        yield self._linear("product", "d0", width, dims.dim)
        summed = [*self._summed("d0", "d")]
        yield from summed
        yield self._sum("x1", "d" if summed else "d0", "y")

    def _head(self, table: int) -> Iterator[Operation]:
        gathered = [*self._gathered("h", "g")]
        yield from gathered
        mine = table // self._dims.dim
        yield self._linear("g" if gathered else "h", "logits0", self._dims.dim, mine)
        if self._split.tensor > 1 and not self._split.loss_parallel:
            # all classes on each rank, joined from what the all-gather got
            whole = self._bytes(self._dims.vocab_size)
            yield Operation("logits", ("logits0",), whole, workspace=whole)

    def _loss(self) -> Iterator[Operation]:
        """Cross-entropy in fp32 at least: its backward pass has three arrays of logits.

        With split logits it has four: logarithms of probabilities and, for the gradient, the labels, the
        probabilities and their difference.
        """
        is_split = self._split.tensor > 1 and self._split.loss_parallel
        parts = self._split.tensor if is_split else 1
        wide = self._tokens * self._dims.vocab_size / parts * self._wide
        if self._element < self._wide:
            yield Operation("wide", ("x",), wide, is_in_loss=True)
        source = "wide" if self._element < self._wide else "x"
        yield Operation(
            "log",
            (source,),
            wide,
            saved_tensors=("log",),
            is_in_loss=True,
            backward_workspace=wide * is_split,
        )
        yield Operation("loss", ("log",), self._wide)
