"""Judges a property: exact demands, and statistics in two looks with a stated rate of false alarms.

A statistical check that looks suspicious, p < 1e-3, is repeated with fresh seeds and four times the draws, and fails
only if the second look gives p < 1e-6. The looks are independent, so a correct sampler fails one check with
probability 1e-9, and with at most :data:`MOST_CHECKS` of them a whole run with probability 1e-6.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, Never

import numpy as np
import torch
from numpy.random import Generator

FIRST_LOOK_P: Final = 1e-3
"""A first look below this is followed by a second."""
SECOND_LOOK_P: Final = 1e-6
"""A second look below this is a failure."""
SECOND_LOOK_FACTOR: Final = 4
MOST_CHECKS: Final = 1000
FALSE_ALARM: Final = FIRST_LOOK_P * SECOND_LOOK_P * MOST_CHECKS
"""Highest probability that a correct sampler fails a run, by all of its statistics together."""
_TRAILING_GUARDS: Final = 1024
"""Guard elements behind the last row."""


class Violation(AssertionError):  # noqa: N818 - a finding about the sampler, not an error of the kit
    """The sampler broke a property; the message says needed against found."""


class NotRun(Exception):  # noqa: N818 - no error: the claim cannot be tested here
    """A line could not be tested; the message says needed against found."""


@dataclass(frozen=True)
class Verdict:
    """Result of one statistic."""

    p_value: float
    worst: str
    """Description of the bin furthest from its expectation."""
    draws: int


Experiment = Callable[[Generator, int], Verdict]
"""Draws the given number of tokens, or about as many, with seeds from the generator, and judges them."""


class Trial:
    """Random numbers, demands and figures of one property under test."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._seed = seed
        self.checks = 0  # second looks do not count
        self.draws = 0
        self.least: tuple[float, str] | None = None
        """Smallest p-value of the first looks, or p-value of the failed second look, with its check."""

    def generator(self, label: str, look: int = 0) -> Generator:
        """Return the random numbers of one check, which depend only on the run's seed and the check's name."""
        return np.random.default_rng([self._seed, look, zlib.crc32(f"{self._name}/{label}".encode())])

    def require(self, holds: Any, message: str) -> None:
        """Demand something exact; ``message`` says what was needed and found.

        :raises Violation: it does not hold.
        """
        if not holds:
            raise Violation(message)

    def skip(self, reason: str) -> Never:
        """End the line as not run, for a reason: needed against found."""
        raise NotRun(reason)

    def judge(self, label: str, experiment: Experiment, draws: int) -> None:
        """Demand something of a distribution.

        :param label: the check in words, unlike that of any other check of this property.
        :raises Violation: both looks at it found it wrong.
        """
        self.checks += 1
        first = experiment(self.generator(label, 1), draws)
        self.draws += first.draws
        if self.least is None or first.p_value < self.least[0]:
            self.least = (first.p_value, f"{label}: {first.worst}")
        if first.p_value >= FIRST_LOOK_P:
            return
        second = experiment(self.generator(label, 2), SECOND_LOOK_FACTOR * draws)
        self.draws += second.draws
        if second.p_value < SECOND_LOOK_P:
            self.least = (second.p_value, f"{label}: {second.worst}")
            raise Violation(
                f"{label}: {second.worst} (p = {first.p_value:.1e}, then {second.p_value:.1e} in {second.draws} draws)"
            )


@contextlib.contextmanager
def require_unmodified(trial: Trial, **inputs: object) -> Iterator[None]:
    """Require that the block leaves every bit of the inputs unmodified: tensors, and dataclasses that hold some."""
    tensors = [pair for name, part in inputs.items() for pair in named_tensors(name, part)]
    before = [bits(tensor).clone() for _, tensor in tensors]
    yield
    for (name, tensor), kept in zip(tensors, before, strict=True):
        is_same = torch.equal(bits(tensor), kept)
        trial.require(is_same, f"'{name}' needs to stay as it is, found changed")


@contextlib.contextmanager
def violations_named(what: str) -> Iterator[None]:
    """Put the name of a call in front of a violation's message."""
    try:
        yield
    except Violation as violation:
        raise Violation(f"{what}: {violation}") from violation.__cause__


def named_tensors(name: str, part: object) -> list[tuple[str, torch.Tensor]]:
    """List a tensor, or those of a dataclass by the names of its fields."""
    if isinstance(part, torch.Tensor):
        return [(name, part)]
    parts = [(field.name, getattr(part, field.name)) for field in fields(part)] if is_dataclass(part) else []
    return [pair for each in parts for pair in named_tensors(*each)]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as bytes: NaN is unequal to NaN, but its bits are equal."""
    return tensor.reshape(-1).contiguous().view(torch.uint8)


def poisoned(
    rows: int, size: int, stride: int, offset: int, dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor:
    """Make zeros [rows, size] in storage with +inf and NaN by turns in all other elements, of integers 0."""
    guards = _guards(offset + rows * stride + _TRAILING_GUARDS, dtype, device)
    return guards.as_strided((rows, size), (stride, 1), offset).zero_()


def _guards(count: int, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    if not dtype.is_floating_point:
        return torch.zeros(count, dtype=dtype, device=device)
    guards = torch.full((count,), float("inf"), dtype=dtype, device=device)
    guards[1::2] = float("nan")
    return guards


def written_guards(view: torch.Tensor) -> list[tuple[int, int]]:
    """List (row, column) of every guard around :func:`poisoned` rows that was written to.

    Columns count from the first element of the row.
    """
    count = view.untyped_storage().nbytes() // view.element_size()
    first, stride = int(view.storage_offset()), view.stride(0)
    expected = _guards(count, view.dtype, view.device)
    expected.as_strided(view.shape, view.stride(), first).copy_(view)
    changed = (bits(view.as_strided((count,), (1,), 0)) != bits(expected)).view(count, -1).any(dim=1)
    offsets = (changed.nonzero().flatten() - first).tolist()
    rows = [min(max(offset // stride, 0), max(len(view) - 1, 0)) for offset in offsets]
    return [(row, offset - row * stride) for row, offset in zip(rows, offsets, strict=True)]
