"""The plugin API: how a sampler describes itself, and three hooks through which the core negotiates with it.

A complete plugin, in the package that the entry point names::

    # pyproject.toml
    #   [project.entry-points."tokendraw.plugins"]
    #   acme = "acme_tokendraw:plugin"

    import tokendraw

    class AcmePlugin:
        @tokendraw.hookimpl
        def tokendraw_describe(self):
            return tokendraw.PluginInfo(
                name="acme",
                api_version=1,
                priority=50,
                summary="samples on Acme accelerators",
                upstream=tokendraw.Upstream("acme-kernels", ">=2.1,<3", tested=("2.1.4", "2.3.0")),
                operations={"sample": tokendraw.Capabilities(device_types=("cuda",), dtypes=("float32",))},
            )

        @tokendraw.hookimpl
        def tokendraw_probe(self, operation, host, need):
            return None  # or a sentence: what is missing on this machine

        @tokendraw.hookimpl
        def tokendraw_build(self, operation, device, need):
            from acme_tokendraw.sampler import AcmeSampler  # heavy imports belong here

            return AcmeSampler(device, need)

    plugin = AcmePlugin()

Importing that module must not import torch, triton or the upstream library: ``tokendraw list`` loads every
plugin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pluggy

from tokendraw._capabilities import Capabilities, Host, Need, Operation, VerifyMode

if TYPE_CHECKING:
    import torch

    from tokendraw._drafts import Drafts
    from tokendraw._metadata import SamplingMetadata
    from tokendraw._output import SamplerOutput, VerifyOutput

API_VERSION = 1
"""The plugin API that this core speaks. A plugin that names another one is ``incompatible``."""

ENTRY_POINT_GROUP = "tokendraw.plugins"
PROJECT = "tokendraw"

NAME_RULE = "at most 64 lowercase letters and digits, a letter first, with single hyphens between them"
"""What a plugin's name needs: it stands in lists that commas separate, in shells and in tables."""
LARGEST_PRIORITY = 1_000_000
"""Bound of a priority on both sides of 0, and of an API version."""

_NAME = re.compile(r"(?=.{1,64}\Z)[a-z][a-z0-9]*(-[a-z0-9]+)*")

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


def is_name(text: str) -> bool:
    """Whether users can select a plugin by this name, as :data:`NAME_RULE` says."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class Upstream:
    """The library that a plugin drives, found by its distribution's metadata, never by importing it."""

    distribution: str
    """Name of the distribution, such as ``flashinfer-python``."""
    versions: str
    """PEP 440 specifier of the versions that work, such as ``>=0.6.7,<0.8``."""
    tested: tuple[str, ...] = ()
    """Versions that the plugin's authors have run its tests with."""


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """How a plugin describes itself: data only.

    It is the same on every machine that has the same files installed: a plugin may look at those of its upstream, and
    at nothing else. Texts are one printable line each: 100 characters at most for a name, a version or an architecture,
    500 for the others. A tuple holds 100 items at most.
    """

    name: str
    """The name that users select; the entry point carries the same: lowercase letters, digits and single hyphens."""
    api_version: int
    priority: int
    """Higher is preferred. native is 0, specialised kernels are 10 to 90; from -1000000 to 1000000."""
    operations: Mapping[Operation, Capabilities]
    upstream: Upstream | None = None
    summary: str = ""
    """One line for ``tokendraw list``."""
    verified: str = ""
    """On what hardware its authors have run it, for ``tokendraw show``."""
    kernels: str = ""
    """Where its kernels come from on this machine, for ``tokendraw show``: prebuilt, or what compiles them."""


@runtime_checkable
class SamplerBackend(Protocol):
    """What ``tokendraw_build`` returns for the operation ``sample``."""

    def sample(
        self, logits: torch.Tensor, metadata: SamplingMetadata, *, inplace: bool = False
    ) -> SamplerOutput:
        """Draw one token a row.

        :param logits: [rows, V] float32, bfloat16 or float16 on the device it was built for, any row stride.
            The core has checked shape, dtype and device. Not to be modified unless ``inplace``.
        :param metadata: the parameters of the rows, on the same device.
        """
        ...


@runtime_checkable
class VerifierBackend(Protocol):
    """What ``tokendraw_build`` returns for the operation ``verify``; the same object may serve both operations."""

    def verify(
        self,
        target_logits: torch.Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of a batch, as :class:`tokendraw.Sampler` describes.

        :param target_logits: [L, V] float32, bfloat16 or float16 on the device it was built for, any row stride. Not
            to be modified. The core has checked that drafts and metadata fit them.
        :param metadata: the parameters of the L rows.
        """
        ...

    def draft(self, logits: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw one token a row with noise that no verification at the same seeds and positions uses."""
        ...


class HookSpecs:
    """The hooks. They serve negotiation only: no hook is called while tokens are drawn."""

    @hookspec(firstresult=True)
    def tokendraw_describe(self) -> PluginInfo:
        """Describe the plugin. Called once, right after it is loaded. Pure data: no imports, no devices.

        What depends on the version of the upstream library may be read from its files.
        """
        raise NotImplementedError  # a specification, never called

    @hookspec(firstresult=True)
    def tokendraw_probe(self, operation: Operation, host: Host, need: Need) -> str | None:
        """Say in words what this machine lacks for ``operation``, or None if nothing is missing. Optional.

        Called only after the declared capabilities fit ``host`` and ``need``. Look, do not import: a compiler
        on PATH, a prebuilt module on disk.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def tokendraw_build(
        self, operation: Operation, device: torch.device, need: Need
    ) -> SamplerBackend | VerifierBackend:
        """Build the sampler for one device. Heavy imports happen here. What it raises is the reason shown."""
        raise NotImplementedError
