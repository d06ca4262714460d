"""Translates what is asked of a text beyond its sampling parameters from words to the ids of a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokendraw.cli.demo.ngram import NGramModel
from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.parameters.params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Edits of logits, and where a text ends. The defaults ask for nothing."""

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[str, ...] = ()
    """Each a word, ``=`` and a number."""
    bad_words: tuple[str, ...] = ()
    """Each one word or several."""
    allow: str | None = None
    """A regular expression."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    """Words that end a text."""

    @property
    def edits(self) -> bool:
        """Whether logits are to be edited."""
        return replace(self, stop=()) != Wishes()

    def of(self, params: SamplingParams, model: NGramModel) -> SamplingParams:
        """Return ``params`` with these edits, but for ``allow``.

        :raises InvalidParameterError: a value is out of range, or the model does not know a word.
        """
        asked = replace(
            params,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=dict(_biased(entry, model) for entry in self.logit_bias) or None,
            bad_words=tuple(tuple(_ids("bad_words", words, model)) for words in self.bad_words) or None,
            min_tokens=self.min_tokens,
            stop_token_ids=tuple(sorted(self.stop_ids(model))) or None,
        )
        return asked.check(len(model.vocabulary))

    def stop_ids(self, model: NGramModel) -> frozenset[int]:
        """Return the ids that end a text.

        :raises InvalidParameterError: one is not a word of the model.
        """
        return frozenset(_id("stop", word, model) for word in self.stop)

    def bitmask(self, model: NGramModel) -> Tensor | None:
        """Return the words that ``allow`` matches from their first letter to their last. None: it is not given.

        :returns: [ceil(V / 32)] int32 on the CPU: bit i % 32 of word i // 32 is set where id i is allowed.
        :raises InvalidParameterError: it is no regular expression, or matches no word.
        """
        if self.allow is None:
            return None
        try:
            pattern = re.compile(self.allow)
        except re.error as error:
            raise InvalidParameterError(
                f"'allow' needs a regular expression, found {self.allow!r}: {error}."
            ) from None
        allowed = [i for i, word in enumerate(model.vocabulary) if pattern.fullmatch(word)]
        if not allowed:
            raise InvalidParameterError(
                f"'allow' needs to match at least one whole word of the model, found none that {self.allow!r} matches."
            )
        return packed(allowed, len(model.vocabulary))


def packed(ids: Sequence[int], vocab_size: int) -> Tensor:
    """Return a bit mask of ``ids``. [ceil(V / 32)] int32."""
    bits = torch.zeros(-(-vocab_size // 32) * 32, dtype=torch.int64)
    bits[list(ids)] = 1
    return (bits.view(-1, 32) << torch.arange(32)).sum(-1).to(torch.int32)


def _biased(entry: str, model: NGramModel) -> tuple[int, float]:
    word, equals, number = entry.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        equals = ""
    if not equals:
        raise InvalidParameterError(f"'logit_bias' needs WORD=VALUE with a number, found {entry!r}.")
    return _id("logit_bias", word, model), value


def _id(field: str, word: str, model: NGramModel) -> int:
    found = _ids(field, word, model)
    if len(found) > 1:
        raise InvalidParameterError(f"'{field}' needs a single word, found {word!r}, which is {len(found)}.")
    return found[0]


def _ids(field: str, words: str, model: NGramModel) -> list[int]:
    try:
        found = model.ids(words)
    except KeyError as error:
        raise InvalidParameterError(
            f"'{field}' needs words that the model knows, as they are written there, found {error.args[0]!r}."
        ) from None
    if not found:
        raise InvalidParameterError(f"'{field}' needs a word, found {words!r}.")
    return found
