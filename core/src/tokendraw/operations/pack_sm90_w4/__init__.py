"""The operation ``pack_sm90_w4``: 4-bit weights and their scales as FlashInfer's SM90 mixed-input GEMM reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tokendraw.backends.description.capabilities import HostCapabilities
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.description.requirement import Requirement
from tokendraw.backends.description.weight_layouts import Format, Layout

if TYPE_CHECKING:
    from torch import Tensor

FORMATS: tuple[Format, ...] = ("fp4", "int4", "fp4_fp8")
LAYOUTS: tuple[Layout, ...] = ("v1", "v2")


@dataclass(frozen=True, kw_only=True)
class Sm90W4Capabilities(HostCapabilities):
    """The capabilities of a packer. The defaults promise nothing.

    Inherits the fields of :class:`HostCapabilities`.

    :ivar formats: Formats of the weights; ``fp4_fp8`` has the layout ``v2`` alone.
    :ivar layouts: Layouts of packed weights and scales that are served.
    :ivar unpacks: Whether the packer has the methods ``unpack_weights`` and ``unpack_scales``.
    """

    formats: tuple[Format, ...] = ()
    layouts: tuple[Layout, ...] = ()
    unpacks: bool = False


def exists(format: Format, layout: Layout) -> bool:
    """Whether the format exists in the layout."""
    return (format, layout) != ("fp4_fp8", "v1")


def packings(capabilities: Sm90W4Capabilities) -> Iterator[tuple[Format, Layout]]:
    """List the pairs of format and layout packed by a packer."""
    for format in capabilities.formats:
        for layout in capabilities.layouts:
            if exists(format, layout):
                yield format, layout


@runtime_checkable
class Sm90W4PackerBackend(Protocol):
    """The packer returned by ``tokendraw_build`` for ``pack_sm90_w4``.

    With ``Sm90W4Capabilities.unpacks`` it also has ``unpack_weights`` and ``unpack_scales``, of the same parameters.
    The core has checked dtype, dimensions, format and layout.
    """

    def pack_weights(self, weights: Tensor, *, format: Format, layout: Layout) -> Tensor:
        """Pack weights [E, N, K / 2] uint8, dense: a new tensor of the same shape."""

    def pack_scales(self, scales: Tensor, *, layout: Layout) -> Tensor:
        """Pack scales [E, N, K / 32] uint8, dense: [E, K / 128, 4 N] (v1) or [E, N / 64, K / 128, 16, 16] (v2)."""


def _of_layout(layout: Layout) -> Requirement:
    return Requirement(
        kind=f"the layout {layout}",
        is_supported=lambda capabilities, need: layout in capabilities.layouts,
        is_asked=lambda call, capabilities: call.layout == layout,
    )


def _of_format(format: Format) -> Requirement:
    return Requirement(
        kind=f"the format {format}",
        is_supported=lambda capabilities, need: format in capabilities.formats,
        is_asked=lambda call, capabilities: call.options.get("format") == format,
    )


OPERATION = Operation(
    name="pack_sm90_w4",
    module="tokendraw.operations.pack_sm90_w4.provider",
    capabilities=Sm90W4Capabilities,
    methods=("pack_weights", "pack_scales"),
    requirements=(
        *map(_of_layout, LAYOUTS),
        *map(_of_format, FORMATS),
        Requirement(
            kind="unpacking",
            is_supported=lambda capabilities, need: capabilities.unpacks,
            is_asked=lambda call, capabilities: call.method.startswith("unpack"),
            is_named_first=True,
        ),
    ),
)
