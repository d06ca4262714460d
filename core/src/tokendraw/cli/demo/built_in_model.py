"""Draws text from the n-gram model of Python's documentation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from tokendraw._torch.threads import one_thread
from tokendraw.cli.demo.corpus import documentation
from tokendraw.cli.demo.ngram import NGramModel
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.parameters.params import SamplingParams
from tokendraw.providers.sampler import Sampler


class BuiltInModel:
    """The n-gram model together with the sampler of its logits."""

    def __init__(self, sampler: Sampler) -> None:
        self._model = language_model()
        self._sampler = sampler

    def write(
        self,
        prompt: str,
        settings: Sequence[SamplingParams],
        count: int,
        show: Callable[[str], None] | None = None,
    ) -> list[tuple[list[int], str]]:
        """Continue ``prompt`` under each of ``settings`` in one batch; return token ids and text, without the prompt.

        :param show: called with each piece of a single text as it is drawn; then nothing is returned.
        """
        encoded = self._model.encode(prompt)
        with one_thread():
            steps = draw_tokens(self._model, self._sampler, encoded, settings, count)
            if show is not None:
                for piece in _pieces(self._model, prompt, encoded, itertools.chain.from_iterable(steps)):
                    show(piece)
                return []
            rows = [list(row) for row in zip(*steps, strict=True)]
        return [(row, "".join(_pieces(self._model, prompt, encoded, row))) for row in rows]


def language_model() -> NGramModel:
    """Fit the model to Python's documentation."""
    return NGramModel(documentation())


def draw_tokens(
    model: NGramModel, sampler: Sampler, prompt: Sequence[int], params: Sequence[SamplingParams], count: int
) -> Iterator[list[int]]:
    """Continue one prompt under several settings: ``count`` times, one token id for each of ``params``.

    All rows go through the sampler in one batch. The position of a draw is the index of the token before it.
    Rows with the same seed draw with the same noise, so their texts differ only where their settings make them.
    """
    sequences = [list(prompt) for _ in params]
    for position in range(len(prompt) - 1, len(prompt) - 1 + count):
        metadata = SamplingMetadata.from_params(
            params, device=sampler.device, positions=[position] * len(params)
        )
        token_ids = sampler.sample(model.logits(sequences).to(sampler.device), metadata).token_ids.tolist()
        for sequence, token_id in zip(sequences, token_ids, strict=True):
            sequence.append(token_id)
        yield token_ids


def _pieces(model: NGramModel, prompt: str, encoded: Sequence[int], drawn: Iterable[int]) -> Iterator[str]:
    """Yield the text of each drawn token as a continuation of the prompt."""
    previous = encoded[-1]
    spaced = prompt[-1:].isspace()
    for token_id in drawn:
        piece = model.decode([token_id], after=previous)
        yield piece.lstrip(" ") if spaced else piece
        previous, spaced = token_id, False
