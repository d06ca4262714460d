"""Scores of tokens: the object that ``tokendraw.load("score")`` returns, and the proof of a scorer."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import Capabilities, Need
from tokendraw.backends.description.operation import Operation
from tokendraw.calls.provider import Provider, method
from tokendraw.calls.rows import PEAK, RowCall, proof_logits, proof_output
from tokendraw.errors.exceptions import PluginError
from tokendraw.operations.score import OPERATION, ScorerBackend
from tokendraw.output import ScoreOutput
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.parameters.params import SamplingParams

_TOLERANCE = 1e-3


def score(logits: Tensor, token_ids: Tensor, metadata: SamplingMetadata) -> RowCall:
    """Compute the log-probability of a token for each row, without a draw.

    Rows of a prompt's prefill or of a completion, those of a teacher, or those that a trainer computes again: L
    rows at once, in parts where memory asks for it. Temperature, filters and ``logprobs_mode`` count as in
    :meth:`tokendraw.Sampler.sample`, whose log-probability of the token it drew is equal bit for bit where one
    plugin serves both. Seeds and positions are ignored. ``logprobs`` of a row is the number of best tokens beside
    its own; None counts as 0.

    Waits for the device only where whoever scores does, or where ``TOKENDRAW_DEBUG=1`` has the call checked.

    :param logits: [L, V] float32, bfloat16 or float16, any row stride. Never modified.
    :param token_ids: [L] integer on the same device: the token of each row. An id outside [0, V), such as the
        -100 of a label, is padding: its row has ``PAD_TOKEN_ID``, ``PAD_LOGPROB`` and rank 0 in the first column.
    :param metadata: the parameters of the L rows, on the same device.
    :raises InvalidInputError: a ValueError, before anything is launched.
    :raises SamplerUnavailableError: nobody here can score this batch.
    :raises PluginError: what a scorer returned has the wrong type, shape, dtype or device, or
        ``TOKENDRAW_DEBUG=1`` found another fault.
    """
    return RowCall(logits, metadata, token_ids)


class ScoreProvider(Provider):
    """Computes log-probabilities of given tokens."""

    _operations: ClassVar[tuple[Operation, ...]] = (OPERATION,)

    score = method(OPERATION, score, ScoreOutput)


def prove(backend: ScorerBackend, capabilities: Capabilities, device: torch.device, need: Need) -> None:
    """Score a certain token, and one of two equally likely tokens.

    :raises PluginError: the output is not what it has to be.
    """
    logits = proof_logits(2, capabilities, device, need)
    peak = logits.shape[1] // 2
    logits[:, peak] = PEAK
    logits[1, 0] = PEAK
    token_ids = torch.tensor([peak, 0], device=device, dtype=torch.int64)
    metadata = SamplingMetadata.from_params([SamplingParams()] * 2, device=device)
    output = proof_output(score(logits, token_ids, metadata), backend, need)
    expected_values = [0.0, math.log(2.0)]
    found_values = output.entropy.tolist()
    if need.logprobs_mode.endswith("logprobs"):
        expected_values += [0.0, -math.log(2.0)]
        found_values += output.logprobs.logprobs[:, 0].tolist()
    for expected, found in zip(expected_values, found_values, strict=True):
        if not abs(expected - found) <= _TOLERANCE:
            raise PluginError(
                f"the proof score needs entropies and log-probabilities {expected_values}, found {found_values}"
            )


CALLS = {"score": score}
PROVIDER = ScoreProvider
