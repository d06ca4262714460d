"""Packed weights and scales against their formulas, there and back, from layout to layout; and their cost."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tokendraw
from cuda_batches import LAYOUTS, WAYS, extra_memory, random_bytes
from tokendraw.operations.pack_sm90_w4 import reference

TILE = {"v1": (16, 32), "v2": (64, 64)}


@pytest.fixture(scope="module")
def packer():
    return tokendraw.load("pack_sm90_w4", "native", device="cpu")


def shapes(layout):
    """Shapes of weights: some experts, and up to four tiles each way."""
    rows, columns = TILE[layout]
    counts = st.integers(1, 4)
    return st.tuples(counts, counts.map(rows.__mul__), counts.map(columns.__mul__))


def scale_shapes(layout):
    counts = st.integers(1, 4)
    return st.tuples(counts, counts.map(TILE[layout][0].__mul__), counts.map((4).__mul__))


@pytest.mark.parametrize(("format", "layout"), WAYS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
@pytest.mark.fast_first
def test_weights_are_packed_as_the_formulas_say_and_come_back(packer, format, layout, data):
    weights = random_bytes(data.draw(shapes(layout)), data.draw(st.integers(0, 99)))
    packed = packer.pack_weights(weights, format=format, layout=layout)
    assert torch.equal(packed, reference.packed_weights(weights, format, layout))
    assert torch.equal(packer.unpack_weights(packed, format=format, layout=layout), weights)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_scales_are_packed_as_the_formulas_say_and_come_back(packer, layout, data):
    scales = random_bytes(data.draw(scale_shapes(layout)), data.draw(st.integers(0, 99)))
    packed = packer.pack_scales(scales, layout=layout)
    assert torch.equal(packed, reference.packed_scales(scales, layout))
    assert torch.equal(packer.unpack_scales(packed, layout=layout), scales)


@pytest.mark.parametrize("format", ["fp4", "int4"])
@settings(max_examples=8, deadline=None)
@given(shape=shapes("v2"))
def test_packed_weights_convert_from_one_layout_to_the_other(packer, format, shape):
    weights = random_bytes(shape)
    v1, v2 = (packer.pack_weights(weights, format=format, layout=layout) for layout in LAYOUTS)
    for old, new in (("v1", "v2"), ("v2", "v1")):
        given = {"v1": v1, "v2": v2}
        natural = packer.unpack_weights(given[old], format=format, layout=old)
        assert torch.equal(packer.pack_weights(natural, format=format, layout=new), given[new])


def test_the_layouts_of_fp4_differ_and_those_of_int4_do_not(packer):
    weights = random_bytes((1, 64, 64))
    for format, same in (("fp4", False), ("int4", True)):
        v1, v2 = (packer.pack_weights(weights, format=format, layout=layout) for layout in LAYOUTS)
        assert torch.equal(v1, v2) is same


@pytest.mark.parametrize(("format", "layout"), WAYS)
def test_every_bit_of_a_tile_has_one_place_in_the_same_tile(packer, format, layout):
    rows, columns, bits = 64, 64, torch.arange(8)
    number = torch.arange(rows * columns * 8).view(rows, columns, 8)
    # Digit k of the number of every bit: packed, these say where each bit came from.
    digits = torch.stack([number >> k & 1 for k in range(15)])
    weights = (digits << bits).sum(-1).to(torch.uint8)
    packed = packer.pack_weights(weights, format=format, layout=layout).to(torch.int64)
    source = sum((packed[k].unsqueeze(-1) >> bits & 1) << k for k in range(15))
    assert source.flatten().sort().values.tolist() == number.flatten().tolist()
    assert torch.equal(_tile_of(source, columns), _tile_of(number, columns))


def _tile_of(number, columns):
    """The tile of 16 rows and 64 columns, 32 bytes, of a bit's number."""
    byte = number // 8
    return byte // columns // 16 * 1000 + byte % columns // 32


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


def test_counts_are_of_experts(packer):
    fresh = tokendraw.load("pack_sm90_w4", device="cpu")
    fresh.pack_weights(random_bytes((3, 64, 64)), format="fp4", layout="v2")
    fresh.pack_scales(random_bytes((2, 64, 4)), layout="v1")
    assert fresh.stats() == {"native": 5}
    assert repr(fresh) == "<tokendraw.pack_sm90_w4 'native' on cpu>"
