"""Makes calls of crossed rows, and judges every row by the float64 reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tokendraw import SamplerOutput
from tokendraw.plugin import GumbelDtype, LogprobsMode
from tokendraw_testing.crossing.comparison import (
    CrossedRequest,
    LogprobColumns,
    require_logprobs,
    require_tokens,
    stack_logits,
)
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.logprobs import given_columns
from tokendraw_testing.rows.requests import scalar_filters
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
    dtype, num_named = dtype or subject.gumbel_dtype, 0
    for part in parts_of_equal_scalars(subject, batch):
        positions = [request.position for request in part]
        params = [request.params for request in part]
        rows = stack_logits(part, subject.device) if logits is None else logits
        output = subject.sample(rows, params, positions, gumbel_dtype=dtype)
        num_named += judge_output(subject, trial, part, output, dtype)
    return num_named


def judge_output(
    subject: SampleSubject,
    trial: Trial,
    batch: Sequence[CrossedRequest],
    output: SamplerOutput,
    dtype: GumbelDtype | None = None,
) -> int:
    """Judge the token and the flag of every row of a call; return the number of known tokens.

    :param dtype: precision of the noise; None: the usual one.
    """
    num_named = require_tokens(trial, batch, output.token_ids.tolist(), dtype or subject.gumbel_dtype)
    _require_valid(subject, trial, batch, output.valid)
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
        positions = [request.position for request in part]
        params = [request.params for request in part]
        rows = stack_logits(part, subject.device)
        output = subject.sample(rows, params, positions, mode=mode, gumbel_dtype=dtype)
        tokens, logprobs, masses = output.token_ids.tolist(), output.logprobs, output.log_kept_mass
        judge_output(subject, trial, part, output, dtype)
        if logprobs is None and all(request.params.logprobs is None for request in part):
            continue
        assert logprobs is not None
        assert logprobs.ranks is not None
        assert masses is not None
        ids, values = logprobs.token_ids.cpu().numpy(), logprobs.logprobs.cpu().numpy()
        given_ids, given_values = given_columns(logprobs)
        for i, (rank, mass) in enumerate(zip(logprobs.ranks.tolist(), masses.tolist(), strict=True)):
            columns = LogprobColumns(mode, ids[i], values[i], rank, mass, given_ids[i], given_values[i])
            require_logprobs(trial, part[i], tokens[i], columns, f"row {i} of {len(part)}: ")


def _require_valid(
    subject: SampleSubject, trial: Trial, batch: Sequence[CrossedRequest], valid: torch.Tensor
) -> None:
    if not subject.capabilities.valid_flag:
        return
    for i, (request, flag) in enumerate(zip(batch, valid.tolist(), strict=True)):
        expected = request.row.prepared.valid
        trial.require(
            flag == expected, f"row {i} of {len(batch)}: {request} needs valid {expected}, found {flag}"
        )


def parts_of_equal_scalars(
    subject: SampleSubject, batch: Sequence[CrossedRequest]
) -> Iterator[list[CrossedRequest]]:
    """Divide a batch by the values of the scalar filters."""
    names = scalar_filters(subject.capabilities)
    parts: dict[tuple[object, ...], list[CrossedRequest]] = {}
    for request in batch:
        parts.setdefault(tuple(getattr(request.params, name) for name in names), []).append(request)
    yield from parts.values()
