"""Computes the edits of one row of logits in numpy alone: slow, plain and independent.

Nothing here imports tokendraw. Requests are read by attribute, so ``tokendraw.SamplingParams`` fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokendraw_testing.reference import Array


@dataclass(frozen=True)
class EditResult:
    """A row after its edits."""

    values: Array
    """[V]."""
    edited: Array
    """[V] bool: edited ids."""
    scale: Array
    """[V]: the largest intermediate number of each value, as a bound of rounding."""


def edit(
    logits: Array, params: Any, prompt: Sequence[int], output: Sequence[int], allowed: Array | None = None
) -> EditResult:
    """Edit logits [V] in their dtype, float32 or float64, rounding after each step.

    :param prompt: tokens; numbers outside [0, V) are placeholders, as in ``output``.
    :param allowed: [V] bool, of the bitmask.
    """
    x = logits.copy()
    forbidden = _forbidden(len(x), params, output, allowed)
    forced_id = _forced_id(params, prompt, output)
    if forced_id is not None:
        forbidden = np.arange(len(x)) != forced_id
    x[forbidden] = -np.inf
    touched, scale = forbidden.copy(), np.abs(x)

    def number(value: float) -> Any:
        return x.dtype.type(np.float32(value))  # parameters are float32 whatever x is

    def step(ids: Array, values: Array) -> None:
        x[ids] = values
        scale[ids] = np.maximum(scale[ids], np.abs(values))

    with np.errstate(invalid="ignore", over="ignore"):
        for token, bias in (params.logit_bias or {}).items():
            touched[token] = True
            step(np.array([token]), x[[token]] + number(bias))
        counted = _last(prompt, output, params.penalty_last_n)
        times = np.bincount(_ids(counted[1], len(x)), minlength=len(x))
        occurring, out = np.unique(_ids([*counted[0], *counted[1]], len(x))), np.flatnonzero(times)
        repetition = number(params.repetition_penalty)
        if repetition != 1:
            touched[occurring] = True
            old = x[occurring]
            step(occurring, np.where(old > 0, old / repetition, old * repetition))
        if params.frequency_penalty != 0:
            touched[out] = True
            cost = number(params.frequency_penalty) * times[out].astype(x.dtype)
            scale[out] = np.maximum(scale[out], np.abs(cost))
            step(out, x[out] - cost)
        if params.presence_penalty != 0:
            touched[out] = True
            step(out, x[out] - number(params.presence_penalty))
        for token, dry_cost in _dry_costs(params, [*prompt, *output], len(x)).items():
            touched[token] = True
            cost = x.dtype.type(dry_cost)
            scale[token] = max(scale[token], cost)
            step(np.array([token]), x[[token]] - (0 if x[token] == np.inf else cost))
    return EditResult(x, touched, scale)


def _forced_id(params: Any, prompt: Sequence[int], output: Sequence[int]) -> int | None:
    """Return the next id of the end where the thinking budget is spent, else None."""
    if params.thinking_budget is None:
        return None
    num_tokens, start, end = params.thinking_budget
    tokens = [*prompt, *output]
    started, ended = (
        max((i for i in range(len(tokens) + 1) if tokens[max(0, i - len(mark)) : i] == [*mark]), default=0)
        for mark in (start, end)
    )
    behind = tokens[started:]
    if started <= ended or min(len(behind), len(output)) < num_tokens:
        return None
    most = min(len(end) - 1, len(behind))
    begun = max(n for n in range(most + 1) if behind[len(behind) - n :] == [*end][:n])
    return int([*end][begun])


def _dry_costs(params: Any, tokens: Sequence[int], vocab_size: int) -> dict[int, float]:
    """Return the cost of each id that would prolong a repetition.

    The i-th token follows the tokens before i. Its match is as long as these tokens, read backwards, equal the last
    ones of the history, up to a breaker or a placeholder.
    """
    multiplier, base = float(np.float32(params.dry_multiplier)), float(np.float32(params.dry_base))
    if not multiplier or not params.dry_penalty_last_n:
        return {}
    history = list(tokens) if params.dry_penalty_last_n < 0 else list(tokens[-params.dry_penalty_last_n :])
    breakers = {*(params.dry_sequence_breakers or ())}
    longest: dict[int, int] = {}
    for i, token in enumerate(history):
        length = 0
        while length < i and history[i - 1 - length] == history[-1 - length]:
            if history[-1 - length] in breakers or not 0 <= history[-1 - length] < vocab_size:
                break
            length += 1
        if 0 <= token < vocab_size and token not in breakers:
            longest[token] = max(length, longest.get(token, 0))
    exponents = {token: length - params.dry_allowed_length for token, length in longest.items()}
    most = np.floor(np.log(np.finfo(np.float32).max) / np.log(base)) if base > 1 else np.inf
    return {token: multiplier * base ** min(n, most) for token, n in exponents.items() if n >= 0}


def _last(prompt: Sequence[int], output: Sequence[int], last_n: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return what the last tokens of prompt and output together have of each; -1: all."""
    first = 0 if last_n < 0 else max(0, len(prompt) + len(output) - last_n)
    return prompt[first:], output[max(0, first - len(prompt)) :]


def _ids(tokens: Sequence[int], vocab_size: int) -> Array:
    return np.asarray([token for token in tokens if 0 <= token < vocab_size], np.int64)


def _forbidden(vocab_size: int, params: Any, output: Sequence[int], allowed: Array | None) -> Array:
    """Find the ids with -inf."""
    forbidden = np.zeros(vocab_size, bool) if allowed is None else ~allowed
    if params.allowed_token_ids is not None:
        forbidden |= ~np.isin(np.arange(vocab_size), list(params.allowed_token_ids))
    for word in params.bad_words or ():
        *before, last = word
        if not before or list(output[-len(before) :]) == before:
            forbidden[last] = True
    if len(output) < params.min_tokens:
        forbidden[list(params.stop_token_ids or ())] = True
    return forbidden
