"""Packed weights and scales, byte by byte, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor

from tokendraw.plugin import Sm90W4Capabilities
from tokendraw.sm90_w4 import Format, Layout
from tokendraw.tools import packed_scales, packed_weights, packings
from tokendraw_testing.kit.inputs import require_unmodified
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.refusals import offers, require_unadvertised
from tokendraw_testing.kit.threads import RepeatedCall, require_cpu_threads, require_thread_free, thread_words
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.pack_sm90_w4.subject import (
    SCALE_SHAPES,
    SHAPES,
    PackSubject,
    require_equal,
    require_scales,
    require_weights,
    scales_refusal,
    unpacking_refusal,
    weights_refusal,
)

properties = Properties("pack_sm90_w4")

_LARGE_SHAPE: Final = (2, 512, 640)
"""(E, N, K) of weights that a packer may share out."""


_WEIGHTS: Final[tuple[tuple[Format, Layout], ...]] = (
    ("fp4", "v1"),
    ("fp4", "v2"),
    ("int4", "v1"),
    ("int4", "v2"),
    ("fp4_fp8", "v2"),
)
_LAYOUTS: Final[tuple[Layout, ...]] = ("v1", "v2")


def _has_weights(format: Format, layout: Layout) -> Callable[[Sm90W4Capabilities], bool]:
    return lambda c: (format, layout) in {*packings(c)}


_WEIGHTS_REFUSALS: Final = tuple((_has_weights(*way), weights_refusal(*way)) for way in _WEIGHTS)
_SCALES_REFUSALS: Final = tuple((offers("layouts", layout), scales_refusal(layout)) for layout in _LAYOUTS)


@properties.required("pack weights")
def weights(subject: PackSubject, trial: Trial) -> str:
    """Bits of weights stand where the layout has them, in every advertised format; unadvertised formats are refused."""
    parts = [
        f"{format} {layout}: {require_weights(subject, trial, format, layout)}"
        for format, layout in packings(subject.capabilities)
    ]
    return ", ".join(parts) + require_unadvertised(subject, _WEIGHTS_REFUSALS)


@properties.required("pack scales")
def scales(subject: PackSubject, trial: Trial) -> str:
    """Scales stand where the layout has them; unadvertised layouts are refused."""
    parts = [f"{layout}: {require_scales(subject, trial, layout)}" for layout in subject.capabilities.layouts]
    return ", ".join(parts) + require_unadvertised(subject, _SCALES_REFUSALS)


@properties.advertised("pack round trips", lambda c: c.unpacks, unpacking_refusal())
def round_trips(subject: PackSubject, trial: Trial) -> str:
    """Unpacking gives back the weights and scales that the formulas packed."""
    ways = list(packings(subject.capabilities))
    for format, layout in ways:
        for experts, rows, columns in SHAPES[layout]:
            weights = subject.bytes(trial.generator(f"{rows} x {columns}"), experts, rows, columns // 2)
            packed = packed_weights(weights, format, layout)
            what = f"{format}, {layout}, {list(weights.shape)}, unpacked"
            require_equal(trial, what, subject.unpack_weights(packed, format, layout), weights)
    for layout in subject.capabilities.layouts:
        for experts, rows, columns in SCALE_SHAPES[layout]:
            scales = subject.bytes(trial.generator(f"{rows} x {columns}"), experts, rows, columns // 32)
            packed = packed_scales(scales, layout)
            what = f"scales, {layout}, {list(scales.shape)}, unpacked"
            require_equal(trial, what, subject.unpack_scales(packed, layout), scales)
    return f"{len(ways)} ways"


@properties.required("pack threads")
def threads(subject: PackSubject, trial: Trial) -> str:
    """Large weights are packed byte by byte alike with several threads, and in two at once."""
    require_cpu_threads(subject, trial)
    ways = list(packings(subject.capabilities))
    if not ways:
        trial.skip("needs a format in a layout, found none advertised")
    experts, rows, columns = _LARGE_SHAPE
    rng = trial.generator("bytes")
    weights = [subject.bytes(rng, experts, rows, columns // 2) for _ in range(2)]
    for format, layout in ways:
        calls = [_repeated_call(subject, tensor, format, layout) for tensor in weights]
        require_thread_free(subject, trial, f"{format}, {layout}, {list(_LARGE_SHAPE)}", calls)
    return f"{len(ways)} ways, {thread_words()}"


def _repeated_call(subject: PackSubject, weights: Tensor, format: Format, layout: Layout) -> RepeatedCall:
    expected = packed_weights(weights, format, layout)

    def differs(reference: Tensor, output: Tensor) -> str | None:
        num_different = int((output != expected).sum())
        return f"needs the bytes of the layout, found {num_different} others" if num_different else None

    return RepeatedCall(
        lambda: subject.new_call("pack_weights", weights, format=format, layout=layout), differs
    )


@properties.required("pack inputs unmodified")
def inputs_unmodified(subject: PackSubject, trial: Trial) -> str:
    """Weights and scales keep every byte."""
    rng = trial.generator("bytes")
    weights = subject.bytes(rng, 2, 128, 128).to(subject.device)
    scales = subject.bytes(rng, 2, 128, 8).to(subject.device)
    for format, layout in packings(subject.capabilities):
        with require_unmodified(trial, weights=weights):
            subject.make(subject.new_call("pack_weights", weights, format=format, layout=layout))
    for layout in subject.capabilities.layouts:
        with require_unmodified(trial, scales=scales):
            subject.make(subject.new_call("pack_scales", scales, layout=layout))
    return f"{len(list(packings(subject.capabilities)))} ways"


@properties.required("pack new tensors")
def new_tensors(subject: PackSubject, trial: Trial) -> str:
    """A result is memory of its own: the next call leaves it as it is."""
    rng, ways = trial.generator("bytes"), list(packings(subject.capabilities))
    if not ways:
        trial.skip("needs a format in a layout, found none advertised")
    first, second = (subject.bytes(rng, 1, 64, 64).to(subject.device) for _ in range(2))
    for format, layout in ways:
        kept = subject.make(subject.new_call("pack_weights", first, format=format, layout=layout))
        with require_unmodified(trial, result=kept):
            subject.make(subject.new_call("pack_weights", second, format=format, layout=layout))
        is_shared = kept.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        trial.require(
            not is_shared, f"{format}, {layout}: a result needs memory of its own, found the weights'"
        )
    return f"{len(ways)} ways"
