"""Holds what a sampler makes of crossed rows against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID, GumbelDtype, LogprobsMode
from tokendraw_testing import reference
from tokendraw_testing.crossing.factors import Kind
from tokendraw_testing.crossing.rows import CrossedRow
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import random_seeds
from tokendraw_testing.rows.logprobs import TOLERANCE, require_values
from tokendraw_testing.rows.requests import described

Array = NDArray[Any]
Named = tuple[int, float]
"""A token, and how far the runner-up lies behind."""

_MOST_POSITIONS: Final = 1 << 17
_MOST_TILES: Final = 8
_HITS: Final = 4
"""Telling positions to expect among those that are tried."""


@dataclass(frozen=True)
class Request:
    """A row of a call: logits, the request with its seed or temperature 0, and its position."""

    row: CrossedRow
    params: SamplingParams
    position: int

    def showing(self, logprobs: int | None) -> Request:
        """Return the same request with this many logprobs."""
        return replace(self, params=replace(self.params, logprobs=logprobs))

    def __str__(self) -> str:
        seed = self.params.seed
        words = f"{self.row.site}, {self.row.design}, {described(self.params)}"
        joint = ", joint order" * (self.params.filter_order == "joint")
        return words + joint + (f", seed {seed} at position {self.position}" if seed is not None else "")


@dataclass(frozen=True)
class Shown:
    """Holds what one row of a call shows beside its token, on the host."""

    mode: LogprobsMode
    ids: Array
    """[1 + N] int64."""
    values: Array
    """[1 + N] float32."""
    rank: int
    log_kept_mass: float


def requested(row: CrossedRow, kinds: Sequence[Kind], rng: np.random.Generator) -> list[Request]:
    """Make a request of each of these kinds from a row, the seeded ones at positions that tell."""
    seeds, positions = random_seeds(rng, len(kinds))
    seeded = [i for i, kind in enumerate(kinds) if kind == "seeded"]
    if seeded:
        telling = telling_positions(row, seeds[seeded[0]], rng, len(seeded))
        for i, position in zip(seeded, telling, strict=False):
            seeds[i], positions[i] = seeds[seeded[0]], position
    made = {
        "unseeded": lambda seed: row.params,
        "seeded": lambda seed: replace(row.params, seed=seed),
        "greedy": lambda seed: replace(row.params, temperature=0.0),
        "greedy with a seed": lambda seed: replace(row.params, temperature=0.0, seed=seed),
    }
    return [
        Request(row, made[kind](seed), position)
        for kind, seed, position in zip(kinds, seeds, positions, strict=True)
    ]


def telling_positions(row: CrossedRow, seed: int, rng: np.random.Generator, count: int) -> list[int]:
    """Find positions at which this seed draws another tile if nothing is dropped: ``count`` at most, often none.

    Where the mass lies in few tiles, their noise alone says so, and thousands of positions are tried at once.
    """
    y, kept = row.prepared.y, row.prepared.kept
    if row.prepared.empty or kept.all():
        return []
    first = np.arange(0, len(y), reference.TILE_SIZE)
    weights = np.exp(y)
    whole = np.add.reduceat(weights, first)
    weights[~kept] = 0.0
    stays = np.add.reduceat(weights, first)
    dropped = 1 - stays.sum() / whole.sum()
    tiles = np.flatnonzero(whole > 1e-9 * whole.sum())
    if not 1 < len(tiles) <= _MOST_TILES or dropped < 1e-6:
        return []
    wanted = min(_MOST_POSITIONS, int(_HITS * count / dropped))
    positions = int(rng.integers(2**40)) + np.arange(wanted)
    noise = reference.gumbel(seed, positions[:, None], tiles, reference.TILE)
    with np.errstate(divide="ignore"):
        apart = (np.log(whole[tiles]) + noise).argmax(1) != (np.log(stays[tiles]) + noise).argmax(1)
    return [int(position) for position in positions[apart][:count]]


def stacked(batch: Sequence[Request], device: torch.device) -> torch.Tensor:
    """Return the logits [B, V] of a batch on a device, in their dtype."""
    rows = {id(request.row.logits): request.row.logits for request in batch}
    places = {key: i for i, key in enumerate(rows)}
    distinct = torch.stack(list(rows.values())).to(device)
    return distinct[torch.tensor([places[id(request.row.logits)] for request in batch], device=device)]


def named_tokens(batch: Sequence[Request], dtype: GumbelDtype) -> list[Named | None]:
    """Return the token that the reference names for each request, with its lead; None where nobody can know it.

    :param dtype: precision of the noise.
    """
    found: list[Named | None] = [None] * len(batch)
    drawn = []
    for i, request in enumerate(batch):
        if request.params.temperature == 0:
            found[i] = int(request.row.x.argmax()), np.inf
        elif request.params.seed is not None and request.row.is_settled:
            drawn.append(i)
    drawings = [reference.drawing(batch[i].row.prepared, batch[i].position) for i in drawn]
    seeds = [batch[i].params.seed or 0 for i in drawn]
    for i, named in zip(drawn, reference.together(drawings, seeds, dtype), strict=True):
        found[i] = named
    return found


def require_tokens(trial: Trial, batch: Sequence[Request], tokens: Sequence[int], dtype: GumbelDtype) -> int:
    """Demand of the tokens of a call all that is known of them; return how many the reference named.

    :param dtype: precision of the noise.
    :raises Violation: one is not kept, not the argmax of its greedy row, or not that of its seed.
    """
    named = named_tokens(batch, dtype)
    for i, (request, known, token) in enumerate(zip(batch, named, tokens, strict=True)):
        where = f"row {i} of {len(batch)}: {request}"
        if known is not None:
            needed, lead = known
            drawn = f" of {dtype} noise" * (request.params.temperature > 0)
            trial.require(
                token == needed or lead < reference.NEAR_TIE,
                f"{where} needs token {needed}{drawn}, found {token}",
            )
        if request.params.temperature > 0:
            possible = request.row.expected.possible
            trial.require(
                possible[token], f"{where} needs one of {possible.sum()} kept tokens, found {token}"
            )
    return len(batch) - named.count(None)


def require_shown(trial: Trial, request: Request, token: int, shown: Shown, where: str = "") -> None:
    """Demand the values, the N best, the rank, the kept mass and the flag that belong to a drawn token.

    :raises Violation: one of them differs from the float64 reference.
    """
    row, params, x = request.row, request.params, request.row.x
    what = f"{where}{request}, {shown.mode}"
    rank = int((x >= x[token]).sum())
    trial.require(shown.rank == rank, f"{what}: token {token} needs rank {rank}, found {shown.rank}")
    trial.require(
        shown.ids[0] == token, f"{what}: the drawn token {token} needs to come first, found {shown.ids[0]}"
    )
    wanted = len(x) if params.logprobs == -1 else min(params.logprobs or 0, len(x))
    padded = (shown.ids[1 + wanted :] == PAD_TOKEN_ID).all() and (
        shown.values[1 + wanted :] == PAD_LOGPROB
    ).all()
    trial.require(
        padded, f"{what} needs padding behind the {wanted} best, found {shown.ids[1 + wanted :][:5].tolist()}"
    )
    if params.temperature > 0 and row.expected.certain:
        trial.require(
            abs(shown.log_kept_mass - row.expected.log_share) <= TOLERANCE,
            f"{what} needs log_kept_mass {row.expected.log_share:.6f}, found {shown.log_kept_mass:.6f}",
        )
    if params.temperature > 0 and not row.is_settled:
        return
    prepared = row.prepared if params.temperature > 0 else reference.prepare(x, params)
    expected = reference.values(prepared, token, shown.mode)
    ids = shown.ids[: 1 + wanted]
    require_values(trial, what, ids, shown.values[: 1 + wanted], expected)
    above = int((expected > -np.inf).sum())  # what is dropped ties at -inf, in an order of the sampler's own
    best = largest(x, min(wanted, above))
    apart = np.flatnonzero(ids[1 : 1 + len(best)] != best)
    trial.require(
        not len(apart),
        f"{what}: needs token {best[apart[:1]]} in place {apart[:1] + 1}, found {ids[1:][apart[:1]]}",
    )


def largest(x: Array, count: int) -> Array:
    """Return the ids of the largest values, [count], the lowest first of equal ones."""
    if not count:
        return np.zeros(0, np.int64)
    least = np.partition(x, len(x) - count)[len(x) - count]
    candidates = np.flatnonzero(x >= least)
    return candidates[np.lexsort((candidates, -x[candidates]))][:count]
