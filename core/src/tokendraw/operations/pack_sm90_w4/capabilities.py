"""The capabilities of a packer: formats, layouts, and unpacking."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tokendraw.backends.description.capabilities import HostCapabilities
from tokendraw.backends.description.weight_layouts import Format, Layout

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


def has(format: Format, layout: Layout) -> bool:
    """Whether the format exists in the layout."""
    return (format, layout) != ("fp4_fp8", "v1")


def pairs(capabilities: Sm90W4Capabilities) -> Iterator[tuple[Format, Layout]]:
    """List the pairs of format and layout packed by a packer."""
    for format in capabilities.formats:
        for layout in capabilities.layouts:
            if has(format, layout):
                yield format, layout
