"""The sampling parameters of a request, and their checks. Imports no torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from struct import pack, unpack
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

from tokendraw.backends.description import FILTER_ORDERS, FilterOrder
from tokendraw.backends.discovery.guard import format_origin, package_of
from tokendraw.errors import FilterError, InvalidParameterError, format_error, format_value, type_name
from tokendraw.filters.installed import find_filter
from tokendraw.parameters.fields import (
    COLUMNS,
    LARGEST_FLOAT32,
    PARAMETERS,
    Columns,
    check_logprobs,
    each,
    integer,
    integers,
    of_row,
    out_of_range,
    real,
)


class _EditFlag:
    """A flag beside the fields: a batch reads a single attribute of each request in place of eight fields."""

    __slots__ = ("may_edit",)
    may_edit: bool


@dataclass(frozen=True, slots=True)
class SamplingParams(_EditFlag):
    """Sampling parameters of a request. The defaults sample from the plain softmax.

    Values are checked by :meth:`check`, and where a batch is built, in
    :meth:`tokendraw.SamplingMetadata.from_params`, where an error names the row, or in
    :meth:`tokendraw.RequestSlots.add`. The stages run in the order temperature, filters from moments and min-p, top-k,
    typical-p, top-p, XTC, draw.

    The fields from ``repetition_penalty`` to ``stop_token_ids``, and those from ``penalty_last_n`` to
    ``thinking_budget``, change logits before all of that: ``tokendraw.load("process_logits")`` does it for requests in
    :class:`tokendraw.RequestSlots`.
    ``from_params`` refuses them, since it keeps no history. The hash leaves out the fields that are collections.

    :ivar temperature: ``y = (x - max x) / temperature``; 0 is greedy: the argmax, the lowest token id on a tie.
    :ivar top_k: Keep every token whose value is at least the k-th largest. 0, -1 or >= V: off.
    :ivar top_p: Keep the smallest set of largest tokens with at least this share of the mass, and all ties. 1: off.
    :ivar min_p: Keep tokens at least this likely relative to the likeliest. 0: off.
    :ivar seed: Any integer in [-2**63, 2**64), taken modulo 2**64. None: a fresh seed per call from torch's generator.
    :ivar logprobs: Number of best tokens whose logprobs to return beside the drawn one's; -1 or >= V: all. None: none.
    :ivar filter_order: ``top_k_first``: top-p counts the mass that top-k left. ``joint``: both count the unfiltered
        mass. ``temperature_last``: the filters look at temperature 1, in the order filters from moments, top-k,
        typical-p, top-p, min-p, XTC; the draw is at ``temperature``.
    :ivar repetition_penalty: r > 0 for tokens in prompt or output: ``x / r`` if x > 0, else ``x * r``. 1: off.
    :ivar frequency_penalty: f in [-2, 2]: ``x - f * n`` for a token that occurs n times in the output. 0: off.
    :ivar presence_penalty: p in [-2, 2]: ``x - p`` for a token in the output. 0: off.
    :ivar logit_bias: {token id: finite value that is added to the logit}. None: off.
    :ivar allowed_token_ids: Ids that may be drawn: all other tokens get -inf. None: off.
    :ivar bad_words: Sequences of token ids: the last id gets -inf where the others end the output. None: off.
    :ivar min_tokens: Number of tokens in the output below which ``stop_token_ids`` get -inf. 0: off.
    :ivar stop_token_ids: Tokens that ``min_tokens`` holds back. Ending a request is up to the engine's loop.
    :ivar logprob_token_ids: Ids in [0, V) whose log-probabilities are returned too, in this order, beside those of the
        best tokens: ``LogprobsTensors.given_token_ids``. They come with that of the drawn token. None: off.
    :ivar filters: {name: value} of filters from moments, such as ``{"top_n_sigma": 1.0}``: see
        :mod:`tokendraw.filters`. They stand with min-p, and the strictest counts. None: off.
    :ivar penalty_last_n: Number of tokens, the last of prompt and output, that penalties count. -1: all. 0: none.
    :ivar dry_multiplier: c of DRY, >= 0: ``x - c * dry_base ** (m - dry_allowed_length)`` for a token that followed the
        longest suffix of the history which occurs earlier too, where its length m is at least ``dry_allowed_length``.
        0: off.
    :ivar dry_base: Factor of DRY for each token of a match beyond ``dry_allowed_length``, >= 1.
    :ivar dry_allowed_length: Least length of a match that DRY reduces, >= 0.
    :ivar dry_penalty_last_n: Number of tokens, the last of prompt and output, that DRY searches. -1: all. 0: DRY off.
    :ivar dry_sequence_breakers: Ids that no match of DRY contains, and whose logits DRY leaves alone. None: none.
    :ivar thinking_budget: (n, start_token_ids, end_token_ids): once n tokens are drawn behind the newest start, and
        until the end follows it, the next id of the end alone is allowed, whatever other edits forbid. None: off.
    :ivar typical_p: Of the tokens that earlier stages left, keep the smallest set with at least this share of the mass
        whose ``-log p`` lies closest to the entropy, and all tokens at the same distance. 1: off.
    :ivar xtc_probability: Probability with which XTC drops all tokens above the least one of ``xtc_threshold``. 0: off.
    :ivar xtc_threshold: Least probability, among the tokens that all other stages left, of those that XTC counts.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    filter_order: FilterOrder = "top_k_first"
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Collection[int] | None = field(default=None, hash=False)
    bad_words: Collection[Collection[int]] | None = field(default=None, hash=False)
    min_tokens: int = 0
    stop_token_ids: Collection[int] | None = field(default=None, hash=False)
    logprob_token_ids: Collection[int] | None = field(default=None, hash=False)
    filters: Mapping[str, float] | None = field(default=None, hash=False)
    penalty_last_n: int = -1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Collection[int] | None = field(default=None, hash=False)
    thinking_budget: tuple[int, Collection[int], Collection[int]] | None = field(default=None, hash=False)
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1

    def __post_init__(self) -> None:
        """Set ``may_edit``: also for a value of another type than the default's, checked later."""
        r, f, p = self.repetition_penalty, self.frequency_penalty, self.presence_penalty
        dry = self.dry_multiplier, self.dry_base, self.dry_allowed_length, self.dry_penalty_last_n
        numbers = r, f, p, self.min_tokens, self.penalty_last_n, *dry  # torch.compile traces no attrgetter
        is_plain = (
            [type(value) for value in numbers] == _PLAIN_TYPES
            and numbers == _PLAIN_NUMBERS
            and self.logit_bias is None
            and self.allowed_token_ids is None
            and self.bad_words is None
            and self.stop_token_ids is None
            and self.dry_sequence_breakers is None
            and self.thinking_budget is None
        )
        object.__setattr__(self, "may_edit", not is_plain)

    def __setstate__(self, state: list[Any]) -> None:
        for attribute, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, attribute.name, value)
        self.__post_init__()

    def check(self, vocab_size: int | None = None, *, max_logprobs: int | None = None) -> Self:
        """Refuse this request before it joins any batch. Imports no torch.

        :param vocab_size: V, if it is known. ``top_k`` and ``logprobs`` above it are not refused: they mean "off" and
            "all". What ``logprobs=-1`` asks for is held against ``max_logprobs``, and token ids against V.
        :param max_logprobs: the most ``logprobs`` that this server grants, as ``Need(max_logprobs=)``; None: any.
        :returns: the parameters themselves.
        :raises InvalidParameterError: a ValueError that names the field, what it needs and what it is.
        """
        if vocab_size is not None:
            vocab_size = integer("vocab_size", vocab_size, None, 1, 2**62)
        logprobs = stored_values(self, vocab_size=vocab_size)["logprobs"]
        if self.may_edit:
            check_edits(self, vocab_size=vocab_size)
        if max_logprobs is not None:
            check_logprobs(logprobs, vocab_size, integer("max_logprobs", max_logprobs, None, 0, 2**62))
        return self


