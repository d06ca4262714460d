"""Requests of a crossing: drafts, fates and poison, and seeds that make the decisions narrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import DraftKind, GumbelDtype, VerifyMode
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.crossing.factors import Site
from tokendraw_testing.rows.requests import described
from tokendraw_testing.verify.crossing import rows as crossed_rows
from tokendraw_testing.verify.crossing.noise import FIRST, AcceptanceNoise
from tokendraw_testing.verify.drafting import ID_OUTSIDE, rounded

Array = NDArray[Any]

FATES: Final = (
    "all accepted",
    "rejected first",
    "rejected midway",
    "rejected last",
    "placeholder first",
    "placeholder",
)
_UNLIKELY: Final = 0.35
"""Share of narrow decisions, and of certain ones, about any token that is open to them."""
_MUCH: Final = 0.05
"""Probability of a draft that would often be recovered if a residual still held it."""
_WIDE: Final = 8192
"""Above this V a request has two different rows and a bonus row, since each costs the reference milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """Holds what all requests of a call have in common."""

    site: Site
    """Of the target's rows."""
    draft_dtype: str
    """Of the drafts' rows, by its torch name."""
    mode: VerifyMode
    kind: DraftKind
    gumbel_dtype: GumbelDtype = "fp32"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request, with rows that hold values of the dtypes of its call."""

    params: SamplingParams
    first: int
    """Position of its first row."""
    target: list[Array]
    """n + 1 rows [V] float32, some of them the same."""
    rows: list[reference.Row]
    """The same rows after temperature and filters."""
    draft: list[Array]
    """n rows [V] float32: logits or probabilities, by the kind of the call; none of drafts that were chosen."""
    draft_rows: list[reference.Row]
    """The same rows after temperature and filters, where they are logits that somebody looks at."""
    ids: list[int]
    about: str
    """Says how it was made."""

    def __str__(self) -> str:
        seed = (
            "no seed" if self.params.seed is None else f"seed {self.params.seed} from position {self.first}"
        )
        joint = ", joint" if self.params.filter_order == "joint" else ""
        return f"{described(self.params)}{joint}, {seed}, drafts {self.ids} ({self.about})"


def design(
    rng: np.random.Generator,
    form: Form,
    case: Mapping[str, Any],
    params: SamplingParams,
    noise: AcceptanceNoise,
) -> Request:
    """Make a request.

    :param case: ``drafts`` K, ``fate``, ``family`` of rows, ``poison`` (where, what) and whether it is ``seeded``.
    :param noise: where seeds are chosen from.
    """
    count = case["drafts"]
    fate = case["fate"] if count else "all accepted"
    first = int(rng.choice(FIRST))
    seed = int(rng.choice(noise.seeds)) if case["seeded"] else None
    end = {
        "all accepted": count,
        "rejected first": 0,
        "rejected midway": count // 2,
        "rejected last": count - 1,
        "placeholder first": 0,
        "placeholder": int(rng.integers(count)) if count else 0,
    }[fate]
    made = _Making(rng, form, case["family"], replace(params, seed=seed), first, count, end, case["poison"])
    ids = made.matching(fate) if form.mode == "coupled" or made.is_greedy else made.judged(fate, noise)
    behind = rng.integers(0, form.site.size, count - len(ids)).tolist()
    return Request(
        params=made.params,
        first=first,
        target=made.target,
        rows=[made.row(x) for x in made.target],
        draft=made.draft if form.kind != "chosen" else [],
        draft_rows=[made.row(x) for x in made.draft]
        if form.kind == "logits" and form.mode != "coupled"
        else [],
        ids=[*ids, *behind],
        about=f"{case['family']}, {fate}" + f", {' '.join(case['poison'])}" * bool(case["poison"]),
    )


class _Making:
    """Rows of one request, and ids that meet the fate that is asked for."""

    def __init__(
        self,
        rng: np.random.Generator,
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
        self._rows_of: dict[int, tuple[Array, reference.Row]] = {}
        own = count + 1 if self.size <= _WIDE else min(count + 1, 3)
        given = SamplingParams() if form.kind == "probs" and rng.random() < 0.3 else params
        made = [
            self._rows(family, given, sure=form.kind == "chosen" and 0 < step < own - 1)
            for step in range(own)
        ]
        order = [step if step < own - 1 else (step - 1) % max(own - 1, 1) for step in range(count)]
        self.target = [made[step][0] for step in (*order, own - 1)]
        self.draft = [made[step][1] for step in order]
        if poison:
            self._poison(*poison)

    def _rows(self, family: str, given: SamplingParams, *, sure: bool) -> tuple[Array, Array]:
        """Make a row of the target and one of the draft, of logits or of probabilities."""
        rng, form = self.rng, self.form
        y, other = crossed_rows.pair(rng, family, self.size, self.params)
        if sure:  # a chosen draft is accepted by p alone
            y[int(rng.choice(crossed_rows.places(rng, self.size, min(self.size, 14))))] = y.max() + 9.0
        if self.is_greedy:
            ids = crossed_rows.places(rng, self.size, min(self.size, 4))
            y[ids] = y.max()
        x = rounded(crossed_rows.scaled(y, self.params, rng), form.site.dtype)
        d = crossed_rows.scaled(other, self.params, rng).astype(np.float32)
        if form.kind == "probs" and form.mode == "rejection":
            d = reference_walk.distribution(reference.prepare(d, given))
        return x, rounded(d, form.draft_dtype)

    def _poison(self, where: str, what: str) -> None:
        """Put what a broken model leaves into one row: the bonus row, one behind the last used one, or a used one."""
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
            rows[step] = crossed_rows.poisoned(self.rng, rows[step], what, probs=on_probs)

    def matching(self, fate: str) -> list[int]:
        """Return drafts equal to what the target draws, up to the one that is to be rejected."""
        rng, ids = self.rng, []
        for step in range(min(self.end + 1, self.count)):
            row = self.row(self.target[step])
            own = self._own(row, step)
            if step < self.end:
                ids.append(own)
                continue
            kept = np.flatnonzero(row.x == row.x.max()) if self.is_greedy else np.flatnonzero(row.kept)
            others = kept[kept != own]
            other = int(rng.choice(others)) if len(others) else (own + 1) % self.size
            ids.append(self._outside() if fate.startswith("placeholder") else other)
        return ids

    def _own(self, row: reference.Row, step: int) -> int:
        if self.params.seed is None and not self.is_greedy:
            return int(self.rng.choice(self.size, p=reference_walk.distribution(row)))
        return reference.draw(row, self.params.seed or 0, self.first + step, self.form.gumbel_dtype)[0]

    def judged(self, fate: str, noise: AcceptanceNoise) -> list[int]:
        """Return drafts that are accepted up to the one that is to be rejected, one of them by a narrow decision."""
        rng, last = self.rng, min(self.end, self.count - 1)
        if self.count == 0:
            return []
        rejected = self.end < self.count
        critical = (
            last
            if rejected and not fate.startswith("placeholder") and rng.random() < 0.5
            else int(rng.integers(last + 1))
        )
        ids, ratios = [], []
        for step in range(last + 1):
            if fate.startswith("placeholder") and step == self.end:
                ids.append(self._outside())
                continue
            p, q = reference_walk.distribution(self.row(self.target[step])), self._q(step)
            x = _narrow(rng, p, q) if step == critical else None
            if x is None:
                x = _rejected(rng, p, q) if rejected and step == last else _accepted(rng, p, q)
            ids.append(x)
            given = 1.0 if q is None else q[x]
            ratios.append(float(p[x] / given) if given > 0 else 0.0)
        if self.params.seed is not None and ratios:
            is_last_rejected = rejected and not fate.startswith("placeholder")
            seed = noise.narrow(self.first, ratios, is_last_rejected, min(critical, len(ratios) - 1))
            self.params = self.params if seed is None else replace(self.params, seed=seed)
        return ids

    def row(self, x: Array) -> reference.Row:
        """Prepare a row once."""
        if id(x) not in self._rows_of:
            self._rows_of[id(x)] = x, reference.prepare(x, self.params)
        return self._rows_of[id(x)][1]

    def _q(self, step: int) -> Array | None:
        """Return what a draft was drawn by: [V]; None: it was chosen."""
        if self.form.kind == "chosen":
            return None
        if self.form.kind == "probs":
            return given_probs(self.draft[step])
        return reference_walk.distribution(self.row(self.draft[step]))

    def _outside(self) -> int:
        return int(self.rng.choice([-1, -1, -1, self.size, ID_OUTSIDE]))


def given_probs(row: Array) -> Array:
    """Return probabilities [V] float64 as they count: 0 for NaN, negative and infinite ones."""
    given = row.astype(np.float64)
    return np.where((given > 0) & (given < np.inf), given, 0.0)


def _accepted(rng: np.random.Generator, p: Array, q: Array | None) -> int:
    """Pick a draft that is accepted for certain if there is one, now and then an unlikely one, else the likeliest."""
    sure = np.zeros_like(p) if q is None else np.where((q > 0) & (p >= 1.02 * q), p, 0.0)
    if not sure.any():
        return int((p if q is None else np.where(q > 0, p / np.where(q > 0, q, 1.0), 0.0)).argmax())
    if rng.random() < _UNLIKELY:
        return int(rng.choice(np.flatnonzero(sure)))
    return int(rng.choice(np.argsort(-sure)[: min(6, int((sure > 0).sum()))]))


def _narrow(rng: np.random.Generator, p: Array, q: Array | None) -> int | None:
    """Pick a draft whose acceptance depends on u, mostly a likely one; None if there is none."""
    ratio = p if q is None else np.divide(p, q, out=np.zeros_like(p), where=q > 0)
    open_to = np.where((ratio > 0.1) & (ratio < 0.9995), p, 0.0)
    if not open_to.any():
        return None
    if rng.random() < _UNLIKELY:
        return int(rng.choice(np.flatnonzero(open_to)))
    return int(rng.choice(np.argsort(-open_to)[: min(12, int((open_to > 0).sum()))]))


def _rejected(rng: np.random.Generator, p: Array, q: Array | None) -> int:
    """Pick a draft that the target has little mass for, none at all, much but less, or that cannot have been drawn."""
    ways = (
        [np.flatnonzero(p == 0)]
        if q is None
        else [np.flatnonzero((p == 0) & (q > 0)), np.flatnonzero((q == 0) & (p > 0))]
    )
    given = np.ones_like(p) if q is None else q
    less = np.where(p < 0.9 * given, p, 0.0)
    likeliest = np.flatnonzero((less == less.max()) & (less > _MUCH))
    ways += [np.argsort(p - given)[:8], likeliest, likeliest]
    found = [way for way in ways if len(way)]
    return int(rng.choice(found[int(rng.integers(len(found)))]))
