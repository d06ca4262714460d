"""The calls of a packer: weights and scales, there and back. Each takes a tensor and returns a new one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, Self

import torch
from torch import Tensor

from tokendraw import sm90_w4
from tokendraw._torch.tensor_checks import check_device, check_plain
from tokendraw.backends.description.weight_layouts import Layout
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.calls.output_checks import misfit
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import format_value, one_of
from tokendraw.operations.pack_sm90_w4 import shapes
from tokendraw.operations.pack_sm90_w4.capabilities import (
    FORMATS,
    LAYOUTS,
    exists,
)

UPSTREAM: Final = "upstream"
"""The layout of the installed FlashInfer, which :meth:`Call.check` looks up."""


class MissingChoiceError(InvalidParameterError, TypeError):
    """Format or layout were left out: neither has a default, as Python's TypeError says of any missing argument."""


class _Omitted:
    """Stands for an omitted argument."""

    def __repr__(self) -> str:
        return "nothing"


OMITTED: Final[Any] = _Omitted()


class _Repacking(Call):
    """A tensor, and its layout before or after the call."""

    __slots__ = ("layout", "tensor")

    may_fall_back: ClassVar[bool] = False  # the copy of all experts at once takes too much memory
    argument: ClassVar[str]
    method: ClassVar[str]
    """Name of the backend's method."""

    tensor: Tensor
    layout: Any

    @abstractmethod
    def form(self) -> shapes.TensorForm:
        """Return the form of the tensor, for a known layout."""

    def check(self, device: torch.device, need: Any) -> None:
        if self.layout == UPSTREAM:
            self.layout = _layout_of_upstream()
        _require_one("layout", self.layout, LAYOUTS, ", or upstream for that of the installed FlashInfer")
        self.check_format()
        _check_tensor(self.argument, self.tensor, self.form(), self.layout, device)

    def check_format(self) -> None:
        """Refuse an unknown format, in calls with a format."""
        return

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments beside the tensor."""
        return {"layout": self.layout}

    def tensors(self) -> dict[str, Tensor]:
        return {self.argument: self.tensor}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tensors[self.argument], **self.options())  # type: ignore[call-arg]

    def signature(self) -> Hashable:
        return super().signature(), *self.options().values()

    def run(self, backend: Any) -> Any:
        return getattr(backend, self.method)(self.tensor, **self.options())

    def output_check(self, need: Any) -> OutputCheck:
        return partial(_wrong_form, shape=self.form().result(self.tensor.shape), device=self.tensor.device)

    @property
    def num_rows(self) -> int:
        return self.tensor.shape[0]


class _Weights(_Repacking):
    """Weights, with a format beside the layout."""

    __slots__ = ("format",)

    format: Any

    def form(self) -> shapes.TensorForm:
        return shapes.weights(self.layout)

    def check_format(self) -> None:
        _require_one("format", self.format, FORMATS)
        if not exists(self.format, self.layout):
            raise InvalidParameterError(
                f"'format' needs fp4 or int4 in the layout {self.layout}, found {self.format!r}. Use the layout v2."
            )

    def options(self) -> dict[str, Any]:
        return {"format": self.format, "layout": self.layout}


class PackWeights(_Weights):
    """Weights [E, N, K / 2] uint8 as a checkpoint has them: packed, of the same shape."""

    __slots__ = ()
    argument, method = "weights", "pack_weights"

    def __init__(self, weights: Tensor, *, format: Any = OMITTED, layout: Any = OMITTED) -> None:
        self.tensor, self.format, self.layout = weights, format, layout


class UnpackWeights(_Weights):
    """Packed weights [E, N, K / 2] uint8: unpacked, of the same shape."""

    __slots__ = ()
    argument, method = "packed", "unpack_weights"

    def __init__(self, packed: Tensor, *, format: Any = OMITTED, layout: Any = OMITTED) -> None:
        self.tensor, self.format, self.layout = packed, format, layout


class PackScales(_Repacking):
    """Scales [E, N, K / 32] uint8: packed, [E, K / 128, 4 N] (v1) or [E, N / 64, K / 128, 16, 16] (v2)."""

    __slots__ = ()
    argument, method = "scales", "pack_scales"

    def __init__(self, scales: Tensor, *, layout: Any = OMITTED) -> None:
        self.tensor, self.layout = scales, layout

    def form(self) -> shapes.TensorForm:
        return shapes.scales(self.layout)


class UnpackScales(_Repacking):
    """Packed scales: unpacked, [E, N, K / 32] uint8."""

    __slots__ = ()
    argument, method = "packed", "unpack_scales"

    def __init__(self, packed: Tensor, *, layout: Any = OMITTED) -> None:
        self.tensor, self.layout = packed, layout

    def form(self) -> shapes.TensorForm:
        return shapes.packed_scales(self.layout)


def _layout_of_upstream() -> Layout:
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
    refused = MissingChoiceError if found is OMITTED else InvalidParameterError
    raise refused(
        f"'{argument}' needs {one_of(needed)}, found {format_value(found)}. Pass one of these{more}."
    )


def _check_tensor(
    argument: str, tensor: object, form: shapes.TensorForm, layout: str, device: torch.device
) -> None:
    check_plain(argument, tensor, f"Pass a tensor {form.shape} of dtype torch.uint8.")
    assert isinstance(tensor, Tensor)
    check_device(argument, tensor, device, "packer")
    if tensor.dtype is not torch.uint8:
        raise InvalidInputError(
            f"'{argument}' needs dtype torch.uint8, found {tensor.dtype}. Pass its bytes, as .view(torch.uint8)."
        )
    last = tuple(tensor.shape[-len(form.last) :]) if form.last else ()
    if tensor.dim() != form.dimensions or last != form.last:
        raise InvalidInputError(
            f"'{argument}' needs shape {form.shape} for the layout {layout}, found {list(tensor.shape)}. "
            f"Pass {form.dimensions} dimensions."
        )
    for multiple in form.multiples:
        size = multiple.times * tensor.shape[multiple.dimension]
        if size % multiple.of:
            raise InvalidInputError(
                f"'{argument}' needs {multiple.name} divisible by {multiple.of} for the layout {layout}, found {size}. "
                f"Pad it to {size + -size % multiple.of}."
            )
    if not tensor.is_contiguous():
        raise InvalidInputError(
            f"'{argument}' needs to be contiguous, found strides {list(tensor.stride())} of shape "
            f"{list(tensor.shape)}. Pass {argument}.contiguous()."
        )


def _wrong_form(output: object, shape: tuple[int, ...], device: torch.device) -> str | None:
    reason = misfit("a tensor", output, shape, torch.uint8, device)
    if reason is None and isinstance(output, Tensor) and not output.is_contiguous():
        return f"a contiguous tensor, found strides {list(output.stride())}"
    return reason
