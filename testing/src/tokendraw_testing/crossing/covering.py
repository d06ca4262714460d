"""Covering tables: few cases with every pair of values of two factors, and random cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Case = dict[str, Any]
"""The value of each factor, by its name."""
CaseFilter = Callable[[Mapping[str, Any]], bool]
"""Whether a case is allowed; for an incomplete case, whether it can be completed."""

_CANDIDATES: Final = 6
"""Cases to choose the next one of a table from."""
_ATTEMPTS: Final = 100


def allow_every_case(case: Mapping[str, Any]) -> bool:
    """Allow every case."""
    return True


def covering(
    factors: Mapping[str, Sequence[Any]], rng: Generator, allowed: CaseFilter = allow_every_case
) -> list[Case]:
    """Return cases that together hold every pair of values of two factors found in any allowed case.

    Each case begins with a pair that is still missing, and takes factor by factor the value that adds most of the
    missing pairs; the best of a few such cases is kept.
    """
    table = _Table(factors)
    cases = []
    while table.missing.any():
        pair = rng.choice(np.argwhere(table.missing))
        grown = [case for _ in range(_CANDIDATES) if (case := table.complete(pair, rng, allowed)) is not None]
        best = max(grown, key=table.gain, default=None)
        table.strike(pair if best is None else best)
        if best is not None:
            cases.append(table.case(best))
    return cases


def random_case(
    factors: Mapping[str, Sequence[Any]], rng: Generator, allowed: CaseFilter = allow_every_case
) -> Case:
    """Return an allowed case with values at random.

    :raises ValueError: none was found in many attempts.
    """
    for _ in range(_ATTEMPTS):
        case: Case = {}
        for name in rng.permutation(list(factors)).tolist():
            values = [value for value in factors[name] if allowed({**case, name: value})]
            if not values:
                break
            case[name] = values[int(rng.integers(len(values)))]
        else:
            return {name: case[name] for name in factors}
    raise ValueError(f"'factors' need values that are allowed together, found none of {list(factors)}.")


class _Table:
    """Pairs of values still missing from the cases. A value is numbered among the values of all factors."""

    def __init__(self, factors: Mapping[str, Sequence[Any]]) -> None:
        self.values = [(name, value) for name, values in factors.items() for value in values]
        self.numbers = {name: np.flatnonzero([owner == name for owner, _ in self.values]) for name in factors}
        self.missing = np.ones((len(self.values), len(self.values)), bool)
        """[values, values] symmetric; the diagonal stands for a value itself, so that a lone factor is covered too."""
        for numbers in self.numbers.values():
            self.missing[np.ix_(numbers, numbers)] = False
        np.fill_diagonal(self.missing, True)

    def case(self, numbers: NDArray[Any]) -> Case:
        """Return values by factor name, in the order of the factors."""
        return dict(self.values[i] for i in sorted(numbers))

    def gain(self, numbers: NDArray[Any]) -> int:
        """Count the missing pairs in a case."""
        return int(self.missing[np.ix_(numbers, numbers)].sum())

    def strike(self, numbers: NDArray[Any]) -> None:
        """Mark the pairs of some values as covered."""
        self.missing[np.ix_(numbers, numbers)] = False

    def complete(self, pair: NDArray[Any], rng: Generator, allowed: CaseFilter) -> NDArray[Any] | None:
        """Complete a pair to a case; None in a dead end."""
        numbers_so_far = list(dict.fromkeys(pair.tolist()))
        case = self.case(np.array(numbers_so_far))
        if not allowed(case):
            return None
        gains = self.missing[numbers_so_far].sum(0)  # of each value, beside those that are fixed
        for name in rng.permutation([name for name in self.numbers if name not in case]).tolist():
            numbers = rng.permutation(self.numbers[name])
            order = np.argsort(-gains[numbers], kind="stable")
            number = next((i for i in numbers[order] if allowed({**case, name: self.values[i][1]})), None)
            if number is None:
                return None
            numbers_so_far.append(int(number))
            gains += self.missing[number]
            case[name] = self.values[number][1]
        return np.array(numbers_so_far)
