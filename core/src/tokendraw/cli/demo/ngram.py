"""A small language model to draw from: interpolated Kneser-Ney n-grams over words and punctuation.

For a history h and the history h' without its first word (Kneser and Ney 1995, in the interpolated form of
Chen and Goodman 1998, section 2.8)::

    p(w | h) = max(c(h w) - D, 0) / c(h)  +  D * N(h) / c(h) * p(w | h')

c are counts at the highest order and, below it, the number of different words seen to the left; N(h) is the
number of different words seen after h; D = n1 / (n1 + 2 n2) for each order, from the numbers of n-grams
counted once and twice. The recursion ends in the uniform distribution, so every word of the vocabulary has a
finite logit after any history.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PARAGRAPH = "\n\n"
"""The token between two paragraphs. Every sequence begins with it."""
UNKNOWN = -1
"""Stands for a word outside the vocabulary. No history holds it, so only the words after it count."""

# A word keeps what belongs to it: built-in, sys.path, f(x), a[i], don't.
_TOKEN = re.compile(r"\w+(?:[-'\u2019./]\w+)*(?:\([^\s()]*\)|\[[^\s\[\]]*\])?|[^\w\s]|\n\n")
_NO_SPACE_BEFORE = frozenset([".", ",", ":", ";", ")", "]", "?", "!", "%", PARAGRAPH])
_NO_SPACE_AFTER = frozenset(["(", "[", PARAGRAPH])


@dataclass(frozen=True)
class _Level:
    """Counts after histories of one length."""

    discount: float
    """D in the formula above."""
    followers: dict[tuple[int, ...], tuple[list[int], list[int]]]
    """Maps a history to the words seen after it, each with its count."""


class NGramModel:
    """Next-word distributions over a vocabulary of words, from the words before.

    :param paragraphs: the text to learn from.
    :param order: the number of words in the longest n-gram; its first ``order - 1`` words are the history.
    :raises ValueError: there are fewer than ``order`` tokens to learn from.
    """

    def __init__(self, paragraphs: Iterable[str], *, order: int = 4) -> None:
        text = PARAGRAPH.join(["", *paragraphs, ""])
        words = _TOKEN.findall(text)
        if len(words) < order:
            raise ValueError(f"'paragraphs' needs at least {order} tokens, found {len(words)}.")
        self.order = order
        self.vocabulary: tuple[str, ...] = tuple(sorted(set(words)))
        """Token of each id."""
        self._ids = {word: index for index, word in enumerate(self.vocabulary)}
        single, *self._levels = _count([self._ids[word] for word in words], order)
        uniform = torch.full((len(self.vocabulary),), 1.0 / len(self.vocabulary), dtype=torch.float64)
        self._unigrams = _interpolated(uniform, single, ())

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text`` after the paragraph mark at the start of every sequence.

        A word that is not known as written is looked up in lower case, then capitalised; failing that it is
        ``UNKNOWN``.
        """
        return [self._ids[PARAGRAPH], *(self._id_of(word) for word in _TOKEN.findall(text))]

    def decode(self, token_ids: Sequence[int], *, after: int | None = None) -> str:
        """Return the text of ``token_ids``, spaced as prose.

        :param after: the token before them; None: they begin a paragraph.
        """
        text = []
        previous = PARAGRAPH if after is None else self._word(after)
        for token_id in token_ids:
            word = self._word(token_id)
            glued = word in _NO_SPACE_BEFORE or previous in _NO_SPACE_AFTER
            text.append(word if glued else " " + word)
            previous = word
        return "".join(text)

    def logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Return the natural log-probabilities of the next token after each of B sequences of token ids.

        :returns: [B, V] float32 on the CPU; V is ``len(vocabulary)``.
        """
        return torch.stack([self._row(sequence) for sequence in sequences])

    def _row(self, sequence: Sequence[int]) -> Tensor:
        row = self._unigrams.clone()
        for length, level in enumerate(self._levels, start=1):
            history = tuple(sequence[-length:])
            if history not in level.followers:
                break  # a longer history holds this one, so it is unknown too
            row = _interpolated(row, level, history)
        return row.log_().float()

    def _id_of(self, word: str) -> int:
        for form in (word, word.lower(), word.capitalize()):
            if form in self._ids:
                return self._ids[form]
        return UNKNOWN

    def _word(self, token_id: int) -> str:
        return "" if token_id == UNKNOWN else self.vocabulary[token_id]


def _count(token_ids: Sequence[int], order: int) -> list[_Level]:
    """Return the levels for histories of 0 to ``order - 1`` words."""
    counts = Counter(zip(*(token_ids[start:] for start in range(order)), strict=False))
    levels = []
    for _ in range(order):
        seen = Counter(counts.values())
        discount = seen[1] / (seen[1] + 2 * seen[2]) if seen[1] else 0.5
        level = _Level(discount, {})
        for ngram, count in counts.items():
            words, times = level.followers.setdefault(ngram[:-1], ([], []))
            words.append(ngram[-1])
            times.append(count)
        levels.append(level)
        # Counts keys: below the highest order, each different word to the left counts once.
        counts = Counter(ngram[1:] for ngram in counts)
    return levels[::-1]


def _interpolated(shorter: Tensor, level: _Level, history: tuple[int, ...]) -> Tensor:
    """Turn p(w | h') into p(w | h) for every w, in place. [V] float64."""
    words, counts = level.followers[history]
    total = sum(counts)
    shorter *= level.discount * len(words) / total
    shorter[words] += (torch.tensor(counts, dtype=torch.float64) - level.discount) / total
    return shorter
