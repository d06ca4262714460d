"""Judges each column of a call's output by float64: tokens, validity, kept sets, log-probabilities, ranks, masses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from tokendraw import LogprobsTensors, SamplerOutput, SamplingParams
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID, GumbelDtype
from tokendraw_testing import reference
from tokendraw_testing.cases.requests import CrossedRequest, RowCall, parts_of_equal_scalars, stack_logits
from tokendraw_testing.kit.subject import RowSubject, SampleSubject, ScoreSubject
from tokendraw_testing.kit.trial import Trial, Violation
from tokendraw_testing.reference import Array

NamedToken = tuple[int, float]
"""A token, and how far the runner-up lies behind."""

TOLERANCE: Final = 1e-5
_ROUNDING: Final = 5e-7
"""Rounding error of float32 itself, relative to a large value."""
_ENTROPY_TOLERANCE: Final = 3e-5
LABEL_PADDING: Final = -100
"""A label that scores skip, outside of every vocabulary."""


def judge(subject: SampleSubject | ScoreSubject, trial: Trial, call: RowCall) -> int:
    """Draw or score rows, in one call for each value of a scalar filter, and judge every column that comes back.

    :returns: the number of drawn tokens that the reference names.
    """
    num_named, dtype = 0, call.dtype or subject.gumbel_dtype
    has_threshold = call.threshold and subject.capabilities.threshold
    view = subject.with_need(threshold=True) if has_threshold else subject
    for part in parts_of_equal_scalars(subject, call.requests):
        logits, positions = stack_logits(part, subject.device), [request.position for request in part]
        params = [request.params for request in part]
        if isinstance(view, ScoreSubject):
            tokens = scored_tokens(part)
            output: Any = view.score(logits, tokens, params, call.mode, positions)
        else:
            slots = None if call.order is None or len(part) < len(call.requests) else list(call.order)
            ordered = params if slots is None else [params[i] for i in np.argsort(slots)]
            need = {"logprobs_mode": call.mode, "gumbel_dtype": dtype}
            output = view.sample(logits, ordered, positions, row_index=slots, **need)
            tokens = output.token_ids.tolist()
            num_named += require_draws(subject, trial, part, output, dtype)
        require_columns(trial, part, tokens, output, call.mode)
    return num_named


def scored_tokens(batch: Sequence[CrossedRequest]) -> list[int]:
    """Choose the likeliest, the least likely, a kept, any, the last, or no token of each row."""
    tokens = []
    for i, row in enumerate(request.row for request in batch):
        size, kept = row.site.size, int(row.prepared.kept.argmax())
        choices = int(row.x.argmax()), int(row.x.argmin()), kept, 7919 * i % size, size - 1, LABEL_PADDING
        tokens.append(choices[i % len(choices)])
    return tokens


def named_tokens(
    batch: Sequence[CrossedRequest], dtype: GumbelDtype, streams: tuple[int, int] = reference.SAMPLE
) -> list[NamedToken | None]:
    """Return the reference's token for each request, with its lead; None where unknown noise decides."""
    tokens: list[NamedToken | None] = [None] * len(batch)
    seeded_rows = []
    for i, request in enumerate(batch):
        if request.params.temperature == 0:
            tokens[i] = int(request.row.x.argmax()), np.inf
        elif request.params.seed is not None and request.row.is_settled:
            seeded_rows.append(i)
        elif np.count_nonzero(request.row.expected.possible) == 1:
            tokens[i] = int(request.row.expected.possible.argmax()), np.inf
    drawings = [reference.drawing(batch[i].row.prepared, batch[i].position, streams) for i in seeded_rows]
    seeds = [(batch[i].params.seed or 0) % 2**64 for i in seeded_rows]
    for i, token in zip(seeded_rows, reference.together(drawings, seeds, dtype), strict=True):
        tokens[i] = token
    return tokens


def require_draws(
    subject: RowSubject,
    trial: Trial,
    batch: Sequence[CrossedRequest],
    output: SamplerOutput,
    dtype: GumbelDtype,
    streams: tuple[int, int] = reference.SAMPLE,
) -> int:
    """Compare tokens and ``valid`` of a call with the reference; return the number of tokens named by the reference."""
    answers, tokens = named_tokens(batch, dtype, streams), output.token_ids.tolist()
    what = "row" if streams == reference.SAMPLE else "draft"
    columns = zip(batch, answers, tokens, output.valid.tolist(), strict=True)
    for i, (request, answer, token, flag) in enumerate(columns):
        where, row = f"{what} {i} of {len(batch)}: {request}", request.row
        if answer is not None:
            expected, lead = answer
            if token != expected and lead >= reference.NEAR_TIE:
                logits = f"(logits {row.x[expected]:.7g} and {row.x[token]:.7g})"
                cause = _cause(batch, i, answer, token, dtype, streams)
                raise Violation(f"{where} needs token {expected}{cause} {logits}")
        possible = row.expected.possible
        trial.require(
            possible[token] or request.params.temperature == 0,
            f"{where} needs one of {possible.sum()} kept tokens, found {token}",
        )
        is_right = flag == row.prepared.valid or not subject.capabilities.valid_flag
        trial.require(is_right, f"{where} needs valid {row.prepared.valid}, found {flag}")
    return len(batch) - answers.count(None)