_draw_values = operator.attrgetter(*COLUMNS)
_PLAIN_NUMBERS = tuple(
    [field.default for field in fields(SamplingParams) if field.name not in COLUMNS and field.hash is None]
)
_PLAIN_TYPES = [*map(type, _PLAIN_NUMBERS)]


def stored_values(
    params: SamplingParams, row: int | str | None = None, vocab_size: int | None = None
) -> dict[str, Any]:
    """Check the parameters of a request, and return them by name, as stored in tensors, in the order of ``COLUMNS``."""
    values = dict(zip(COLUMNS, _draw_values(params), strict=True))
    for parameter in PARAMETERS:
        values[parameter.name] = parameter.read(values[parameter.name], row)
    given_ids = values["logprob_token_ids"] = tuple(
        read_ids("logprob_token_ids", params.logprob_token_ids, row, vocab_size)
    )
    if values["logprobs"] is None and given_ids:
        values["logprobs"] = 0
    order = params.filter_order
    if not isinstance(order, str) or order not in FILTER_ORDERS:
        raise out_of_range("filter_order", row, "one of " + ", ".join(FILTER_ORDERS), order)
    values["filters"] = read_filters(params.filters, row)
    return values


def check_columns(params: Iterable[SamplingParams], *, may_edit: bool = False) -> Columns:
    """Check the parameters of a batch, and return them by name: the :func:`stored_values` of each request."""
    check = check_edits if may_edit else refuse_edits
    if isinstance(params, SamplingParams):
        raise InvalidParameterError(
            "'params' needs one SamplingParams a request, found a single SamplingParams. Pass [params]."
        )
    requests = list(each("params", params, "SamplingParams"))
    if not requests:
        return dict.fromkeys(COLUMNS, ())
    if all(issubclass(each_type, SamplingParams) for each_type in {*map(type, requests)}):
        by_field = zip(*map(_draw_values, requests), strict=True)
        columns: dict[str, Any] = dict(zip(COLUMNS, by_field, strict=True))
        found = ((p.name, p.read_column(columns[p.name])) for p in PARAMETERS)
        read = {name: column for name, column in found if column is not None}
        orders = columns["filter_order"]
        if len(read) == len(PARAMETERS) and {*map(type, orders)} == {str} and {*orders} <= {*FILTER_ORDERS}:
            for row, request in enumerate(requests):
                if request.may_edit:
                    check(request, row)
            given_ids = [
                () if ids is None else tuple(read_ids("logprob_token_ids", ids, row, None))
                for row, ids in enumerate(columns["logprob_token_ids"])
            ]
            by_row = enumerate(columns["filters"])
            filters = [() if values is None else read_filters(values, row) for row, values in by_row]
            if any(given_ids):
                pairs = zip(read["logprobs"], given_ids, strict=True)
                read["logprobs"] = [0 if n is None and ids else n for n, ids in pairs]
            return columns | read | {"logprob_token_ids": given_ids, "filters": filters}
    rows = []
    for row, request in enumerate(requests):  # row by row, so that the first wrong one is named
        if not isinstance(request, SamplingParams):
            raise InvalidParameterError(
                f"'params'{of_row(row)} needs a tokendraw.SamplingParams, found {type_name(request)}. "
                "Make one a request: SamplingParams(temperature=..., top_k=...)."
            )
        rows.append(stored_values(request, row).values())
        check(request, row)
    return dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))


