"""The model that ``tokendraw generate`` brings: n-grams of words in Python's own documentation."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tokendraw._torch.threads import one_thread
from tokendraw.errors.exceptions import TokendrawError
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.parameters.params import SamplingParams
from tokendraw.providers.sampler import Sampler

PARAGRAPH = "\n\n"
"""The token between two paragraphs. Every sequence begins with it."""
_UNKNOWN = -1
"""Id of a word outside the vocabulary, which no history holds: only the words after it count."""
_ORDER = 4
"""Number of words in the longest n-gram; all but the last are the history."""
_DISCOUNT = 0.75
# A token has the space before it. A word keeps what belongs to it: built-in, sys.path, f(x), a[i], don't.
_TOKEN = re.compile(r"\n\n| ?\w+(?:[-'\u2019./]\w+)*(?:\([^\s()]*\)|\[[^\s\[\]]*\])?| ?[^\w\s]")
_SENTENCES = re.compile(r"[A-Z](?!.*(?:::=|>>>|---|===))(?:\S+ ){5,}.*[.:)]")
_MARK_UP = re.compile(r'["“”]|\*+(?=\w)|(?<=\w)\*+')


def documentation() -> list[str]:
    """Return the paragraphs of prose behind ``help()``, each once and on one line, without mark-up.

    :raises TokendrawError: this Python was installed without its help pages.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise TokendrawError(
            "'generate' needs the help pages that ship with CPython, 'pydoc_data.topics', found none. "
            "Install Python's full standard library."
        ) from error
    blocks = re.split(r"\n\s*\n", PARAGRAPH.join(topics.values()))
    lines = (_MARK_UP.sub("", " ".join(block.split())) for block in blocks)
    return list(dict.fromkeys(line for line in lines if _SENTENCES.fullmatch(line)))


class DemoModel:
    """Continues prompts with words of the documentation, drawn by a sampler.

    The next word follows interpolated absolute discounting (Ney, Essen and Kneser 1994). For a history h and the
    history h' without its first word::

        p(w | h) = max(c(h w) - D, 0) / c(h)  +  D * N(h) / c(h) * p(w | h')

    c counts n-grams, N(h) is the number of different words after h, D = 0.75. The recursion ends in the uniform
    distribution, so every word of the vocabulary has a finite logit after any history.
    """

    def __init__(self, sampler: Sampler) -> None:
        words = _TOKEN.findall(PARAGRAPH.join(["", *documentation(), ""]))
        self._sampler = sampler
        self.vocabulary = sorted(set(words))
        self._ids = {word: index for index, word in enumerate(self.vocabulary)}
        self._counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        ids = [self._ids[word] for word in words]
        for end, word in enumerate(ids):
            for start in range(max(0, end - _ORDER + 1), end + 1):
                self._counts[tuple(ids[start:end])][word] += 1

    def write(
        self,
        prompt: str,
        settings: Sequence[SamplingParams],
        count: int,
        show: Callable[[str], None] = lambda piece: None,
    ) -> list[tuple[list[int], str]]:
        """Continue ``prompt`` under each of ``settings`` in one batch; return token ids and text, without the prompt.

        The position of a draw is the index of the token before it. Rows with the same seed draw with the same noise,
        so their texts differ only where their settings make them.

        :param show: called with each piece of the first text as it is drawn.
        """
        encoded = [self._ids[PARAGRAPH], *(self._ids.get(word, _UNKNOWN) for word in _TOKEN.findall(prompt))]
        sequences = [list(encoded) for _ in settings]
        texts = [""] * len(settings)
        with one_thread():
            for position in range(len(encoded) - 1, len(encoded) - 1 + count):
                metadata = SamplingMetadata.from_params(
                    settings, device=self._sampler.device, positions=[position] * len(settings)
                )
                logits = torch.stack([self.logits(sequence) for sequence in sequences])
                output = self._sampler.sample(logits.to(self._sampler.device), metadata)
                for row, token_id in enumerate(output.token_ids.tolist()):
                    piece = self.vocabulary[token_id]
                    if prompt[-1:] in ("", " ") and not texts[row]:
                        piece = piece.lstrip(" ")
                    sequences[row].append(token_id)
                    texts[row] += piece
                    if row == 0:
                        show(piece)
        return [(ids[len(encoded) :], text) for ids, text in zip(sequences, texts, strict=True)]

    def logits(self, sequence: Sequence[int]) -> Tensor:
        """Return the natural log-probabilities of the next token, [V] float32 on the CPU."""
        row = torch.full((len(self.vocabulary),), 1 / len(self.vocabulary), dtype=torch.float64, device="cpu")
        for length in range(min(_ORDER, len(sequence) + 1)):
            followers = self._counts.get(tuple(sequence[len(sequence) - length :]))
            if followers is None:
                break  # a longer history holds this one, so no text has it either
            total = followers.total()
            row *= _DISCOUNT * len(followers) / total
            row[list(followers)] += (
                torch.tensor([*followers.values()], dtype=torch.int64, device="cpu").double() - _DISCOUNT
            ) / total
        return row.log_().float()
