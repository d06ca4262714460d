"""Judges each column of a call's output by float64: tokens, validity, kept sets, log-probabilities, ranks, masses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import LogprobsTensors, SamplingParams
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID, GumbelDtype, LogprobsMode
from tokendraw_testing import reference
from tokendraw_testing.cases.requests import CrossedRequest, parts_of_equal_scalars, stack_logits
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.subjects import SampleSubject

Array = NDArray[Any]
NamedToken = tuple[int, float]
"""A token, and how far the runner-up lies behind."""

TOLERANCE: Final = 1e-5
_ROUNDING: Final = 5e-7
"""Rounding error of float32 itself, relative to a large value."""
_ENTROPY_TOLERANCE: Final = 3e-5


def judge(
    subject: SampleSubject,
    trial: Trial,
    batch: Sequence[CrossedRequest],
    mode: LogprobsMode | None = None,
    dtype: GumbelDtype | None = None,
    *,
    logits: torch.Tensor | None = None,
    order: Sequence[int] | None = None,
) -> int:
    """Draw a batch in one call for each value of a scalar filter, and judge every column that comes back.

    :param mode: of logprobs; None: no row asks for any.
    :param dtype: precision of the noise; None: the usual one.
    :param logits: those of the requests, laid out by the caller.
    :param order: the slot of each request's parameters; None: they are one a row.
    :returns: the number of tokens that the reference names.
    """
    num_named, dtype = 0, dtype or subject.gumbel_dtype
    for part in parts_of_equal_scalars(subject, batch):
        slots = None if order is None or len(part) < len(batch) else list(order)
        params = [request.params for request in part]
        output = subject.sample(
            stack_logits(part, subject.device) if logits is None else logits,
            params if slots is None else [params[i] for i in np.argsort(slots)],
            [request.position for request in part],
            row_index=slots,
            mode=mode,
            gumbel_dtype=dtype,
        )
        tokens = output.token_ids.tolist()
        num_named += require_tokens(trial, part, tokens, dtype)
        valid = output.valid.tolist() if subject.capabilities.valid_flag else []
        for i, (request, flag) in enumerate(zip(part, valid, strict=False)):
            expected = request.row.prepared.valid
            trial.require(
                flag == expected, f"row {i} of {len(part)}: {request} needs valid {expected}, found {flag}"
            )
        require_columns(trial, part, tokens, output, mode)
    return num_named


def named_tokens(batch: Sequence[CrossedRequest], dtype: GumbelDtype) -> list[NamedToken | None]:
    """Return the reference's token for each request, with its lead; None where noise that it does not know decides.

    :param dtype: precision of the noise.
    """
    tokens: list[NamedToken | None] = [None] * len(batch)
    seeded_rows = []
    for i, request in enumerate(batch):
        if request.params.temperature == 0:
            tokens[i] = int(request.row.x.argmax()), np.inf
        elif request.params.seed is not None and request.row.is_settled:
            seeded_rows.append(i)
        elif np.count_nonzero(request.row.expected.possible) == 1:
            tokens[i] = int(request.row.expected.possible.argmax()), np.inf
    drawings = [reference.drawing(batch[i].row.prepared, batch[i].position) for i in seeded_rows]
    seeds = [(batch[i].params.seed or 0) % 2**64 for i in seeded_rows]
    for i, token in zip(seeded_rows, reference.together(drawings, seeds, dtype), strict=True):
        tokens[i] = token
    return tokens


def require_tokens(
    trial: Trial, batch: Sequence[CrossedRequest], tokens: Sequence[int], dtype: GumbelDtype
) -> int:
    """Compare the tokens of a call with the reference; return the number of tokens named by the reference.

    :param dtype: precision of the noise.
    :raises Violation: one is not kept, not the argmax of its greedy row, or not that of its seed.
    """
    answers = named_tokens(batch, dtype)
    for i, (request, answer, token) in enumerate(zip(batch, answers, tokens, strict=True)):
        where = f"row {i} of {len(batch)}: {request}"
        if answer is not None:
            expected, lead = answer
            cause = _cause(request, answer, token, dtype)
            trial.require(
                token == expected or lead < reference.NEAR_TIE, f"{where} needs token {expected}{cause}"
            )
        if request.params.temperature > 0:
            possible = request.row.expected.possible
            trial.require(
                possible[token], f"{where} needs one of {possible.sum()} kept tokens, found {token}"
            )
    return len(batch) - answers.count(None)


def _cause(request: CrossedRequest, answer: NamedToken, token: int, dtype: GumbelDtype) -> str:
    """Say what decides for a token, and what is known of the one that was found."""
    expected, lead = answer
    if request.params.temperature == 0:
        is_tied = request.row.x[token] == request.row.x[expected]
        return f", found {token}" + ": both have the largest logit, and the lowest id counts" * bool(is_tied)
    if lead == np.inf:
        return f", the only kept one, found {token}"
    is_kept = request.row.expected.possible[token]
    same = "" if token // reference.TILE_SIZE == expected // reference.TILE_SIZE else ", of another tile"
    return f" of {dtype} noise, found {token}" + (same if is_kept else ", which is not kept")


def require_columns(
    trial: Trial, batch: Sequence[CrossedRequest], tokens: Sequence[int], output: Any, mode: str | None
) -> None:
    """Judge thresholds, ceilings, log-probabilities and entropies of an output, as far as it has any.

    :param tokens: drawn or scored; one that is none of the vocabulary has padding.
    :param output: a ``SamplerOutput`` or a ``ScoreOutput``.
    :raises Violation: a value differs from the reference.
    """
    columns: list[Any] = [
        [None] * len(batch) if column is None else column.tolist()
        for column in (output.threshold, output.ceiling, getattr(output, "entropy", None))
    ]
    for i, (request, threshold, ceiling, entropy) in enumerate(zip(batch, *columns, strict=True)):
        what = f"row {i} of {len(batch)}: {request}"
        is_known = request.params.temperature == 0 or request.row.is_settled
        if threshold is not None and is_known:
            row = reference.prepare(request.row.sorted_logits, request.row_params)
            require_bounds(trial, what, row, threshold, ceiling, has_ceiling=request.has_ceiling)
        if entropy is not None and (is_known or str(mode).startswith("raw")):
            row = request.row.prepared if request.params.temperature > 0 else _prepared(request)
            expected = reference.entropy(row, str(mode))
            trial.require(
                abs(entropy - expected) <= _ENTROPY_TOLERANCE or np.isnan([entropy, expected]).all(),
                f"{what}, {mode} needs the entropy {expected:.7g}, found {entropy:.7g}",
            )
    if output.logprobs is not None:
        assert mode is not None
        rows = LogprobRows(output.logprobs, output.log_kept_mass)
        for i, (request, token) in enumerate(zip(batch, tokens, strict=True)):
            if 0 <= token < request.row.site.size:
                rows.require(trial, f"row {i} of {len(batch)}: {request}, {mode}", request, token, mode, i)
            else:
                rows.require_padding(trial, token, i)


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


def _prepared(request: CrossedRequest) -> reference.ReferenceRow:
    return reference.prepare(request.row.x, request.row_params)


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
        self, trial: Trial, what: str, request: CrossedRequest, token: int, mode: str, place: int
    ) -> None:
        """Require the columns of a drawn or scored token of a row.

        :raises Violation: one of them differs from the float64 reference.
        """
        row, params = request.row, request.params
        self.require_form(trial, what, params, token, len(row.x), place)
        if params.temperature > 0 and row.expected.certain:
            require_mass(trial, what, row.expected.log_share, float(self.masses[place]))
        if params.temperature > 0 and not row.is_settled and not mode.startswith("raw"):
            return
        prepared = row.prepared if params.temperature > 0 else _prepared(request)
        greedy_token = token if params.temperature > 0 else int(row.x.argmax())
        expected = reference.values(prepared, greedy_token, mode)
        self.require_values(trial, what, params, token, prepared, expected, place)

    def require_form(
        self, trial: Trial, what: str, params: SamplingParams, token: int, size: int, place: Any
    ) -> None:
        """Require the token first, padding behind the N best, and the given ids in their order."""
        ids, values, given_ids = self.ids[place], self.values[place], self.given_ids[place]
        trial.require(ids[0] == token, f"{what}: token {token} needs to come first, found {ids[0]}")
        behind = slice(1 + _num_best(params, size), None)
        trial.require(
            (ids[behind] == PAD_TOKEN_ID).all() and (values[behind] == PAD_LOGPROB).all(),
            f"{what} needs padding behind the {behind.start - 1} best, found {ids[behind][:5].tolist()}",
        )
        given = [*(params.logprob_token_ids or ())]
        needed = given + [PAD_TOKEN_ID] * (len(given_ids) - len(given))
        trial.require(
            given_ids.tolist() == needed and (self.given_values[place][len(given) :] == PAD_LOGPROB).all(),
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
        place: Any,
    ) -> None:
        """Require values, rank and order of the best tokens.

        :param expected: the value of each token, [V] float64.
        """
        ids, num_best = self.ids[place], _num_best(params, len(expected))
        if self.ranks is not None:
            rank, found = reference.rank(row, expected, token), self.ranks[place]
            trial.require(found == rank, f"{what}: token {token} needs rank {rank}, found {found}")
        columns = np.concatenate((ids[: 1 + num_best], self.given_ids[place])).astype(np.int64)
        found_values = np.concatenate((self.values[place][: 1 + num_best], self.given_values[place]))
        is_shown = columns >= 0
        require_values(trial, what, columns[is_shown], found_values[is_shown], expected)
        above = int(
            (expected > -np.inf).sum()
        )  # what is dropped ties at -inf, in an order of the sampler's own
        best = largest_ids(np.where(expected > -np.inf, row.x, -np.inf), min(num_best, above))
        mismatches = np.flatnonzero(ids[1 : 1 + len(best)] != best)[:1]
        trial.require(
            not len(mismatches),
            f"{what}: needs token {best[mismatches]} in place {mismatches + 1}, found {ids[1 + mismatches]}",
        )

    def require_padding(self, trial: Trial, token: int, place: int) -> None:
        """Require padding in the first column and rank 0 of a token that is none of the vocabulary."""
        rank = 0 if self.ranks is None else self.ranks[place]
        found = [self.ids[place, 0], self.values[place, 0], rank]
        trial.require(
            found == [PAD_TOKEN_ID, PAD_LOGPROB, 0], f"token {token} needs padding and rank 0, found {found}"
        )


def _num_best(params: SamplingParams, size: int) -> int:
    return size if params.logprobs == -1 else min(params.logprobs or 0, size)


def require_mass(trial: Trial, what: str, expected: float, found: float) -> None:
    """Require ``log_kept_mass``, a float32."""
    trial.require(
        abs(found - expected) <= max(TOLERANCE, abs(expected) * 2.0**-23),
        f"{what} needs log_kept_mass {expected:.6f}, found {found:.6f}",
    )


def require_values(trial: Trial, what: str, ids: Array, values: Array, expected: Array) -> None:
    """Require values to agree with float64 to 1e-5.

    :param what: where they were shown, for the message.
    :param ids: of which tokens ``values`` are, [N] each; ``expected`` is [V], by id.
    """
    if not len(ids):
        return
    needed = expected[ids]
    with np.errstate(invalid="ignore"):
        excess = np.abs(values.astype(np.float64) - needed) - (TOLERANCE + _ROUNDING * np.abs(needed))
    excess = np.where(values == needed, 0.0, np.where(np.isnan(excess), np.inf, excess))
    worst = excess.argmax()
    trial.require(
        excess[worst] <= 0,
        f"{what}: token {ids[worst]} needs {needed[worst]:.7g}, found {values[worst]:.7g}",
    )


def largest_ids(x: Array, count: int) -> Array:
    """Return the ids [count] of the largest values, on a tie the lowest first."""
    if not count:
        return np.zeros(0, np.int64)
    least = np.partition(x, len(x) - count)[len(x) - count]
    candidates = np.flatnonzero(x >= least)
    return candidates[np.lexsort((candidates, -x[candidates]))][:count]
