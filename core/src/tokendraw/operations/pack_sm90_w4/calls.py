"""The calls of a packer: weights and scales, there and back. Each takes a tensor and returns a new one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, Self

import torch
from torch import Tensor

from tokendraw import sm90_w4
from tokendraw._torch.tensor_checks import check_plain
from tokendraw.backends.description.weight_layouts import Layout
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.calls.output_checks import misfit
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import format_value, one_of
from tokendraw.operations.pack_sm90_w4 import limits, shapes
from tokendraw.operations.pack_sm90_w4.capabilities import FORMATS, LAYOUTS, Sm90W4Capabilities, has
from tokendraw.parameters.batch_facts import BatchFacts

UPSTREAM: Final = "upstream"
"""The layout of the installed FlashInfer, which :meth:`Call.check` looks up."""


class MissingChoiceError(InvalidParameterError, TypeError):
    """Format or layout were left out: an argument is missing, as Python says it, and there is no default."""


class _Choice:
    """Stands for an argument that was left out."""

    def __repr__(self) -> str:
        return "nothing"


_LEFT_OUT: Final[Any] = _Choice()


class _Repacking(Call):
    """One tensor, and the layout that it has or gets."""

    __slots__ = ("layout", "tensor")

    argument: ClassVar[str]
    unpacks: ClassVar[bool] = False

    tensor: Tensor
    layout: Any

    @abstractmethod
    def form(self) -> shapes.Form:
        """Return the form of the tensor, for a layout that is known."""

    def check(self, device: torch.device, need: Any) -> None:
        if self.layout == UPSTREAM:
            self.layout = _of_upstream()
        _require_one("layout", self.layout, LAYOUTS, ", or upstream for that of the installed FlashInfer")
        self.check_format()
        _check_tensor(self.argument, self.tensor, self.form(), self.layout, device)

    def check_format(self) -> None:
        """Refuse a format that there is not, where a call has one."""
        return

    def tensors(self) -> dict[str, Tensor]:
        return {self.argument: self.tensor}

    def kind(self) -> Hashable:
        return super().kind(), self.layout

    def lacking(self, capabilities: Sm90W4Capabilities, rows: BatchFacts | None = None) -> str | None:
        lacking = limits.unserved_way_back(capabilities) if self.unpacks else None
        return lacking or limits.unserved_layout(capabilities, self.layout)

    def output_check(self, need: Any) -> OutputCheck:
        return partial(_wrong_form, shape=self.form().result(self.tensor.shape), device=self.tensor.device)

    @property
    def num_rows(self) -> int:
        return self.tensor.shape[0]


class _Weights(_Repacking):
    """Weights, which have a format beside the layout."""

    __slots__ = ("format",)

    format: Any

    def form(self) -> shapes.Form:
        return shapes.weights(self.layout)

    def check_format(self) -> None:
        _require_one("format", self.format, FORMATS)
        if not has(self.format, self.layout):
            raise InvalidParameterError(
                f"'format' needs fp4 or int4 in the layout {self.layout}, found {self.format!r}. Use the layout v2."
            )

    def kind(self) -> Hashable:
        return super().kind(), self.format

    def lacking(self, capabilities: Sm90W4Capabilities, rows: BatchFacts | None = None) -> str | None:
        return super().lacking(capabilities, rows) or limits.unserved_format(capabilities, self.format)


class PackWeights(_Weights):
    """Weights [E, N, K / 2] uint8 as a checkpoint has them: packed, of the same shape."""

    __slots__ = ()
    argument = "weights"

    def __init__(self, weights: Tensor, *, format: Any = _LEFT_OUT, layout: Any = _LEFT_OUT) -> None:
        self.tensor, self.format, self.layout = weights, format, layout

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tensors[self.argument], format=self.format, layout=self.layout)

    def run(self, backend: Any) -> Any:
        return backend.pack_weights(self.tensor, format=self.format, layout=self.layout)


class UnpackWeights(_Weights):
    """Packed weights [E, N, K / 2] uint8: unpacked, of the same shape."""

    __slots__ = ()
    argument, unpacks = "packed", True

    def __init__(self, packed: Tensor, *, format: Any = _LEFT_OUT, layout: Any = _LEFT_OUT) -> None:
        self.tensor, self.format, self.layout = packed, format, layout

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tensors[self.argument], format=self.format, layout=self.layout)

    def run(self, backend: Any) -> Any:
        return backend.unpack_weights(self.tensor, format=self.format, layout=self.layout)


class PackScales(_Repacking):
    """Scales [E, N, K / 32] uint8: packed, [E, K / 128, 4 N] (v1) or [E, N / 64, K / 128, 16, 16] (v2)."""

    __slots__ = ()
    argument = "scales"

    def __init__(self, scales: Tensor, *, layout: Any = _LEFT_OUT) -> None:
        self.tensor, self.layout = scales, layout

    def form(self) -> shapes.Form:
        return shapes.scales(self.layout)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tensors[self.argument], layout=self.layout)

    def run(self, backend: Any) -> Any:
        return backend.pack_scales(self.tensor, layout=self.layout)


class UnpackScales(_Repacking):
    """Packed scales: unpacked, [E, N, K / 32] uint8."""

    __slots__ = ()
    argument, unpacks = "packed", True

    def __init__(self, packed: Tensor, *, layout: Any = _LEFT_OUT) -> None:
        self.tensor, self.layout = packed, layout

    def form(self) -> shapes.Form:
        return shapes.packed_scales(self.layout)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tensors[self.argument], layout=self.layout)

    def run(self, backend: Any) -> Any:
        return backend.unpack_scales(self.tensor, layout=self.layout)


def _of_upstream() -> Layout:
    layout = sm90_w4.layout_of_flashinfer()
    if layout is None:
        reason = sm90_w4.probe_flashinfer().reason or "needs an installed FlashInfer that packs, found none"
        raise InvalidParameterError(
            f"'layout' {reason}; {UPSTREAM!r} is what that packs into. "
            f"Pass {one_of(LAYOUTS)}, whichever your GEMM reads."
        )
    return layout


def _require_one(argument: str, found: object, needed: tuple[str, ...], more: str = "") -> None:
    if isinstance(found, str) and found in needed:
        return
    refused = MissingChoiceError if found is _LEFT_OUT else InvalidParameterError
    raise refused(
        f"'{argument}' needs {one_of(needed)}, found {format_value(found)}. Pass one of these{more}."
    )


def _check_tensor(argument: str, found: object, form: shapes.Form, layout: str, device: torch.device) -> None:
    check_plain(argument, found, f"Pass a tensor {form.shape} of dtype torch.uint8.")
    assert isinstance(found, Tensor)
    where = found.device
    if where.type != device.type or device.index not in (None, where.index):
        raise InvalidInputError(
            f"'{argument}' needs device {device}, where the packer was built, found {where}. "
            f"Move it, or load a packer for {where}."
        )
    if found.dtype is not torch.uint8:
        raise InvalidInputError(
            f"'{argument}' needs dtype torch.uint8, found {found.dtype}. Pass its bytes, as .view(torch.uint8)."
        )
    last = tuple(found.shape[-len(form.last) :]) if form.last else ()
    if found.dim() != form.dimensions or last != form.last:
        raise InvalidInputError(
            f"'{argument}' needs shape {form.shape} for the layout {layout}, found {list(found.shape)}. "
            f"Pass {form.dimensions} dimensions."
        )
    for multiple in form.multiples:
        size = multiple.times * found.shape[multiple.dimension]
        if size % multiple.of:
            raise InvalidInputError(
                f"'{argument}' needs {multiple.name} divisible by {multiple.of} for the layout {layout}, found {size}. "
                f"Pad it to {size + -size % multiple.of}."
            )
    if not found.is_contiguous():
        raise InvalidInputError(
            f"'{argument}' needs to be contiguous, found strides {list(found.stride())} of shape {list(found.shape)}. "
            f"Pass {argument}.contiguous()."
        )


def _wrong_form(output: object, shape: tuple[int, ...], device: torch.device) -> str | None:
    reason = misfit("a tensor", output, shape, torch.uint8, device)
    if reason is None and isinstance(output, Tensor) and not output.is_contiguous():
        return f"a contiguous tensor, found strides {list(output.stride())}"
    return reason
