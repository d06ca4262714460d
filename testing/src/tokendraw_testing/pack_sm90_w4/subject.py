"""The subject in the operation ``pack_sm90_w4``, and comparisons with the formulas."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from tokendraw.plugin import Call
from tokendraw.sm90_w4 import Format, Layout
from tokendraw.tools import packed_scales, packed_weights
from tokendraw_testing.kit.property import Refusal
from tokendraw_testing.kit.subject import OperationSubject
from tokendraw_testing.kit.trial import Trial

SHAPES: Final[dict[Layout, tuple[tuple[int, int, int], ...]]] = {
    "v1": ((1, 16, 64), (2, 48, 192), (3, 128, 320), (0, 16, 64)),
    "v2": ((1, 64, 128), (2, 192, 384), (3, 128, 640), (0, 64, 128)),
}
"""(E, N, K) of weights, by layout: the smallest, others with several tiles each way, and no expert."""
SCALE_SHAPES: Final[dict[Layout, tuple[tuple[int, int, int], ...]]] = {
    "v1": ((1, 16, 128), (2, 48, 384), (3, 128, 640), (0, 16, 128)),
    "v2": SHAPES["v2"],
}


class PackSubject(OperationSubject):
    """A subject in the operation ``pack_sm90_w4``."""

    operation = "pack_sm90_w4"

    def bytes(self, rng: Generator, *shape: int) -> Tensor:
        """Draw bytes, on the CPU."""
        return torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))

    def pack_weights(self, weights: Tensor, format: Format, layout: Layout) -> Tensor:
        """Pack weights of the CPU on the subject's device, and bring the result back."""
        return self._convert("pack_weights", weights, format=format, layout=layout)

    def unpack_weights(self, packed: Tensor, format: Format, layout: Layout) -> Tensor:
        """Unpack weights of the CPU likewise."""
        return self._convert("unpack_weights", packed, format=format, layout=layout)

    def pack_scales(self, scales: Tensor, layout: Layout) -> Tensor:
        """Pack scales of the CPU likewise."""
        return self._convert("pack_scales", scales, layout=layout)

    def unpack_scales(self, packed: Tensor, layout: Layout) -> Tensor:
        """Unpack scales of the CPU likewise."""
        return self._convert("unpack_scales", packed, layout=layout)

    def _convert(self, method: str, tensor: Tensor, **options: str) -> Tensor:
        output: Tensor = self.make(self.new_call(method, tensor.to(self.device), **options))
        return output.cpu()


def require_equal(trial: Trial, what: str, output: Tensor, expected: Tensor) -> None:
    """Require equal bytes; the message names the first difference."""
    for index in (output != expected).nonzero()[:1].tolist():
        at = tuple(index)
        trial.require(False, f"{what}: byte {index} needs to be {expected[at]:#04x}, found {output[at]:#04x}")


def require_weights(subject: PackSubject, trial: Trial, format: Format, layout: Layout) -> str:
    """Compare packed weights with the formulas of the layout."""
    for experts, rows, columns in SHAPES[layout]:
        weights = subject.bytes(trial.generator(f"{rows} x {columns}"), experts, rows, columns // 2)
        expected = packed_weights(weights, format, layout)
        what = f"{format}, {layout}, {[experts, rows, columns // 2]}"
        require_equal(trial, what, subject.pack_weights(weights, format, layout), expected)
    return f"{len(SHAPES[layout])} shapes"


def require_scales(subject: PackSubject, trial: Trial, layout: Layout) -> str:
    """Compare packed scales with the formulas of the layout."""
    for experts, rows, columns in SCALE_SHAPES[layout]:
        scales = subject.bytes(trial.generator(f"{rows} x {columns}"), experts, rows, columns // 32)
        expected = packed_scales(scales, layout)
        what = f"scales, {layout}, {[experts, rows, columns // 32]}"
        require_equal(trial, what, subject.pack_scales(scales, layout), expected)
    return f"{len(SCALE_SHAPES[layout])} shapes"


def weights_refusal(format: Format, layout: Layout) -> Refusal:
    """Make the request for weights in a format and a layout."""
    return Refusal(
        call=lambda subject: subject.new_call("pack_weights", _tile(subject), format=format, layout=layout)
    )


def scales_refusal(layout: Layout) -> Refusal:
    """Make the request for scales in a layout."""
    return Refusal(
        call=lambda subject: subject.new_call(
            "pack_scales", _tile(subject)[:, :, :4].contiguous(), layout=layout
        )
    )


def unpacking_refusal() -> Refusal:
    """Make the refusal of unpacking, in a layout of the subject if possible."""

    def call(subject: PackSubject) -> Call:
        return subject.new_call(
            "unpack_weights",
            _tile(subject),
            format=(*subject.capabilities.formats, "fp4")[0],
            layout=(*subject.capabilities.layouts, "v2")[-1],
        )

    return Refusal(call=call)


def _tile(subject: PackSubject) -> Tensor:
    return torch.zeros(1, 64, 64, dtype=torch.uint8, device=subject.device)
