"""Checks the edits of logits of a request. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from struct import pack, unpack
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from tokendraw.errors import InvalidParameterError, format_value, type_name
from tokendraw.parameters.fields import LARGEST_FLOAT32, each, integer, integers, of_row, real

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

LARGEST_INT32 = 2**31 - 1
"""Largest id of a token, and what larger counts are stored as."""
_SHARES = (-2.0, 2.0, "a number in [-2, 2] (0: off)")
_PENALTIES = {
    "repetition_penalty": (2.0**-149, LARGEST_FLOAT32, "a finite float32 > 0 (1: off)"),
    "frequency_penalty": _SHARES,
    "presence_penalty": _SHARES,
}
"""Least and largest value of each penalty, and the range in words."""
_NO_PENALTIES = 1.0, 0.0, 0.0
_LAST_N = "an integer >= -1 (-1: all tokens, 0: off)"


class CheckedEdits(NamedTuple):
    """The edits of a request by the names of their tables in ``RequestTables``. The defaults are off."""

    allowed: tuple[int, ...] = ()
    """Token ids, which may repeat; none: all are allowed."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    """0 where there are no ids to hold back."""
    thinking_budget: int = -1
    bias: Mapping[int, float] = MappingProxyType({})
    """Values that are not 0, by token id."""
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    penalty_last_n: int = -1
    """-1 without a penalty."""
    dry_multiplier: float = 0.0
    stop_ids: tuple[int, ...] = ()
    """Distinct token ids; none where ``min_tokens`` is 0."""
    thinking_start: tuple[int, ...] = ()
    thinking_end: tuple[int, ...] = ()
    dry_base: float = 1.0
    dry_allowed_length: int = 0
    dry_max_match: int = 0
    """Length of a match above which the cost does not grow, so that no power of the base overflows float32."""
    dry_last_n: int = 0
    dry_breakers: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[Edit, ...]:
        """Names of the edits in effect; the first fields stand in the order of :data:`EDITS`."""
        pairs = zip(EDITS[1:], self, NO_EDITS, strict=False)
        return tuple([name for name, value, off in pairs if value != off])


NO_EDITS = CheckedEdits()


def check_edits(params: Any, row: int | str | None = None, vocab_size: int | None = None) -> CheckedEdits:
    """Check the edits of a request."""
    penalties = tuple(
        [real(name, getattr(params, name), row, *limits) for name, limits in _PENALTIES.items()]
    )
    last_n = integer("penalty_last_n", params.penalty_last_n, row, -1, math.inf, _LAST_N)
    if last_n == 0 or penalties == _NO_PENALTIES:
        penalties, last_n = _NO_PENALTIES, -1
    repetition, frequency, presence = penalties
    bias = _bias(params.logit_bias, row, vocab_size)
    allowed = tuple(read_ids("allowed_token_ids", params.allowed_token_ids, row, vocab_size))
    if params.allowed_token_ids is not None and not allowed:
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
    min_tokens = integer("min_tokens", params.min_tokens, row, 0, math.inf, needed)
    stop_ids = read_ids("stop_token_ids", params.stop_token_ids, row, vocab_size)
    return CheckedEdits(
        allowed=allowed,
        bad_words=bad_words,
        stop_ids=tuple(dict.fromkeys(stop_ids)) if min_tokens else (),
        min_tokens=min(min_tokens, LARGEST_INT32) if stop_ids else 0,
        **_thinking_budget(params.thinking_budget, row, vocab_size),
        bias={token: value for token, value in bias.items() if value != 0.0},
        repetition=repetition,
        frequency=frequency,
        presence=presence,
        penalty_last_n=min(last_n, LARGEST_INT32),
        **_dry(params, row, vocab_size),
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


def read_ids(
    field: str, found: Iterable[int] | None, row: int | str | None, vocab_size: int | None
) -> list[int]:
    """Return token ids as a list of ints, empty for None; ``row`` and ``vocab_size`` as in :func:`check_edits`."""
    if found is None:
        return []
    if hasattr(found, "tolist"):  # an array or a tensor
        found = found.tolist()
    largest = LARGEST_INT32 if vocab_size is None else vocab_size - 1
    needed = "token ids >= 0" if vocab_size is None else f"token ids in [0, {vocab_size})"
    return integers(field, found, 0, largest, needed, row="" if row is None else row)


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


def _thinking_budget(found: Any, row: int | str | None, vocab_size: int | None) -> dict[str, Any]:
    if found is None:
        return {}
    if not isinstance(found, Sequence) or isinstance(found, (str, bytes)) or len(found) != 3:
        raise InvalidParameterError(
            f"'thinking_budget'{of_row(row)} needs (n, start_token_ids, end_token_ids), found {format_value(found)}. "
            "Pass these three in a tuple."
        )
    needed = "a number n of tokens, an integer >= 0"
    num_tokens = integer("thinking_budget", found[0], row, 0, math.inf, needed)
    start, end = [tuple(read_ids("thinking_budget", ids, row, vocab_size)) for ids in found[1:]]
    for name, ids in (("start_token_ids", start), ("end_token_ids", end)):
        if not ids:
            raise InvalidParameterError(
                f"'thinking_budget'{of_row(row)} needs at least one token id in {name}, found none."
            )
    return {"thinking_budget": min(num_tokens, LARGEST_INT32), "thinking_start": start, "thinking_end": end}


def _dry(params: Any, row: int | str | None, vocab_size: int | None) -> dict[str, Any]:
    needed = "a finite float32 >= 0 (0: off)"
    multiplier = real("dry_multiplier", params.dry_multiplier, row, 0.0, LARGEST_FLOAT32, needed)
    base = real("dry_base", params.dry_base, row, 1.0, LARGEST_FLOAT32, "a finite float32 >= 1")
    allowed = integer("dry_allowed_length", params.dry_allowed_length, row, 0, math.inf, "an integer >= 0")
    last_n = integer("dry_penalty_last_n", params.dry_penalty_last_n, row, -1, math.inf, _LAST_N)
    breakers = read_ids("dry_sequence_breakers", params.dry_sequence_breakers, row, vocab_size)
    if not multiplier or not last_n:
        return {}
    (stored_base,) = unpack("f", pack("f", base))
    exponent = LARGEST_INT32
    if stored_base > 1:
        exponent = math.floor(math.log(LARGEST_FLOAT32) / math.log(stored_base))
    return {
        "dry_multiplier": multiplier,
        "dry_base": base,
        "dry_allowed_length": min(allowed, LARGEST_INT32),
        "dry_max_match": min(allowed + exponent, LARGEST_INT32),
        "dry_last_n": LARGEST_INT32 if last_n < 0 else min(last_n, LARGEST_INT32),
        "dry_breakers": tuple(dict.fromkeys(breakers)),
    }
