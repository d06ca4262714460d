"""Makes the metadata of rows over the parameters of all slots, at the cost of a copy of a dictionary."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from torch import Tensor

from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.parameters.batch_facts import BatchFacts
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.request_slots.counting import Population

_OF_ROWS = frozenset(("row_index", "positions"))


class Descriptions:
    """Makes metadata of changing rows; while the facts stay equal, checks and the memo of samplers are shared."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        """[S] each, by field of the metadata."""
        self._facts: BatchFacts | None = None
        self._known: dict[Hashable, dict[str, Any]] = {}
        """By the forms of row_index and positions: all else that such metadata holds, under these facts."""

    def of(
        self, population: Population, row_index: Tensor, positions: Tensor | None = None
    ) -> SamplingMetadata:
        """Describe rows.

        :raises InvalidInputError: the tensors do not fit each other.
        :raises InvalidParameterError: a request has a seed, and there are no positions.
        """
        facts = population.facts
        if facts is not self._facts:
            self._known.clear()
            self._facts = facts
        form = (
            row_index.shape,
            row_index.dtype,
            None if positions is None else (positions.shape, positions.dtype),
        )
        known = self._known.get(form)
        if known is None:
            made = self._checked(population, row_index, positions)
            self._known[form] = {name: value for name, value in vars(made).items() if name not in _OF_ROWS}
            return made
        made = object.__new__(SamplingMetadata)
        vars(made).update(known, row_index=row_index, positions=positions)
        return made

    def _checked(
        self, population: Population, row_index: Tensor, positions: Tensor | None
    ) -> SamplingMetadata:
        tensors: dict[str, Any] = dict(self._parameters)
        if positions is None:
            for slot, request in population.requests.items():
                if request.params.seed is not None:
                    raise InvalidParameterError(
                        f"'seed' of slot {slot} needs 'positions', found none: without them every step would draw with "
                        "the same noise. Pass positions, one integer a row: the sequence length minus one."
                    )
            del tensors["seed"], tensors["seeded"]
        if population.facts.max_logprobs is None:
            del tensors["logprobs"]
        return SamplingMetadata(**tensors, row_index=row_index, positions=positions, facts=population.facts)
