"""Checks the edits of logits that look for a pattern in the history of a request. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from struct import pack, unpack
from typing import Any, NamedTuple

from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import format_value
from tokendraw.parameters.fields import LARGEST_FLOAT32, integer, integers, of_row, real

MAX_ID = LARGEST_COUNT = 2**31 - 1  # an int32
LAST_N = "an integer >= -1 (-1: all tokens, 0: off)"


class Dry(NamedTuple):
    """The settings of DRY, which makes the token unlikely that would prolong a repetition."""

    multiplier: float
    """0: off."""
    base: float
    allowed_length: int
    max_match: int
    """Length of a match above which the cost does not grow, so that no power of the base overflows float32."""
    last_n: int
    """Number of tokens of the history that are searched, an int32."""
    breakers: tuple[int, ...]
    """Distinct ids that no match contains."""


NO_DRY = Dry(0.0, 1.0, 0, 0, 0, ())


def check_dry(params: Any, row: int | str | None, vocab_size: int | None) -> Dry:
    """Check the settings of DRY; the result is :data:`NO_DRY` where they are off."""
    multiplier = real(
        "dry_multiplier", params.dry_multiplier, row, 0.0, LARGEST_FLOAT32, "a finite float32 >= 0 (0: off)"
    )
    base = real("dry_base", params.dry_base, row, 1.0, LARGEST_FLOAT32, "a finite float32 >= 1")
    allowed = integer("dry_allowed_length", params.dry_allowed_length, row, 0, math.inf, "an integer >= 0")
    last_n = integer("dry_penalty_last_n", params.dry_penalty_last_n, row, -1, math.inf, LAST_N)
    breakers = read_ids("dry_sequence_breakers", params.dry_sequence_breakers, row, vocab_size)
    if not multiplier or not last_n:
        return NO_DRY
    (stored_base,) = unpack("f", pack("f", base))
    max_exponent = (
        math.floor(math.log(LARGEST_FLOAT32) / math.log(stored_base)) if stored_base > 1 else MAX_ID
    )
    return Dry(
        multiplier,
        base,
        min(allowed, LARGEST_COUNT),
        min(allowed + max_exponent, LARGEST_COUNT),
        LARGEST_COUNT if last_n < 0 else min(last_n, LARGEST_COUNT),
        tuple(dict.fromkeys(breakers)),
    )


class ThinkingBudget(NamedTuple):
    """The most tokens between two sequences of ids."""

    num_tokens: int
    """-1: off."""
    start: tuple[int, ...]
    end: tuple[int, ...]


NO_BUDGET = ThinkingBudget(-1, (), ())


def check_thinking_budget(params: Any, row: int | str | None, vocab_size: int | None) -> ThinkingBudget:
    """Check the thinking budget; the result is :data:`NO_BUDGET` for None."""
    found = params.thinking_budget
    if found is None:
        return NO_BUDGET
    if not isinstance(found, Sequence) or isinstance(found, (str, bytes)) or len(found) != len(NO_BUDGET):
        raise InvalidParameterError(
            f"'thinking_budget'{of_row(row)} needs (n, start_token_ids, end_token_ids), found {format_value(found)}. "
            "Pass these three in a tuple."
        )
    num_tokens = integer(
        "thinking_budget", found[0], row, 0, math.inf, "a number n of tokens, an integer >= 0"
    )
    sequences = [tuple(read_ids("thinking_budget", ids, row, vocab_size)) for ids in found[1:]]
    for name, ids in zip(("start_token_ids", "end_token_ids"), sequences, strict=True):
        if not ids:
            raise InvalidParameterError(
                f"'thinking_budget'{of_row(row)} needs at least one token id in {name}, found none."
            )
    return ThinkingBudget(min(num_tokens, LARGEST_COUNT), *sequences)


def read_ids(
    field: str, found: Iterable[int] | None, row: int | str | None, vocab_size: int | None
) -> list[int]:
    """Return token ids as a list of ints, empty for None.

    :param row: in its batch, or its place in words, for the message.
    :param vocab_size: None: it is not known, and ids are only held against the least.
    """
    if found is None:
        return []
    largest = MAX_ID if vocab_size is None else vocab_size - 1
    needed = "token ids >= 0" if vocab_size is None else f"token ids in [0, {vocab_size})"
    return integers(field, found, 0, largest, needed, row="" if row is None else row)
