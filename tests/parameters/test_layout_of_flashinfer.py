"""The layout of the installed FlashInfer follows from the result of its scale function, not from its version."""

import logging
import sys
from pathlib import Path

import pytest

import flashinfer_stand_in as stand_in
from fake_dists import fake_dists
from tokendraw.sm90_w4 import FlashInferLayout, layout_of_flashinfer, probe_flashinfer

ROOT = Path(__file__).parents[2]
FUNCTION = "flashinfer.fused_moe.interleave_moe_scales_for_sm90_mixed_gemm"


@pytest.fixture
def dists(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]:
        monkeypatch.delitem(sys.modules, name)
    with fake_dists(tmp_path, monkeypatch) as dists:
        yield dists


def install(dists, modules, version="0.7.2.post1"):
    dists.add("flashinfer-python", version, modules={"flashinfer": ""} | modules)


def install_scales(dists, source):
    install(
        dists,
        {"flashinfer.fused_moe": f"def interleave_moe_scales_for_sm90_mixed_gemm(scales):\n    {source}\n"},
    )


def unknown(found):
    return FlashInferLayout(None, f"needs {FUNCTION}{found}")


@pytest.mark.parametrize("version", ["0.6.9", "0.6.16", "0.7.2.post1"])
@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_the_function_decides_whatever_the_version(dists, layout, version):
    install(dists, stand_in.MODULES[layout], version)
    assert layout_of_flashinfer() == layout
    assert probe_flashinfer() == FlashInferLayout(layout)


def test_modules_of_no_distribution_are_enough(dists):
    dists.add("vendored", modules={"flashinfer": ""} | stand_in.MODULES["v1"])
    assert layout_of_flashinfer() == "v1"


def test_a_release_without_the_function_has_no_layout(dists):
    install(dists, stand_in.MODULES[None])
    assert layout_of_flashinfer() is None
    assert probe_flashinfer() == unknown(", found no such function")


def test_without_flashinfer_there_is_no_layout(dists):
    assert probe_flashinfer() == unknown(", found no module flashinfer")


def test_a_release_without_the_module_has_no_layout(dists):
    install(dists, {})
    assert probe_flashinfer() == unknown(", found no module flashinfer.fused_moe")


def test_a_folder_that_is_called_flashinfer_is_not_it(dists, monkeypatch):
    assert (ROOT / "plugins" / "flashinfer").is_dir()
    monkeypatch.syspath_prepend(ROOT / "plugins")
    try:
        assert probe_flashinfer() == unknown(", found no module flashinfer.fused_moe")
    finally:
        sys.modules.pop("flashinfer", None)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("raise RuntimeError('cubins of another version')", "RuntimeError: cubins of another version"),
        ("raise SystemExit('no driver')", "SystemExit: no driver"),
        ("import tvm_ffi_that_is_missing", "ModuleNotFoundError: No module named 'tvm_ffi_that_is_missing'"),
        ("raise AttributeError('half a module')", "AttributeError: half a module"),
    ],
)
def test_an_import_that_fails_is_a_reason_and_its_traceback_is_logged(dists, caplog, failure, said):
    caplog.set_level(logging.DEBUG, "tokendraw")
    install(dists, {"flashinfer.fused_moe": failure})
    found = unknown(f", found that its import or a call of it raised {said}")
    assert probe_flashinfer() == found
    (record,) = caplog.records
    assert record.getMessage() == f"no layout of FlashInfer: {found.reason}"
    assert said.partition(":")[0] in record.exc_text


def test_a_function_that_fails_is_a_reason(dists):
    install_scales(dists, "raise ValueError('scales must be 4D')")
    assert probe_flashinfer() == unknown(
        ", found that its import or a call of it raised ValueError: scales must be 4D"
    )


@pytest.mark.parametrize(("shape", "dimensions"), [("[1, 1, 4, 64]", 4), ("[256]", 1)])
def test_another_shape_is_a_layout_that_nobody_knows(dists, shape, dimensions):
    install_scales(dists, f"return scales.reshape({shape})")
    assert probe_flashinfer() == unknown(f" to return 3 dimensions (v1) or 5 (v2), found {dimensions}")


def test_what_is_no_tensor_is_a_reason(dists):
    install_scales(dists, "return None")
    assert probe_flashinfer() == unknown(
        ", found that its import or a call of it raised AttributeError: 'NoneType' object has no attribute 'dim'"
    )


def test_an_interrupt_from_the_keyboard_is_the_users(dists):
    install(dists, {"flashinfer.fused_moe": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        layout_of_flashinfer()
