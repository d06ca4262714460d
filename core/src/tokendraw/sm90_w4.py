"""Helpers around the operation ``pack_sm90_w4``: the layout of the installed FlashInfer, and scales of activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._messages.errors import InvalidInputError, InvalidParameterError
from tokendraw._messages.words import shown

if TYPE_CHECKING:
    from torch import Tensor


def shared_activation_scale(scale: Tensor, num_tokens: int) -> Tensor:
    """Return the one scale that all entries of ``scale`` are.

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
        raise InvalidParameterError(f"'num_tokens' needs an integer from 0, found {shown(num_tokens)}.")
    check_plain("scale", scale)
    entries = scale.detach().reshape(-1)
    if not len(entries):
        raise InvalidInputError(f"'scale' needs at least one entry, found shape {list(scale.shape)}.")
    if len(entries) > 1:
        for (index,) in (entries != entries[0]).nonzero()[:1].tolist():
            raise InvalidInputError(
                f"'scale' needs {len(entries)} equal entries to scale {num_tokens} tokens together, found "
                f"{entries[index].item():g} as entry {index} and {entries[0].item():g} before it. "
                "Quantize the activations of all experts with one scale."
            )
    return entries[:1].clone()
