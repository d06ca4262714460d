"""Compares the tokens and logprobs of crossed rows with the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import LogprobsTensors, SamplingParams
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID, GumbelDtype, LogprobsMode
from tokendraw_testing import reference
from tokendraw_testing.crossing.factors import Kind
from tokendraw_testing.crossing.rows import CrossedRow
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import random_seeds
from tokendraw_testing.rows.logprobs import TOLERANCE, given_columns, require_values
from tokendraw_testing.rows.requests import describe, scalar_filters
from tokendraw_testing.rows.subjects import RowSubject
from tokendraw_testing.rows.thresholds import require_ceiling, require_threshold

Array = NDArray[Any]
NamedToken = tuple[int, float]
"""A token, and how far the runner-up lies behind."""

_MOST_POSITIONS: Final = 1 << 17
_MOST_TILES: Final = 8
_HITS: Final = 4
"""Telling positions to expect among the tried positions."""


@dataclass(frozen=True)
class CrossedRequest:
    """A row of a call: logits, the request with its seed or temperature 0, and its position."""

    row: CrossedRow
    params: SamplingParams
    position: int

    @property
    def row_params(self) -> SamplingParams:
        """Return the request with the decision about XTC that its row has."""
        return replace(self.params, xtc_probability=self.row.params.xtc_probability)

    def with_logprobs(self, logprobs: int | None) -> CrossedRequest:
        """Return the same request with this many logprobs."""
        return replace(self, params=replace(self.params, logprobs=logprobs))

    def with_given(self, ids: Sequence[int]) -> CrossedRequest:
        """Return the same request with ``logprob_token_ids``."""
        return replace(self, params=replace(self.params, logprob_token_ids=tuple(ids)))

    def __str__(self) -> str:
        seed = self.params.seed
        words = f"{self.row.site}, {self.row.design}, {describe(self.params)}"
        order = {"joint": ", joint order", "temperature_last": ", temperature last"}
        return (
            words
            + order.get(self.params.filter_order, "")
            + (f", seed {seed} at position {self.position}" if seed is not None else "")
        )


@dataclass(frozen=True)
class LogprobColumns:
    """Logprobs of one row of a call, on the host."""

    mode: LogprobsMode
    ids: Array
    """[1 + N] int64."""
    values: Array
    """[1 + N] float32."""
    rank: int
    log_kept_mass: float
    given_ids: Array
    """[M] int64; so many ``logprob_token_ids`` has a row of the batch."""
    given_values: Array
    """[M] float32."""

    @classmethod
    def of_rows(cls, mode: LogprobsMode, logprobs: LogprobsTensors, masses: torch.Tensor) -> list[Self]:
        """Return the logprobs of each row of a call.

        :param masses: ``log_kept_mass`` of the call, [B].
        """
        assert logprobs.ranks is not None
        ids, values = logprobs.token_ids.cpu().numpy(), logprobs.logprobs.cpu().numpy()
        columns = zip(
            ids, values, logprobs.ranks.tolist(), masses.tolist(), *given_columns(logprobs), strict=True
        )
        return [cls(mode, *row) for row in columns]


def make_requests(row: CrossedRow, kinds: Sequence[Kind], rng: Generator) -> list[CrossedRequest]:
    """Make requests of the given kinds from a row, with seeded requests at telling positions."""
    seeds, positions = random_seeds(rng, len(kinds))
    seeded = [i for i, kind in enumerate(kinds) if kind == "seeded"]
    if seeded:
        telling = telling_positions(row, seeds[seeded[0]], rng, len(seeded))
        for i, position in zip(seeded, telling, strict=False):
            seeds[i], positions[i] = seeds[seeded[0]], position
    builders = {
        "unseeded": lambda seed: row.params,
        "seeded": lambda seed: replace(row.params, seed=seed),
        "greedy": lambda seed: replace(row.params, temperature=0.0),
        "greedy with a seed": lambda seed: replace(row.params, temperature=0.0, seed=seed),
    }
    return [
        CrossedRequest(row, builders[kind](seed), position)
        for kind, seed, position in zip(kinds, seeds, positions, strict=True)
    ]


def requests_in_turn(
    rows: Sequence[CrossedRow], kinds: Sequence[Kind], copies: int, rng: Generator, turn: int = 0
) -> list[CrossedRequest]:
    """Make ``copies`` requests of each row, with the kinds in turn over rows and copies."""
    return [
        request
        for i, row in enumerate(rows, turn)
        for request in make_requests(row, [kinds[(i + j) % len(kinds)] for j in range(copies)], rng)
    ]


def telling_positions(row: CrossedRow, seed: int, rng: Generator, count: int) -> list[int]:
    """Find at most ``count`` positions where the seed draws a different tile without the filters; often none.

    Where the mass lies in few tiles, their noise alone says so, and thousands of positions are tried at once.
    """
    y, kept = row.prepared.y, row.prepared.kept
    if row.prepared.empty or kept.all():
        return []
    first = np.arange(0, len(y), reference.TILE_SIZE)
    weights = np.exp(y)
    tile_masses = np.add.reduceat(weights, first)
    weights[~kept] = 0.0
    kept_masses = np.add.reduceat(weights, first)
    dropped_share = 1 - kept_masses.sum() / tile_masses.sum()
    tiles = np.flatnonzero(tile_masses > 1e-9 * tile_masses.sum())
    if not 1 < len(tiles) <= _MOST_TILES or dropped_share < 1e-6:
        return []
    count_tried = min(_MOST_POSITIONS, int(_HITS * count / dropped_share))
    positions = int(rng.integers(2**40)) + np.arange(count_tried)
    noise = reference.gumbel(seed, positions[:, None], tiles, reference.TILE)
    with np.errstate(divide="ignore"):
        differs = (np.log(tile_masses[tiles]) + noise).argmax(1) != (
            np.log(kept_masses[tiles]) + noise
        ).argmax(1)
    return [int(position) for position in positions[differs][:count]]


def stack_logits(batch: Sequence[CrossedRequest], device: torch.device) -> torch.Tensor:
    """Return the logits [B, V] of a batch on a device, in their dtype."""
    rows = {id(request.row.logits): request.row.logits for request in batch}
    places = {key: i for i, key in enumerate(rows)}
    unique_rows = torch.stack(list(rows.values())).to(device)
    return unique_rows[torch.tensor([places[id(request.row.logits)] for request in batch], device=device)]


def parts_of_equal_scalars(
    subject: RowSubject, batch: Sequence[CrossedRequest]
) -> list[list[CrossedRequest]]:
    """Divide a batch by the values of the scalar filters."""
    names = scalar_filters(subject.capabilities)
    parts: dict[tuple[object, ...], list[CrossedRequest]] = {}
    for request in batch:
        parts.setdefault(tuple(getattr(request.params, name) for name in names), []).append(request)
    return list(parts.values())


def named_tokens(batch: Sequence[CrossedRequest], dtype: GumbelDtype) -> list[NamedToken | None]:
    """Return the reference's token for each request, with its lead; None for unseeded draws and uncertain filters.

    :param dtype: precision of the noise.
    """
    tokens: list[NamedToken | None] = [None] * len(batch)
    seeded_rows = []
    for i, request in enumerate(batch):
        if request.params.temperature == 0:
            tokens[i] = int(request.row.x.argmax()), np.inf
        elif request.params.seed is not None and request.row.is_settled:
            seeded_rows.append(i)
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
            noise_text = f" of {dtype} noise" * (request.params.temperature > 0)
            trial.require(
                token == expected or lead < reference.NEAR_TIE,
                f"{where} needs token {expected}{noise_text}, found {token}{_tie(request, expected, token)}",
            )
        if request.params.temperature > 0:
            possible = request.row.expected.possible
            trial.require(
                possible[token], f"{where} needs one of {possible.sum()} kept tokens, found {token}"
            )
    return len(batch) - answers.count(None)


def _tie(request: CrossedRequest, expected: int, token: int) -> str:
    """Say that a token ties with the expected one of a greedy row, where the ids alone tell nothing."""
    ties = request.params.temperature == 0 and request.row.x[token] == request.row.x[expected]
    return ": both have the largest logit, and the lowest id counts" * bool(ties)


def require_thresholds(
    trial: Trial,
    batch: Sequence[CrossedRequest],
    thresholds: Sequence[float],
    ceilings: Sequence[float | None],
) -> int:
    """Compare thresholds and ceilings of a call with the reference; return the number of rows that it knows.

    :param ceilings: None for a row without.
    :raises Violation: one of them differs.
    """
    num_known = 0
    for i, (request, threshold, ceiling) in enumerate(zip(batch, thresholds, ceilings, strict=True)):
        if request.params.temperature > 0 and not request.row.is_settled:
            continue
        row = reference.prepare(request.row.sorted_logits, request.row_params)
        what = f"row {i} of {len(batch)}: {request}"
        require_threshold(trial, what, threshold, row)
        if ceiling is not None:
            require_ceiling(trial, what, ceiling, row, request.params)
        num_known += 1
    return num_known


def require_logprobs(
    trial: Trial, request: CrossedRequest, token: int, columns: LogprobColumns, where: str = ""
) -> None:
    """Require the values, N best, rank, kept mass and flag of a drawn or scored token.

    :raises Violation: one of them differs from the float64 reference.
    """
    row, params, x = request.row, request.params, request.row.x
    what = f"{where}{request}, {columns.mode}"
    trial.require(
        columns.ids[0] == token,
        f"{what}: the drawn token {token} needs to come first, found {columns.ids[0]}",
    )
    num_best = len(x) if params.logprobs == -1 else min(params.logprobs or 0, len(x))
    is_padded = (columns.ids[1 + num_best :] == PAD_TOKEN_ID).all() and (
        columns.values[1 + num_best :] == PAD_LOGPROB
    ).all()
    trial.require(
        is_padded,
        f"{what} needs padding behind the {num_best} best, found {columns.ids[1 + num_best :][:5].tolist()}",
    )
    require_given(trial, what, params, columns.given_ids, columns.given_values)
    if params.temperature > 0 and row.expected.certain:
        trial.require(
            abs(columns.log_kept_mass - row.expected.log_share)
            <= max(TOLERANCE, abs(row.expected.log_share) * 2.0**-23),  # a float32
            f"{what} needs log_kept_mass {row.expected.log_share:.6f}, found {columns.log_kept_mass:.6f}",
        )
    if params.temperature > 0 and not row.is_settled and not columns.mode.startswith("raw"):
        return
    prepared = row.prepared if params.temperature > 0 else reference.prepare(x, request.row_params)
    greedy_token = token if params.temperature > 0 else int(x.argmax())
    expected = reference.values(prepared, greedy_token, columns.mode)
    rank = reference.rank(prepared, expected, token)
    trial.require(columns.rank == rank, f"{what}: token {token} needs rank {rank}, found {columns.rank}")
    ids = columns.ids[: 1 + num_best]
    require_values(trial, what, ids, columns.values[: 1 + num_best], expected)
    given_ids = columns.given_ids[: len(params.logprob_token_ids or ())]
    require_values(trial, what, given_ids, columns.given_values[: len(given_ids)], expected)
    above = int((expected > -np.inf).sum())  # what is dropped ties at -inf, in an order of the sampler's own
    best = largest_ids(np.where(expected > -np.inf, x, -np.inf), min(num_best, above))
    mismatches = np.flatnonzero(ids[1 : 1 + len(best)] != best)
    trial.require(
        not len(mismatches),
        f"{what}: needs token {best[mismatches[:1]]} in place {mismatches[:1] + 1}, found {ids[1:][mismatches[:1]]}",
    )


def require_given(trial: Trial, what: str, params: SamplingParams, ids: Array, values: Array) -> None:
    """Require the given ids of a row in their order, and padding behind them."""
    given = [*(params.logprob_token_ids or ())]
    needed = given + [PAD_TOKEN_ID] * (len(ids) - len(given))
    trial.require(
        ids.tolist() == needed and (values[len(given) :] == PAD_LOGPROB).all(),
        f"{what} needs the given ids {needed[:5]} and padding, found {ids[:5].tolist()}",
    )


def largest_ids(x: Array, count: int) -> Array:
    """Return the ids [count] of the largest values, on a tie the lowest first."""
    if not count:
        return np.zeros(0, np.int64)
    least = np.partition(x, len(x) - count)[len(x) - count]
    candidates = np.flatnonzero(x >= least)
    return candidates[np.lexsort((candidates, -x[candidates]))][:count]
