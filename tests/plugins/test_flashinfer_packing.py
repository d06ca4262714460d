"""Packing by the FlashInfer plugin: reading the installed version, negotiation, and calls."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import flashinfer_stand_in as stand_in
import tokendraw
import tokendraw_flashinfer
from fake_candidates import A100, B200, H100
from flashinfer_stand_in import add_jit_cache, add_tools, bare_machine, write
from tokendraw import InvalidParameterError, PluginError, operations
from tokendraw.cli.diagnosis.libraries import upstreams
from tokendraw.providers.resolve import decide, gather
from tokendraw.resolution import Choice
from tokendraw_flashinfer import plugin
from tokendraw_flashinfer.packer import FlashInferPacker
from tokendraw_flashinfer.packing import FORMATS, Packing
from tokendraw_testing import Subject, run
from tokendraw_testing.kit.report import Status

RELEASES = {"v1": "0.6.17", "v2": "0.7.2.post1", None: "0.6.9"}
"""A version that promises each layout."""
V1, V2 = (Packing(layout, FORMATS[layout], is_read=True) for layout in ("v1", "v2"))
NOTHING = Packing(None, is_read=True)
H20 = replace(H100, name="H20", sm_count=78)


@pytest.fixture
def dists(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]:
        monkeypatch.delitem(sys.modules, name)
    with bare_machine(tmp_path, monkeypatch) as dists:
        yield dists


def install(dists, layout="v2", version="0.7.2.post1", **modules):
    """Install a version with the modules of a layout, some of them replaced."""
    named = {f"flashinfer.{name}": source for name, source in modules.items()}
    return dists.add(
        "flashinfer-python", version, modules={"flashinfer": ""} | stand_in.MODULES[layout] | named
    )


def changed(old, new):
    """The module of v2's functions, edited."""
    source = stand_in.MODULES["v2"]["flashinfer.fused_moe.prepare"]
    assert old in source
    return {"fused_moe.prepare": source.replace(old, new)}


# What is read


@pytest.mark.parametrize("version", RELEASES.values())
@pytest.mark.parametrize(("layout", "packing"), [("v1", V1), ("v2", V2), (None, NOTHING)])
def test_the_source_decides_whatever_the_version(dists, layout, packing, version):
    install(dists, layout, version)
    assert Packing.installed() == packing


@pytest.mark.parametrize(("layout", "version"), RELEASES.items())
def test_without_a_source_the_version_decides(dists, layout, version):
    dists.add("flashinfer-python", version)
    assert Packing.installed() == Packing(layout, FORMATS.get(layout, ()), is_read=False)


@pytest.mark.parametrize(
    "result",
    [
        "folded.reshape(experts, rows // 64, groups // 4, 256)",
        "folded.reshape(*folded.shape[:3], 16, 16, 1)",
        "folded.contiguous()",
        "fold(folded)",
        "folded.reshape(experts, rows, (groups)",
    ],
)
@pytest.mark.parametrize(("layout", "version"), RELEASES.items())
def test_behind_an_unknown_source_the_version_number_decides(dists, layout, version, result):
    source = changed("folded.contiguous().reshape(experts, rows // 64, groups // 4, 16, 16)", result)
    install(dists, "v2", version, **source)
    assert Packing.installed() == Packing(layout, FORMATS.get(layout, ()), is_read=False)


@pytest.mark.parametrize(
    ("old", "new", "formats"),
    [
        (', "int4": 0', "", ("fp4", "fp4_fp8")),
        ('{"fp4": 1, "fp4_fp8": 2, "int4": 0}', "dict(fp4=1)", ("fp4", "int4", "fp4_fp8")),
    ],
)
def test_a_format_missing_from_the_source_is_not_offered(dists, old, new, formats):
    install(dists, **changed(old, new))
    assert Packing.installed() == replace(V2, formats=formats)


def test_without_flashinfer_the_newest_version_is_described():
    assert Packing.installed() == Packing("v2", FORMATS["v2"])
    offered = plugin.tokendraw_describe().operations["pack_sm90_w4"]
    assert (offered.layouts, offered.formats, offered.unpacks) == (("v2",), FORMATS["v2"], False)


def test_reading_imports_nothing(dists):
    install(dists)
    before = set(sys.modules)
    plugin.tokendraw_describe()
    plugin.tokendraw_probe("pack_sm90_w4", H100, None)
    assert not {name for name in set(sys.modules) - before if name.startswith("flashinfer")}


