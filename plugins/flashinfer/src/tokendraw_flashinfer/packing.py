"""Reads the layout of packed weights for FlashInfer's SM90 mixed-input GEMM from the installed source.

The functions of two layouts share a name and a signature, and version numbers tell little: the third post-release of
0.6.16 packs as 0.6.15 did, not as 0.6.16. The layouts differ in the shape of the scale function's result. So this shape
is read, without importing anything, and :mod:`tokendraw_flashinfer.packer` checks it when it is built. The version
number counts only without a source to read.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tokendraw.plugin import Host
from tokendraw_flashinfer.kernels import Module
from tokendraw_flashinfer.signatures import installed_version, package_folder
from tokendraw_flashinfer.upstream import layout_by_number

if TYPE_CHECKING:
    from tokendraw.sm90_w4 import Format, Layout

SCALES = "interleave_moe_scales_for_sm90_mixed_gemm"
WEIGHTS = "interleave_moe_weights_for_sm90_mixed_gemm"
FORMATS: dict[Layout, tuple[Format, ...]] = {"v1": ("fp4", "int4"), "v2": ("fp4", "int4", "fp4_fp8")}
"""Formats of the weights that the releases with a layout pack."""

_LAYOUTS: dict[int, Layout] = {3: "v1", 5: "v2"}
"""Layouts by the number of dimensions of their scales."""
_H20_SMS = 78
_H20_MODULE = "fused_moe_90_h20_prebuilt_d"


@dataclass(frozen=True)
class Packing:
    """The layout and formats of the installed FlashInfer."""

    layout: Layout | None
    """None: nothing."""
    formats: tuple[Format, ...] = ()
    is_read: bool = False
    """Whether the layout was read from its source; otherwise its version promises it."""

    @classmethod
    def installed(cls) -> Self:
        """Read the installed distribution; without an installation, return the layout of the newest known version."""
        version = installed_version()
        if version is None:
            return cls("v2", FORMATS["v2"])
        folder = package_folder() / "fused_moe"
        exported = _text(folder / "__init__.py")
        if exported is None:
            return cls._by_version(version)
        if SCALES not in exported or WEIGHTS not in exported:
            return cls(None, is_read=True)
        layout = _layout(_definition(folder, SCALES))
        if layout is None:
            return cls._by_version(version)
        return cls(layout, _formats(_definition(folder, WEIGHTS)) or FORMATS[layout], is_read=True)

    @classmethod
    def _by_version(cls, version: str) -> Self:
        layout = layout_by_number(version)
        return cls(layout, FORMATS[layout] if layout else ())


def gemm_module(host: Host) -> Module:
    """Return the module of kernels for packing weights: the module of the whole GEMM."""
    name = "fused_moe_90"
    if host.sm_count == _H20_SMS and _H20_MODULE in (_text(package_folder() / "jit" / "fused_moe.py") or ""):
        name = _H20_MODULE
    return Module(
        name, f"module {name}", no_compile_reason="more than 150 CUDA files take too long to compile"
    )


def _definition(folder: Path, name: str) -> ast.FunctionDef | None:
    """Parse the definition of a function alone, since its module takes too long to parse."""
    for source in ("prepare.py", "core.py"):
        _, start, rest = (_text(folder / source) or "").partition(f"\ndef {name}(")
        if not start:
            continue
        first, *lines = rest.splitlines()
        end = next((i for i, line in enumerate(lines) if line[:1].strip(") \t")), len(lines))
        try:
            (node,) = ast.parse("\n".join([f"{start}{first}", *lines[:end]])).body
        except (SyntaxError, ValueError):
            return None
        return node if isinstance(node, ast.FunctionDef) else None
    return None


def _layout(function: ast.FunctionDef | None) -> Layout | None:
    """Return the layout of a scale function by its result ``....reshape(experts, ..., ...)``; None: unknown."""
    ranks = set()
    for node in ast.walk(function) if function else ():
        match node:
            case ast.Return(value=ast.Call(func=ast.Attribute(attr="reshape"), args=sizes)):
                ranks.add(len(sizes))
            case ast.Return():
                return None
    return _LAYOUTS.get(ranks.pop()) if len(ranks) == 1 else None


def _formats(function: ast.FunctionDef | None) -> tuple[Format, ...]:
    """Return the formats in a weight function's table, ``{"fp4": 1, ...}``; () without a table."""
    for node in ast.walk(function) if function else ():
        match node:
            case ast.Dict(keys=keys):
                known = {key.value for key in keys if isinstance(key, ast.Constant)}
                if formats := tuple(name for name in FORMATS["v2"] if name in known):
                    return formats
    return ()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
