"""Packed weights and scales, byte by byte, and the way back."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tokendraw.sm90_w4 import Format, Layout
from tokendraw.tools import packed_scales, packed_weights, packings
from tokendraw_testing.kit.inputs import require_unmodified
from tokendraw_testing.kit.property import Properties
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


@properties.advertised(
    "pack weights fp4 v1", lambda c: ("fp4", "v1") in {*packings(c)}, weights_refusal("fp4", "v1")
)
def weights_fp4_v1(subject: PackSubject, trial: Trial) -> str:
    """Bytes of fp4 weights stand where the layout v1 has them, nibble by nibble."""
    return require_weights(subject, trial, "fp4", "v1")


@properties.advertised(
    "pack weights fp4 v2", lambda c: ("fp4", "v2") in {*packings(c)}, weights_refusal("fp4", "v2")
)
def weights_fp4_v2(subject: PackSubject, trial: Trial) -> str:
    """Bits of fp4 weights stand where the layout v2 has them."""
    return require_weights(subject, trial, "fp4", "v2")


@properties.advertised("pack weights int4", lambda c: "int4" in c.formats, weights_refusal("int4", "v2"))
def weights_int4(subject: PackSubject, trial: Trial) -> str:
    """Units of 16 bits of int4 weights stand where they should, the same in every layout."""
    return " and ".join(
        f"{layout}: {require_weights(subject, trial, 'int4', layout)}"
        for layout in subject.capabilities.layouts
    )


@properties.advertised(
    "pack weights fp4_fp8", lambda c: ("fp4_fp8", "v2") in {*packings(c)}, weights_refusal("fp4_fp8", "v2")
)
def weights_fp4_fp8(subject: PackSubject, trial: Trial) -> str:
    """Units of 16 bits of fp4_fp8 weights stand where the layout v2 has them, and their signs have moved."""
    return require_weights(subject, trial, "fp4_fp8", "v2")


@properties.advertised("pack scales v1", lambda c: "v1" in c.layouts, scales_refusal("v1"))
def scales_v1(subject: PackSubject, trial: Trial) -> str:
    """Scales stand where the layout v1 has them, in [E, K / 128, 4 N]."""
    return require_scales(subject, trial, "v1")


@properties.advertised("pack scales v2", lambda c: "v2" in c.layouts, scales_refusal("v2"))
def scales_v2(subject: PackSubject, trial: Trial) -> str:
    """Scales stand where the layout v2 has them, in [E, N / 64, K / 128, 16, 16]."""
    return require_scales(subject, trial, "v2")


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
    """Large weights are packed byte by byte alike with several threads, and by two objects at once."""
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


@properties.required("pack empty")
def empty(subject: PackSubject, trial: Trial) -> str:
    """No expert at all gives packed tensors without any, of the right shape."""
    for format, layout in packings(subject.capabilities):
        subject.pack_weights(torch.empty(0, 64, 64, dtype=torch.uint8), format, layout)
    for layout in subject.capabilities.layouts:
        subject.pack_scales(torch.empty(0, 64, 4, dtype=torch.uint8), layout)
    return "no experts"


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
