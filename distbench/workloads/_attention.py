"""Causal attention of a decoder, over all positions before a query or over a window of them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention, a ``context.AttentionFunction``; grouped if keys have fewer heads than queries.

    Args:
        mask: ``document_mask`` of packed rows; None: each row is one document.
        window: Positions that a query sees, the last of which is its own (Mistral, arXiv:2310.06825, section
            2); None: all up to its own.
    """
    if window is not None and mask is None and _can_use_flex_attention(query):
        return _flex_window_attention(query, key, value, window)
    is_grouped = key.shape[1] != query.shape[1]
    if is_grouped and query.is_cuda and query.dtype == torch.float32:
        # among the kernels for fp32, only the one that keeps all scores in memory takes grouped heads
        key, value, is_grouped = repeat_kv(key, query), repeat_kv(value, query), False
    if mask is None and window is not None:
        mask = window_mask(query.shape[2], window, query.device)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=is_grouped
    )


def repeat_kv(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values *x* (batch, kv_heads, seq, head_dim), each for all heads of *query* that share it."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], dim=1)


def window_mask(length: int, window: int, device: torch.device) -> torch.Tensor:
    """Mask of the positions (columns) that each of *length* (rows) sees: its own and *window* - 1 before."""
    places = torch.arange(length, device=device)
    back = places[:, None] - places
    return (back >= 0) & (back < window)


def document_mask(position_ids: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Mask (batch, 1, length, length) of the positions that each one sees in packed rows: none of others.

    Args:
        position_ids: Place of each token in its document (batch, length), from 0.
        window: As in ``causal_attention``.
    """
    places = torch.arange(position_ids.shape[1], device=position_ids.device)
    back = places[:, None] - places
    seen = (back >= 0) & (back <= position_ids.unsqueeze(-1))
    if window is not None:
        seen &= back < window
    return seen.unsqueeze(1)


def _can_use_flex_attention(query: torch.Tensor) -> bool:
    # on CPUs FlexAttention has no backward pass (torch 2.13), and in fp64 it has no kernel
    return query.is_cuda and query.dtype != torch.float64


def _flex_window_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int
) -> torch.Tensor:
    """Window attention that skips masked blocks, which a mask alone would compute and discard."""
    blocks = _window_block_mask(query.shape[2], window, query.device)
    is_grouped = key.shape[1] != query.shape[1]
    out: torch.Tensor = _compiled_flex_attention()(
        query, key, value, block_mask=blocks, enable_gqa=is_grouped
    )
    return out


@functools.cache
def _compiled_flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    # eager, it keeps all scores in memory
    return torch.compile(flex_attention)


@functools.lru_cache(maxsize=4)
def _window_block_mask(length: int, window: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def is_seen(_sample: Any, _head: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (query - key < window)

    return create_block_mask(is_seen, None, None, length, length, device=device)
