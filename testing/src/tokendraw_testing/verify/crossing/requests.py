"""Requests of a crossing: drafts, fates and special values, and seeds for narrow decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import DraftKind, GumbelDtype, VerifyMode
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.crossing.factors import Site
from tokendraw_testing.rows.requests import describe
from tokendraw_testing.verify.crossing import rows as crossed_rows
from tokendraw_testing.verify.crossing.noise import FIRST_POSITIONS, AcceptanceNoise
from tokendraw_testing.verify.draft_batch import OUTSIDE_ID, round_to_dtype

Array = NDArray[Any]

FATES: Final = (
    "all accepted",
    "rejected first",
    "rejected midway",
    "rejected last",
    "placeholder first",
    "placeholder",
)
_RANDOM_SHARE: Final = 0.35
"""Share of narrow and of certain decisions about a random open token."""
_SMALL_RATIO: Final = 0.003
"""Least p / q of a random token; dozens of the seeds accept at it."""
_LARGE_PROBABILITY: Final = 0.05
"""Probability of a draft that a wrong residual would often recover."""
_WIDE_SIZE: Final = 8192
"""Above this V a request has two different rows and a bonus row, since each costs the reference milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """Common properties of all requests of a call."""

    site: Site
    """Of the target's rows."""
    draft_dtype: str
    """Of the drafts' rows, by its torch name."""
    mode: VerifyMode
    kind: DraftKind
    gumbel_dtype: GumbelDtype = "fp32"


@dataclass(frozen=True, kw_only=True)
class DraftRequest:
    """A request with rows in the dtypes of its call."""

    params: SamplingParams
    first: int
    """Position of the first row."""
    target: list[Array]
    """n + 1 rows [V] float32, some of them the same."""
    rows: list[reference.ReferenceRow]
    """The same rows after temperature and filters."""
    draft: list[Array]
    """n rows [V] float32: logits or probabilities, by the kind of the call; none of drafts that were chosen."""
    draft_rows: list[reference.ReferenceRow]
    """The rows after temperature and filters, if the call reads draft logits."""
    ids: list[int]
    about: str
    """Description of the family, fate and special values."""

    def __str__(self) -> str:
        seed = (
            "no seed" if self.params.seed is None else f"seed {self.params.seed} from position {self.first}"
        )
        joint = ", joint" if self.params.filter_order == "joint" else ""
        return f"{describe(self.params)}{joint}, {seed}, drafts {self.ids} ({self.about})"


def make_request(
    rng: Generator, form: Form, case: Mapping[str, Any], params: SamplingParams, noise: AcceptanceNoise
) -> DraftRequest:
    """Make a request.

    :param case: ``drafts`` K, ``fate``, ``family`` of rows, ``poison`` (where, what) and whether it is ``seeded``.
    :param noise: where seeds are chosen from.
    """
    count = case["drafts"]
    fate = case["fate"] if count else "all accepted"
    first = int(rng.choice(FIRST_POSITIONS))
    seed = int(rng.choice(noise.seeds)) if case["seeded"] else None
    end = {
        "all accepted": count,
        "rejected first": 0,
        "rejected midway": count // 2,
        "rejected last": count - 1,
        "placeholder first": 0,
        "placeholder": int(rng.integers(count)) if count else 0,
    }[fate]
    builder = _RequestBuilder(
        rng, form, case["family"], replace(params, seed=seed), first, count, end, case["poison"]
    )
    is_matched = form.mode == "coupled" or builder.is_greedy
    ids = builder.matching_ids(fate) if is_matched else builder.judged_ids(fate, noise)
    unused_ids = rng.integers(0, form.site.size, count - len(ids)).tolist()
    return DraftRequest(
        params=builder.params,
        first=first,
        target=builder.target,
        rows=[builder.row(x) for x in builder.target],
        draft=builder.draft if form.kind != "chosen" else [],
        draft_rows=[builder.row(x) for x in builder.draft]
        if form.kind == "logits" and form.mode != "coupled"
        else [],
        ids=[*ids, *unused_ids],
        about=f"{case['family']}, {fate}" + f", {' '.join(case['poison'])}" * bool(case["poison"]),
    )


