"""Draws text from the n-gram model of Python's documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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
        show: Callable[[str], None] = lambda piece: None,
    ) -> list[tuple[list[int], str]]:
        """Continue ``prompt`` under each of ``settings`` in one batch; return token ids and text, without the prompt.

        :param show: called with each piece of the first text as it is drawn.
        """
        encoded = self._model.encode(prompt)
        token_ids: list[list[int]] = [[] for _ in settings]
        texts = [""] * len(settings)
        with one_thread():
            for step in draw_tokens(self._model, self._sampler, encoded, settings, count):
                for row, token_id in enumerate(step):
                    piece = self._model.decode([token_id], after=(token_ids[row] or encoded)[-1])
                    if prompt[-1:].isspace() and not token_ids[row]:
                        piece = piece.lstrip(" ")
                    token_ids[row].append(token_id)
                    texts[row] += piece
                    if row == 0:
                        show(piece)
        return list(zip(token_ids, texts, strict=True))


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
