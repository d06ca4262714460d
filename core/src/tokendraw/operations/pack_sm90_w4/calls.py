"""The calls of a packer: weights and scales, there and back. Each takes a tensor and returns a new one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, Self

import torch
from torch import Tensor

from tokendraw import sm90_w4
from tokendraw._torch.tensor_checks import check_device, check_dtype, check_plain
from tokendraw.backends.description.weight_layouts import Layout
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.calls.output_checks import misfit
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import format_value, one_of
from tokendraw.operations.pack_sm90_w4 import FORMATS, LAYOUTS, exists

UPSTREAM: Final = "upstream"
"""The layout of the installed FlashInfer, which :meth:`Call.check` looks up."""
ROWS: Final[dict[Layout, int]] = {"v1": 16, "v2": 64}
"""The rows N of weights and scales are a multiple of this."""
COLUMNS: Final[dict[Layout, int]] = {"v1": 64, "v2": 128}
"""The columns K of weights are a multiple of this; those of scales are one of 128 in either layout."""


class MissingChoiceError(InvalidParameterError, TypeError):
    """Format or layout were left out: neither has a default, as Python's TypeError says of any missing argument."""


class _Omitted:
    """Stands for an omitted argument."""

    def __repr__(self) -> str:
        return "nothing"


OMITTED: Final[Any] = _Omitted()


class _Multiple(NamedTuple):
    """A size that has to be a multiple: a dimension, times the columns that an element of it stands for."""

    name: str
    dimension: int
    times: int
    of: int


class _Form(NamedTuple):
    """The form of a call's tensor: shape in words, multiples, fixed last sizes; and the shape of the result."""

    shape: str
    multiples: tuple[_Multiple, ...]
    result: Callable[[torch.Size], tuple[int, ...]]
    last: tuple[int, ...] = ()


class _Repacking(Call):
    """A tensor, and its layout before or after the call."""

    __slots__ = ("format", "layout", "tensor")

    may_fall_back: ClassVar[bool] = False  # the copy of all experts at once takes too much memory
    argument: ClassVar[str]
    method: ClassVar[str]
    """Name of the backend's method."""

    def __init__(self, tensor: Tensor, *, format: Any = OMITTED, layout: Any = OMITTED) -> None:
        self.tensor, self.format, self.layout = tensor, format, layout

    @abstractmethod
    def form(self) -> _Form:
        """Return the form of the tensor, for a known layout."""

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments beside the tensor."""
        return {"layout": self.layout}

    def check(self, device: torch.device, need: Any) -> None:
        if self.layout == UPSTREAM:
            self.layout = _layout_of_upstream()
        _require_one("layout", self.layout, LAYOUTS, ", or upstream for that of the installed FlashInfer")
        if "format" in self.options():
            _require_one("format", self.format, FORMATS)
            if not exists(self.format, self.layout):
                raise InvalidParameterError(
                    f"'format' needs fp4 or int4 in the layout {self.layout}, found {self.format!r}. Use the layout v2."
                )
        _check_tensor(self.argument, self.tensor, self.form(), self.layout, device)

    def tensors(self) -> dict[str, Tensor]:
        return {self.argument: self.tensor}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tensors[self.argument], **self.options())

    def signature(self) -> Hashable:
        return super().signature(), *self.options().values()

    def run(self, backend: Any) -> Any:
        return getattr(backend, self.method)(self.tensor, **self.options())

    def output_check(self, need: Any) -> OutputCheck:
        return partial(_wrong_form, shape=self.form().result(self.tensor.shape), device=self.tensor.device)

    @property
    def num_rows(self) -> int:
        return self.tensor.shape[0]


class PackWeights(_Repacking):
    """Weights [E, N, K / 2] uint8 as a checkpoint has them: packed, of the same shape."""

    __slots__ = ()
    argument, method = "weights", "pack_weights"

    def form(self) -> _Form:
        rows = _Multiple("N, dimension 1,", 1, 1, ROWS[self.layout])
        columns = _Multiple("K, twice dimension 2,", 2, 2, COLUMNS[self.layout])
        return _Form("[E, N, K / 2]", (rows, columns), tuple)

    def options(self) -> dict[str, Any]:
        return {"format": self.format, "layout": self.layout}


class UnpackWeights(PackWeights):
    """Packed weights [E, N, K / 2] uint8: unpacked, of the same shape."""

    __slots__ = ()
    argument, method = "packed", "unpack_weights"


class PackScales(_Repacking):
    """Scales [E, N, K / 32] uint8: packed, [E, K / 128, 4 N] (v1) or [E, N / 64, K / 128, 16, 16] (v2)."""

    __slots__ = ()
    argument, method = "scales", "pack_scales"

    def form(self) -> _Form:
        rows = _Multiple("N, dimension 1,", 1, 1, ROWS[self.layout])
        columns = _Multiple("K, 32 times dimension 2,", 2, 32, 128)

        def result(shape: torch.Size) -> tuple[int, ...]:
            experts, rows, groups = shape
            if self.layout == "v1":
                return experts, groups // 4, 4 * rows
            return experts, rows // 64, groups // 4, 16, 16

        return _Form("[E, N, K / 32]", (rows, columns), result)


class UnpackScales(_Repacking):
    """Packed scales: unpacked, [E, N, K / 32] uint8."""

    __slots__ = ()
    argument, method = "packed", "unpack_scales"

    def form(self) -> _Form:
        if self.layout == "v1":
            rows = _Multiple("4 N, dimension 2,", 2, 1, 4 * ROWS["v1"])
            return _Form("[E, K / 128, 4 N]", (rows,), lambda shape: (shape[0], shape[2] // 4, 4 * shape[1]))
        shape_words = "[E, N / 64, K / 128, 16, 16]"
        return _Form(shape_words, (), lambda shape: (shape[0], 64 * shape[1], 4 * shape[2]), last=(16, 16))


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


def _check_tensor(argument: str, tensor: object, form: _Form, layout: str, device: torch.device) -> None:
    check_plain(argument, tensor, f"Pass a tensor {form.shape} of dtype torch.uint8.")
    assert isinstance(tensor, Tensor)
    check_device(argument, tensor, device, "packer")
    check_dtype(argument, tensor, torch.uint8, "Pass its bytes, as .view(torch.uint8).")
    dimensions = form.shape.count(",") + 1
    if tensor.dim() != dimensions or tensor.shape[dimensions - len(form.last) :] != form.last:
        raise InvalidInputError(
            f"'{argument}' needs shape {form.shape} for the layout {layout}, found {list(tensor.shape)}. "
            f"Pass {dimensions} dimensions."
        )
    for name, dimension, times, of in form.multiples:
        size = times * tensor.shape[dimension]
        if size % of:
            raise InvalidInputError(
                f"'{argument}' needs {name} divisible by {of} for the layout {layout}, found {size}. "
                f"Pad it to {size + -size % of}."
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
