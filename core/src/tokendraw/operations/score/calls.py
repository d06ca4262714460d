"""The call of ``score``: its arguments, their checks, and the check of its output."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tokendraw._torch.tensors import check_device_of, check_integers, check_vector
from tokendraw.backends.description.capabilities import Need
from tokendraw.calls import input_checks
from tokendraw.calls.call import OutputCheck
from tokendraw.calls.drawing import RowCall, logits_signature
from tokendraw.calls.output_checks import first_of, misfit, wrong_bounds, wrong_bounds_of_kept, wrong_logprobs
from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.output import PAD_TOKEN_ID, ScoreOutput
from tokendraw.parameters.metadata import SamplingMetadata


class Score(RowCall):
    """Logits [B, V], a token for each row, and the parameters of the rows."""

    __slots__ = ("token_ids",)

    output_class: ClassVar[type[Any]] = ScoreOutput

    def __init__(self, logits: Tensor, token_ids: Tensor, metadata: SamplingMetadata) -> None:
        super().__init__(logits, metadata)
        self.token_ids = token_ids

    def check(self, device: torch.device, need: Need) -> None:
        input_checks.check_logits("logits", self.logits, device)
        check_vector("token_ids", self.token_ids, "Pass torch.tensor(token_ids, device=logits.device).")
        check_integers("token_ids", self.token_ids)
        mend = "Pass token_ids.to(logits.device)."
        check_device_of("token_ids", self.token_ids.device, "'logits'", self.logits.device, mend)
        if self.token_ids.shape[0] != self.logits.shape[0]:
            raise InvalidInputError(
                f"'token_ids' needs as many ids as 'logits' has rows, {self.logits.shape[0]}, "
                f"found {self.token_ids.shape[0]}."
            )
        input_checks.check_batch("logits", self.logits, self.metadata, need)

    def tensors(self) -> dict[str, Tensor]:
        return {"logits": self.logits, "token_ids": self.token_ids}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tensors["logits"], tensors["token_ids"], self.metadata)

    def run(self, backend: Any) -> Any:
        return backend.score(self.logits, self.token_ids, self.metadata)

    def output_check(self, need: Need) -> OutputCheck:
        return partial(
            _wrong_form,
            has_threshold=need.threshold,
            has_ceiling=self.facts.any_ceiling,
            shape=self.tokens_shape,
            device=self.logits.device,
            width=self.facts.logprobs_width(self.vocab_size) or 0,
            given_ids=self.num_given_ids,
            ranks=need.logprob_ranks,
        )

    def wrong_tokens(self, output: ScoreOutput) -> str | None:
        ids, found = self.token_ids.to(torch.int64), output.logprobs.token_ids[:, 0]
        expected = torch.where((ids >= 0) & (ids < self.vocab_size), ids, PAD_TOKEN_ID)
        for (row,) in first_of(found != expected):
            return (
                f"logprobs.token_ids of row {row} to begin with {int(expected[row])}, found {int(found[row])}"
            )
        return None

    def wrong_values(self, output: ScoreOutput, need: Need) -> str | None:
        return self.wrong_tokens(output) or wrong_bounds(
            output.logprobs, output.log_kept_mass, need.logprobs_mode
        )

    def signature(self) -> Hashable:
        return logits_signature(self.logits, self.facts), self.token_ids.dtype


def _wrong_form(output: Any, *, has_threshold: bool, has_ceiling: bool, **form: Any) -> str | None:
    """Compare an output with the form of its class.

    :param form: the parameters of :func:`.output_checks.wrong_logprobs`.
    """
    if not isinstance(output, ScoreOutput):
        return f"a ScoreOutput, found {type(output).__name__}"
    of_row = form["shape"], torch.float32, form["device"]
    reason = misfit("entropy", output.entropy, *of_row)
    if has_threshold:
        reason = reason or wrong_bounds_of_kept(
            output, form["shape"], form["device"], has_ceiling=has_ceiling
        )
    return reason or wrong_logprobs(output, **form)