class _RequestBuilder:
    """Rows of one request, and ids with the fate of the case."""

    def __init__(
        self,
        rng: Generator,
        form: Form,
        family: str,
        params: SamplingParams,
        first: int,
        count: int,
        end: int,
        poison: tuple[str, str] | tuple[()],
    ) -> None:
        self.rng, self.form, self.params, self.first = rng, form, params, first
        self.count, self.end, self.size = count, end, form.site.size
        self.is_greedy = not params.temperature > 0
        self._rows_of: dict[int, tuple[Array, reference.ReferenceRow]] = {}
        num_rows = count + 1 if self.size <= _WIDE_SIZE else min(count + 1, 3)
        draft_params = SamplingParams() if form.kind == "probs" and rng.random() < 0.3 else params
        row_pairs = [
            self._rows(family, draft_params, has_sure_token=form.kind == "chosen" and 0 < step < num_rows - 1)
            for step in range(num_rows)
        ]
        order = [step if step < num_rows - 1 else (step - 1) % max(num_rows - 1, 1) for step in range(count)]
        self.target = [row_pairs[step][0] for step in (*order, num_rows - 1)]
        self.draft = [row_pairs[step][1] for step in order]
        if poison:
            self._poison(*poison)

    def _rows(
        self, family: str, draft_params: SamplingParams, *, has_sure_token: bool
    ) -> tuple[Array, Array]:
        """Make a row of the target and a row of the draft, of logits or of probabilities."""
        rng, form = self.rng, self.form
        y, draft_y = crossed_rows.make_pair(rng, family, self.size, self.params)
        if has_sure_token:  # a chosen draft is accepted by p alone
            y[int(rng.choice(crossed_rows.corner_ids(rng, self.size, min(self.size, 14))))] = y.max() + 9.0
        if self.is_greedy:
            ids = crossed_rows.corner_ids(rng, self.size, min(self.size, 4))
            y[ids] = y.max()
        target = round_to_dtype(crossed_rows.scale_to_logits(y, self.params, rng), form.site.dtype)
        draft = crossed_rows.scale_to_logits(draft_y, self.params, rng).astype(np.float32)
        if form.kind == "probs" and form.mode != "coupled":
            draft = reference_walk.distribution(reference.prepare(draft, draft_params))
        return target, round_to_dtype(draft, form.draft_dtype)

    def _poison(self, where: str, what: str) -> None:
        """Put special values into one row: the bonus row, an unused row, or a used row."""
        probs = self.form.kind == "probs"
        rows, step = self.target, self.count
        if where == "behind":
            step = min(self.end + 1, self.count)
        elif where == "used":
            step = int(self.rng.integers(min(self.end, self.count) + 1))
        elif where.startswith("draft"):
            rows, step = self.draft, min(self.end + (where == "draft behind"), self.count - 1)
        if rows:
            on_probs = probs and rows is self.draft
            rows[step] = crossed_rows.poison_row(self.rng, rows[step], what, probs=on_probs)

    def matching_ids(self, fate: str) -> list[int]:
        """Return drafts equal to the target's draws, up to the rejected draft."""
        rng, ids = self.rng, []
        for step in range(min(self.end + 1, self.count)):
            row = self.row(self.target[step])
            sampled = self._draw(row, step)
            if step < self.end:
                ids.append(sampled)
                continue
            candidates = np.flatnonzero(row.x == row.x.max()) if self.is_greedy else np.flatnonzero(row.kept)
            other_tokens = candidates[candidates != sampled]
            rejected_token = int(rng.choice(other_tokens)) if len(other_tokens) else (sampled + 1) % self.size
            ids.append(self._outside() if fate.startswith("placeholder") else rejected_token)
        return ids

    def _draw(self, row: reference.ReferenceRow, step: int) -> int:
        if self.params.seed is None and not self.is_greedy:
            return int(self.rng.choice(self.size, p=reference_walk.distribution(row)))
        return reference.draw(row, self.params.seed or 0, self.first + step, self.form.gumbel_dtype)[0]

    def judged_ids(self, fate: str, noise: AcceptanceNoise) -> list[int]:
        """Return accepted drafts up to the rejected draft, with one narrow decision."""
        rng, last = self.rng, min(self.end, self.count - 1)
        if self.count == 0:
            return []
        is_rejected = self.end < self.count
        critical_step = (
            last
            if is_rejected and not fate.startswith("placeholder") and rng.random() < 0.5
            else int(rng.integers(last + 1))
        )
        ids, ratios = [], []
        for step in range(last + 1):
            if fate.startswith("placeholder") and step == self.end:
                ids.append(self._outside())
                continue
            p, q = reference_walk.distribution(self.row(self.target[step])), self._q(step)
            x = _pick_narrow(rng, p, q) if step == critical_step else None
            if x is None:
                x = _pick_rejected(rng, p, q) if is_rejected and step == last else _pick_accepted(rng, p, q)
            ids.append(x)
            draft_probability = 1.0 if q is None else q[x]
            ratios.append(float(p[x] / draft_probability) if draft_probability > 0 else 0.0)
        if self.params.seed is not None and ratios:
            is_last_rejected = is_rejected and not fate.startswith("placeholder")
            seed = noise.narrow(self.first, ratios, is_last_rejected, min(critical_step, len(ratios) - 1))
            self.params = self.params if seed is None else replace(self.params, seed=seed)
        return ids

    def row(self, x: Array) -> reference.ReferenceRow:
        """Prepare a row once."""
        if id(x) not in self._rows_of:
            self._rows_of[id(x)] = x, reference.prepare(x, self.params)
        return self._rows_of[id(x)][1]

    def _q(self, step: int) -> Array | None:
        """Return the draft distribution of a step [V]; None for a chosen draft."""
        if self.form.kind == "chosen":
            return None
        if self.form.kind == "probs":
            return usable_probs(self.draft[step])
        return reference_walk.distribution(self.row(self.draft[step]))

    def _outside(self) -> int:
        return int(self.rng.choice([-1, -1, -1, self.size, OUTSIDE_ID]))


