"""The host's knowledge of a batch, without reading the device: of all rows together, and of each row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, Self, TypeAlias

from torch import Tensor

from tokendraw._torch.tensors import check_integers, check_vector
from tokendraw.backends.description import at_least, check_fields
from tokendraw.parameters.fields import (
    COLUMNS,
    FILTER_PARAMETERS,
    FILTER_PREFIX,
    ORDERS,
    SLOT_FIELDS,
    Columns,
    integers,
)
from tokendraw.parameters.params import SamplingParams, check_columns

RowKind: TypeAlias = tuple[Any, ...]
"""An entry a column of :data:`COLUMNS` but ``xtc_threshold``: whether greedy, whether there is a seed, a real filter
or given ids; names of filters from moments; else the value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFacts:
    """Upper bounds of a batch's contents, known without reading the device. The defaults say "anything".

    ``any_*`` must be True unless no row is of that kind, ``all_*`` may be True only if every row is.

    :ivar any_greedy: Whether a row may have temperature 0.
    :ivar all_greedy: Whether every row has temperature 0.
    :ivar any_seeded: Whether a row may have a seed.
    :ivar all_seeded: Whether every row has a seed.
    :ivar max_top_k: Largest active top_k; 0: no row has one; None: unknown.
    :ivar all_top_k: Whether every row is greedy or has an active top_k: none keeps more than ``max_top_k``, ties apart.
    :ivar any_top_p: Whether a row may have an active top_p.
    :ivar any_min_p: Whether a row may have an active min_p.
    :ivar any_typical_p: Whether a row may have an active typical_p.
    :ivar any_xtc: Whether a row may have an active xtc_probability.
    :ivar any_joint: Whether a row may have the filter order ``joint``.
    :ivar any_temperature_last: Whether a row may combine the filter order ``temperature_last`` with a filter.
    :ivar any_top_k_first: Whether a row of the order ``top_k_first`` may combine top_p with another filter.
    :ivar max_logprobs: Largest ``SamplingParams.logprobs`` (-1: a row wants all tokens); None: no row wants any.
    :ivar max_logprob_token_id: Largest id of ``SamplingParams.logprob_token_ids``; -1: no row has any; None: unknown.
    :ivar filters: Names of the filters from moments that a row may have active; None: all of the metadata.
    :raises InvalidParameterError: a ValueError: a field is not of the type that it declares.
    """

    any_greedy: bool = True
    all_greedy: bool = False
    any_seeded: bool = True
    all_seeded: bool = False
    max_top_k: Annotated[int, at_least(0)] | None = None
    all_top_k: bool = False
    any_top_p: bool = True
    any_min_p: bool = True
    any_typical_p: bool = True
    any_xtc: bool = True
    any_joint: bool = True
    any_temperature_last: bool = True
    any_top_k_first: bool = True
    max_logprobs: Annotated[int, at_least(-1)] | None = None
    max_logprob_token_id: Annotated[int, at_least(-1)] | None = None
    filters: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def any_top_k(self) -> bool:
        """Whether a row may have an active top_k."""
        return self.max_top_k != 0

    @property
    def any_logprob_token_ids(self) -> bool:
        """Whether a row may ask for the log-probabilities of given ids."""
        return self.max_logprob_token_id != -1

    @property
    def any_filters(self) -> bool:
        """Whether a row may have an active filter from moments."""
        return bool(self.filters)

    def may_use(self, column: str) -> bool:
        """Whether a row may use the tensor of this name in the metadata, with an entry a slot."""
        fact = SLOT_FIELDS[column].fact
        known = getattr(self, fact) if fact else True
        return known is not None and known is not False

    @property
    def any_ceiling(self) -> bool:
        """Whether a row may have typical-p or XTC, which drop tokens likelier than all kept ones."""
        return self.any_typical_p or self.any_xtc

    def logprobs_width(self, vocab_size: int) -> int | None:
        """Return N of the result: the number of best tokens a row, at most V; None: no row wants logprobs."""
        n = self.max_logprobs
        return n if n is None or 0 <= n <= vocab_size else vocab_size

    @classmethod
    def of_kinds(cls, kinds: Collection[RowKind]) -> Self:
        """Describe a batch with at least one row of each given kind, and no others."""
        columns = zip(*kinds, strict=True) if kinds else [()] * (len(COLUMNS) - 1)
        greedy, *filters, seeded, logprobs, orders, has_given_ids, names = columns  # the order of COLUMNS
        top_k, top_p = filters[_TOP_K], filters[_TOP_P]

        def rows() -> Iterator[tuple[str, bool, tuple[object, ...]]]:
            return zip(orders, top_p, zip(*filters, names, strict=True), strict=True)

        return cls(
            any_greedy=any(greedy),
            all_greedy=bool(kinds) and all(greedy),
            any_seeded=any(seeded),
            all_seeded=bool(kinds) and all(seeded),
            max_top_k=max(top_k, default=0),
            all_top_k=bool(kinds) and all(k or is_greedy for k, is_greedy in zip(top_k, greedy, strict=True)),
            any_joint="joint" in orders,
            any_temperature_last="temperature_last" in orders
            and any(order == "temperature_last" and any(used) for order, _, used in rows()),
            any_top_k_first=any(top_p)
            and any(order == "top_k_first" and p and sum(map(bool, used)) > 1 for order, p, used in rows()),
            max_logprobs=_widest(logprobs),
            max_logprob_token_id=None if any(has_given_ids) else -1,
            filters=_union(names),
            **{fact: any(filters[i]) for i, fact in _REAL_FILTERS},
        )

    @classmethod
    def merged(cls, parts: Iterable[BatchFacts]) -> BatchFacts:
        """Describe the batch of all rows of ``parts``; without parts, an empty batch."""
        every = list(parts)
        if len(every) == 1:
            return every[0]
        flags = {name: any(getattr(facts, name) for facts in every) for name in _ANY_FLAGS}
        flags |= {name: bool(every) and all(getattr(facts, name) for facts in every) for name in _ALL_FLAGS}
        return cls(
            **flags,
            max_top_k=_largest([facts.max_top_k for facts in every], default=0),
            max_logprob_token_id=_largest([facts.max_logprob_token_id for facts in every], default=-1),
            max_logprobs=_widest([facts.max_logprobs for facts in every]),
            filters=_union([facts.filters for facts in every]),
        )

    def tightened(self, given: Collection[str]) -> Self:
        """Mark each parameter without a tensor as off, whatever the caller left at "may hold".

        :param given: names of the parameters that have a tensor.
        """
        of_filters = (name for name in given if name.startswith(FILTER_PREFIX))
        filters = tuple(sorted(name.removeprefix(FILTER_PREFIX) for name in of_filters))
        if self.filters is not None:
            filters = tuple(name for name in filters if name in self.filters)
        tight: dict[str, Any] = {fact: off for name, (fact, off) in _WITHOUT.items() if name not in given}
        used = [p.name for p in FILTER_PARAMETERS if p.name in given and self.may_use(p.name)]
        tight |= {
            "all_seeded": self.all_seeded or ("seed" in given and "seeded" not in given),
            "all_top_k": self.all_greedy
            or (self.all_top_k and "top_k" in given and self.max_top_k is not None),
            "any_top_k_first": self.any_top_k_first and "top_p" in used and len(used) + len(filters) > 1,
            "filters": filters,
        }
        changed = {name: value for name, value in tight.items() if getattr(self, name) != value}
        return replace(self, **changed) if changed else self


