"""Packed weights: recorded bytes, refusals, memory, scales of activations, and the page."""

import hashlib

import pytest
import torch

import call_tables
import pages
import tokendraw
from cuda_batches import WAYS, extra_memory, random_bytes
from tokendraw import InvalidParameterError
from tokendraw_engine_ops import sm90_w4
from tokendraw_engine_ops.sm90_w4 import shared_activation_scale

PAGE = pages.text_of("engine_ops/sm90-w4.md")
WEIGHTS, SCALES = random_bytes((2, 64, 64)), random_bytes((2, 64, 4))


def load(plugin=None):
    return tokendraw.load("pack_sm90_w4", plugin, device="cpu")


# Digests of the bytes that tokendraw-native wrote for the same seed before this distribution took its place.

DIGESTS = {
    ("fp4", "v1"): "b6ea8d5e228bdfc6",
    ("fp4", "v2"): "904269134a5770bd",
    ("int4", "v1"): "c2fd6c60ea8a673a",
    ("int4", "v2"): "c2fd6c60ea8a673a",
    ("fp4_fp8", "v2"): "e63243950847ddfd",
    ("scales", "v1"): "1dd906a098bd0176",
    ("scales", "v2"): "1e30bce93651ea7b",
}


@pytest.mark.parametrize(("what", "layout"), DIGESTS)
def test_the_bytes_are_those_that_were_compared_with_releases_of_flashinfer(what, layout):
    generator, packer = torch.Generator().manual_seed(0), load()
    weights, scales = (
        torch.randint(256, (2, 128, size), dtype=torch.uint8, generator=generator) for size in (192, 12)
    )
    if what == "scales":
        natural, packed = scales, packer.pack_scales(scales, layout=layout)
        back = packer.unpack_scales(packed, layout=layout)
    else:
        natural, packed = weights, packer.pack_weights(weights, format=what, layout=layout)
        back = packer.unpack_weights(packed, format=what, layout=layout)
    form = str(tuple(packed.shape)).encode() + packed.numpy().tobytes()
    assert hashlib.sha256(form).hexdigest()[:16] == DIGESTS[what, layout]
    assert torch.equal(back, natural)


@pytest.mark.parametrize(("format", "layout"), WAYS)
def test_extra_memory_stays_under_two_experts(format, layout):
    packer, weights = load(), torch.zeros((3, 1024, 1024), dtype=torch.uint8)
    for call in (packer.pack_weights, packer.unpack_weights):
        extra = extra_memory(lambda call=call: call(weights, format=format, layout=layout))
        assert 0 < extra < 2 * weights[0].nbytes


# Refusals


def test_wrong_weights_scales_formats_and_layouts_are_refused_there_and_back():
    packer = load()
    methods = ("pack_weights", "unpack_weights", "pack_scales", "unpack_scales")
    names = {name: getattr(packer, name) for name in methods}
    names |= {"WEIGHTS": WEIGHTS, "SCALES": SCALES, "bytes_of": random_bytes, "torch": torch}
    names |= {"shared_activation_scale": shared_activation_scale}
    table = call_tables.Table(__file__, "pack_refusals.txt")
    assert table.found(lambda: dict(names)) == table.text
    for options in ({"format": "fp4"}, {"layout": "v2"}):
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument"):
            packer.pack_weights(WEIGHTS, **options)


def test_upstream_is_the_layout_of_the_installed_flashinfer(monkeypatch):
    for layout in ("v1", "v2"):
        monkeypatch.setattr(sm90_w4, "probe_flashinfer", lambda n=layout: sm90_w4.FlashInferLayout(n))
        found = load().pack_weights(WEIGHTS, format="fp4", layout="upstream")
        assert torch.equal(found, load().pack_weights(WEIGHTS, format="fp4", layout=layout))
    none = sm90_w4.FlashInferLayout(None, "needs flashinfer.fused_moe, found none")
    monkeypatch.setattr(sm90_w4, "probe_flashinfer", lambda: none)
    with pytest.raises(InvalidParameterError, match="found none; 'upstream' is what that packs into"):
        load().pack_scales(SCALES, layout="upstream")


# Scales of activations, and the page


def test_equal_entries_are_one_scale():
    for scale in (torch.full((4, 1), 0.25), torch.full((), 0.25), torch.full((1,), 0.25).expand(8)):
        assert shared_activation_scale(scale, 3).tolist() == [0.25]


def test_the_page_prints_what_it_shows(capsys):
    (source,), (shown,) = pages.blocks(PAGE, "python"), pages.blocks(PAGE, "")
    exec(source, {})
    assert capsys.readouterr().out == shown
