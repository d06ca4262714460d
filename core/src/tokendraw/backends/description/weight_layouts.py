"""The formats and layouts of 4-bit weights, apart from any code: describing a packer imports no more."""

from __future__ import annotations

from typing import Literal, TypeAlias

Format: TypeAlias = Literal["fp4", "int4", "fp4_fp8"]
"""Formats of 4-bit weights; ``fp4_fp8`` is fp4 for activations in float8, whose sign bits stand elsewhere."""
Layout: TypeAlias = Literal["v1", "v2"]
"""Layouts of packed weights and their scales."""
