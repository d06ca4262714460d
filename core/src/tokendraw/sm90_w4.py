"""Helpers around the operation ``pack_sm90_w4``: the layout of the installed FlashInfer, and scales of activations."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokendraw.backends.description.weight_layouts import Format, Layout
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import format_error, format_value

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "FlashInferLayout",
    "Format",
    "Layout",
    "layout_of_flashinfer",
    "probe_flashinfer",
    "shared_activation_scale",
]

_log = logging.getLogger("tokendraw")
_MODULE = "flashinfer.fused_moe"
_FUNCTION = "interleave_moe_scales_for_sm90_mixed_gemm"
_LAYOUTS: dict[int, Layout] = {3: "v1", 5: "v2"}
"""Layouts by the number of dimensions of their scales."""


@dataclass(frozen=True)
class FlashInferLayout:
    """The layout packed by the installed FlashInfer, or the reason for an unknown layout.

    :ivar layout: Name of the layout, ``v1`` or ``v2``; None if unknown.
    :ivar reason: Reason why the layout is unknown: needed against found; "" if known.
    """

    layout: Layout | None
    reason: str = ""


def layout_of_flashinfer() -> Layout | None:
    """Return the layout packed by the installed FlashInfer, by packing scales of an expert on the CPU.

    Two incompatible layouts have been released under one function's name and signature, and version numbers do not
    tell them apart: 0.6.16 has one, its third post-release the other. So no number is looked at. The first call
    imports FlashInfer, which takes seconds.

    :returns: None if FlashInfer is not installed, cannot be imported, has no such function, or packs into something
        else; :func:`probe_flashinfer` says which.
    """
    return probe_flashinfer().layout


def probe_flashinfer() -> FlashInferLayout:
    """Return the result of :func:`layout_of_flashinfer`, with a reason for None. Raises nothing."""
    try:
        import torch

        pack = getattr(importlib.import_module(_MODULE), _FUNCTION)
        dimensions = pack(torch.zeros(1, 64, 4, dtype=torch.uint8, device="cpu")).dim()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an import that calls sys.exit must not end the program
        return _unknown(_found(error), error)
    if dimensions not in _LAYOUTS:
        return _unknown(f" to return 3 dimensions (v1) or 5 (v2), found {dimensions}")
    return FlashInferLayout(_LAYOUTS[dimensions])


def _found(error: BaseException) -> str:
    # A folder called flashinfer, such as one of a checkout, is a package without modules to Python.
    if isinstance(error, ModuleNotFoundError) and error.name in ("flashinfer", _MODULE):
        return f", found no module {error.name}"
    if isinstance(error, AttributeError) and error.name == _FUNCTION:
        return ", found no such function"
    return f", found that its import or a call of it raised {format_error(error)}"


def _unknown(clause: str, error: BaseException | None = None) -> FlashInferLayout:
    reason = f"needs {_MODULE}.{_FUNCTION}{clause}"
    _log.debug("no layout of FlashInfer: %s", reason, exc_info=error)
    return FlashInferLayout(None, reason)


def shared_activation_scale(scale: Tensor, num_tokens: int) -> Tensor:
    """Return the common value of all entries of ``scale``.

    Checkpoints have an activation scale for each expert, but tokens are quantized before they are routed, with one
    scale for all of them. Expanded scales must not be passed on as they are: a GEMM that knows scales of tokens too
    takes E scales of experts for scales of tokens whenever a batch has E tokens.

    More than one entry are compared, so that call waits for the device and cannot be captured in a CUDA graph: make it
    when weights are loaded, not in a step.

    :param scale: scales of experts or tokens, of any shape with at least one entry.
    :param num_tokens: tokens that are quantized together, from 0.
    :returns: [1], a copy, of the dtype and on the device of ``scale``, whatever ``num_tokens`` is.
    :raises InvalidInputError: a ValueError: no tensor, no entries, or entries that differ; names the first that does.
    :raises InvalidParameterError: a ValueError: ``num_tokens`` is no number of tokens.
    """
    from tokendraw._torch.tensor_checks import check_plain

    if not isinstance(num_tokens, int) or isinstance(num_tokens, bool) or num_tokens < 0:
        raise InvalidParameterError(
            f"'num_tokens' needs an integer from 0, found {format_value(num_tokens)}."
        )
    check_plain("scale", scale)
    entries = scale.detach().reshape(-1)
    if not len(entries):
        raise InvalidInputError(f"'scale' needs at least one entry, found shape {list(scale.shape)}.")
    if len(entries) > 1:
        for (index,) in (entries != entries[0]).nonzero()[:1].tolist():
            raise InvalidInputError(
                f"'scale' needs {len(entries)} equal entries to scale {num_tokens} tokens together, found "
                f"{entries[index].item():.9g} as entry {index} and {entries[0].item():.9g} before it. "
                "Quantize the activations of all experts with one scale."
            )
    return entries[:1].clone()
