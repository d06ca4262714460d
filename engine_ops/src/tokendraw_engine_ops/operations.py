"""The records of the operations ``plan_paged_kv`` and ``pack_sm90_w4``. Imports no torch.

What ``tokendraw_build`` returns has the methods of the record, with the parameters of what ``tokendraw.load``
returns. A planner gets ``out`` always, writes every element of it and returns it; a packer returns new, dense tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tokendraw.plugin import HostCapabilities, Operation, Requirement

Format: TypeAlias = Literal["fp4", "int4", "fp4_fp8"]
"""Formats of 4-bit weights; ``fp4_fp8`` is fp4 for activations in float8, whose sign bits stand elsewhere."""
Layout: TypeAlias = Literal["v1", "v2"]
"""Layouts of packed weights and their scales."""
FORMATS: Mapping[Layout, tuple[Format, ...]] = {"v1": ("fp4", "int4"), "v2": ("fp4", "int4", "fp4_fp8")}


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


def _option(argument: str, value: str) -> Requirement:
    return Requirement(
        kind=f"the {argument} {value}",
        is_supported=lambda capabilities, need: value in getattr(capabilities, f"{argument}s"),
        is_asked=lambda call, capabilities: call.arguments.get(argument) == value,
    )


PLAN = Operation(name="plan_paged_kv", module="tokendraw_engine_ops.plan", methods=("plan",))
PACK = Operation(
    name="pack_sm90_w4",
    module="tokendraw_engine_ops.pack",
    capabilities=Sm90W4Capabilities,
    methods=("pack_weights", "pack_scales"),
    requirements=(
        *(_option("layout", layout) for layout in FORMATS),
        *(_option("format", format) for format in FORMATS["v2"]),
        Requirement(
            kind="unpacking",
            is_supported=lambda capabilities, need: capabilities.unpacks,
            is_asked=lambda call, capabilities: call.method.startswith("unpack"),
            is_named_first=True,
        ),
    ),
)
