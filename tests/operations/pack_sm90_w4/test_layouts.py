"""Packed weights: known bytes, no weights at all, odd addresses, and the cost."""

import pytest
import torch

import tokendraw
from cuda_batches import LAYOUTS, WAYS, extra_memory, random_bytes


@pytest.fixture(scope="module")
def packer():
    return tokendraw.load("pack_sm90_w4", "native", device="cpu")


def test_known_bytes_of_every_format(packer):
    weights = torch.arange(16 * 32).view(1, 16, 32).remainder(251).to(torch.uint8)
    first = {format: packer.pack_weights(weights, format=format, layout="v1") for format in ("fp4", "int4")}
    a, b = weights[0, 0], weights[0, 8]
    pairs = [[a[c] % 16 + b[c] % 16 * 16, a[c] // 16 + b[c] // 16 * 16] for c in (0, 4, 1, 5)]
    assert first["fp4"][0, 0, :8].tolist() == [int(value) for pair in pairs for value in pair]
    assert first["int4"][0, 0, :8].tolist() == [int(x[i + j]) for i in (0, 2) for x in (a, b) for j in (0, 1)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(0, 64, 64), (3, 0, 64), (3, 64, 0)], ids=str)
def test_nothing_is_packed_into_nothing(packer, layout, shape):
    packed = packer.pack_weights(torch.empty(shape, dtype=torch.uint8), format="fp4", layout=layout)
    assert packed.shape == shape
    assert packer.unpack_weights(packed, format="fp4", layout=layout).shape == shape
    scales = torch.empty(shape[0], shape[1], shape[2] // 16, dtype=torch.uint8)
    packed = packer.pack_scales(scales, layout=layout)
    experts, rows, groups = scales.shape
    form = {"v1": (experts, groups // 4, 4 * rows), "v2": (experts, rows // 64, groups // 4, 16, 16)}
    assert packed.shape == form[layout]
    assert packer.unpack_scales(packed, layout=layout).shape == scales.shape


@pytest.mark.parametrize(("format", "layout"), WAYS)
def test_weights_at_an_odd_address_are_packed_too(packer, format, layout):
    weights = random_bytes((2 * 64 * 64 + 3,))[3:].view(2, 64, 64)
    packed = packer.pack_weights(weights, format=format, layout=layout)
    assert torch.equal(packed, packer.pack_weights(weights.clone(), format=format, layout=layout))
    odd = torch.cat((torch.zeros(3, dtype=torch.uint8), packed.view(-1)))[3:].view(2, 64, 64)
    assert torch.equal(packer.unpack_weights(odd, format=format, layout=layout), weights)


@pytest.mark.parametrize(("format", "layout"), WAYS)
@pytest.mark.parametrize("shape", [(16, 64, 64), (3, 2048, 1024)], ids=str)
@pytest.mark.fast_first
def test_extra_memory_stays_under_two_experts(packer, format, layout, shape):
    weights = torch.zeros(shape, dtype=torch.uint8)
    for call in (packer.pack_weights, packer.unpack_weights):
        extra = extra_memory(lambda call=call: call(weights, format=format, layout=layout))
        assert 0 < extra < 2 * weights[0].nbytes
