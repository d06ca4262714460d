"""Checks the edits of logits of a request. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import fields
from struct import pack, unpack
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import format_value, type_name
from tokendraw.parameters.ranges import LARGEST_FLOAT32, each, integer, integers, of_row, real

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
