"""How much of everything slots have room for."""

from __future__ import annotations

from typing import NamedTuple

from tokendraw.parameters.ranges import integer

_LARGEST = 2**31 - 1
_LARGEST_TOKENS = 2**27 - 1  # counts are 16 times as large, in an int32


class Sizes(NamedTuple):
    """The capacities of the slots."""

    num_slots: int
    """S."""
    max_tokens: int
    """M."""
    vocab_size: int
    """V."""
    max_bias: int
    """NB."""
    max_stop_ids: int
    """NS."""
    max_bad_words: int
    """NW."""
    max_bad_word_len: int
    """LW."""

    @property
    def num_words(self) -> int:
        """Words of a bit mask of the vocabulary."""
        return -(-self.vocab_size // 32)


def checked_sizes(*sizes: int) -> Sizes:
    """Check the sizes given by a caller, in the order of :class:`Sizes`.

    :raises InvalidParameterError: it names the one that is out of range.
    """
    most = {"max_tokens": _LARGEST_TOKENS, "max_bad_word_len": _LARGEST_TOKENS}
    named = zip(Sizes._fields, sizes, strict=True)
    checked = Sizes(*[integer(name, size, None, 1, most.get(name, _LARGEST)) for name, size in named])
    ids = checked.vocab_size  # lists of distinct ids are no longer than this
    return checked._replace(max_bias=min(checked.max_bias, ids), max_stop_ids=min(checked.max_stop_ids, ids))