_ANY_FLAGS, _ALL_FLAGS = (
    [field.name for field in fields(BatchFacts) if field.name.startswith(prefix)]
    for prefix in ("any_", "all_")
)
_WITHOUT: dict[str, tuple[str, Any]] = {
    "temperature": ("any_greedy", False),
    "seed": ("any_seeded", False),
    "top_k": ("max_top_k", 0),
    "logprob_token_ids": ("max_logprob_token_id", -1),
    **{p.name: (p.fact, False) for p in FILTER_PARAMETERS if p.value_type == "real"},
    **{order: (f"any_{order}", False) for order in ORDERS},
}
"""By tensor: the fact that is known without it, and its value then."""
_REAL_FILTERS = [(i, p.fact) for i, p in enumerate(FILTER_PARAMETERS) if p.value_type == "real"]
_TOP_K, _TOP_P = ([p.name for p in FILTER_PARAMETERS].index(name) for name in ("top_k", "top_p"))


class RowKinds:
    """The kind of each row, as the host knows it, for routing single rows: see ``docs/engine-authors.md``.

    :meth:`SamplingMetadata.from_params` makes them. An engine with parameters in its own tensors makes them with
    :meth:`of`, again whenever a row changes its kind (greedy, seeded, top-k, another filter or order, ``logprobs``),
    and passes them to :class:`SamplingMetadata`. They are valid for the tensors they were first used with: an in-place
    change counted by torch, or other tensors, invalidate them, and the batch is routed as a whole.
    """

    def __init__(self, columns: Columns, slot_of_row: Sequence[int] | None) -> None:
        index: dict[RowKind, int] = {}
        of_slot = [index.setdefault(key, len(index)) for key in row_kinds(columns)]
        self.of_slot: tuple[int, ...] = tuple(of_slot)
        """[slots]: index of the slot's kind."""
        self.slot_of_row: tuple[int, ...] | None = None if slot_of_row is None else tuple(slot_of_row)
        """[rows], if the metadata has a ``row_index``; None: row i is slot i."""
        self._keys = tuple(index)
        self._max_given_id = max(map(max, filter(None, columns["logprob_token_ids"])), default=-1)
        self._bound: tuple[tuple[Tensor | None, int], ...] | None = None

    @classmethod
    def of(cls, params: Iterable[SamplingParams], *, row_index: Iterable[int] | Tensor | None = None) -> Self:
        """Sort requests by kind.

        :param params: one entry a slot.
        :param row_index: slot of each logits row; a tensor [rows] of integers is read, so keep it on the host.
        :raises InvalidParameterError: a ValueError that names the field, the row and the value.
        :raises InvalidInputError: a ValueError: ``row_index`` is a tensor of another form.
        """
        columns = check_columns(params, may_edit=True)
        if isinstance(row_index, Tensor):
            check_vector("row_index", row_index)
            check_integers("row_index", row_index)
            row_index = row_index.tolist()
        if row_index is not None:
            row_index = integers("row_index", row_index, 0, len(columns["seed"]) - 1)
        return cls(columns, row_index)

    @cached_property
    def kinds(self) -> tuple[BatchFacts, ...]:
        """Facts about a single row of each kind in the batch."""
        return tuple(BatchFacts.of_kinds([key]) for key in self._keys)

    @cached_property
    def facts(self) -> BatchFacts:
        """Facts about a batch with a row for each slot."""
        facts = _facts_of(self._keys)
        largest = self._max_given_id
        return replace(facts, max_logprob_token_id=largest) if facts.any_logprob_token_ids else facts

    @property
    def num_rows(self) -> int:
        """Number of logits rows."""
        return len(self.of_slot if self.slot_of_row is None else self.slot_of_row)

    def describes(self, tensors: Sequence[Tensor | None]) -> bool:
        """Whether these kinds describe ``tensors``; the tensors of the first call are bound to them."""
        if self._bound is None:
            self._bound = tuple([(tensor, _version(tensor)) for tensor in tensors])
            return True
        pairs = zip(tensors, self._bound, strict=False)
        return len(tensors) == len(self._bound) and all(tensor is bound for tensor, (bound, _) in pairs)

    def is_current(self) -> bool:
        """Whether torch counts no in-place change of the bound tensors."""
        return all(_version(tensor) == version for tensor, version in self._bound or ())


