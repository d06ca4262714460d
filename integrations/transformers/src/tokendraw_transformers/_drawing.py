"""Takes over the last step of transformers' decoding loop without changing the loop.

``GenerationMixin._sample`` processes the scores [B, V], records them, and takes ``torch.argmax(scores, dim=-1)`` for
the tokens where it does not sample. So the last processor draws, and returns the scores as a tensor whose argmax is the
drawn tokens. The loop takes them without another pass over the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

from tokendraw import SamplerOutput
from tokendraw_transformers._errors import TransformersVersionError
from tokendraw_transformers._rows import Rows
from tokendraw_transformers._warpers import Plan

_ARGMAX = (torch.argmax, Tensor.argmax)


class DrawnScores(Tensor):
    """Scores [B, V] whose first argmax is the tokens that were drawn from them.

    It shares the memory of the scores. For any other function, and from the second argmax on, it is a plain tensor.
    """

    drawn: Tensor | None

    @classmethod
    def of(cls, scores: Tensor, token_ids: Tensor) -> DrawnScores:
        """Wrap ``scores`` with the ``token_ids`` [B]."""
        dressed = scores.as_subclass(cls)
        dressed.drawn = token_ids
        return dressed

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _ARGMAX and isinstance(args[0], cls) and args[0].drawn is not None:
            drawn, args[0].drawn = args[0].drawn, None
            return drawn
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class DrawProcessor(LogitsProcessor):  # type: ignore[misc]
    """The last processor of the list, which draws, keeps what it drew, and returns :class:`DrawnScores`."""

    def __init__(self, plan: Plan, rows: Rows, offset: Tensor, *, records_scores: bool) -> None:
        self._plan = plan
        self._rows = rows
        self._offset = offset
        self._records_scores = records_scores
        self._last: DrawnScores | None = None
        self.steps: list[SamplerOutput] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Draw the next token of each row.

        :param input_ids: [B, L].
        :param scores: [B, V] float32, processed but not warped.
        :returns: [B, V], warped if scores are recorded.
        """
        self.check_taken()
        given = self._plan.narrowing(input_ids, scores)
        output = self._rows.draw(given, self._offset + input_ids.shape[1])
        self.steps.append(output)
        shown = self._plan.recorded(input_ids, scores) if self._records_scores else scores
        self._last = DrawnScores.of(shown, output.token_ids)
        return self._last

    def check_taken(self) -> None:
        """Check that the loop took the tokens of the last step.

        :raises TransformersVersionError: it took others, in a way that the adapter does not know.
        """
        if self._last is not None and self._last.drawn is not None:
            raise TransformersVersionError(
                "'GenerationMixin._sample' needs to take its tokens by torch.argmax, found that it took others. "
                "Install a transformers that tokendraw-transformers was tested with, or leave out custom_generate."
            )


class Processors(LogitsProcessorList):  # type: ignore[misc]
    """A list of the processors that stay and the one that draws, called without a look at each signature."""

    def __init__(self, before: LogitsProcessorList, draws: DrawProcessor) -> None:
        super().__init__([*before, draws])
        self._before = before
        self._draws = draws

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Return the scores [B, V] to draw from."""
        if self._before:
            scores = self._before(input_ids, scores, **kwargs)
        return self._draws(input_ids, scores)


class RecordingStoppingCriteria(StoppingCriteriaList):  # type: ignore[misc]
    """Stopping criteria that remember which rows they stopped at each step."""

    def __init__(self, criteria: StoppingCriteriaList) -> None:
        super().__init__(criteria)
        self.stopped: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return the rows to stop as [B] bool, as the criteria say."""
        stopped: Tensor = super().__call__(input_ids, scores, **kwargs)
        self.stopped.append(stopped)
        return stopped

    def drew(self, steps: int) -> Tensor:
        """Return whether a row drew its token at a step, [B, steps] bool, or was filled with padding."""
        stopped = torch.stack(self.stopped[:steps], dim=1)
        if not any(hasattr(criterion, "eos_token_id") for criterion in self):
            return torch.ones_like(
                stopped
            )  # transformers fills rows up only where there is an end of sequence
        before = stopped.cumsum(dim=1) - stopped.to(torch.int64)
        return before == 0