def usable_probs(row: Array) -> Array:
    """Return probabilities [V] float64 with 0 in place of NaN, negative and infinite values."""
    probabilities = row.astype(np.float64)
    return np.where((probabilities > 0) & (probabilities < np.inf), probabilities, 0.0)


def _pick_accepted(rng: Generator, p: Array, q: Array | None) -> int:
    """Pick a draft accepted for certain, now and then an unlikely draft; else the likeliest draft."""
    sure_mass = np.zeros_like(p) if q is None else np.where((q > 0) & (p >= 1.02 * q), p, 0.0)
    if not sure_mass.any():
        return int((p if q is None else np.where(q > 0, p / np.where(q > 0, q, 1.0), 0.0)).argmax())
    if rng.random() < _RANDOM_SHARE:
        return int(rng.choice(np.flatnonzero(sure_mass)))
    return int(rng.choice(np.argsort(-sure_mass)[: min(6, int((sure_mass > 0).sum()))]))


def _pick_narrow(rng: Generator, p: Array, q: Array | None) -> int | None:
    """Pick a draft with an acceptance that depends on u, mostly a likely draft; None without any."""
    ratio = p if q is None else np.divide(p, q, out=np.zeros_like(p), where=q > 0)
    is_random = rng.random() < _RANDOM_SHARE
    open_mass = np.where((ratio > (_SMALL_RATIO if is_random else 0.1)) & (ratio < 0.9995), p, 0.0)
    if not open_mass.any():
        return None
    if is_random:
        return int(rng.choice(np.flatnonzero(open_mass)))
    return int(rng.choice(np.argsort(-open_mass)[: min(12, int((open_mass > 0).sum()))]))


def _pick_rejected(rng: Generator, p: Array, q: Array | None) -> int:
    """Pick a draft of little, no, or much but less target mass, or a draft of no draft mass."""
    ways = (
        [np.flatnonzero(p == 0)]
        if q is None
        else [np.flatnonzero((p == 0) & (q > 0)), np.flatnonzero((q == 0) & (p > 0))]
    )
    draft_probabilities = np.ones_like(p) if q is None else q
    smaller_mass = np.where(p < 0.9 * draft_probabilities, p, 0.0)
    likeliest = (smaller_mass == smaller_mass.max()) & (smaller_mass > _LARGE_PROBABILITY)
    likeliest_tokens = np.flatnonzero(likeliest)
    ways += [np.argsort(p - draft_probabilities)[:8], likeliest_tokens, likeliest_tokens]
    nonempty_ways = [way for way in ways if len(way)]
    return int(rng.choice(nonempty_ways[int(rng.integers(len(nonempty_ways)))]))
