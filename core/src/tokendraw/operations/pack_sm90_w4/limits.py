"""Finds the calls left by a packer to a companion."""

from __future__ import annotations

from tokendraw.backends.description.capabilities import HostNeed
from tokendraw.operations.pack_sm90_w4.capabilities import FORMATS, LAYOUTS, Sm90W4Capabilities

UNPACKING = "unpacking"


def beyond(capabilities: Sm90W4Capabilities, need: HostNeed) -> tuple[str, ...]:
    """Name the kinds of calls not served by a packer."""
    lacking = [unserved_layout(capabilities, layout) for layout in LAYOUTS]
    lacking += [unserved_format(capabilities, format) for format in FORMATS]
    lacking += [unserved_way_back(capabilities)]
    return tuple(gap for gap in lacking if gap is not None)


def unserved_layout(capabilities: Sm90W4Capabilities, layout: str) -> str | None:
    """Name the layout, if the packer does not serve it."""
    return None if layout in capabilities.layouts else f"the layout {layout}"


def unserved_format(capabilities: Sm90W4Capabilities, format: str) -> str | None:
    """Name the format, if the packer does not serve it."""
    return None if format in capabilities.formats else f"the format {format}"


def unserved_way_back(capabilities: Sm90W4Capabilities) -> str | None:
    """Name unpacking, if the packer does not unpack."""
    return None if capabilities.unpacks else UNPACKING
