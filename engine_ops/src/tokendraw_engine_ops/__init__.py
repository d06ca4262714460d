"""Operations of engines that live outside tokendraw's core: page plans, and packed 4-bit weights.

The entry points name this module and :mod:`.operations`, so it imports nothing heavy. :mod:`.paged_kv` and
:mod:`.sm90_w4` are for callers; :mod:`.plan` and :mod:`.pack` describe the methods, and the rest are their backends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokendraw.plugin import HostCapabilities, PluginInfo, Release, Upstream, hookimpl, release_of
from tokendraw_engine_ops.operations import FORMATS, Layout, Sm90W4Capabilities

if TYPE_CHECKING:
    import torch

    from tokendraw.plugin import Host, HostNeed

_AGAIN = "weights that were packed in the other layout have to be packed again"
_SAYS: dict[Layout | None, str] = {
    None: "packs no weights for SM90",
    "v1": "packs layout v1",
    "v2": "packs layout v2",
}
FLASHINFER = Upstream(
    "flashinfer-python",
    ">=0.6.7,<0.8",
    tested=("0.6.11.post2", "0.7.2.post1"),
    releases=(
        Release("0", _SAYS[None], "pack_sm90_w4", refused=True),
        Release("0.6.10", _SAYS["v1"], "pack_sm90_w4"),
        Release("0.6.16", _SAYS["v2"], "pack_sm90_w4", change=_AGAIN),
        Release("0.6.16.post3", _SAYS["v1"], "pack_sm90_w4", change=_AGAIN),
        Release("0.6.18", _SAYS["v2"], "pack_sm90_w4", change=_AGAIN),
    ),
)
"""What the wheels of each version do. Where the installed source tells, it decides."""


class OpsTorch:
    """Plans and packs in plain PyTorch, on every device."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        plan = HostCapabilities(device_types=None, graph_safe=True, sync_free=True)
        pack = Sm90W4Capabilities(
            device_types=None, formats=FORMATS["v2"], layouts=("v1", "v2"), unpacks=True
        )
        return PluginInfo(
            name="ops-torch",
            api_version=1,
            priority=0,
            operations={"plan_paged_kv": plan, "pack_sm90_w4": pack},
            summary="page plans and packed weights in plain PyTorch, on every device",
            verified="CPU (x86-64, torch 2.13.0); not run on a GPU in this form",
        )

    @hookimpl
    def tokendraw_build(self, operation: str, device: torch.device, need: HostNeed) -> Any:
        from tokendraw_engine_ops.backends import TorchPacker, TorchPlanner

        return TorchPlanner() if operation == "plan_paged_kv" else TorchPacker()


class OpsTriton:
    """Plans by one Triton kernel, for NVIDIA and AMD."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        plan = HostCapabilities(
            device_types=("cuda", "rocm"),
            compute_capability=((8, 0), None),
            rocm_archs=("gfx90a", "gfx942", "gfx950", "gfx1201"),
            graph_safe=True,
            sync_free=True,
        )
        return PluginInfo(
            name="ops-triton",
            api_version=1,
            priority=50,
            operations={"plan_paged_kv": plan},
            upstream=Upstream("triton", ">=3.4", tested=("3.6.0",)),
            summary="page plans by one Triton kernel, for NVIDIA and AMD",
            verified="Triton's interpreter; compiled for NVIDIA and AMD, not run on a GPU in this form",
        )

    @hookimpl
    def tokendraw_build(self, operation: str, device: torch.device, need: HostNeed) -> Any:
        from tokendraw_engine_ops.triton_planner import TritonPlanner

        return TritonPlanner(device)


class OpsFlashInfer:
    """Packs by FlashInfer's own functions."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        layout, upstream = flashinfer()
        pack = Sm90W4Capabilities(
            device_types=("cuda",),
            compute_capability=((9, 0), (9, 0)),
            formats=FORMATS[layout or "v2"],
            layouts=(layout or "v2",),
            sync_free=True,
        )
        return PluginInfo(
            name="ops-flashinfer",
            api_version=1,
            priority=40,
            operations={"pack_sm90_w4": pack},
            upstream=upstream,
            summary="FlashInfer's own functions that pack weights for its SM90 GEMM",
            verified="a stand-in for FlashInfer; not run on a GPU in this form",
        )

    @hookimpl
    def tokendraw_probe(self, operation: str, host: Host, need: HostNeed) -> str | None:
        """Look for the compiled GEMM, whose module holds the packing kernels: compiling it would take too long."""
        try:
            from tokendraw_flashinfer.kernels import find, gemm_module
        except ModuleNotFoundError:
            return "needs tokendraw-flashinfer, which finds FlashInfer's compiled kernels, found none"
        return find(host.compute_capability, gemm_module(host)).reason

    @hookimpl
    def tokendraw_build(self, operation: str, device: torch.device, need: HostNeed) -> Any:
        from tokendraw_engine_ops.backends import FlashInferPacker

        return FlashInferPacker(flashinfer()[0])


def flashinfer() -> tuple[Layout | None, Upstream]:
    """Return the layout that the installed version packs, else the newest, and the table with what its files show."""
    from tokendraw.resolution import installed_version
    from tokendraw_engine_ops.sm90_w4 import read_layout

    layout, is_read = read_layout()
    if is_read:
        return layout, replace(FLASHINFER, found={"pack_sm90_w4": _SAYS[layout]})
    row = release_of(FLASHINFER, installed_version(FLASHINFER.distribution) or "0.7.2.post1", "pack_sm90_w4")
    return next((layout for layout, says in _SAYS.items() if row and row.says == says), None), FLASHINFER


ops_torch, ops_triton, ops_flashinfer = OpsTorch(), OpsTriton(), OpsFlashInfer()
