"""The form of outputs: types, shapes, dtypes, devices; values in range; and whether inputs were modified.

Each function says what was needed and what was found, or returns None. :func:`wrong_form` reads no values, and looks at
every call. With ``TOKENDRAW_DEBUG=1`` alone, and not during the capture of a CUDA graph, the others wait for the
device, and :class:`MutationCheck` copies the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import LogprobsMode
from tokendraw.errors.exceptions import PluginError
from tokendraw.output import LogprobsTensors, SamplerOutput

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype by bytes an element, to compare bits: NaN differs from itself."""


def wrong_form(
    output: Any,
    *,
    kind: type[Any],
    shape: tuple[int, ...],
    device: torch.device,
    width: int | None,
    given_ids: int | None,
    ranks: bool,
    thresholds: int | None = None,
    has_ceiling: bool = False,
) -> str | None:
    """Compare the output of a draw or a verification with the form of its class.

    :param kind: class of the output.
    :param shape: of its tokens: [B], or [B, K + 1] with the number of accepted drafts beside them.
    :param width: how many best tokens the batch asked for, as ``BatchFacts.logprobs_width`` says; None: no logprobs.
    :param given_ids: how many ids the batch gives, M; None: none.
    :param ranks: whether their ranks are needed too.
    :param thresholds: of how many rows thresholds are needed; None: of none.
    :param has_ceiling: whether ceilings are needed beside thresholds.
    """
    if not isinstance(output, kind):
        return f"a {kind.__name__}, found {type(output).__name__}"
    reason, rows = misfit("token_ids", output.token_ids, shape, torch.int64, device), shape
    if len(shape) > 1:
        rows = shape[:1]
        reason = reason or misfit("num_accepted", output.num_accepted, rows, torch.int32, device)
    reason = reason or misfit("valid", output.valid, rows, torch.bool, device)
    if thresholds is not None:
        reason = reason or wrong_bounds_of_kept(output, (thresholds,), device, has_ceiling=has_ceiling)
    if width is not None:
        reason = reason or wrong_logprobs(
            output, shape=shape, device=device, width=width, given_ids=given_ids, ranks=ranks
        )
    return reason


def wrong_logprobs(
    output: Any,
    *,
    shape: tuple[int, ...],
    device: torch.device,
    width: int,
    given_ids: int | None,
    ranks: bool,
) -> str | None:
    """Compare ``logprobs`` and ``log_kept_mass`` of an output; parameters as of :func:`wrong_form`."""
    best, wide, reason = output.logprobs, (*shape, 1 + width), None
    if not isinstance(best, LogprobsTensors):
        return f"logprobs of the type LogprobsTensors, found {type(best).__name__}"
    needs_ranks = ranks or best.ranks is not None
    if given_ids is not None:
        given_shape = (*shape, given_ids)
        reason = misfit(
            "logprobs.given_token_ids", best.given_token_ids, given_shape, torch.int64, device
        ) or misfit("logprobs.given_logprobs", best.given_logprobs, given_shape, torch.float32, device)
    return (
        reason
        or misfit("logprobs.token_ids", best.token_ids, wide, torch.int64, device)
        or misfit("logprobs.logprobs", best.logprobs, wide, torch.float32, device)
        or (misfit("logprobs.ranks", best.ranks, shape, torch.int64, device) if needs_ranks else None)
        or misfit("log_kept_mass", output.log_kept_mass, shape, torch.float32, device)
    )


def wrong_bounds_of_kept(
    output: Any, shape: tuple[int, ...], device: torch.device, *, has_ceiling: bool
) -> str | None:
    """Compare the threshold of an output, and the ceiling where rows may have one, with the required form."""
    reason = misfit("threshold", output.threshold, shape, torch.float32, device)
    if has_ceiling:
        reason = reason or misfit("ceiling", output.ceiling, shape, torch.float32, device)
    return reason


def wrong_tokens(output: SamplerOutput, vocab_size: int) -> str | None:
    """Compare drawn ids of the right form with the vocabulary."""
    ids = output.token_ids
    for (row,) in first_of((ids < 0) | (ids >= vocab_size)):
        return f"token_ids in [0, {vocab_size}), found {int(ids[row])} in row {row} of {len(ids)}"
    return None


def wrong_bounds(
    logprobs: LogprobsTensors | None, log_kept_mass: Tensor | None, mode: LogprobsMode
) -> str | None:
    """Compare logprobs and kept masses of the right form with 0, exceeded by raw logits alone."""
    bounded = [("log_kept_mass", log_kept_mass)]
    if mode != "raw_logits":
        bounded.append(("logprobs.logprobs", None if logprobs is None else logprobs.logprobs))
    for name, values in bounded:
        for index in [] if values is None else first_of(values > 0):
            assert values is not None
            found = f"found {float(values[tuple(index)]):.3g} at {index} of {list(values.shape)}"
            return f"{name} at most 0 in the mode {mode}, {found}"
    return None


def wrong_object(output: object, needed: object, name: str) -> str | None:
    """Compare the output of a call that fills an object with that object, described by ``name``."""
    if output is needed:
        return None
    other = "another " if isinstance(output, type(needed)) else ""
    return f"{name}, found {other}{type(output).__name__}"


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


def contract_error(name: str, need: str) -> PluginError:
    """Build the error of a sampler ``name`` that broke the contract in a call."""
    return PluginError(f"{name!r} needs {need}. Mend the plugin, or set TOKENDRAW_DISABLE={name}.")


class MutationCheck:
    """Copies of a call's input tensors, made before a backend runs."""

    def __init__(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors that the named backend has to leave unmodified."""
        self._name = name
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self._copies = {name: tensor.clone() for name, tensor in self._tensors.items()}

    def check(self, error: BaseException | None = None) -> None:
        """Compare the tensors with their copies, bit by bit.

        :param error: exception that the backend raised, if any, as the cause of a PluginError.
        """
        for name, tensor in self._tensors.items():
            bits = _BITS[tensor.element_size()]
            changed = tensor.view(bits) != self._copies[name].view(bits)
            unit = "rows" if changed.dim() > 1 else "elements"
            changed = changed.any(dim=-1) if changed.dim() > 1 else changed
            if bool(changed.any()):
                found = f"{int(changed.sum())} of {len(changed)} {unit} changed"
                raise contract_error(self._name, f"to leave {name} unmodified, found {found}") from error
