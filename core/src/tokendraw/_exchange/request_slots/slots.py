"""The requests of an engine: one row of every parameter tensor each, written when a request comes or goes."""

from __future__ import annotations

import torch

from tokendraw._exchange.ranges import integer
from tokendraw._exchange.request_slots.allocation import Sizes, allocate
from tokendraw._exchange.request_slots.tables import EditFacts, RequestTables
from tokendraw._torch.untraced import made_untraced
from tokendraw._torch.upload import device_of

LARGEST_TOKENS = 2**27 - 1  # counts are 16 times as large, in an int32
LARGEST_VOCABULARY = 2**31 - 1
LARGEST_SLOTS = 2**31 - 1


@made_untraced
class RequestSlots:
    """Parameters and histories of the requests that an engine serves, on the device, for the engine's life.

    A request has a slot from :meth:`add` to :meth:`remove`. The tensors are allocated here, and never move: a CUDA
    graph may read them. One thread uses an object, and its calls launch on the device's current stream.

    Memory: 8 bytes for each slot and token, 4 bytes and a bit for each slot and id of the vocabulary, and in each slot
    8 bytes for each of ``max_bias``, 4 for each of ``max_stop_ids`` and of the ids of bad words; see :attr:`num_bytes`.

    :param num_slots: S, the most requests at a time.
    :param max_tokens: M, the most tokens of a request, prompt and output together; at most 2**27 - 1.
    :param vocab_size: V.
    :param device: device of the logits; None: the CPU.
    :param max_bias: the most entries of ``logit_bias`` of a request.
    :param max_stop_ids: the most ``stop_token_ids`` of a request with ``min_tokens``.
    :param max_bad_words: the most ``bad_words`` of a request.
    :param max_bad_word_len: the most ids of one of them.
    :raises InvalidParameterError: a ValueError: a number is out of range, or torch finds no such device.
    """

    def __init__(
        self,
        num_slots: int,
        max_tokens: int,
        vocab_size: int,
        *,
        device: torch.device | str | None = None,
        max_bias: int = 1024,
        max_stop_ids: int = 128,
        max_bad_words: int = 128,
        max_bad_word_len: int = 32,
    ) -> None:
        ids = integer("vocab_size", vocab_size, None, 1, LARGEST_VOCABULARY)
        self._sizes = Sizes(
            num_slots=integer("num_slots", num_slots, None, 1, LARGEST_SLOTS),
            max_tokens=integer("max_tokens", max_tokens, None, 1, LARGEST_TOKENS),
            vocab_size=ids,
            max_bias=min(integer("max_bias", max_bias, None, 1, LARGEST_VOCABULARY), ids),
            max_stop_ids=min(integer("max_stop_ids", max_stop_ids, None, 1, LARGEST_VOCABULARY), ids),
            max_bad_words=integer("max_bad_words", max_bad_words, None, 1, LARGEST_SLOTS),
            max_bad_word_len=integer("max_bad_word_len", max_bad_word_len, None, 1, LARGEST_TOKENS),
        )
        self._state = allocate(self._sizes, device_of(device))
        self._edit_facts = EditFacts(
            any_penalty=False, any_bias=False, any_allowed=False, any_bad_words=False, any_min_tokens=False
        )

    @property
    def num_slots(self) -> int:
        """S."""
        return self._sizes.num_slots

    @property
    def max_tokens(self) -> int:
        """M: the most tokens of a request."""
        return self._sizes.max_tokens

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._sizes.vocab_size

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self._state.tables.counts.device

    @property
    def tables(self) -> RequestTables:
        """Tensors that edits of logits are computed from: the same for the life of the object."""
        return self._state.tables

    @property
    def facts(self) -> EditFacts:
        """Edits that the requests in the slots may ask for, as the host knows without looking at the device."""
        return self._edit_facts
