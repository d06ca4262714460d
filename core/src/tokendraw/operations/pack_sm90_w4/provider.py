"""Packed weights: the object that ``tokendraw.load("pack_sm90_w4")`` returns, and the proof of a packer."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from tokendraw._torch.untraced import untraced
from tokendraw.backends.description.weight_layouts import Format, Layout
from tokendraw.calls.dispatch import dispatch
from tokendraw.calls.output_checks import first_of, misfit
from tokendraw.calls.provider import Provider
from tokendraw.errors.exceptions import PluginError
from tokendraw.operations.pack_sm90_w4 import OPERATION, Sm90W4Capabilities, packings, reference
from tokendraw.operations.pack_sm90_w4.calls import OMITTED, Repacking

_METHODS = ("pack_weights", "pack_scales", "unpack_weights", "unpack_scales")
_LayoutName: TypeAlias = Layout | Literal["upstream"]


class Sm90W4Packer(Provider):
    """Packs 4-bit weights and their scales for FlashInfer's SM90 mixed-input GEMM: see docs/sm90-w4.md.

    Each method returns a new tensor. ``layout`` is ``v1``, ``v2``, or ``upstream`` for that of the installed
    FlashInfer; neither it nor ``format`` has a default.
    """

    _operations = (OPERATION,)

    @untraced
    def pack_weights(
        self, weights: Tensor, *, format: Format = OMITTED, layout: _LayoutName = OMITTED
    ) -> Tensor:
        """Pack weights [E, N, K / 2] uint8 as a checkpoint has them; the shape stays."""
        return self._repack("pack_weights", weights, format=format, layout=layout)

    @untraced
    def unpack_weights(
        self, packed: Tensor, *, format: Format = OMITTED, layout: _LayoutName = OMITTED
    ) -> Tensor:
        """Unpack weights [E, N, K / 2] uint8; the shape stays."""
        return self._repack("unpack_weights", packed, format=format, layout=layout)

    @untraced
    def pack_scales(self, scales: Tensor, *, layout: _LayoutName = OMITTED) -> Tensor:
        """Pack scales [E, N, K / 32] uint8: [E, K / 128, 4 N] (v1) or [E, N / 64, K / 128, 16, 16] (v2)."""
        return self._repack("pack_scales", scales, layout=layout)

    @untraced
    def unpack_scales(self, packed: Tensor, *, layout: _LayoutName = OMITTED) -> Tensor:
        """Unpack scales: [E, N, K / 32] uint8."""
        return self._repack("unpack_scales", packed, layout=layout)

    def _repack(self, method: str, tensor: Tensor, **options: Any) -> Tensor:
        output: Tensor = dispatch(self._negotiator, OPERATION, Repacking(method, tensor, **options))
        return output


def prove(backend: Any, capabilities: Sm90W4Capabilities, device: torch.device, need: Any) -> None:
    """Pack an expert of 64 rows and 128 columns in every advertised format and layout, and unpack it if advertised.

    :raises PluginError: a byte is not what it has to be.
    """
    weights, scales = _bytes(64, 64), _bytes(64, 4)
    cases: list[tuple[str, dict[str, Any], Tensor, Tensor]] = [
        (
            "weights",
            {"format": form, "layout": layout},
            weights,
            reference.packed_weights(weights, form, layout),
        )
        for form, layout in packings(capabilities)
    ] + [
        ("scales", {"layout": layout}, scales, reference.packed_scales(scales, layout))
        for layout in capabilities.layouts
    ]
    for name, options, natural, packed in cases:
        what = ", ".join((name, *options.values()))
        output = getattr(backend, f"pack_{name}")(natural.to(device), **options)
        _require(f"packed {what}", output, packed.to(device))
        if capabilities.unpacks:
            output = getattr(backend, f"unpack_{name}")(packed.to(device), **options)
            _require(f"unpacked {what}", output, natural.to(device))


def _bytes(rows: int, columns: int) -> Tensor:
    """Make [1, rows, columns] uint8 of all values, without a pattern to hide a wrong layout."""
    index = torch.arange(rows * columns, device="cpu")
    return (index * 2_654_435_761 // 2**12 % 256).to(torch.uint8).view(1, rows, columns)


def _require(what: str, found: Any, needed: Tensor) -> None:
    wrong = misfit(what, found, needed.shape, torch.uint8, needed.device)
    if wrong is not None:
        raise PluginError(f"the proof call needs {wrong}")
    for index in first_of(found != needed):
        at = tuple(index)
        raise PluginError(
            f"the proof call needs {what}: {int(needed[at])} at {index}, found {int(found[at])}"
        )


CALLS = {method: partial(Repacking, method) for method in _METHODS}
PROVIDER = Sm90W4Packer
