"""Packed weights and scales, byte by byte, and the way back."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tokendraw.plugin import Sm90W4Capabilities
from tokendraw.sm90_w4 import Format, Layout
from tokendraw.tools import packed_scales, packed_weights, packings
from tokendraw_testing.kit.inputs import unmodified
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.threads import (
    RepeatedCall,
    require_cpu_threads,
    require_thread_free,
    thread_words,
)
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.pack_sm90_w4.packing import (
    SCALE_SHAPES,
    SHAPES,
    Packing,
    require_equal,
    require_scales,
    require_weights,
    scales_ask,
    unpacking_ask,
    weights_ask,
)

properties = Properties("pack_sm90_w4")

_LARGE: Final = (2, 512, 640)
"""(E, N, K) of weights that a packer may share out."""
_CONVERSIONS: Final[tuple[tuple[Layout, Layout], ...]] = (("v1", "v2"), ("v2", "v1"))


def _converts(capabilities: Sm90W4Capabilities) -> bool:
    return capabilities.unpacks and {("fp4", "v1"), ("fp4", "v2")} <= {*packings(capabilities)}


@properties.advertised(
    "pack weights fp4 v1", lambda c: ("fp4", "v1") in {*packings(c)}, weights_ask("fp4", "v1")
)
def weights_fp4_v1(subject: Packing, trial: Trial) -> str:
    """Bytes of fp4 weights stand where the layout v1 has them, nibble by nibble."""
    return require_weights(subject, trial, "fp4", "v1")


@properties.advertised(
    "pack weights fp4 v2", lambda c: ("fp4", "v2") in {*packings(c)}, weights_ask("fp4", "v2")
)
def weights_fp4_v2(subject: Packing, trial: Trial) -> str:
    """Bits of fp4 weights stand where the layout v2 has them."""
    return require_weights(subject, trial, "fp4", "v2")


@properties.advertised("pack weights int4", lambda c: "int4" in c.formats, weights_ask("int4", "v2"))
def weights_int4(subject: Packing, trial: Trial) -> str:
    """Units of 16 bits of int4 weights stand where they should, the same in every layout."""
    return " and ".join(
        f"{layout}: {require_weights(subject, trial, 'int4', layout)}"
        for layout in subject.capabilities.layouts
    )


@properties.advertised(
    "pack weights fp4_fp8", lambda c: ("fp4_fp8", "v2") in {*packings(c)}, weights_ask("fp4_fp8", "v2")
)
def weights_fp4_fp8(subject: Packing, trial: Trial) -> str:
    """Units of 16 bits of fp4_fp8 weights stand where the layout v2 has them, and their signs have moved."""
    return require_weights(subject, trial, "fp4_fp8", "v2")


@properties.advertised("pack scales v1", lambda c: "v1" in c.layouts, scales_ask("v1"))
def scales_v1(subject: Packing, trial: Trial) -> str:
    """Scales stand where the layout v1 has them, in [E, K / 128, 4 N]."""
    return require_scales(subject, trial, "v1")


@properties.advertised("pack scales v2", lambda c: "v2" in c.layouts, scales_ask("v2"))
def scales_v2(subject: Packing, trial: Trial) -> str:
    """Scales stand where the layout v2 has them, in [E, N / 64, K / 128, 16, 16]."""
    return require_scales(subject, trial, "v2")


@properties.advertised("pack round trips", lambda c: c.unpacks, unpacking_ask())
def round_trips(subject: Packing, trial: Trial) -> str:
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


@properties.advertised("pack v1 to v2", _converts)
def v1_to_v2(subject: Packing, trial: Trial) -> str:
    """Weights and scales that are packed in one layout become those of the other."""
    for experts, rows, columns in SHAPES["v2"]:
        rng = trial.generator(f"{rows} x {columns}")
        weights = subject.bytes(rng, experts, rows, columns // 2)
        scales = subject.bytes(rng, experts, rows, columns // 32)
        for old, new in _CONVERSIONS:
            given = packed_weights(weights, "fp4", old)
            found = subject.pack_weights(subject.unpack_weights(given, "fp4", old), "fp4", new)
            require_equal(trial, f"fp4, {old} to {new}", found, packed_weights(weights, "fp4", new))
            found = subject.pack_scales(subject.unpack_scales(packed_scales(scales, old), old), new)
            require_equal(trial, f"scales, {old} to {new}", found, packed_scales(scales, new))
    return f"{len(SHAPES['v2'])} shapes, both ways"


@properties.required("pack threads")
def threads(subject: Packing, trial: Trial) -> str:
    """Large weights are packed byte by byte alike with several threads, and by two objects at once."""
    require_cpu_threads(subject, trial)
    ways = list(packings(subject.capabilities))
    if not ways:
        trial.skip("needs a format in a layout, found none advertised")
    experts, rows, columns = _LARGE
    rng = trial.generator("bytes")
    weights = [subject.bytes(rng, experts, rows, columns // 2) for _ in range(2)]
    for format, layout in ways:
        repeated = [_repeated(subject, one, format, layout) for one in weights]
        require_thread_free(subject, trial, f"{format}, {layout}, {list(_LARGE)}", repeated)
    return f"{len(ways)} ways, {thread_words()}"


def _repeated(subject: Packing, weights: Tensor, format: Format, layout: Layout) -> RepeatedCall:
    needed = packed_weights(weights, format, layout)

    def differs(alone: Tensor, packed: Tensor) -> str | None:
        apart = int((packed != needed).sum())
        return f"needs the bytes of the layout, found {apart} others" if apart else None

    return RepeatedCall(
        lambda: subject.new_call("pack_weights", weights, format=format, layout=layout), differs
    )


@properties.required("pack inputs unmodified")
def inputs_unmodified(subject: Packing, trial: Trial) -> str:
    """Weights and scales keep every byte."""
    rng = trial.generator("bytes")
    weights = subject.bytes(rng, 2, 128, 128).to(subject.device)
    scales = subject.bytes(rng, 2, 128, 8).to(subject.device)
    for format, layout in packings(subject.capabilities):
        with unmodified(trial, weights=weights):
            subject.make(subject.new_call("pack_weights", weights, format=format, layout=layout))
    for layout in subject.capabilities.layouts:
        with unmodified(trial, scales=scales):
            subject.make(subject.new_call("pack_scales", scales, layout=layout))
    return f"{len(list(packings(subject.capabilities)))} ways"


@properties.required("pack empty")
def empty(subject: Packing, trial: Trial) -> str:
    """No expert at all gives packed tensors without any, of the right shape."""
    for format, layout in packings(subject.capabilities):
        subject.pack_weights(torch.empty(0, 64, 64, dtype=torch.uint8), format, layout)
    for layout in subject.capabilities.layouts:
        subject.pack_scales(torch.empty(0, 64, 4, dtype=torch.uint8), layout)
    return "no experts"


@properties.required("pack new tensors")
def new_tensors(subject: Packing, trial: Trial) -> str:
    """A result is memory of its own: the next call leaves it as it is."""
    rng, ways = trial.generator("bytes"), list(packings(subject.capabilities))
    if not ways:
        trial.skip("needs a format in a layout, found none advertised")
    first, second = (subject.bytes(rng, 1, 64, 64).to(subject.device) for _ in range(2))
    for format, layout in ways:
        kept = subject.make(subject.new_call("pack_weights", first, format=format, layout=layout))
        with unmodified(trial, result=kept):
            subject.make(subject.new_call("pack_weights", second, format=format, layout=layout))
        shared = kept.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        trial.require(not shared, f"{format}, {layout}: a result needs memory of its own, found the weights'")
    return f"{len(ways)} ways"
