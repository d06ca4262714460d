"""Makes calls of crossed rows, and judges every row by the float64 reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tokendraw import SamplerOutput
from tokendraw.plugin import GumbelDtype, LogprobsMode
from tokendraw_testing.crossing.comparison import (
    CrossedRequest,
    LogprobColumns,
    parts_of_equal_scalars,
    require_logprobs,
    require_thresholds,
    require_tokens,
    stack_logits,
)
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.subjects import SampleSubject


def judge_call(
    subject: SampleSubject,
    trial: Trial,
    batch: Sequence[CrossedRequest],
    dtype: GumbelDtype | None = None,
    logits: torch.Tensor | None = None,
) -> int:
    """Draw a batch in one call and judge every row; return the number of known tokens.

    :param dtype: precision of the noise; None: the usual one.
    :param logits: those of the requests, laid out by the caller, where all of them have equal filters.
    """
    num_named = 0
    for part in parts_of_equal_scalars(subject, batch):
        output = _draw(subject, part, dtype=dtype, logits=logits)
        num_named += _judge_output(subject, trial, part, output, dtype)
    return num_named


def judge_thresholds(
    subject: SampleSubject, trial: Trial, batch: Sequence[CrossedRequest], mode: LogprobsMode | None = None
) -> int:
    """Draw a batch, and judge tokens and, if the subject returns any, thresholds and ceilings.

    :param mode: of logprobs; None: no row asks for any.
    :returns: the number of rows whose threshold was judged.
    """
    num_judged = 0
    for part in parts_of_equal_scalars(subject, batch):
        output = _draw(subject, part, mode)
        _judge_output(subject, trial, part, output)
        if output.threshold is None:
            continue
        ceilings = [None] * len(part) if output.ceiling is None else output.ceiling.tolist()
        num_judged += require_thresholds(trial, part, output.threshold.tolist(), ceilings)
    return num_judged


def _draw(
    subject: SampleSubject,
    batch: Sequence[CrossedRequest],
    mode: LogprobsMode | None = None,
    dtype: GumbelDtype | None = None,
    logits: torch.Tensor | None = None,
) -> SamplerOutput:
    """Draw a batch of equal scalar filters in one call."""
    return subject.sample(
        stack_logits(batch, subject.device) if logits is None else logits,
        [request.params for request in batch],
        [request.position for request in batch],
        mode=mode,
        gumbel_dtype=dtype,
    )


def _judge_output(
    subject: SampleSubject,
    trial: Trial,
    batch: Sequence[CrossedRequest],
    output: SamplerOutput,
    dtype: GumbelDtype | None = None,
) -> int:
    """Judge the token and the flag of every row of a call; return the number of known tokens."""
    num_named = require_tokens(trial, batch, output.token_ids.tolist(), dtype or subject.gumbel_dtype)
    if subject.capabilities.valid_flag:
        for i, (request, flag) in enumerate(zip(batch, output.valid.tolist(), strict=True)):
            expected = request.row.prepared.valid
            trial.require(
                flag == expected, f"row {i} of {len(batch)}: {request} needs valid {expected}, found {flag}"
            )
    return num_named


def judge_logprobs(
    subject: SampleSubject,
    trial: Trial,
    batch: Sequence[CrossedRequest],
    mode: LogprobsMode,
    dtype: GumbelDtype,
) -> None:
    """Draw a batch with logprobs, and judge tokens, flags and logprobs of every row."""
    for part in parts_of_equal_scalars(subject, batch):
        output = _draw(subject, part, mode, dtype)
        _judge_output(subject, trial, part, output, dtype)
        if output.logprobs is None and all(request.params.logprobs is None for request in part):
            continue
        assert output.logprobs is not None
        assert output.log_kept_mass is not None
        columns = LogprobColumns.of_rows(mode, output.logprobs, output.log_kept_mass)
        for i, (request, token) in enumerate(zip(part, output.token_ids.tolist(), strict=True)):
            require_logprobs(trial, request, token, columns[i], f"row {i} of {len(part)}: ")
