"""Packers with one bug each: the native one, with a step of it changed."""

import torch

from tokendraw_native.sm90_w4.packer import NativePacker


class Honest(NativePacker):
    """The native packer."""

    def __init__(self):
        super().__init__(torch.device("cpu"))


class NibblesStay(Honest):
    """v1 interleaves bytes and forgets to pair their nibbles."""

    def pack_weights(self, weights, *, format, layout):
        packed = super().pack_weights(weights, format=format, layout=layout)
        if (format, layout) != ("fp4", "v1"):
            return packed
        pairs = packed.view(*packed.shape[:2], -1, 2)
        low, high = pairs[..., 0], pairs[..., 1]
        return torch.stack((low % 16 + high % 16 * 16, low // 16 + high // 16 * 16), -1).view(packed.shape)


class OneSignIsLost(Honest):
    """One of the 18 runs of bits of v2 is not moved."""

    def pack_weights(self, weights, *, format, layout):
        packed = super().pack_weights(weights, format=format, layout=layout)
        return packed & 0x7F if (format, layout) == ("fp4", "v2") else packed


class BytesForUnits(Honest):
    """int4 is packed in units of 8 bits."""

    def pack_weights(self, weights, *, format, layout):
        packed = super().pack_weights(weights, format=format, layout=layout)
        return (
            packed.view(*packed.shape[:2], -1, 2).flip(-1).view(packed.shape) if format == "int4" else packed
        )


class SignsStay(Honest):
    """fp4_fp8 is packed as int4."""

    def pack_weights(self, weights, *, format, layout):
        return super().pack_weights(weights, format="int4" if format == "fp4_fp8" else format, layout=layout)


class ScalesByGroup(Honest):
    """v1 puts all first scales of a block before all second ones."""

    def pack_scales(self, scales, *, layout):
        packed = super().pack_scales(scales, layout=layout)
        if layout == "v2":
            return packed
        return packed.view(*packed.shape[:2], -1, 4).transpose(2, 3).reshape(packed.shape)


class ScalesByRow(Honest):
    """v2 takes four neighbouring rows where it needs rows that are 16 apart."""

    def pack_scales(self, scales, *, layout):
        if layout == "v2":
            rows = scales.view(len(scales), -1, 16, 4, scales.shape[2])
            scales = rows.transpose(2, 3).reshape(scales.shape)
        return super().pack_scales(scales, layout=layout)


class UnpacksByPacking(Honest):
    """The way back is the way there."""

    def unpack_weights(self, packed, *, format, layout):
        return self.pack_weights(packed, format=format, layout=layout)


class OneLayoutBack(Honest):
    """Unpacking knows v2 alone."""

    def unpack_weights(self, packed, *, format, layout):
        return super().unpack_weights(packed, format=format, layout="v2")


class InPlace(Honest):
    """The weights themselves are packed."""

    def pack_weights(self, weights, *, format, layout):
        packed = super().pack_weights(weights, format=format, layout=layout)
        weights.copy_(packed)
        return packed


class AtLeastOneExpert(Honest):
    """No expert gives one of zeros."""

    def pack_weights(self, weights, *, format, layout):
        if not len(weights):
            return weights.new_zeros(1, *weights.shape[1:])
        return super().pack_weights(weights, format=format, layout=layout)


class OneBuffer(Honest):
    """Every call writes into the same buffer."""

    buffer = None

    def pack_weights(self, weights, *, format, layout):
        packed = super().pack_weights(weights, format=format, layout=layout)
        if self.buffer is None or self.buffer.shape != packed.shape:
            self.buffer = packed
        return self.buffer.copy_(packed)
