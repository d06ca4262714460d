"""The sampling parameters of a request, and their checks. Imports no torch."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from tokendraw.backends.description import FILTER_ORDERS, FilterOrder
from tokendraw.backends.discovery.guard import format_origin, package_of
from tokendraw.errors import FilterError, InvalidParameterError, format_error, type_name
from tokendraw.filters.installed import Filter, find_filter
from tokendraw.parameters.edits import check_edits, read_ids, refuse_edits
from tokendraw.parameters.fields import (
    COLUMNS,
    LARGEST_FLOAT32,
    PARAMETERS,
    Columns,
    check_logprobs,
    each,
    integer,
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
    if all(issubclass(kind, SamplingParams) for kind in {*map(type, requests)}):
        columns: dict[str, Any] = dict(
            zip(COLUMNS, zip(*map(_draw_values, requests), strict=True), strict=True)
        )
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
            filters = [
                () if values is None else read_filters(values, row)
                for row, values in enumerate(columns["filters"])
            ]
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
        raise InvalidParameterError(
            f"'filters'{owner} needs {{name: value}}, found {type_name(filters)}. Pass a dict."
        )
    active = []
    for name, value in filters.items():
        rule = find_filter(name, owner)
        _check(rule, value, owner)
        number = real(name, value, row, -LARGEST_FLOAT32, LARGEST_FLOAT32, "a finite float32")
        if number != rule.off:
            active.append((name, number))
    return tuple(sorted(active))


def _check(rule: Filter, value: Any, owner: str) -> None:
    """Call the check of a filter, whose code may be anybody's."""
    try:
        rule.check(value)
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
