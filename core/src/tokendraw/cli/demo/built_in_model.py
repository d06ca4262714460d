"""Draws text from the n-gram model of Python's documentation, with speculation or without."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from tokendraw._torch.threads import one_thread
from tokendraw.cli.demo.corpus import documentation
from tokendraw.cli.demo.generation import LanguageModel, draw_tokens
from tokendraw.cli.demo.ngram import NGramModel
from tokendraw.cli.demo.requests import Editor
from tokendraw.cli.demo.speculation import Mode, Speculation, Tally
from tokendraw.cli.demo.wishes import Wishes
from tokendraw.parameters.params import SamplingParams
from tokendraw.providers.sampler import Sampler

DRAFT_ORDER = 2
"""Words in the longest n-gram of the draft model: it knows one word of history, the target three."""


class BuiltInModel:
    """The model, and what drafts for it.

    :param drafts: most drafts in a step; None: there is no speculation.
    :raises InvalidParameterError: ``wishes`` name words that the model does not know.
    """

    def __init__(self, drawer: Sampler, drafts: int | None, mode: Mode, wishes: Wishes | None = None) -> None:
        self._model = language_model()
        self._drawer = drawer
        self._wishes = wishes or Wishes()
        self._stop = self._wishes.stop_ids(self._model)
        self.editor = self._make_editor()
        """Who edits logits; None: nobody has to."""
        self.tallies: list[Tally] = []
        """With speculation, one for each setting of the text that was written last."""
        self.speculation: Speculation | None = None
        if drafts is not None:
            self.speculation = Speculation(
                target=self._model,
                draft=draft_model(),
                sampler=drawer,
                drafts=drafts,
                mode=mode,
                editor=self.editor,
                stop=self._stop,
            )

    def wished(self, params: SamplingParams) -> SamplingParams:
        """Return ``params`` with the edits that are wished for.

        :raises InvalidParameterError: a value is out of range, or the model does not know a word.
        """
        return self._wishes.of(params, self._model) if self.editor else params

    def _make_editor(self) -> Editor | None:
        if not self._wishes.edits:
            return None
        mask = self._wishes.bitmask(self._model)
        device = self._drawer.device
        from tokendraw.providers.load import load

        return Editor(
            processor=load("process_logits", device=device),
            device=device,
            vocab_size=len(self._model.vocabulary),
            bitmask=None if mask is None else mask.to(device),
        )

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
            steps = self._steps(encoded, settings, count)
            if show is not None:
                tokens = itertools.chain.from_iterable(step for (step,) in steps)
                for piece in _pieces(self._model, prompt, encoded, tokens):
                    show(piece)
                return []
            rows = [list(itertools.chain.from_iterable(parts)) for parts in zip(*steps, strict=True)]
        return [(row, "".join(_pieces(self._model, prompt, encoded, row))) for row in rows]

    def _steps(
        self, encoded: Sequence[int], settings: Sequence[SamplingParams], count: int
    ) -> Iterator[Sequence[Sequence[int]]]:
        """Yield the tokens of every setting, step by step."""
        if self.speculation:
            return self.speculation.draw_tokens(encoded, settings, count, self.tallies)
        plain = draw_tokens(self._model, self._drawer, encoded, settings, count, self.editor)
        return _until_stopped(plain, self._stop)


def language_model() -> NGramModel:
    """Fit the model that is drawn from."""
    return NGramModel(documentation())


def draft_model() -> LanguageModel:
    """Fit the draft model to the same text, so that it has the same vocabulary."""
    return NGramModel(documentation(), order=DRAFT_ORDER)


def _until_stopped(steps: Iterable[Sequence[int]], stop: frozenset[int]) -> Iterator[Sequence[Sequence[int]]]:
    """Yield the token of every text that has not ended, as a sequence of one, until all have."""
    ended: set[int] = set()
    for step in steps:
        yield [[] if row in ended else [token_id] for row, token_id in enumerate(step)]
        ended.update(row for row, token_id in enumerate(step) if token_id in stop)
        if len(ended) == len(step):
            return


def _pieces(model: LanguageModel, prompt: str, encoded: Sequence[int], drawn: Iterable[int]) -> Iterator[str]:
    """Yield the text of each drawn token, as it continues the prompt."""
    previous = encoded[-1]
    spaced = prompt[-1:].isspace()
    for token_id in drawn:
        piece = model.decode([token_id], after=previous)
        yield piece.lstrip(" ") if spaced else piece
        previous, spaced = token_id, False
