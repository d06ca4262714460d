"""The hooks of the negotiation between the core and a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

from tokendraw.backends.description.capabilities import HostNeed
from tokendraw.backends.description.host import Host
from tokendraw.backends.description.plugin_info import PluginInfo

if TYPE_CHECKING:
    import torch

FILTER_GROUP = "tokendraw.filters"
"""Entry point group of filters from moments: see :mod:`tokendraw.filters`."""
OPERATION_GROUP = "tokendraw.operations"
"""Entry point group of operations beside the core's own: see :class:`tokendraw.plugin.Operation`."""
ENTRY_POINT_GROUP = "tokendraw.plugins"
PROJECT = "tokendraw"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """The hooks. They serve negotiation only: no hook is called while tokens are drawn."""

    @hookspec(firstresult=True)
    def tokendraw_describe(self) -> PluginInfo:
        """Describe the plugin. Called right after it is loaded, and when plugins are looked for again.

        Pure data: no imports, no devices.
        What depends on the version of the upstream library may be read from its files.
        """
        raise NotImplementedError  # a specification, never called

    @hookspec(firstresult=True)
    def tokendraw_probe(self, operation: str, host: Host, need: HostNeed) -> str | None:
        """Say in words why this machine cannot serve ``operation``; None if it can. Optional.

        Called only after the declared capabilities fit ``host`` and ``need``. Look, do not import: a compiler
        on PATH, a prebuilt module on disk.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def tokendraw_build(self, operation: str, device: torch.device, need: HostNeed) -> Any:
        """Build the sampler for a device. Heavy imports happen now. An exception becomes the reason shown to users."""
        raise NotImplementedError
