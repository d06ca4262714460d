"""Checks the edits of logits of a request. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import format_value, type_name
from tokendraw.parameters.ranges import each, integer, integers, of_row, real

Edit: TypeAlias = Literal[
    "bitmask",
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "logit_bias",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
]
"""Name of an edit of logits: that of the field that asks for it, or ``bitmask``."""
EDITS: tuple[Edit, ...] = get_args(Edit)
"""Names of all edits, in the order in which they are applied."""

_FLOAT32 = 3.4028234663852886e38
REPETITION_PENALTIES = (2.0**-149, _FLOAT32)  # what is more than 0 in float32
PENALTIES = (-2.0, 2.0)
BIASES = (-_FLOAT32, _FLOAT32)
MAX_ID = LARGEST_COUNT = 2**31 - 1  # an int32


class CheckedEdits(NamedTuple):
    """The edits of a request, each value in its range."""

    repetition: float
    frequency: float
    presence: float
    bias: dict[int, float]
    """Values that are not 0, by token id."""
    allowed: tuple[int, ...]
    """Distinct token ids; none: all are allowed."""
    bad_words: tuple[tuple[int, ...], ...]
    min_tokens: int
    """0 where there are no ids to hold back."""
    stop_ids: tuple[int, ...]
    """Distinct token ids; none where ``min_tokens`` is 0."""

    @property
    def names(self) -> tuple[Edit, ...]:
        """Names of the edits in effect."""
        is_on = (
            bool(self.allowed),
            bool(self.bad_words),
            bool(self.stop_ids),
            bool(self.bias),
            self.repetition != 1.0,
            self.frequency != 0.0,
            self.presence != 0.0,
        )
        return tuple([name for name, on in zip(EDITS[1:], is_on, strict=True) if on])


def check_edits(params: Any, row: int | str | None = None, vocab_size: int | None = None) -> CheckedEdits:
    """Check the edits of a request.

    :param params: a :class:`tokendraw.SamplingParams`.
    :param row: in its batch, or its place in words, for the message.
    :param vocab_size: None: it is not known, and ids are only held against the least.
    """
    p = params
    least, largest = REPETITION_PENALTIES
    repetition = real(
        "repetition_penalty", p.repetition_penalty, row, least, largest, "a finite float32 > 0 (1: off)"
    )
    frequency = real(
        "frequency_penalty", p.frequency_penalty, row, *PENALTIES, "a number in [-2, 2] (0: off)"
    )
    presence = real("presence_penalty", p.presence_penalty, row, *PENALTIES, "a number in [-2, 2] (0: off)")
    bias = _bias(p.logit_bias, row, vocab_size)
    allowed = _ids("allowed_token_ids", p.allowed_token_ids, row, vocab_size)
    if p.allowed_token_ids is not None and not allowed:
        raise InvalidParameterError(
            f"'allowed_token_ids'{of_row(row)} needs at least one token id, found none. Leave it out to allow all."
        )
    words = () if p.bad_words is None else each("bad_words", p.bad_words, "sequences of token ids", row)
    bad_words = tuple([tuple(_ids("bad_words", word, row, vocab_size)) for word in words])
    if () in bad_words:
        raise InvalidParameterError(
            f"'bad_words'{of_row(row)} needs at least one token id in each sequence, found an empty one."
        )
    needed = "an integer >= 0 (0: off)"
    min_tokens = min(integer("min_tokens", p.min_tokens, row, 0, math.inf, needed), LARGEST_COUNT)
    stop_ids = _ids("stop_token_ids", p.stop_token_ids, row, vocab_size)
    return CheckedEdits(
        repetition,
        frequency,
        presence,
        {token: value for token, value in bias.items() if value != 0.0},
        tuple(dict.fromkeys(allowed)),
        bad_words,
        min_tokens if stop_ids else 0,
        tuple(dict.fromkeys(stop_ids)) if min_tokens else (),
    )


def refuse_edits(params: Any, row: int) -> None:
    """Check the edits of a request, and refuse any edit in effect: there are no slots to keep its state."""
    edits = check_edits(params, row)
    asked = {
        "repetition_penalty": edits.repetition != 1.0,
        "frequency_penalty": edits.frequency != 0.0,
        "presence_penalty": edits.presence != 0.0,
        "logit_bias": bool(edits.bias),
        "allowed_token_ids": bool(edits.allowed),
        "bad_words": bool(edits.bad_words),
        "min_tokens": params.min_tokens > 0,
    }
    for field, asks in asked.items():
        if asks:
            raise InvalidParameterError(
                f"'{field}'{of_row(row)} needs tokendraw.RequestSlots, which keep it beside the request's history, "
                f"found {format_value(getattr(params, field))} and no slots. Add the request with slots.add, "
                "edit the logits with tokendraw.load('process_logits').process(logits, slots, row_index), and sample "
                "with slots.metadata(row_index, positions)."
            )


def _bias(found: object, row: int | str | None, vocab_size: int | None) -> dict[int, float]:
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise InvalidParameterError(
            f"'logit_bias'{of_row(row)} needs a mapping of token ids to numbers, found {type_name(found)}. "
            "Pass a dict."
        )
    ids = _ids("logit_bias", found, row, vocab_size)
    values = [real("logit_bias", value, row, *BIASES, "finite float32 values") for value in found.values()]
    return dict(zip(ids, values, strict=True))


def _ids(field: str, found: Iterable[int] | None, row: int | str | None, vocab_size: int | None) -> list[int]:
    if found is None:
        return []
    largest = MAX_ID if vocab_size is None else vocab_size - 1
    needed = "token ids >= 0" if vocab_size is None else f"token ids in [0, {vocab_size})"
    return integers(field, found, 0, largest, needed, row="" if row is None else row)
