"""What the host knows of a batch without looking at the device: of all rows together, and of each one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from torch import Tensor

from tokendraw._exchange.declared import at_least, check_fields
from tokendraw._exchange.params import SamplingParams
from tokendraw._exchange.ranges import Checked, all_checked, integers, widest


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFacts:
    """What a batch may hold, known without reading the device. The defaults say "anything".

    ``any_*`` must be True unless no row is of that kind, ``all_*`` may be True only if every row is.

    :raises InvalidParameterError: a ValueError: a field is not of the type that it declares.
    """

    any_greedy: bool = True
    all_greedy: bool = False
    any_seeded: bool = True
    all_seeded: bool = False
    max_top_k: Annotated[int, at_least(0)] | None = None
    """Largest active top_k; 0: no row has one; None: unknown."""
    all_top_k: bool = False
    """Whether every row is greedy or has an active top_k: none keeps more than ``max_top_k`` tokens, ties apart."""
    any_top_p: bool = True
    any_min_p: bool = True
    any_joint: bool = True
    any_top_k_first: bool = True
    """Whether a row of the order ``top_k_first`` may have top-p beside another filter: alone, both orders agree."""
    max_logprobs: Annotated[int, at_least(-1)] | None = None
    """Largest ``SamplingParams.logprobs`` of the batch (-1: a row wants all); None: no row wants any."""

    def __post_init__(self) -> None:
        check_fields(self)

    def logprobs_width(self, vocab_size: int) -> int | None:
        """N of the result: how many best tokens stand beside each drawn one, at most V; None: no row wants any."""
        n = self.max_logprobs
        return n if n is None or 0 <= n <= vocab_size else vocab_size

    @classmethod
    def merged(cls, parts: Iterable[BatchFacts]) -> BatchFacts:
        """What a batch holds whose rows are those of ``parts`` together; of no parts, what an empty batch does."""
        every = list(parts)
        if len(every) == 1:
            return every[0]
        largest = [facts.max_top_k for facts in every]
        return cls(
            any_greedy=any(facts.any_greedy for facts in every),
            all_greedy=bool(every) and all(facts.all_greedy for facts in every),
            any_seeded=any(facts.any_seeded for facts in every),
            all_seeded=bool(every) and all(facts.all_seeded for facts in every),
            max_top_k=None if None in largest else max((k for k in largest if k is not None), default=0),
            all_top_k=bool(every) and all(facts.all_top_k for facts in every),
            any_top_p=any(facts.any_top_p for facts in every),
            any_min_p=any(facts.any_min_p for facts in every),
            any_joint=any(facts.any_joint for facts in every),
            any_top_k_first=any(facts.any_top_k_first for facts in every),
            max_logprobs=widest([facts.max_logprobs for facts in every]),
        )


class RowKinds:
    """What the host knows of each row of a batch, so that rows can go where they are served: see ``docs/routing.md``.

    :meth:`SamplingMetadata.from_params` makes it. Whoever keeps parameters in tensors of their own makes it from the
    requests that these hold, anew whenever a row comes to be of another kind (greedy, seeded, with another top-k,
    another filter or order, another ``logprobs``), and passes it beside them. It speaks of the tensors that it was
    first passed with, as they were then: where torch counts a change in place since, the rows of the batch are no
    longer told apart; and metadata that is made from it with other tensors has none.
    """

    __slots__ = ("__weakref__", "_seen", "kinds", "of_slot", "slot_of_row")

    def __init__(
        self,
        kinds: tuple[BatchFacts, ...],
        of_slot: tuple[int, ...],
        slot_of_row: tuple[int, ...] | None = None,
    ) -> None:
        self.kinds = kinds
        """What a single row of each kind that occurs is like."""
        self.of_slot = of_slot
        """[slots]: index of its kind."""
        self.slot_of_row = slot_of_row
        """[rows], where the metadata has a ``row_index``; None: row i is slot i."""
        self._seen: tuple[tuple[Tensor | None, int], ...] | None = None

    @classmethod
    def of(cls, params: Iterable[SamplingParams], *, row_index: Iterable[int] | None = None) -> Self:
        """Sort requests by kind.

        :param params: one entry a slot.
        :param row_index: slot of each logits row, on the host.
        :raises InvalidParameterError: a ValueError that names the field, the row and the value.
        """
        checked = all_checked(params)
        return cls.sorted(checked, checked_slots(row_index, len(checked)))

    @classmethod
    def sorted(cls, checked: Sequence[Checked], slot_of_row: Sequence[int] | None) -> Self:
        """Sort by kind requests that are checked, one a slot."""
        index: dict[tuple[Any, ...], int] = {}
        of_slot = tuple(index.setdefault(request.kind, len(index)) for request in checked)
        kinds = tuple(
            BatchFacts(
                any_greedy=greedy,
                all_greedy=greedy,
                any_seeded=seeded,
                all_seeded=seeded,
                max_top_k=k,
                all_top_k=bool(k) or greedy,
                any_top_p=top_p,
                any_min_p=min_p,
                any_joint=order == "joint",
                any_top_k_first=order == "top_k_first" and top_p and (k > 0 or min_p),
                max_logprobs=n,
            )
            for greedy, seeded, k, top_p, min_p, order, n in index
        )
        return cls(kinds, of_slot, None if slot_of_row is None else tuple(slot_of_row))

    @property
    def num_rows(self) -> int:
        """How many logits rows it speaks of."""
        return len(self.of_slot if self.slot_of_row is None else self.slot_of_row)

    def is_about(self, tensors: Sequence[Tensor | None]) -> bool:
        """Whether it speaks of these tensors; the first that it is asked about are the ones that it does."""
        if self._seen is None:
            self._seen = tuple((tensor, _version(tensor)) for tensor in tensors)
        return all(tensor is seen for tensor, (seen, _) in zip(tensors, self._seen, strict=True))

    def is_current(self) -> bool:
        """Whether its tensors are, as far as torch counts changes, as they were."""
        return all(_version(tensor) == version for tensor, version in self._seen or ())


def checked_slots(row_index: Iterable[int] | None, slots: int) -> list[int] | None:
    """The slot of each row, if they are given.

    :raises InvalidParameterError: one of them is no slot; names the row.
    """
    if row_index is None:
        return None
    return integers("row_index", row_index, 0, slots - 1)


def _version(tensor: Tensor | None) -> int:
    """Torch's count of changes in place; of inference tensors there is none."""
    return 0 if tensor is None or tensor.is_inference() else int(tensor._version)
