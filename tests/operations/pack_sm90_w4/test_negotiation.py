"""A packer with limits serves the rest: its companion serves the calls beyond them."""

import pytest
import torch

import tokendraw
from cuda_batches import random_bytes
from tokendraw import PluginError, operations
from tokendraw.plugin import Host, Sm90W4Capabilities
from tokendraw.resolution import State

WEIGHTS, SCALES = random_bytes((2, 64, 64)), random_bytes((2, 64, 4))
PLUGIN = """
import tokendraw
from tokendraw_native.sm90_w4.packer import NativePacker

CALLS = []


class Packer:
    def __init__(self, device):
        self.native = NativePacker(device)

    def pack_weights(self, weights, *, format, layout):
        CALLS.append((format, layout))
        return self.native.pack_weights(weights, format={format}, layout=layout){more}

    def pack_scales(self, scales, *, layout):
        CALLS.append(layout)
        return self.native.pack_scales(scales, layout=layout)


class Plugin:
    @tokendraw.plugin.hookimpl
    def tokendraw_describe(self):
        offered = tokendraw.plugin.Sm90W4Capabilities(formats=("fp4", "int4"), layouts=("v1",))
        return tokendraw.plugin.PluginInfo(
            name="acme", api_version=1, priority=50, operations={{"pack_sm90_w4": offered}}
        )

    @tokendraw.plugin.hookimpl
    def tokendraw_build(self, operation, device, need):
        return Packer(device)


plugin = Plugin()
"""


def add(dists, format="format", more=""):
    import importlib

    return importlib.import_module(dists.add_plugin("acme", PLUGIN.format(format=format, more=more)))


def test_calls_that_are_beyond_the_chosen_one_go_to_native(dists):
    module = add(dists)
    packer = tokendraw.load("pack_sm90_w4", device="cpu")
    resolution = packer.resolution
    assert (resolution.chosen, resolution.companion) == ("acme", "native")
    assert resolution.beyond == ("the layout v2", "the format fp4_fp8", "unpacking")
    module.CALLS.clear()
    v1 = packer.pack_weights(WEIGHTS, format="fp4", layout="v1")
    natural = packer.unpack_weights(v1, format="fp4", layout="v1")
    v2 = packer.pack_weights(natural, format="fp4", layout="v2")
    packer.pack_weights(WEIGHTS, format="fp4_fp8", layout="v2")
    packer.pack_scales(SCALES, layout="v1")
    packer.pack_scales(SCALES, layout="v2")
    assert module.CALLS == [("fp4", "v1"), "v1"]
    assert packer.stats() == {"acme": 4, "native": 8}
    assert torch.equal(packer.unpack_weights(v2, format="fp4", layout="v2"), WEIGHTS)


def test_a_packer_that_packs_wrongly_is_passed_over_with_the_byte(dists):
    add(dists, format="'int4'")
    with pytest.warns(tokendraw.SamplerFallbackWarning) as caught:
        assert tokendraw.load("pack_sm90_w4", device="cpu").name == "native"
    reason = str(caught[0].message).partition(" Using ")[0]
    assert reason == (
        "'acme' was passed over: the proof call needs packed weights, fp4, v1: 96 at [0, 0, 0], found 0."
    )


def test_a_result_that_is_not_dense_is_an_error_and_nobody_takes_over(dists):
    # The proof has one expert. Who takes over needs copies of all experts: there is no room for those.
    add(dists, more=" if weights.shape[0] == 1 else weights.transpose(1, 2)")
    packer = tokendraw.load("pack_sm90_w4", device="cpu")
    with pytest.raises(PluginError) as refused:
        packer.pack_weights(WEIGHTS, format="fp4", layout="v1")
    assert str(refused.value) == (
        "'acme' needs to return a contiguous tensor, found strides [4096, 1, 64]. Mend the plugin, or set "
        "TOKENDRAW_DISABLE=acme."
    )
    assert packer.name == "acme"


def test_the_record_says_what_a_packer_lacks():
    record = operations.find_operation("pack_sm90_w4")
    assert record.unsupported_kinds(Sm90W4Capabilities(), None) == (
        "the layout v1",
        "the layout v2",
        "the format fp4",
        "the format int4",
        "the format fp4_fp8",
        "unpacking",
    )


def test_native_serves_it_on_any_device():
    (found,) = [c for c in tokendraw.discover(operation="pack_sm90_w4") if c.name == "native"]
    assert found.state is State.AVAILABLE
    for device_type in ("cuda", "rocm", "xpu", "mps"):
        host = Host(device_type=device_type)
        assert tokendraw.resolve(host=host, operation="pack_sm90_w4").chosen == "native"