_facts_of = lru_cache(1024)(BatchFacts.of_kinds)


def row_kinds(columns: Columns) -> Iterable[RowKind]:
    return zip(
        [value == 0.0 for value in columns["temperature"]],
        *[
            _are_other(columns[p.name], p.neutral) if p.value_type == "real" else columns[p.name]
            for p in FILTER_PARAMETERS
        ],
        [seed is not None for seed in columns["seed"]],
        columns["logprobs"],
        columns["filter_order"],
        _are_other(columns["logprob_token_ids"], ()),
        [tuple([name for name, _ in active]) if active else () for active in columns["filters"]],
        strict=True,
    )


def _are_other(column: Sequence[object], neutral: object) -> list[bool]:
    """Return whether each value differs from the neutral one; mostly all are neutral."""
    if column.count(neutral) == len(column):
        return [False] * len(column)
    return [value != neutral for value in column]


def _widest(logprobs: Collection[int | None]) -> int | None:
    """Return the largest number of logprobs: -1 if a row wants all, None if no row wants any."""
    wanted = [n for n in logprobs if n is not None]
    return None if not wanted else -1 if -1 in wanted else max(wanted)


def _largest(values: Collection[int | None], default: int) -> int | None:
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) else max(known, default=default)


def _union(names: Collection[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    known = [some for some in names if some is not None]
    return None if len(known) < len(names) else tuple(sorted({name for some in known for name in some}))


def _version(tensor: Tensor | None) -> int:
    """Return torch's count of changes in place; inference tensors have none."""
    return 0 if tensor is None or tensor.is_inference() else int(tensor._version)
