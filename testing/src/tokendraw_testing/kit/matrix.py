"""Counts the rows checked by each line, by call, dtype, width of the vocabulary and kind of row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final, NamedTuple, TypeAlias

WIDTHS: Final = (1 << 10, 1 << 16, 1 << 17, None)
"""Widest vocabulary of each class; None: any."""


class Place(NamedTuple):
    """A cell of the matrix."""

    call: str
    """Name of the operation, with its mode if there are modes."""
    dtype: str
    """Dtype of the logits, by its torch name."""
    up_to: int | None
    """Widest vocabulary of the class of widths; None: no limit."""
    kind: str
    """``greedy``, ``seeded`` or ``unseeded``, where rows draw."""


Looked: TypeAlias = tuple[tuple[Place, int], ...]
"""Numbers of rows by place, in the order of the places."""


def width_class(vocab_size: int) -> int | None:
    """Return the widest vocabulary in the class of a vocabulary size."""
    return next(width for width in WIDTHS if width is None or vocab_size <= width)


def places(
    calls: Iterable[str], dtypes: Iterable[str], max_vocab_size: int | None, kinds: Iterable[str]
) -> tuple[Place, ...]:
    """List the places within the limits of a provider, in the order of a matrix."""
    last = WIDTHS.index(None if max_vocab_size is None else width_class(max_vocab_size))
    return tuple(Place(*place) for place in product(calls, dtypes, WIDTHS[: last + 1], kinds))


def order_places(rows: Mapping[Place, int], places: Iterable[Place]) -> Looked:
    """Sort the counts by the order of ``places``; unlisted places come last."""
    all_places = dict.fromkeys([*places, *rows])
    return tuple((place, rows[place]) for place in all_places if rows.get(place))


def add_up(parts: Iterable[Looked]) -> Looked:
    """Add up several lines."""
    rows: Counter[Place] = Counter()
    for part in parts:
        rows.update(dict(part))
    return tuple(rows.items())
