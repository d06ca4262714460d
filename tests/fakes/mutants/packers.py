"""Packers of weights with a bug in every call: native with a changed step."""

import torch

from mutants import table
from tokendraw.plugin import Sm90W4Capabilities
from tokendraw_native.sm90_w4.packer import NativePacker

EVERYTHING = Sm90W4Capabilities(formats=("fp4", "int4", "fp4_fp8"), layouts=("v1", "v2"), unpacks=True)


class PackerMutant(NativePacker):
    """The native packer, with a hook for packed weights."""

    def __init__(self, need=None, device="cpu"):
        super().__init__(torch.device(device))
        self.buffers = {}

    def pack_weights(self, weights, *, format, layout):
        return self.after(
            super().pack_weights(weights, format=format, layout=layout), weights, format, layout
        )

    def after(self, packed, weights, format, layout):
        return packed


def pack(change):
    return {"after": lambda self, packed, weights, format, layout: change(packed, format, layout)}


def swap_nibbles(packed, format, layout):
    if (format, layout) != ("fp4", "v1"):
        return packed
    low, high = packed.view(*packed.shape[:2], -1, 2).unbind(-1)
    return torch.stack((low % 16 + high % 16 * 16, low // 16 + high // 16 * 16), -1).view(packed.shape)


def scales_by_group(self, scales, *, layout):
    packed = NativePacker.pack_scales(self, scales, layout=layout)
    if layout == "v2":
        return packed
    return packed.view(*packed.shape[:2], -1, 4).transpose(2, 3).reshape(packed.shape)


def scales_by_row(self, scales, *, layout):
    if layout == "v2":
        rows = scales.view(len(scales), -1, 16, 4, scales.shape[2])
        scales = rows.transpose(2, 3).reshape(scales.shape)
    return NativePacker.pack_scales(self, scales, layout=layout)


def pack_in_place(self, packed, weights, format, layout):
    weights.copy_(packed)
    return packed


# fmt: off
PACKERS = table("pack_sm90_w4", EVERYTHING, PackerMutant, (
    ("v1 interleaves bytes and forgets to pair their nibbles", "pack weights", pack(swap_nibbles)),
    ("one of the 18 runs of bits of v2 is not moved", "pack weights", pack(
        lambda packed, format, layout: packed & 0x7F if (format, layout) == ("fp4", "v2") else packed)),
    ("int4 is packed in units of 8 bits", "pack weights", pack(
        lambda packed, format, layout: packed if format != "int4" else packed.view(
            *packed.shape[:2], -1, 2).flip(-1).view(packed.shape))),
    ("fp4_fp8 is packed as int4", "pack weights", {"pack_weights": lambda self, weights, *, format, layout:
        NativePacker.pack_weights(
            self, weights, format="int4" if format == "fp4_fp8" else format, layout=layout)}),
    ("v1 puts all first scales of a block before all second ones", "pack scales", {"pack_scales": scales_by_group}),
    ("v2 takes four neighbouring rows where it needs rows that are 16 apart", "pack scales",
     {"pack_scales": scales_by_row}),
    ("weights are unpacked by packing them", "pack round trips",
     {"unpack_weights": lambda self, packed, **how: self.pack_weights(packed, **how)}),
    ("unpacking knows v2 alone", "pack round trips", {"unpack_weights": lambda self, packed, *, format, layout:
        NativePacker.unpack_weights(self, packed, format=format, layout="v2")}),
    ("weights are packed in place", "pack inputs unmodified", {"after": pack_in_place}),
    ("no expert gives one of zeros", "pack weights", {"after": lambda self, packed, weights, *rest: (
        packed if len(weights) else weights.new_zeros(1, *weights.shape[1:]))}),
    ("every call writes into one buffer", "pack new tensors",
     {"after": lambda self, packed, *rest: self.buffers.setdefault(packed.shape, packed).copy_(packed)}),
))
# fmt: on
MUTANTS = {"Packers": PACKERS}
