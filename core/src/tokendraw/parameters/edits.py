"""Checks the edits of logits of a request. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sized
from dataclasses import fields
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import format_value, type_name
from tokendraw.parameters.fields import LARGEST_FLOAT32, each, integer, of_row, real
from tokendraw.parameters.history_edits import (
    LARGEST_COUNT,
    LAST_N,
    NO_BUDGET,
    NO_DRY,
    Dry,
    ThinkingBudget,
    check_dry,
    check_thinking_budget,
    read_ids,
)

Edit: TypeAlias = Literal[
    "bitmask",
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "thinking_budget",
    "logit_bias",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "penalty_last_n",
    "dry_multiplier",
]
"""Name of an edit of logits: that of the field that asks for it, or ``bitmask``."""
EDITS: tuple[Edit, ...] = get_args(Edit)
"""Names of all edits, in the order in which they are applied."""
_LATER_EDITS = ("thinking_budget", "penalty_last_n", "dry_multiplier")
BASIC_EDITS = tuple([edit for edit in EDITS if edit not in _LATER_EDITS])
"""Names of the edits that a processor serves which does not name any."""

_SHARES = (-2.0, 2.0, "a number in [-2, 2] (0: off)")
_PENALTIES = {
    "repetition_penalty": (2.0**-149, LARGEST_FLOAT32, "a finite float32 > 0 (1: off)"),
    "frequency_penalty": _SHARES,
    "presence_penalty": _SHARES,
}
"""Least and largest value of each penalty, and the range in words."""


class CheckedEdits(NamedTuple):
    """The edits of a request, each value in its range, in the order of :data:`EDITS`."""

    allowed: Any
    """Token ids as ``read_allowed`` returned them, which may repeat; none: all are allowed."""
    bad_words: tuple[tuple[int, ...], ...]
    stop_ids: tuple[int, ...]
    """Distinct token ids; none where ``min_tokens`` is 0."""
    thinking: ThinkingBudget
    bias: dict[int, float]
    """Values that are not 0, by token id."""
    repetition: float
    frequency: float
    presence: float
    last_n: int
    """Number of tokens that the penalties count, -1: all; -1 without a penalty."""
    dry: Dry
    min_tokens: int
    """0 where there are no ids to hold back."""

    @property
    def names(self) -> tuple[Edit, ...]:
        """Names of the edits in effect."""
        names = [
            name for name, value, off in zip(EDITS[2:], self[1:], NO_EDITS[1:], strict=False) if value != off
        ]
        return ("allowed_token_ids", *names) if len(self.allowed) else tuple(names)


_NO_PENALTIES = 1.0, 0.0, 0.0
NO_EDITS = CheckedEdits((), (), (), NO_BUDGET, {}, 1.0, 0.0, 0.0, -1, NO_DRY, 0)


def check_edits(
    params: Any,
    row: int | str | None = None,
    vocab_size: int | None = None,
    *,
    read_allowed: Callable[..., Sized] | None = None,
) -> CheckedEdits:
    """Check the edits of a request.

    :param params: a :class:`tokendraw.SamplingParams`.
    :param row: in its batch, or its place in words, for the message.
    :param vocab_size: None: it is not known, and ids are only held against the least.
    :param read_allowed: checks ``allowed_token_ids``, from (field, ids, row, vocab_size); None: in Python.
    """
    repetition, frequency, presence = [
        real(name, getattr(params, name), row, *limits) for name, limits in _PENALTIES.items()
    ]
    last_n = integer("penalty_last_n", params.penalty_last_n, row, -1, math.inf, LAST_N)
    if last_n == 0:
        repetition, frequency, presence = _NO_PENALTIES
    has_penalty = (repetition, frequency, presence) != _NO_PENALTIES
    bias = _bias(params.logit_bias, row, vocab_size)
    read_allowed = read_ids if read_allowed is None else read_allowed
    allowed = read_allowed("allowed_token_ids", params.allowed_token_ids, row, vocab_size)
    if params.allowed_token_ids is not None and not len(allowed):
        raise InvalidParameterError(
            f"'allowed_token_ids'{of_row(row)} needs at least one token id, found none. Leave it out to allow all."
        )
    words = params.bad_words
    words = () if words is None else each("bad_words", words, "sequences of token ids", row)
    bad_words = tuple([tuple(read_ids("bad_words", word, row, vocab_size)) for word in words])
    if () in bad_words:
        raise InvalidParameterError(
            f"'bad_words'{of_row(row)} needs at least one token id in each sequence, found an empty one."
        )
    needed = "an integer >= 0 (0: off)"
    min_tokens = min(integer("min_tokens", params.min_tokens, row, 0, math.inf, needed), LARGEST_COUNT)
    stop_ids = read_ids("stop_token_ids", params.stop_token_ids, row, vocab_size)
    return CheckedEdits(
        allowed,
        bad_words,
        tuple(dict.fromkeys(stop_ids)) if min_tokens else (),
        check_thinking_budget(params, row, vocab_size),
        {token: value for token, value in bias.items() if value != 0.0},
        repetition,
        frequency,
        presence,
        min(last_n, LARGEST_COUNT) if has_penalty else -1,
        check_dry(params, row, vocab_size),
        min_tokens if stop_ids else 0,
    )


def refuse_edits(params: Any, row: int) -> None:
    """Check the edits of a request, and refuse any edit in effect: there are no slots to keep its state."""
    names: set[str] = {*check_edits(params, row).names}
    if params.min_tokens > 0:
        names.add("min_tokens")
    field = next((field.name for field in fields(params) if field.name in names), None)
    if field is not None:
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
    ids = read_ids("logit_bias", found, row, vocab_size)
    values = [
        real("logit_bias", value, row, -LARGEST_FLOAT32, LARGEST_FLOAT32, "finite float32 values")
        for value in found.values()
    ]
    return dict(zip(ids, values, strict=True))
