"""ops-flashinfer: the layout that the installed source has, the compiled module, and calls of the functions."""

import sys
from dataclasses import replace

import pytest
import torch

import flashinfer_stand_in as stand_in
import tokendraw_engine_ops
from fake_candidates import H100
from flashinfer_stand_in import bare_machine, write
from tokendraw import PluginError
from tokendraw_engine_ops.backends import FlashInferPacker
from tokendraw_engine_ops.sm90_w4 import probe_flashinfer
from tokendraw_testing import Subject, run

H20 = replace(H100, name="H20", sm_count=78)
FUNCTION = "flashinfer.fused_moe.interleave_moe_scales_for_sm90_mixed_gemm"


@pytest.fixture
def dists(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]:
        monkeypatch.delitem(sys.modules, name)
    with bare_machine(tmp_path, monkeypatch) as dists:
        yield dists


def install(dists, layout="v2", version="0.7.2.post1", **modules):
    named = {f"flashinfer.{name}": source for name, source in modules.items()}
    modules = {"flashinfer": ""} | stand_in.MODULES[layout] | named
    return dists.add("flashinfer-python", version, modules=modules)


def offered():
    info = tokendraw_engine_ops.ops_flashinfer.tokendraw_describe()
    return info.operations["pack_sm90_w4"].layouts, dict(info.upstream.found)


def probe(host=H100):
    return tokendraw_engine_ops.ops_flashinfer.tokendraw_probe("pack_sm90_w4", host, None)


@pytest.mark.parametrize("version", ["0.6.9", "0.6.17", "0.7.2.post1"])
@pytest.mark.parametrize("layout", ["v1", "v2", None])
def test_the_source_decides_whatever_the_version_and_is_not_imported(dists, layout, version):
    install(dists, layout, version)
    words = f"packs layout {layout}" if layout else "packs no weights for SM90"
    assert offered() == ((layout or "v2",), {"pack_sm90_w4": words})
    assert not [name for name in sys.modules if name.startswith("flashinfer.")]


def test_the_gemm_is_never_compiled_for_it_and_an_h20_has_a_module_of_its_own(dists):
    folder = install(dists)
    assert probe().startswith(
        "needs FlashInfer's module fused_moe_90 prebuilt or compiled earlier, since more than 150 CUDA files take too "
        "long to compile, found none"
    )
    write(folder / "flashinfer/data/aot/fused_moe_90/fused_moe_90.so")
    assert (probe(), probe(H20)) == (None, None)
    write(folder / "flashinfer/jit/fused_moe.py", 'module_name = "fused_moe_90_h20_prebuilt_d"')
    assert "needs FlashInfer's module fused_moe_90_h20_prebuilt_d" in probe(H20)


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_it_packs_in_the_layout_of_its_source_and_no_expert_that_is_too_large(dists, layout):
    install(dists, layout)
    other = "v1" if layout == "v2" else "v2"
    words = rf"needs the layout {other}, .* found that its scale function packs into {layout}"
    with pytest.raises(PluginError, match=words):
        FlashInferPacker(other)
    info = tokendraw_engine_ops.ops_flashinfer.tokendraw_describe()
    anywhere = {"device_types": None, "compute_capability": (None, None)}
    offered = {"pack_sm90_w4": replace(info.operations["pack_sm90_w4"], **anywhere)}
    packer = FlashInferPacker(layout)
    subject = Subject("acme", capabilities=offered, device="cpu", build=lambda *given: packer)
    assert run(subject, only=["pack_sm90_w4 values"]).failed == ()
    huge = torch.empty(1, 2**16, 2**14, dtype=torch.uint8, device="meta")
    with pytest.raises(PluginError, match=r"needs fewer than 2\^31 weights in an expert, found 2147483648"):
        packer.pack_weights(huge, format="fp4", layout=layout)


RAISED = "found that its import or a call of it raised"
REASONS = {
    "found no module flashinfer": None,
    "found no such function": "",
    f"{RAISED} OSError: no ": "raise OSError('no libcudart')",
    f"{RAISED} SystemExit: 3": "import sys; sys.exit(3)",
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_flashinfer_without_a_layout_says_why(dists, reason):
    if REASONS[reason] is not None:
        install(dists, fused_moe=REASONS[reason])
    found = probe_flashinfer()
    assert (found.layout, found.reason.startswith(f"needs {FUNCTION}, {reason}")) == (None, True), found