def read_filters(filters: Any, row: int | str | None) -> tuple[tuple[str, float], ...]:
    if filters is None:
        return ()
    owner = of_row(row)
    if not isinstance(filters, Mapping):
        found = type_name(filters)
        raise InvalidParameterError(f"'filters'{owner} needs {{name: value}}, found {found}. Pass a dict.")
    active = []
    for name, value in filters.items():
        rule = find_filter(name, owner)
        try:
            rule.check(value)  # whose code may be anybody's
        except InvalidParameterError as error:
            raise InvalidParameterError(f"'filters'{owner}: {error}") from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            origin = format_origin(error, package_of(rule))
            raise FilterError(
                f"The check of the filter {rule.name!r} failed: it raised {format_error(error)}{origin}. Report it to "
                "the author of the filter, or leave it out of SamplingParams.filters."
            ) from error
        number = real(name, value, row, -LARGEST_FLOAT32, LARGEST_FLOAT32, "a finite float32")
        if number != rule.off:
            active.append((name, number))
    return tuple(sorted(active))


# The edits of logits.

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
    checked = [real(name, getattr(params, name), row, *limits) for name, limits in _PENALTIES.items()]
    penalties = tuple(checked)
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
    limits = -LARGEST_FLOAT32, LARGEST_FLOAT32, "finite float32 values"
    values = [real("logit_bias", value, row, *limits) for value in found.values()]
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