def _cause(
    batch: Sequence[CrossedRequest],
    i: int,
    answer: NamedToken,
    token: int,
    dtype: GumbelDtype,
    streams: tuple[int, int],
) -> str:
    """Explain a wrong token: the deciding noise, ties, filters."""
    (expected, lead), request, first = answer, batch[i], batch[0]
    if request.params.temperature == 0:
        is_tied = request.row.x[token] == request.row.x[expected]
        return f", found {token}" + ": both have the largest logit, and the lowest id counts" * bool(is_tied)
    if lead == np.inf:
        return f", the only kept one, found {token}"
    if not request.row.expected.possible[token]:
        return f" of {dtype} noise, found {token}, which is not kept"
    seed, other_dtype = request.params.seed or 0, "fp64" if dtype == "fp32" else "fp32"
    noises = {
        "position 0": (seed, 0, dtype),
        f"{other_dtype} noise": (seed, request.position, other_dtype),
    }
    if first.params.seed is not None:
        noises["the noise of row 0"] = first.params.seed, first.position, dtype
    row = request.row.prepared
    drawn = {words: reference.draw(row, *noise, streams)[0] for words, noise in noises.items()}
    origins = "".join(f", that of {words}" for words, other in drawn.items() if other == token)
    same_tile = token // reference.TILE_SIZE == expected // reference.TILE_SIZE
    return f" of {dtype} noise, found {token}" + (origins or ("" if same_tile else ", of another tile"))


def require_columns(
    trial: Trial, batch: Sequence[CrossedRequest], tokens: Sequence[int], output: Any, mode: str | None
) -> None:
    """Judge thresholds, ceilings, log-probabilities and entropies of an output, as far as it has any.

    :param tokens: drawn or scored; one that is none of the vocabulary has padding.
    :param output: a ``SamplerOutput`` or a ``ScoreOutput``.
    """
    columns: list[Any] = [
        [None] * len(batch) if column is None else column.tolist()
        for column in (output.threshold, output.ceiling, getattr(output, "entropy", None))
    ]
    rows = None if output.logprobs is None else LogprobRows(output.logprobs, output.log_kept_mass)
    found = zip(batch, tokens, *columns, strict=True)
    for i, (request, token, threshold, ceiling, entropy) in enumerate(found):
        what = f"row {i} of {len(batch)}: {request}" + f", {mode}" * (mode is not None)
        is_known = request.params.temperature == 0 or request.row.is_settled
        if threshold is not None and is_known:
            row = reference.prepare(request.row.sorted_logits, request.row_params)
            require_bounds(trial, what, row, threshold, ceiling, has_ceiling=request.has_ceiling)
        if entropy is not None and (is_known or str(mode).startswith("raw")):
            expected = reference.entropy(_drawn_from(request), str(mode))
            trial.require(
                abs(entropy - expected) <= _ENTROPY_TOLERANCE or np.isnan([entropy, expected]).all(),
                f"{what} needs the entropy {expected:.7g}, found {entropy:.7g}",
            )
        if rows is not None and 0 <= token < request.row.site.size:
            rows.require(trial, what, request, token, str(mode), i)
        elif rows is not None:
            rows.require_padding(trial, token, i)


def _drawn_from(request: CrossedRequest) -> reference.ReferenceRow:
    row = request.row
    return row.prepared if request.params.temperature > 0 else reference.prepare(row.x, request.row_params)


def require_bounds(
    trial: Trial,
    what: str,
    row: reference.ReferenceRow,
    threshold: float,
    ceiling: float | None = None,
    *,
    has_ceiling: bool = False,
) -> None:
    """Require the least and the greatest kept logit of a row whose kept set the reference knows.

    :param ceiling: None where the call returns none.
    :param has_ceiling: whether a filter may drop from above; elsewhere the ceiling is +inf.
    """
    bounds = [("threshold", reference.threshold(row), threshold)]
    if ceiling is not None:
        bounds.append(("ceiling", reference.ceiling(row) if has_ceiling else np.inf, ceiling))
    for name, expected, found in bounds:
        is_same = found == expected or np.isnan([found, expected]).all()
        trial.require(is_same, f"{what} needs the {name} {expected!r}, found {found!r}")


