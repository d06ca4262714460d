"""The subject in the operation ``pack_sm90_w4``, and what it is compared with."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from tokendraw.plugin import Call
from tokendraw.sm90_w4 import Format, Layout
from tokendraw.tools import packed_scales, packed_weights
from tokendraw_testing.kit.property import Ask
from tokendraw_testing.kit.subject import OperationSubject
from tokendraw_testing.kit.trial import Trial

SHAPES: Final[dict[Layout, tuple[tuple[int, int, int], ...]]] = {
    "v1": ((1, 16, 64), (2, 48, 192), (3, 128, 320)),
    "v2": ((1, 64, 128), (2, 192, 384), (3, 128, 640)),
}
"""(E, N, K) of weights, by layout: the smallest, and others with several tiles each way."""
SCALE_SHAPES: Final[dict[Layout, tuple[tuple[int, int, int], ...]]] = {
    "v1": ((1, 16, 128), (2, 48, 384), (3, 128, 640)),
    "v2": SHAPES["v2"],
}


class Packing(OperationSubject):
    """A subject in the operation ``pack_sm90_w4``."""

    operation = "pack_sm90_w4"

    def bytes(self, rng: np.random.Generator, *shape: int) -> Tensor:
        """Draw bytes, on the CPU."""
        return torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))

    def pack_weights(self, weights: Tensor, format: Format, layout: Layout) -> Tensor:
        """Pack weights of the CPU, on the subject's device, and bring the result back."""
        return self.back(
            self.make(self.new_call("pack_weights", weights.to(self.device), format=format, layout=layout))
        )

    def unpack_weights(self, packed: Tensor, format: Format, layout: Layout) -> Tensor:
        """Unpack weights of the CPU likewise."""
        return self.back(
            self.make(self.new_call("unpack_weights", packed.to(self.device), format=format, layout=layout))
        )

    def pack_scales(self, scales: Tensor, layout: Layout) -> Tensor:
        """Pack scales of the CPU likewise."""
        return self.back(self.make(self.new_call("pack_scales", scales.to(self.device), layout=layout)))

    def unpack_scales(self, packed: Tensor, layout: Layout) -> Tensor:
        """Unpack scales of the CPU likewise."""
        return self.back(self.make(self.new_call("unpack_scales", packed.to(self.device), layout=layout)))

    def back(self, output: Tensor) -> Tensor:
        """Bring a result to the CPU."""
        return output.cpu()


def require_equal(trial: Trial, what: str, found: Tensor, needed: Tensor) -> None:
    """Demand the same bytes; the first that differs is named."""
    for place in (found != needed).nonzero()[:1].tolist():
        at = tuple(place)
        trial.require(False, f"{what}: byte {place} needs to be {needed[at]:#04x}, found {found[at]:#04x}")


def require_weights(subject: Packing, trial: Trial, format: Format, layout: Layout) -> str:
    """Compare packed weights with the formulas of the layout."""
    for experts, rows, columns in SHAPES[layout]:
        weights = subject.bytes(trial.generator(f"{rows} x {columns}"), experts, rows, columns // 2)
        needed = packed_weights(weights, format, layout)
        what = f"{format}, {layout}, {[experts, rows, columns // 2]}"
        require_equal(trial, what, subject.pack_weights(weights, format, layout), needed)
    return f"{len(SHAPES[layout])} shapes"


def require_scales(subject: Packing, trial: Trial, layout: Layout) -> str:
    """Compare packed scales with the formulas of the layout."""
    for experts, rows, columns in SCALE_SHAPES[layout]:
        scales = subject.bytes(trial.generator(f"{rows} x {columns}"), experts, rows, columns // 32)
        needed = packed_scales(scales, layout)
        what = f"scales, {layout}, {[experts, rows, columns // 32]}"
        require_equal(trial, what, subject.pack_scales(scales, layout), needed)
    return f"{len(SCALE_SHAPES[layout])} shapes"


def weights_ask(format: Format, layout: Layout) -> Ask:
    """Make the request for weights in a format and a layout."""
    return Ask(
        call=lambda subject: subject.new_call("pack_weights", _tile(subject), format=format, layout=layout)
    )


def scales_ask(layout: Layout) -> Ask:
    """Make the request for scales in a layout."""
    return Ask(
        call=lambda subject: subject.new_call(
            "pack_scales", _tile(subject)[:, :, :4].contiguous(), layout=layout
        )
    )


def unpacking_ask() -> Ask:
    """Make the request for the way back, in a layout that the subject has if it has any."""

    def call(subject: Packing) -> Call:
        return subject.new_call(
            "unpack_weights",
            _tile(subject),
            format=(*subject.capabilities.formats, "fp4")[0],
            layout=(*subject.capabilities.layouts, "v2")[-1],
        )

    return Ask(call=call)


def _tile(subject: Packing) -> Tensor:
    return torch.zeros(1, 64, 64, dtype=torch.uint8, device=subject.device)
