"""Compares draws with the exact distribution: shape, tails, and the seams of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.philox import TILE_SIZE
from tokendraw_testing import reference
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import fit, independence, share
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.logits_families import bimodal, gaussian, zipf
from tokendraw_testing.rows.draws import draw_many, judge_fit
from tokendraw_testing.rows.requests import seedings
from tokendraw_testing.rows.subjects import SampleSubject

properties = Properties("sample")
Array = NDArray[Any]

_WIDE_TAIL, _TILE_TAIL = (14.0, 30), (13.0, 30)
"""Gap below the head, and how many draws of the tail to expect, in every dtype; to see none is no chance then."""
_EXACT_TAILS = ((14.0, 20), (18.0, 20), (20.5, 20))
"""Gaps below the head, each with how many seeded draws of the tail are compared with the reference."""


@properties.required("distribution")
def distribution(subject: SampleSubject, trial: Trial) -> str:
    """Tokens follow the softmax: a G-test and exact binomials over bins of 100 expected draws or more."""
    effort, rng = subject.effort, trial.generator("rows")
    small_row = np.log(rng.dirichlet(np.full(40, 0.5))).astype(np.float32)
    skewed_row = np.full(201, np.log(0.01 / 200), np.float32)  # the tail is one per cent of the mass
    skewed_row[100] = np.log(0.99)
    rows: list[tuple[str, Array, SamplingParams, int]] = [
        ("40 tokens", small_row, SamplingParams(), effort.draws),
        ("a tail of one per cent", skewed_row, SamplingParams(), effort.draws),
        ("temperature 0.6", small_row, SamplingParams(temperature=0.6), effort.draws),
        ("temperature 2.5", bimodal(rng, 300), SamplingParams(temperature=2.5), effort.draws // 2),
        ("three tiles, peaked", zipf(rng, 2500), SamplingParams(), effort.tiled_draws),
        ("three tiles, gaussian", gaussian(rng, 2500), SamplingParams(temperature=2.0), effort.tiled_draws),
    ]
    for seeded in seedings(subject.capabilities):
        for label, row, params, draws in rows:
            num_draws = draws // (1 + seeded)  # tokens of seeds are compared one by one, too
            judge_fit(subject, trial, f"{label}{', seeded' * seeded}", row, params, num_draws, seeded=seeded)
    return f"{len(rows)} rows"


@properties.required("tails")
def tails(subject: SampleSubject, trial: Trial) -> str:
    """Tails that are heavy together and light each keep their mass, however far below the head they lie."""
    size = subject.effort.tail_vocab_size
    size = min(size, subject.capabilities.max_vocab_size or size)
    head = size // 2 + 100
    for gap, expected in subject.effort.tails:
        row = torch.full((size,), -gap)
        row[head] = 0
        _judge_tail(subject, trial, f"gap {gap:g}", row, gap, expected)
    _judge_tails_in_dtypes(subject, trial, size, head)
    is_seeded = subject.capabilities.seeding == "counter"
    num_seeded = _require_seeded_tails(subject, trial, size, head) if is_seeded else 0
    gaps = ", ".join(f"{gap:g}" for gap, _ in subject.effort.tails)
    return f"gaps {gaps}" + f"; {num_seeded} seeded draws from tails down to gap 20.5" * bool(num_seeded)


def _judge_tails_in_dtypes(subject: SampleSubject, trial: Trial, size: int, head: int) -> None:
    """Judge tails in every dtype: in a wide vocabulary, and in one tile, with the noise of tokens alone."""
    looks = (size, *_WIDE_TAIL), (min(size, TILE_SIZE), *_TILE_TAIL)
    for dtype in subject.dtypes:
        for width, gap, hits in looks[dtype == torch.float32 :]:  # float32 has had the wide one
            row = torch.full((width,), -gap, dtype=dtype)
            row[head % width] = 0
            label, most = f"gap {gap:g} below one of {width} in {dtype}", subject.effort.most_draws
            _judge_tail(subject, trial, label, row, gap, hits, most)


def _judge_tail(
    subject: SampleSubject,
    trial: Trial,
    label: str,
    row: torch.Tensor,
    gap: float,
    hits: int,
    most: int | None = None,
) -> None:
    """Judge the mass of a tail ``gap`` below the head, by draws enough for ``hits`` of the tail, at most ``most``."""
    head, mass = int(row.argmax()), (len(row) - 1) * np.exp(-gap)
    probability = float(mass / (1 + mass))

    def experiment(rng: Generator, draws: int) -> Verdict:
        tokens = draw_many(subject, row, SamplingParams(), draws, rng)
        return share(int((tokens != head).sum()), draws, probability, f"{len(row) - 1} tail tokens")

    draws = int(np.ceil(hits / probability))
    trial.judge(label, experiment, min(draws, most or draws))


def _require_seeded_tails(subject: SampleSubject, trial: Trial, size: int, head: int) -> int:
    """Draw at seeds and positions where the reference draws from the tail: the tiles alone tell."""
    counts = np.bincount(np.arange(size) // TILE_SIZE)
    head_tile, num_draws = head // TILE_SIZE, 0
    for gap, num_positions in _EXACT_TAILS:
        masses = counts * np.exp(-gap)
        masses[head_tile] += 1 - np.exp(-gap)
        seed = int(trial.generator(f"seed {gap}").integers(2**63))
        positions = _tail_positions(seed, masses, head_tile, subject.effort.rows(num_positions))
        row = np.full(size, np.float32(-gap))
        row[head] = 0
        tokens = subject.tokens(
            torch.from_numpy(row).to(subject.device).expand(len(positions), -1),
            SamplingParams(seed=seed),
            positions,
        )
        prepared = reference.prepare(row, SamplingParams())
        for position, token in zip(positions, tokens, strict=True):
            expected, lead = reference.draw(prepared, seed, position, subject.gumbel_dtype)
            trial.require(
                token == expected or lead < reference.NEAR_TIE,
                f"gap {gap:g}: seed {seed} at position {position} needs token {expected} of the tail, found {token}",
            )
        num_draws += len(positions)
    return num_draws


def _tail_positions(seed: int, masses: Array, head_tile: int, count: int) -> list[int]:
    tail_positions: list[int] = []
    tiles, log_masses = np.arange(len(masses)), np.log(masses)
    tail = np.delete(tiles, head_tile)
    for start in range(0, 1 << 20, 1 << 12):
        positions = np.arange(start, start + (1 << 12))
        head = log_masses[head_tile] + reference.gumbel(seed, positions, head_tile, reference.TILE)
        # Only a head with little luck can lose to a tail, so only there is the noise of the tail worked out.
        is_likely = masses[head_tile] > 0.9
        candidates = positions[head < np.sort(head)[len(head) // 16]] if is_likely else positions
        score = log_masses[tail] + reference.gumbel(seed, candidates[:, None], tail, reference.TILE)
        head_score = log_masses[head_tile] + reference.gumbel(seed, candidates, head_tile, reference.TILE)
        tail_positions += candidates[score.max(1) > head_score].tolist()
        if len(tail_positions) >= count:
            break
    return tail_positions[:count]


@properties.required("structure")
def structure(subject: SampleSubject, trial: Trial) -> str:
    """No seam shows: the halves of the ids, the last partial tile, lanes, and the first and last of a tile."""
    size, draws = 2500, subject.effort.tiled_draws
    row = np.zeros(size, np.float32)
    ids = np.arange(size)
    pools = {
        "halves of the vocabulary": (ids >= size // 2).astype(int),
        "tiles, the last partial": ids // TILE_SIZE,
        "lanes of 32": ids % 32,
        "tiles of 128": ids // 128,
        "ends of tiles": np.isin(ids % TILE_SIZE, np.r_[0:16, TILE_SIZE - 16 : TILE_SIZE]).astype(int),
    }
    draws_by_count: dict[int, Array] = {}

    def experiment(rng: Generator, count: int, bins: Array) -> Verdict:
        if count not in draws_by_count:  # one set of draws serves every way of pooling it
            draws_by_count[count] = draw_many(subject, row, SamplingParams(), count, rng)
        return fit(draws_by_count[count], np.full(size, 1 / size), bins)

    for label, bins in pools.items():
        trial.judge(label, lambda rng, count, bins=bins: experiment(rng, count, bins), draws)  # type: ignore[misc]
    return f"{len(pools)} ways of pooling {size} equal tokens"


@properties.required("levels of the draw")
def levels(subject: SampleSubject, trial: Trial) -> str:
    """The drawn tile says nothing about the token within it: no noise serves both."""
    limit = subject.capabilities.max_vocab_size
    tiles = 4 if limit is None else min(4, limit // TILE_SIZE)
    if tiles < 2:
        trial.skip(f"needs a vocabulary of two tiles, {2 * TILE_SIZE:,}, found a limit of {limit:,}")
    row = np.full(tiles * TILE_SIZE, -np.inf, np.float32)
    row[np.add.outer(np.arange(tiles) * TILE_SIZE, np.arange(tiles)).ravel()] = 0  # ids 0 to 3 of every tile
    for seeded in seedings(subject.capabilities):

        def experiment(rng: Generator, draws: int, seeded: bool = seeded) -> Verdict:
            tokens = draw_many(subject, row, SamplingParams(), draws, rng, seeded=seeded)
            return independence(
                tokens // TILE_SIZE,
                tokens % TILE_SIZE,
                np.full(tiles, 1 / tiles),
                "number of tile and of token",
            )

        trial.judge("tile against token" + ", seeded" * seeded, experiment, subject.effort.tiled_draws)
    return f"{tiles} tiles of {tiles} tokens"
