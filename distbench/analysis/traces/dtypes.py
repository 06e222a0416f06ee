"""Names of dtypes in traces."""

from __future__ import annotations

_DTYPES = {
    "fp64": ("Double", "double"),
    "fp32": ("Float", "float"),
    "bf16": ("BFloat16", "c10::BFloat16"),
    "fp16": ("Half", "c10::Half"),
    "int64": ("Long", "long", "long int"),
    "int32": ("Int", "int"),
    "int16": ("Short", "short"),
    "int8": ("Char", "signed char"),
    "uint8": ("Byte", "unsigned char"),
    "bool": ("Bool", "bool"),
    "float8_e4m3fn": ("Float8_e4m3fn", "c10::Float8_e4m3fn"),
    "float8_e5m2": ("Float8_e5m2", "c10::Float8_e5m2"),
}
"""Dtype -> its names in arguments of collectives and of operations."""
_SIZES = {"fp64": 8, "int64": 8, "fp32": 4, "int32": 4, "bf16": 2, "fp16": 2, "int16": 2}
_BY_NAME = {name: dtype for dtype, names in _DTYPES.items() for name in names}


def dtype_of(name: object) -> str | None:
    """Dtype that a trace calls *name*, as suites name it; None: not known."""
    return _BY_NAME.get(str(name))


def item_bytes(dtype: str) -> int:
    """Bytes of one element of *dtype*."""
    return _SIZES.get(dtype, 1)
