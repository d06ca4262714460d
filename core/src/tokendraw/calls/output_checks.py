"""The form of outputs: types, shapes, dtypes, devices; and values in range.

Each function says what was needed and what was found, or returns None. :func:`wrong_form` reads no values, and looks at
every call; :func:`wrong_tokens` and :func:`wrong_bounds` wait for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import LogprobsMode
from tokendraw.output import LogprobsTensors, SamplerOutput


def wrong_output(output: object, logits: Tensor, width: int | None, *, ranks: bool = True) -> str | None:
    """Compare the output of a sample from logits [B, V] with the form of :class:`tokendraw.SamplerOutput`.

    :param width: how many best tokens the batch asked for, as ``BatchFacts.logprobs_width`` says; None: no logprobs.
    :param ranks: whether their ranks are needed too.
    """
    return wrong_form(output, logits.shape[:1], logits.device, width, ranks=ranks)


def wrong_form(
    output: object, shape: tuple[int, ...], device: torch.device, width: int | None, *, ranks: bool
) -> str | None:
    """Compare a sample's output with the form of :class:`tokendraw.SamplerOutput`.

    :param shape: [B].
    :param width: as for :func:`wrong_output`.
    """
    if not isinstance(output, SamplerOutput):
        return f"a SamplerOutput, found {type(output).__name__}"
    reason = misfit("token_ids", output.token_ids, shape, torch.int64, device) or misfit(
        "valid", output.valid, shape, torch.bool, device
    )
    if reason is not None or width is None:
        return reason
    return wrong_logprobs(output.logprobs, shape, width, device, ranks=ranks) or misfit(
        "log_kept_mass", output.log_kept_mass, shape, torch.float32, device
    )


def wrong_tokens(output: SamplerOutput, vocab_size: int) -> str | None:
    """Compare drawn ids of the right form with the vocabulary."""
    ids = output.token_ids
    for (row,) in first_of((ids < 0) | (ids >= vocab_size)):
        return f"token_ids in [0, {vocab_size}), found {int(ids[row])} in row {row} of {len(ids)}"
    return None


def wrong_bounds(
    logprobs: LogprobsTensors | None, log_kept_mass: Tensor | None, mode: LogprobsMode
) -> str | None:
    """Compare logprobs and kept masses of the right form with 0, exceeded by raw logits alone.

    :param mode: of the logprobs.
    """
    shown = [("log_kept_mass", log_kept_mass)]
    if mode != "raw_logits":
        shown.append(("logprobs.logprobs", None if logprobs is None else logprobs.logprobs))
    for name, values in shown:
        for place in [] if values is None else first_of(values > 0):
            assert values is not None
            found = f"found {float(values[tuple(place)]):.3g} at {place} of {list(values.shape)}"
            return f"{name} at most 0 in the mode {mode}, {found}"
    return None


def wrong_logprobs(
    found: object,
    shape: tuple[int, ...],
    width: int,
    device: torch.device,
    *,
    ranks: bool,
) -> str | None:
    """Compare the logprobs of an output with :class:`tokendraw.LogprobsTensors`.

    :param shape: of the tokens that they describe.
    """
    if not isinstance(found, LogprobsTensors):
        return f"logprobs of the type LogprobsTensors, found {type(found).__name__}"
    wide = (*shape, 1 + width)
    return (
        misfit("logprobs.token_ids", found.token_ids, wide, torch.int64, device)
        or misfit("logprobs.logprobs", found.logprobs, wide, torch.float32, device)
        or (
            misfit("logprobs.ranks", found.ranks, shape, torch.int64, device)
            if ranks or found.ranks is not None
            else None
        )
    )


def misfit(
    name: str, found: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Compare a tensor of an output with the required form."""
    if not isinstance(found, Tensor):
        return f"{name} {list(shape)} {dtype} on {device}, found {type(found).__name__}"
    if found.shape == shape and found.dtype is dtype and found.device == device:
        return None
    return (
        f"{name} {list(shape)} {dtype} on {device}, found {list(found.shape)} {found.dtype} on {found.device}"
    )


def first_of(wrong: Tensor) -> list[list[int]]:
    """Return the indices of the first True element, in a list; an empty list without any."""
    found: list[list[int]] = wrong.nonzero()[:1].tolist()
    return found