def test_a_description_loads_no_packer():
    code = "import sys, tokendraw_flashinfer; tokendraw_flashinfer.plugin.tokendraw_describe()\n"
    code += "print('tokendraw.sm90_w4' in sys.modules)"
    environ = os.environ | {"PYTHONPATH": str(Path(tokendraw_flashinfer.__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ
    )
    assert run.stdout == "False\n"


# Who serves what


def decided(dists, host=H100):
    """The resolution on a machine among FlashInfer and native."""
    for name in ("flashinfer", "native"):
        dists.add(f"tokendraw-{name}", "0.1.0", plugins={name: f"tokendraw_{name}:plugin"})
    plugins = [c for c in gather(host, Choice()).plugins if c.name in ("flashinfer", "native")]
    record = operations.find_operation("pack_sm90_w4")
    return decide(plugins, host, record.need(), Choice(), operation="pack_sm90_w4")


def reason(resolution):
    return {decision.name: decision.reason for decision in resolution.decisions}["flashinfer"]


@pytest.mark.parametrize(
    ("layout", "version", "words", "unsupported"),
    [
        ("v1", "0.6.17", "packs layout v1", ("the layout v2", "the format fp4_fp8", "unpacking")),
        ("v2", "0.6.18", "packs layout v2", ("the layout v1", "unpacking")),
        ("v2", "0.6.17", "packs layout v2 by its files", ("the layout v1", "unpacking")),
        ("v2", "0.6.9", "packs layout v2 by its files", ("the layout v1", "unpacking")),
    ],
)
def test_native_serves_the_other_layout_and_formats(dists, layout, version, words, unsupported):
    folder = install(dists, layout, version)
    write(folder / "flashinfer/data/aot/fused_moe_90/fused_moe_90.so")
    resolution = decided(dists)
    assert (resolution.chosen, resolution.companion) == ("flashinfer", "native")
    assert reason(resolution) == f"best available, priority 40; flashinfer-python {version} {words}"
    assert resolution.beyond == unsupported


@pytest.mark.parametrize(
    ("layout", "version", "seen"), [(None, "0.6.9", ""), (None, "0.6.17", " by its files")]
)
def test_a_version_without_packing_is_passed_over(dists, layout, version, seen):
    install(dists, layout, version)
    resolution = decided(dists)
    assert resolution.chosen == "native"
    assert reason(resolution) == (
        f"needs flashinfer-python >=0.6.10, found {version}, which packs no weights for SM90{seen}"
    )


@pytest.mark.parametrize(("host", "found"), [(A100, "8.0"), (B200, "10.0")])
def test_the_layouts_are_for_compute_capability_9_0(dists, host, found):
    install(dists)
    assert reason(decided(dists, host)) == f"needs compute capability 9.0 to 9.0, found {found}"


AGAIN = ": weights that were packed in the other layout have to be packed again"


@pytest.mark.parametrize(
    ("layout", "version", "words"),
    [
        ("v1", "0.6.17", f"0.7.2.post1 packs layout v2 where 0.6.17 packs layout v1{AGAIN}"),
        (None, "0.6.9", f"0.7.2.post1 packs layout v2 where 0.6.9 packs no weights for SM90{AGAIN}"),
        ("v2", "0.6.18", None),
    ],
)
def test_doctor_says_that_weights_of_another_layout_need_packing_again(dists, layout, version, words):
    install(dists, layout, version)
    dists.add("tokendraw-flashinfer", "0.1.0", plugins={"flashinfer": "tokendraw_flashinfer:plugin"})
    (candidate,) = [c for c in gather(H100, Choice()).plugins if c.name == "flashinfer"]
    (state,) = upstreams([candidate])
    said = [phrase for phrase in state["would_change"].split("; ") if "packs" in phrase]
    assert said == ([words] if words else [])


# Where its kernels come from

NEEDED = (
    "needs FlashInfer's module fused_moe_90 prebuilt or compiled earlier, since more than 150 CUDA files take too long "
    "to compile, found "
)
ADVICE = "; run `pip install flashinfer-jit-cache==0.7.2.post1` from FlashInfer's index, or call FlashInfer's GEMM once"


def probe(host=H100):
    return plugin.tokendraw_probe("pack_sm90_w4", host, None)


def test_the_gemm_is_never_compiled_for_it(dists):
    install(dists)
    assert probe() == f"{NEEDED}none{ADVICE}"
    add_tools(dists, "ninja", "c++", "nvcc")
    assert probe() == f"{NEEDED}none{ADVICE}"


@pytest.mark.parametrize(
    ("version", "module", "reason"),
    [
        ("0.7.2.post1", "fused_moe_90", None),
        ("0.7.2.post1+cu130", "fused_moe_90", None),
        ("0.7.2.post1", "sampling", f"{NEEDED}none{ADVICE}"),
        ("0.7.1", "fused_moe_90", f"{NEEDED}none, and flashinfer-jit-cache 0.7.1 of another version{ADVICE}"),
    ],
)
def test_a_jit_cache_is_enough_with_the_gemm_and_of_its_version(dists, version, module, reason):
    install(dists)
    add_jit_cache(dists, version, module=module)
    assert probe() == reason


def test_a_module_compiled_earlier_needs_ninja_and_a_toolkit_to_be_loaded(dists, monkeypatch):
    install(dists)
    write(
        dists.folder / "workspace/.cache/flashinfer/0.7.2.post1/90a/cached_ops/fused_moe_90/fused_moe_90.so"
    )
    found = f"{NEEDED}one compiled earlier, but "
    assert probe() == f"{found}no nvcc and no C++ compiler and no ninja{ADVICE}"
    add_tools(dists, "ninja", "nvcc", "c++")
    assert probe() is None
    monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")
    assert probe() == f"{found}FLASHINFER_DISABLE_JIT set{ADVICE}"


@pytest.mark.parametrize(
    ("source", "module"),
    [('module_name = "fused_moe_90_h20_prebuilt_d"', "fused_moe_90_h20_prebuilt_d"), ("", "fused_moe_90")],
)
def test_an_h20_has_a_separate_module_if_the_source_names_it(dists, source, module):
    folder = install(dists)
    write(folder / "flashinfer/jit/fused_moe.py", source)
    write(folder / f"flashinfer/data/aot/{module}/{module}.so")
    assert probe(H20) is None
    assert (probe() is None) is (module == "fused_moe_90")


# Calls


def test_an_unimportable_version_is_not_built(dists):
    install(dists, fused_moe="raise OSError('libcudart.so.13: cannot open')")
    with pytest.raises(PluginError) as refused:
        FlashInferPacker()
    assert str(refused.value) == (
        "needs flashinfer.fused_moe.interleave_moe_scales_for_sm90_mixed_gemm, found that its import or a call of it "
        "raised OSError: libcudart.so.13: cannot open"
    )


def test_the_function_overrules_its_source(dists):
    install(
        dists,
        **changed(
            "def other(): pass",
            ("def interleave_moe_scales_for_sm90_mixed_gemm(scales):\n    return scales\n"),
        ),
    )
    assert Packing.installed() == V2
    with pytest.raises(PluginError) as refused:
        FlashInferPacker()
    assert str(refused.value) == (
        "needs the layout v2, which the source of FlashInfer says, found that its scale function packs into v1; "
        "reinstall flashinfer-python"
    )


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_packing_equals_native(dists, layout):
    install(dists, layout)
    packer, native = FlashInferPacker(), tokendraw.load("pack_sm90_w4", "native", device="cpu")
    weights, scales = (torch.randint(256, (2, 128, size), dtype=torch.uint8) for size in (128, 8))
    for name in FORMATS[layout]:
        stand_in.PACKING_CALLS.clear()
        packed = packer.pack_weights(weights, format=name, layout=layout)
        assert torch.equal(packed, native.pack_weights(weights, format=name, layout=layout))
        (call,) = stand_in.PACKING_CALLS
        assert call["weight"] is weights
    packed = packer.pack_scales(scales, layout=layout)
    assert torch.equal(packed, native.pack_scales(scales, layout=layout))


def test_weights_at_an_odd_address_are_copied_first(dists):
    install(dists)
    odd = torch.randint(256, (64 * 64 + 1,), dtype=torch.uint8)[1:].view(1, 64, 64)
    packed = FlashInferPacker().pack_weights(odd, format="int4", layout="v2")
    assert torch.equal(packed, stand_in.pack(odd.clone(), 0, "v2"))


def test_an_expert_too_large_for_the_kernels_is_refused(dists):
    install(dists)
    with pytest.raises(PluginError) as refused:
        FlashInferPacker().pack_weights(
            torch.empty(1, 2**16, 2**14, dtype=torch.uint8, device="meta"), format="fp4", layout="v2"
        )
    assert str(refused.value) == "needs fewer than 2^31 weights in an expert, found 2147483648"


@pytest.mark.parametrize(
    ("layout", "requested", "words"),
    [
        ("v1", {"format": "fp4", "layout": "v2"}, "needs fp4, int4 in v1, found fp4 in v2"),
        ("v1", {"format": "fp4_fp8", "layout": "v1"}, "needs fp4, int4 in v1, found fp4_fp8 in v1"),
    ],
)
def test_unadvertised_layouts_and_formats_are_refused(dists, layout, requested, words):
    install(dists, layout)
    with pytest.raises(PluginError) as refused:
        FlashInferPacker().pack_weights(torch.zeros(1, 64, 64, dtype=torch.uint8), **requested)
    assert str(refused.value) == words


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_the_kit_passes_for_the_advertised_layout(dists, layout):
    install(dists, layout)
    offered = tokendraw_flashinfer.packing_capabilities(Packing.installed())
    subject = Subject(
        "flashinfer",
        capabilities={"pack_sm90_w4": offered},
        device="cpu",
        build=lambda operation, need: FlashInferPacker(),
    )
    statuses = {line.name: line.status for line in run(subject).lines}
    assert set(statuses.values()) == {Status.PASSED, Status.REFUSED}
    passed = {name for name, status in statuses.items() if status is Status.PASSED}
    assert passed >= {"pack weights", "pack scales"}


# Through the core, on a CPU


@pytest.fixture
def packers(dists, monkeypatch):
    """Loads the plugin's packer as if its kernels ran on a CPU, with native as the alternative."""
    offered = tokendraw_flashinfer.packing_capabilities
    anywhere = {"device_types": None, "compute_capability": None}
    monkeypatch.setattr(
        tokendraw_flashinfer, "packing_capabilities", lambda found: replace(offered(found), **anywhere)
    )

    def load(layout):
        folder = install(dists, layout)
        write(folder / "flashinfer/data/aot/fused_moe_90/fused_moe_90.so")
        dists.add("tokendraw-flashinfer", "0.1.0", plugins={"flashinfer": "tokendraw_flashinfer:plugin"})
        return tokendraw.load("pack_sm90_w4", "flashinfer", device="cpu")

    return load


@pytest.mark.parametrize(("layout", "other"), [("v1", "v2"), ("v2", "v1")])
def test_calls_in_the_other_layout_and_the_way_back_go_to_native(packers, layout, other):
    packer = packers(layout)
    assert (packer.name, packer.resolution.companion) == ("flashinfer", "native")
    weights = torch.randint(256, (2, 64, 64), dtype=torch.uint8)
    for name, calls in ((layout, 1), (other, 0)):
        stand_in.PACKING_CALLS.clear()
        packed = packer.pack_weights(weights, format="fp4", layout=name)
        assert len(stand_in.PACKING_CALLS) == calls
        assert torch.equal(packer.unpack_weights(packed, format="fp4", layout=name), weights)


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_the_layout_upstream_is_the_layout_of_the_installed_version(packers, layout):
    packer = packers(layout)
    weights = torch.randint(256, (2, 64, 64), dtype=torch.uint8)
    stand_in.PACKING_CALLS.clear()
    packed = packer.pack_weights(weights, format="fp4", layout="upstream")
    assert [call["layout"] for call in stand_in.PACKING_CALLS] == [layout]
    assert torch.equal(packer.unpack_weights(packed, format="fp4", layout=layout), weights)


def test_the_layout_upstream_needs_a_version_with_packing(dists):
    install(dists, None)
    native = tokendraw.load("pack_sm90_w4", "native", device="cpu")
    with pytest.raises(InvalidParameterError) as refused:
        native.pack_scales(torch.zeros(1, 64, 4, dtype=torch.uint8), layout="upstream")
    assert str(refused.value).startswith(
        "'layout' needs flashinfer.fused_moe.interleave_moe_scales_for_sm90_mixed_gemm, found no such function; "
    )
