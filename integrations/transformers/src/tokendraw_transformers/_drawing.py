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
from tokendraw_transformers._rows import BatchDrawer, StepDetails
from tokendraw_transformers._warpers import StepPlan

_ARGMAX = (torch.argmax, Tensor.argmax)


class DrawnScores(Tensor):
    """Scores [B, V] with the drawn tokens as the result of their first argmax.

    It shares the memory of the scores. For any other function, and from the second argmax on, it is a plain tensor.
    """

    token_ids: Tensor | None

    @classmethod
    def of(cls, scores: Tensor, token_ids: Tensor) -> DrawnScores:
        """Wrap ``scores`` with the ``token_ids`` [B]."""
        drawn_scores = scores.as_subclass(cls)
        drawn_scores.token_ids = token_ids
        return drawn_scores

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _ARGMAX and isinstance(args[0], cls) and args[0].token_ids is not None:
            token_ids, args[0].token_ids = args[0].token_ids, None
            return token_ids
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class DrawProcessor(LogitsProcessor):  # type: ignore[misc]
    """The last processor of the list: draws, records the outputs, and returns :class:`DrawnScores`."""

    def __init__(self, plan: StepPlan, rows: BatchDrawer, offset: Tensor, *, records_scores: bool) -> None:
        self._plan = plan
        self._rows = rows
        self._offset = offset
        self._records_scores = records_scores
        self._last: DrawnScores | None = None
        self.steps: list[SamplerOutput] = []
        self.details: list[StepDetails] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Draw the next token of each row.

        :param input_ids: [B, L].
        :param scores: [B, V] float32, processed but not warped.
        :returns: [B, V], warped if scores are recorded.
        """
        self.check_taken()
        narrowed = self._plan.narrowing(input_ids, scores)
        output = self._rows.draw(narrowed, self._offset + input_ids.shape[1])
        self.steps.append(output)
        details = self._rows.details(narrowed, output)
        if details is not None:
            self.details.append(details)
        recorded_scores = self._plan.recorded(input_ids, scores) if self._records_scores else scores
        self._last = DrawnScores.of(recorded_scores, output.token_ids)
        return self._last

    def check_taken(self) -> None:
        """Check that the loop took the tokens of the last step.

        :raises TransformersVersionError: it took others, in a way that the adapter does not know.
        """
        if self._last is not None and self._last.token_ids is not None:
            raise TransformersVersionError(
                "'GenerationMixin._sample' needs to take its tokens by torch.argmax, found that it took others. "
                "Install a transformers that tokendraw-transformers was tested with, or leave out custom_generate."
            )


class Processors(LogitsProcessorList):  # type: ignore[misc]
    """The remaining processors and the drawing processor, called without a look at each signature."""

    def __init__(self, processors: LogitsProcessorList, draws: DrawProcessor) -> None:
        super().__init__([*processors, draws])
        self._processors = processors
        self._draws = draws

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Return the scores [B, V] to draw from."""
        if self._processors:
            scores = self._processors(input_ids, scores, **kwargs)
        return self._draws(input_ids, scores)


class RecordingStoppingCriteria(StoppingCriteriaList):  # type: ignore[misc]
    """Stopping criteria with a record of the rows stopped at each step."""

    def __init__(self, criteria: StoppingCriteriaList) -> None:
        super().__init__(criteria)
        self.stopped: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return the rows to stop as [B] bool, as the criteria say."""
        stopped: Tensor = super().__call__(input_ids, scores, **kwargs)
        self.stopped.append(stopped)
        return stopped

    def drawn_steps(self, steps: int) -> Tensor:
        """Return the steps [B, steps] bool at which rows drew a token instead of padding."""
        stopped = torch.stack(self.stopped[:steps], dim=1)
        if not any(hasattr(criterion, "eos_token_id") for criterion in self):
            return torch.ones_like(
                stopped
            )  # transformers fills rows up only where there is an end of sequence
        stops_before = stopped.cumsum(dim=1) - stopped.to(torch.int64)
        return stops_before == 0
