"""Finds the calls that a packer cannot serve, so that a companion has to."""

from __future__ import annotations

from tokendraw.backends.description.capabilities import HostNeed
from tokendraw.operations.pack_sm90_w4.capabilities import FORMATS, LAYOUTS, Sm90W4Capabilities

UNPACKING = "unpacking"


def beyond(capabilities: Sm90W4Capabilities, need: HostNeed) -> tuple[str, ...]:
    """Name the kinds of calls that are beyond a packer."""
    lacking = [unserved_layout(capabilities, layout) for layout in LAYOUTS]
    lacking += [unserved_format(capabilities, format) for format in FORMATS]
    lacking += [unserved_way_back(capabilities)]
    return tuple(gap for gap in lacking if gap is not None)


def unserved_layout(capabilities: Sm90W4Capabilities, layout: str) -> str | None:
    """Name a layout that a packer does not have."""
    return None if layout in capabilities.layouts else f"the layout {layout}"


def unserved_format(capabilities: Sm90W4Capabilities, format: str) -> str | None:
    """Name a format that a packer does not have."""
    return None if format in capabilities.formats else f"the format {format}"


def unserved_way_back(capabilities: Sm90W4Capabilities) -> str | None:
    """Name unpacking, if a packer does not do it."""
    return None if capabilities.unpacks else UNPACKING
