"""Judges edited logits by the formulas: float32 bit for bit, and float64 within a few units in the last place."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tokendraw import SamplingParams
from tokendraw_testing.cases.edits import EditRequest
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.reference import Array
from tokendraw_testing.reference_edits import edit

_BITS: Final = {2: torch.int16, 4: torch.int32}
_DIGITS: Final = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}
_LEAST: Final = {torch.float32: -149, torch.float16: -24, torch.bfloat16: -133}
_ULPS: Final = 4
"""Most that rounding costs: half an ulp each for the bias, the repetition penalty, the product of the frequency
penalty, the cost of DRY and the three subtractions, and that of the bias once more, as a repetition penalty may double
it in ulp."""


def require_edits(
    trial: Trial,
    where: str,
    before: Tensor,
    result: Tensor,
    request: EditRequest,
    output: list[int],
    mask: Array | None,
) -> None:
    dtype, view = result.dtype, _BITS[result.element_size()]
    single = edit(before.to(torch.float32).numpy(), request.params, request.prompt, output, mask)
    double = edit(before.to(torch.float64).numpy(), request.params, request.prompt, output, mask)
    expected = torch.from_numpy(single.values).to(dtype)
    is_unedited, result64 = torch.from_numpy(~single.edited), result.to(torch.float64).numpy()
    is_unequal = torch.where(is_unedited, before.view(view), expected.view(view)) != result.view(view)
    is_unequal &= is_unedited | ~(expected.isnan() & result.isnan())
    with np.errstate(invalid="ignore"):
        is_far = np.abs(result64 - double.values) > _ULPS * _ulp(double.scale, dtype)
        is_far &= np.isfinite(double.values) & np.isfinite(result64)
    for (token,) in np.argwhere(is_unequal.numpy() | (is_far & single.edited))[:1].tolist():
        needed = float((before if is_unedited[token] else expected)[token])
        reason = "no edit" if is_unedited[token] else f"float64: {float(double.values[token]):.9g}"
        request_text = _edits_text(request.params) or "nothing"
        trial.require(
            False,
            f"{where}, id {token}: needs {needed:.9g} ({reason}), found {float(result[token]):.9g}, where a request "
            f"asks for {request_text}, its prompt is {request.prompt}, its output {output}, its bitmask "
            f"{'none' if mask is None else 'allows it' if mask[token] else 'forbids it'}",
        )


def _edits_text(params: SamplingParams) -> str:
    defaults = SamplingParams()
    values = {part.name: getattr(params, part.name) for part in fields(params)}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value != getattr(defaults, name))


def _ulp(scale: Array, dtype: torch.dtype) -> Array:
    """Compute the distance of neighbours in a dtype, at numbers as large as ``scale``."""
    magnitude = np.where(np.isfinite(scale), scale, 1.0)
    exponent = np.frexp(magnitude)[1] - 1
    return np.asarray(np.exp2(np.maximum(exponent - _DIGITS[dtype], _LEAST[dtype]).astype(np.float64)))