class LogprobRows:
    """Log-probabilities of a call on the host: ids and values [..., 1 + N], ranks, masses and given ids."""

    def __init__(self, logprobs: LogprobsTensors, masses: torch.Tensor | None) -> None:
        assert masses is not None
        self.ids, self.values = logprobs.token_ids.cpu().numpy(), logprobs.logprobs.cpu().numpy()
        self.ranks = None if logprobs.ranks is None else logprobs.ranks.cpu().numpy()
        self.masses = masses.cpu().numpy()
        ids, values = logprobs.given_token_ids, logprobs.given_logprobs
        self.given_ids = self.ids[..., :0] if ids is None else ids.cpu().numpy()
        self.given_values = self.values[..., :0] if values is None else values.cpu().numpy()

    def require(
        self, trial: Trial, what: str, request: CrossedRequest, token: int, mode: str, at: Any
    ) -> None:
        """Require the columns of a drawn or scored token of a row."""
        row, params = request.row, request.params
        self.require_form(trial, what, request, token, at)
        if params.temperature == 0 or row.expected.certain:
            expected_mass = row.expected.log_share if params.temperature > 0 else 0.0
            mass = float(self.masses[at])
            trial.require(
                abs(mass - expected_mass) <= max(TOLERANCE, abs(expected_mass) * 2.0**-23),
                f"{what} needs log_kept_mass {expected_mass:.6f}, found {mass:.6f}",
            )
        if params.temperature > 0 and not row.is_settled and not mode.startswith("raw"):
            return
        prepared, drawn = _drawn_from(request), token if params.temperature > 0 else int(row.x.argmax())
        expected = reference.values(prepared, drawn, mode)
        self.require_values(trial, what, params, token, prepared, expected, at)

    def require_form(self, trial: Trial, what: str, request: CrossedRequest, token: int, at: Any) -> None:
        """Require the token first, padding behind the N best, and the given ids in their order."""
        ids, values, given_ids = self.ids[at], self.values[at], self.given_ids[at]
        params, size = request.params, request.row.site.size
        trial.require(ids[0] == token, f"{what}: token {token} needs to come first, found {ids[0]}")
        behind = slice(1 + _num_best(params, size), None)
        trial.require(
            (ids[behind] == PAD_TOKEN_ID).all() and (values[behind] == PAD_LOGPROB).all(),
            f"{what} needs padding behind the {behind.start - 1} best, found {ids[behind][:5].tolist()}",
        )
        given = [*(params.logprob_token_ids or ())]
        needed = given + [PAD_TOKEN_ID] * (len(given_ids) - len(given))
        trial.require(
            given_ids.tolist() == needed and (self.given_values[at][len(given) :] == PAD_LOGPROB).all(),
            f"{what} needs the given ids {needed[:5]} and padding, found {given_ids[:5].tolist()}",
        )

    def require_values(
        self,
        trial: Trial,
        what: str,
        params: SamplingParams,
        token: int,
        row: reference.ReferenceRow,
        expected: Array,
        at: Any,
    ) -> None:
        """Require values, rank and order of the best tokens."""
        ids, num_best = self.ids[at], _num_best(params, len(expected))
        if self.ranks is not None:
            rank, found = reference.rank(row, expected, token), self.ranks[at]
            trial.require(found == rank, f"{what}: token {token} needs rank {rank}, found {found}")
        columns = np.concatenate((ids[: 1 + num_best], self.given_ids[at])).astype(np.int64)
        found_values = np.concatenate((self.values[at][: 1 + num_best], self.given_values[at]))
        is_shown = columns >= 0
        columns, found_values = columns[is_shown], found_values[is_shown].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            needed = expected[columns].astype(np.float32).astype(np.float64)
            is_near = np.abs(found_values - needed) <= TOLERANCE + _ROUNDING * np.abs(needed)
        wrong = np.flatnonzero(~(is_near & np.isfinite(needed)) & (found_values != needed))[:1]
        trial.require(
            not len(wrong),
            f"{what}: token {columns[wrong]} needs {needed[wrong]}, found {found_values[wrong]}",
        )
        # What is dropped, or below float32, ties at -inf, in an order of the sampler's own.
        is_finite = expected > np.finfo(np.float32).min
        best = largest_ids(np.where(is_finite, row.x, -np.inf), min(num_best, int(is_finite.sum())))
        mismatches = np.flatnonzero(ids[1 : 1 + len(best)] != best)[:1]
        trial.require(
            not len(mismatches),
            f"{what}: needs token {best[mismatches]} in place {mismatches + 1}, found {ids[1 + mismatches]}",
        )

    def require_padding(self, trial: Trial, token: int, at: int) -> None:
        """Require padding in the first column and rank 0 of a token that is none of the vocabulary."""
        rank = 0 if self.ranks is None else self.ranks[at]
        found = [self.ids[at, 0], self.values[at, 0], rank]
        is_padding = found == [PAD_TOKEN_ID, PAD_LOGPROB, 0]
        trial.require(is_padding, f"token {token} needs padding and rank 0, found {found}")


def _num_best(params: SamplingParams, size: int) -> int:
    return size if params.logprobs == -1 else min(params.logprobs or 0, size)


def largest_ids(x: Array, count: int) -> Array:
    """Return the ids [count] of the largest values, on a tie the lowest first."""
    least = np.partition(x, len(x) - count)[len(x) - count] if count else np.inf
    candidates = np.flatnonzero(x >= least)
    return candidates[np.lexsort((candidates, -x[candidates]))][:count]
