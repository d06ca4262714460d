"""Checks a request that comes to a slot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from tokendraw._exchange.edits import CheckedEdits, checked_edits
from tokendraw._exchange.facts import RowKind, row_kind
from tokendraw._exchange.params import CheckedParams, SamplingParams, checked
from tokendraw._exchange.ranges import integers
from tokendraw._exchange.request_slots.sizes import Sizes
from tokendraw._exchange.request_slots.tables import FACT_OF_EDIT
from tokendraw._messages.errors import InvalidParameterError
from tokendraw._messages.words import type_name
from tokendraw._torch.tensor_checks import check_integers, check_vector


@dataclass(frozen=True, eq=False)
class Request:
    """The part of a request in a slot that the host keeps."""

    params: CheckedParams
    edits: CheckedEdits
    kind: RowKind

    @property
    def asks(self) -> list[str]:
        """The edits that it asks for, as :class:`tokendraw.plugin.EditFacts` calls them."""
        return [*dict.fromkeys(FACT_OF_EDIT[name] for name in self.edits.names)]


def checked_request(slot: int, params: SamplingParams, sizes: Sizes) -> Request:
    """Check the parameters of a request.

    :raises InvalidParameterError: it names the field and the slot.
    """
    place = f"slot {slot}"
    if not isinstance(params, SamplingParams):
        raise InvalidParameterError(
            f"'params' of {place} needs a tokendraw.SamplingParams, found {type_name(params)}. "
            "Make one: SamplingParams(temperature=..., top_k=...)."
        )
    own, edits = checked(params, place), checked_edits(params, place, sizes.vocab_size)
    longest = max(map(len, edits.bad_words), default=0)
    for field, what, found, limit, room in (
        ("logit_bias", "entries", len(edits.bias), "max_bias", sizes.max_bias),
        ("stop_token_ids", "ids", len(edits.stop_ids), "max_stop_ids", sizes.max_stop_ids),
        ("bad_words", "sequences", len(edits.bad_words), "max_bad_words", sizes.max_bad_words),
        ("bad_words", "ids in a sequence", longest, "max_bad_word_len", sizes.max_bad_word_len),
    ):
        if found > room:
            raise InvalidParameterError(
                f"'{field}' of {place} needs at most '{limit}', {room}, {what}, found {found}. "
                f"Ask for fewer, or make RequestSlots with a larger {limit}."
            )
    return Request(own, edits, row_kind(own))


def checked_prompt(slot: int, prompt: Iterable[int] | Tensor, sizes: Sizes) -> list[int]:
    """Return the ids of a prompt.

    :raises InvalidParameterError: one is out of range, or they are too many; names the slot.
    :raises InvalidInputError: it is a tensor of another form.
    """
    name, place, most = "prompt_token_ids", f"slot {slot}", sizes.max_tokens
    if isinstance(prompt, Tensor):
        check_vector(name, prompt)
        check_integers(name, prompt)
        prompt = prompt.tolist()
    ids = integers(name, prompt, 0, sizes.vocab_size - 1, f"token ids in [0, {sizes.vocab_size})", row=place)
    if len(ids) > most:
        raise InvalidParameterError(
            f"'{name}' of {place} needs at most 'max_tokens', {most}, ids, found {len(ids)}. "
            "Shorten the prompt, or make RequestSlots with a larger max_tokens."
        )
    return ids
