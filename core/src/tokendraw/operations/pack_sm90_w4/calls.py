"""The call of a packer: weights or scales, there or back. It takes a tensor and returns a new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


class _Form(NamedTuple):
    """The form of a call's tensor, and the shape of the result as a function of the sizes."""

    shape: str
    result: Callable[..., tuple[int, ...]]
    multiples: tuple[tuple[str, int, int, int], ...]
    """Sizes that have to be multiples: name, dimension, columns that an element stands for, divisor."""


def _form(method: str, layout: Layout) -> _Form:
    rows = "N, dimension 1,", 1, 1, ROWS[layout]
    if method.endswith("weights"):
        columns = "K, twice dimension 2,", 2, 2, COLUMNS[layout]
        return _Form("[E, N, K / 2]", lambda e, n, k: (e, n, k), (rows, columns))
    groups = "K, 32 times dimension 2,", 2, 32, 128
    packed_rows = "4 N, dimension 2,", 2, 1, 4 * ROWS["v1"]
    return {
        ("pack_scales", "v1"): _Form("[E, N, K / 32]", lambda e, n, k: (e, k // 4, 4 * n), (rows, groups)),
        ("pack_scales", "v2"): _Form(
            "[E, N, K / 32]", lambda e, n, k: (e, n // 64, k // 4, 16, 16), (rows, groups)
        ),
        ("unpack_scales", "v1"): _Form(
            "[E, K / 128, 4 N]", lambda e, k, n: (e, n // 4, 4 * k), (packed_rows,)
        ),
        ("unpack_scales", "v2"): _Form(
            "[E, N / 64, K / 128, 16, 16]", lambda e, n, k, *_: (e, 64 * n, 4 * k), ()
        ),
    }[method, layout]


class Repacking(Call):
    """A tensor to pack or unpack, with the layout before or after the call; for weights with the format, too."""

    __slots__ = ("format", "layout", "method", "tensor")

    may_fall_back: ClassVar[bool] = False  # the copy of all experts at once takes too much memory

    def __init__(self, method: str, tensor: Tensor, *, format: Any = OMITTED, layout: Any = OMITTED) -> None:
        """Hold the arguments.

        :param method: name of the backend's method.
        """
        self.method, self.tensor, self.format, self.layout = method, tensor, format, layout

    @property
    def argument(self) -> str:
        """Return the name of the tensor."""
        direction, _, name = self.method.partition("_")
        return name if direction == "pack" else "packed"

    @property
    def options(self) -> dict[str, Any]:
        """Return the keyword arguments beside the tensor."""
        options = {"layout": self.layout}
        return options if self.method.endswith("scales") else options | {"format": self.format}

    def check(self, device: torch.device, need: Any) -> None:
        if self.layout == UPSTREAM:
            self.layout = _layout_of_upstream()
        _require_one("layout", self.layout, LAYOUTS, ", or upstream for that of the installed FlashInfer")
        if "format" in self.options:
            _require_one("format", self.format, FORMATS)
            if not exists(self.format, self.layout):
                raise InvalidParameterError(
                    f"'format' needs fp4 or int4 in the layout {self.layout}, found {self.format!r}. Use the layout v2."
                )
        _check_tensor(self.argument, self.tensor, _form(self.method, self.layout), self.layout, device)

    def tensors(self) -> dict[str, Tensor]:
        return {self.argument: self.tensor}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(self.method, tensors[self.argument], **self.options)

    def run(self, backend: Any) -> Any:
        return getattr(backend, self.method)(self.tensor, **self.options)

    def output_check(self, need: Any) -> OutputCheck:
        shape = _form(self.method, self.layout).result(*self.tensor.shape)
        return partial(_wrong_form, shape=shape, device=self.tensor.device)

    @property
    def num_rows(self) -> int:
        return self.tensor.shape[0]


def _layout_of_upstream() -> Layout:
    found = sm90_w4.probe_flashinfer()
    if found.layout is None:
        raise InvalidParameterError(
            f"'layout' {found.reason}; {UPSTREAM!r} is what that packs into. "
            f"Pass {one_of(LAYOUTS)}, whichever your GEMM reads."
        )
    return found.layout


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
    if tensor.dim() != dimensions or (dimensions == 5 and tensor.shape[3:] != (16, 16)):
        raise InvalidInputError(
            f"'{argument}' needs shape {form.shape} for the layout {layout}, found {list(tensor.shape)}. "
            f"Pass {dimensions} dimensions."
        )
    for name, dimension, columns, divisor in form.multiples:
        size = columns * tensor.shape[dimension]
        if size % divisor:
            raise InvalidInputError(
                f"'{argument}' needs {name} divisible by {divisor} for the layout {layout}, found {size}. "
                f"Pad it to {size + -size % divisor}."
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
