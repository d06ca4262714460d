"""The subject in the operation ``score``: its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tokendraw import SamplingMetadata, SamplingParams, ScoreOutput
from tokendraw.plugin import Call, LogprobsMode
from tokendraw_testing.kit.matrix import Place, places, width_class
from tokendraw_testing.rows.subjects import RowSubject


class ScoreSubject(RowSubject):
    """A subject in the operation ``score``."""

    operation = "score"

    def score(
        self,
        logits: torch.Tensor,
        token_ids: Sequence[int],
        params: Sequence[SamplingParams],
        mode: LogprobsMode | None = None,
    ) -> ScoreOutput:
        """Make one call on the subject's device and check the form of the output.

        :param logits: [B, V], on any device; ``token_ids`` and ``params`` one a row.
        :raises Violation: the output has a wrong form, or values that cannot be.
        """
        ids = torch.tensor(token_ids, dtype=torch.int64, device=self.device)
        metadata = SamplingMetadata.from_params(params, device=self.device, positions=range(len(logits)))
        output: ScoreOutput = self.make(
            self.new_call("score", logits.to(self.device), ids, metadata), self.need(mode)
        )
        return output

    def places(self) -> tuple[Place, ...]:
        """Cross the advertised dtypes, the served widths and greedy with other rows."""
        c = self.capabilities
        return places(self.calls(), c.dtypes, c.max_vocab_size, ("greedy",) * c.greedy + ("other",))

    def rows_by_place(self, call: Call) -> Mapping[Place, int]:
        """Count the rows of a call by place."""
        name, logits, metadata = self.rows_of(call)
        temperature = metadata.per_row("temperature")
        num_greedy = 0 if temperature is None else int((~(temperature > 0)).sum())
        numbers = {"greedy": num_greedy, "other": len(logits) - num_greedy}
        dtype, up_to = str(logits.dtype).removeprefix("torch."), width_class(logits.shape[1])
        return {Place(name, dtype, up_to, kind): number for kind, number in numbers.items() if number}
