"""Requests with drafts: their fates, special values, seeds for narrow decisions, and their calls."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import Drafts, SamplingMetadata, SamplingParams, VerifyOutput
from tokendraw.plugin import DraftKind, GumbelDtype, LogprobsMode, VerifyCapabilities, VerifyMode
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.cases import factors
from tokendraw_testing.cases.draft_rows import (
    FAMILIES,
    FIRST_POSITIONS,
    LARGE_SIZE,
    VALUE_FAMILIES,
    AcceptanceNoise,
    corner_ids,
    make_pair,
    poison_row,
    scale_to_logits,
)
from tokendraw_testing.cases.factors import Case, Factors, Site, random_case
from tokendraw_testing.cases.requests import Fields, describe, further_params, per_row
from tokendraw_testing.cases.telling import POSITION, VOCAB_SIZE, place_row, telling_draft, telling_rows
from tokendraw_testing.subjects import VerifySubject, row_metadata

Array = NDArray[Any]

OUTSIDE_ID: Final = 2**31 - 1
"""An id outside every vocabulary."""
WIDE_SIZE: Final = 1 << 16
LAYOUTS: Final = ("flat", "padded", "padded int32", "padded, rows behind")
"""Of the ids: [L - B], or [B, K] with more rows of logits than the requests have."""
_EXTRA_ROWS: Final = 3

_DRAFT_NAN: Final = ("draft", "NaN")
"""NaN in a draft row, which only some modes and kinds of drafts read."""
_DRAFT_BELOW_0: Final = ("draft", "-1")
"""Negative probabilities in a draft row."""
POISON: Final = (
    (),
    ("bonus", "NaN"),
    ("bonus", "nothing"),
    ("bonus", "+inf"),
    ("behind", "NaN"),
    ("used", "NaN"),
    _DRAFT_NAN,
    ("draft behind", "nothing"),
)
"""Places of special values, and the values."""
_DRAFTS: Final = (0, 1, 2, 5, 8, 9, 16)
_WIDE_DRAFTS: Final = (0, 1, 3, 9)
"""Numbers of drafts in wide vocabularies."""
_MOST_DISTINCT: Final = 7
"""Requests of a call that differ; a larger batch holds them several times."""
_MOST_ELEMENTS: Final = 1 << 21
"""Logits of the target in a large batch."""
_REQUEST_FACTORS: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "filter_order",
    "best",
    "seeded",
    "drafts",
    "fate",
    "family",
    "poison",
)
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
_RARE_PROBABILITY: Final = 0.02
"""Probability below which a kernel may take a draft for impossible."""
_LARGE_PROBABILITY: Final = 0.05
"""Probability of a draft that a wrong residual would often recover."""


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

    @property
    def draft_row(self) -> reference.ReferenceRow:
        """Return the first row as one to draw a draft from, without XTC."""
        if not self.params.xtc_probability > 0:
            return self.rows[0]
        return reference.prepare(self.target[0], replace(self.params, xtc_probability=0.0))

    def __str__(self) -> str:
        return self._words

    @functools.cached_property
    def _words(self) -> str:
        seed = (
            "no seed" if self.params.seed is None else f"seed {self.params.seed} from position {self.first}"
        )
        joint = ", joint" if self.params.filter_order == "joint" else ""
        return f"{describe(self.params)}{joint}, {seed}, drafts {self.ids} ({self.about})"


def prepare_row(
    x: Array, params: SamplingParams, position: int | None = None, dtype: str = "fp32"
) -> reference.ReferenceRow:
    """Prepare a row of a target at its position, or of drafts: these have no XTC."""
    is_applied = position is not None and params.xtc_probability > 0
    if is_applied:
        is_applied = reference.applies_xtc(params, params.seed or 0, position or 0, dtype)
    return reference.prepare(x, replace(params, xtc_probability=float(is_applied)))


def rounded(values: Array, dtype: str) -> Array:
    """Round to a dtype by its torch name; the result is float32, which holds every value of the dtype."""
    result: Array = torch.from_numpy(np.asarray(values, np.float32)).to(getattr(torch, dtype)).float().numpy()
    return result


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
    if seed is None and params.xtc_probability > 0:
        params = replace(params, xtc_probability=1.0)
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
        rows=[builder.target_row(step) for step in range(count + 1)],
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
        self._rows_of: dict[tuple[int, int | None], tuple[Array, reference.ReferenceRow]] = {}
        num_rows = count + 1 if self.size <= LARGE_SIZE else min(count + 1, 3)
        draft_params = SamplingParams() if form.kind == "probs" and rng.random() < 0.3 else params
        draft_params = replace(draft_params, xtc_probability=0.0)
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
        y, draft_y = make_pair(rng, family, self.size, self.params)
        if has_sure_token:  # a chosen draft is accepted by p alone
            y[int(rng.choice(corner_ids(rng, self.size, min(self.size, 14))))] = y.max() + 9.0
        if self.is_greedy:
            ids = corner_ids(rng, self.size, min(self.size, 4))
            y[ids] = y.max()
        target = rounded(scale_to_logits(y, self.params, rng), form.site.dtype)
        draft = scale_to_logits(draft_y, self.params, rng).astype(np.float32)
        if form.kind == "probs" and form.mode != "coupled":
            draft = reference_walk.distribution(reference.prepare(draft, draft_params))
        return target, rounded(draft, form.draft_dtype)

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
            rows[step] = poison_row(self.rng, rows[step], what, probs=on_probs)

    def matching_ids(self, fate: str) -> list[int]:
        """Return drafts equal to the target's draws, up to the rejected draft."""
        rng, ids = self.rng, []
        for step in range(min(self.end + 1, self.count)):
            row = self.target_row(step)
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
            p, q = reference_walk.distribution(self.target_row(step)), self._q(step)
            x = _pick_narrow(rng, p, q) if step == critical_step else None
            if x is None:
                x = _pick_rejected(rng, p, q) if is_rejected and step == last else _pick_accepted(rng, p, q)
            ids.append(x)
            draft_probability = 1.0 if q is None else q[x]
            ratios.append(float(p[x] / draft_probability) if draft_probability > 0 else 0.0)
        if self.params.seed is not None and ratios and not self.params.xtc_probability > 0:
            is_last_rejected = is_rejected and not fate.startswith("placeholder")
            seed = noise.narrow(self.first, ratios, is_last_rejected, min(critical_step, len(ratios) - 1))
            self.params = self.params if seed is None else replace(self.params, seed=seed)
        return ids

    def target_row(self, step: int) -> reference.ReferenceRow:
        """Prepare a row of the target; XTC is decided at its position."""
        return self.row(self.target[step], self.first + step if self.params.xtc_probability > 0 else None)

    def row(self, x: Array, position: int | None = None) -> reference.ReferenceRow:
        """Prepare a row once."""
        key = id(x), position
        if key not in self._rows_of:
            self._rows_of[key] = x, prepare_row(x, self.params, position, self.form.gumbel_dtype)
        return self._rows_of[key][1]

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
    rare = np.flatnonzero((open_mass > 0) & (open_mass < _RARE_PROBABILITY))
    if is_random and len(rare) and rng.random() < 0.5:
        return int(rng.choice(rare))
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


def draft_factors(subject: VerifySubject, sites: list[Site]) -> Factors:
    """Return the factors of calls and their requests."""
    capabilities: VerifyCapabilities = subject.capabilities
    numbers = _DRAFTS if any(site.size <= WIDE_SIZE for site in sites) else _WIDE_DRAFTS
    drafts = numbers if capabilities.ragged_drafts else numbers[1:]
    requests = factors.request_factors(per_row(capabilities))
    if capabilities.greedy:
        requests["temperature"] = (*requests["temperature"], 0.0)
    return {
        "site": sites,
        "draft_dtype": capabilities.dtypes,
        "way": _narrow_ways(subject) if numbers is _DRAFTS else _wide_ways(subject),
        "gumbel_dtype": tuple({subject.gumbel_dtype: None} | dict.fromkeys(capabilities.gumbel_dtypes)),
        "logprobs_mode": (None, *capabilities.logprobs_modes),
        "layout": (LAYOUTS[0], *LAYOUTS) if capabilities.ragged_drafts else LAYOUTS[:1],
        "batch": (1, 2, 9, *[65] * (not subject.effort.mixed), subject.effort.crossed_batch),
        **requests,
        "best": (None, 0, 1, 5, 21, 50, -1) if capabilities.logprobs_modes else (None,),
        "seeded": (True, True, True, False) if capabilities.seeding == "counter" else (False,),
        "drafts": drafts,
        "fate": FATES if capabilities.placeholder_drafts else FATES[:-2],
        "family": FAMILIES
        if capabilities.tie_rule == "value"
        else tuple(family for family in FAMILIES if family not in VALUE_FAMILIES),
        "poison": (*POISON, _DRAFT_BELOW_0) if numbers is _DRAFTS else (*POISON, _DRAFT_NAN, _DRAFT_NAN),
    }


def _narrow_ways(subject: VerifySubject) -> list[tuple[VerifyMode, DraftKind]]:
    """Return every way, and rejection twice beside blocks, which more requests use."""
    has_block = any(mode == "block" for mode, _ in subject.ways)
    return [*subject.ways, *(way for way in subject.ways if has_block and way[0] == "rejection")]


def _wide_ways(subject: VerifySubject) -> list[tuple[VerifyMode, DraftKind]]:
    """Return the ways with two reads of a draft's rows, and one coupled way without any read."""
    rejection_ways = [way for way in subject.ways if way[0] == "rejection"]
    two_pass_ways = [way for way in rejection_ways if way[1] != "chosen"]
    coupled_ways, block_ways = (
        [way for way in subject.ways if way[0] == mode] for mode in ("coupled", "block")
    )
    return [*rejection_ways, *two_pass_ways, *coupled_ways[-1:], *block_ways[:2]]


def is_allowed(case: Mapping[str, Any]) -> bool:
    """Allow batches within the limit on logits, if :func:`factors.is_allowed` allows the case."""
    site, batch, drafts = case.get("site"), case.get("batch", 1), case.get("drafts", 0)
    copies = 4 if batch > _MOST_DISTINCT else 1
    if site is not None and (batch - 1) * site.size * copies > _MOST_ELEMENTS // 8:
        return False
    if site is not None and site.size > WIDE_SIZE and case.get("best") == -1 and (drafts > 1 or batch > 1):
        return False
    if case.get("fate", FATES[0]) != FATES[0] and drafts == 0 and "drafts" in case:
        return False
    mode, kind = case.get("way", ("rejection", "probs"))
    if case.get("poison") == _DRAFT_BELOW_0 and (mode == "coupled" or kind != "probs"):
        return False
    return factors.is_allowed(case)


@dataclass(frozen=True, kw_only=True)
class CrossedCall:
    """A verification of requests of one form; a request may occur several times."""

    form: Form
    requests: list[DraftRequest]
    order: list[int]
    """The request in each place of the batch."""
    logprobs_mode: LogprobsMode | None
    layout: str
    """How the ids are laid out, one of :data:`LAYOUTS`."""

    def __str__(self) -> str:
        form = self.form
        dtype_text = "" if form.kind == "chosen" else f" in {form.draft_dtype}"
        return (
            f"{form.site}, {form.mode}, {form.kind}{dtype_text}, {form.gumbel_dtype} noise, B = {len(self.order)}"
            + f", {self.layout} ids"
        )

    def of_most_drafts(self) -> CrossedCall:
        """Return the call of the request with the most drafts alone."""
        request_of_most = max(self.requests, key=lambda request: len(request.ids))
        return replace(self, requests=[request_of_most], order=[0])

    def arguments(self, subject: VerifySubject) -> tuple[torch.Tensor, Drafts, SamplingMetadata]:
        """Lay out the logits of the target, the drafts and the metadata on the device."""
        form, batch = self.form, [self.requests[i] for i in self.order]
        ids = [request.ids for request in batch]
        draft = [row for request in batch for row in request.draft]
        draft_rows = self._on(subject, draft, form.draft_dtype) if form.kind != "chosen" else None
        flat = subject.drafts(ids, form.site.size, form.kind, draft_rows)
        target = self._on(subject, [row for request in batch for row in request.target], form.site.dtype)
        metadata = row_metadata(flat, [r.params for r in batch], [r.first for r in batch])
        drafts = flat if self.layout == "flat" else _pad_ids(flat, ids, self.layout)
        if self.layout == "padded, rows behind":
            drafts, target, metadata = _append_rows(drafts, target, metadata)
        return target, drafts, metadata

    def verify(self, subject: VerifySubject) -> VerifyOutput:
        """Make the call."""
        form = self.form
        options: Any = {"logprobs_mode": self.logprobs_mode, "gumbel_dtype": form.gumbel_dtype}
        return subject.verify(*self.arguments(subject), form.mode, **options)

    def _on(self, subject: VerifySubject, rows: list[Array], dtype: str) -> torch.Tensor:
        """Lay rows out on the device, in their own dtype."""
        array = np.stack(rows) if rows else np.zeros((0, self.form.site.size), np.float32)
        return subject.upload(array, dtype)

    def answers(self) -> list[reference_walk.Answer | None]:
        """Walk along the drafts of every seeded or greedy request; None for the rest."""
        form = self.form
        flags = [r.params.seed is not None or not r.params.temperature > 0 for r in self.requests]
        known = [request for request, is_known in zip(self.requests, flags, strict=True) if is_known]
        walks = [
            reference_walk.walking(
                request.rows,
                request.ids,
                request.params,
                range(request.first, request.first + len(request.rows)),
                probs=np.stack(request.draft) if form.kind == "probs" and request.draft else None,
                logits=request.draft_rows if form.kind == "logits" else None,
                mode=form.mode,
            )
            for request in known
        ]
        seeds = [request.params.seed or 0 for request in known]
        answers = iter(reference.together(walks, seeds, form.gumbel_dtype) if walks else [])
        return [next(answers) if is_known else None for is_known in flags]


def _append_rows(
    drafts: Drafts, target: torch.Tensor, metadata: SamplingMetadata
) -> tuple[Drafts, torch.Tensor, SamplingMetadata]:
    """Append rows of NaN to the last request, as engines leave them in buffers of one size."""

    def longer(rows: torch.Tensor, value: float) -> torch.Tensor:
        return torch.cat((rows, rows.new_full((_EXTRA_ROWS, *rows.shape[1:]), value)))

    draft_tensors = {name: getattr(drafts, name) for name in ("draft_probs", "draft_logits")}
    longer_tensors = {
        name: longer(rows, float("nan")) for name, rows in draft_tensors.items() if rows is not None
    }
    assert metadata.positions is not None
    assert metadata.row_index is not None
    positions, row_index = longer(metadata.positions, 0), longer(metadata.row_index, 0)
    return (
        replace(drafts, **longer_tensors),  # type: ignore[arg-type]
        longer(target, float("nan")),
        replace(metadata, positions=positions, row_index=row_index),
    )


def _pad_ids(flat: Drafts, ids: list[list[int]], layout: str) -> Drafts:
    """Lay the ids out [B, K + 2], padded with -1, in a short dtype if the layout says so."""
    width = max(map(len, ids), default=0) + 2
    fits_int32 = layout == "padded int32" and all(abs(token) < 2**31 for tokens in ids for token in tokens)
    padded_ids = torch.full(
        (len(ids), width), -1, device=flat.device, dtype=torch.int32 if fits_int32 else torch.int64
    )
    for i, tokens in enumerate(ids):
        padded_ids[i, : len(tokens)] = torch.tensor(tokens, dtype=padded_ids.dtype)
    return Drafts(
        draft_token_ids=padded_ids,
        cu_num_logits=flat.cu_num_logits.to(torch.int32),
        draft_probs=flat.draft_probs,
        draft_logits=flat.draft_logits,
        max_drafts=width,
        any_placeholder=flat.any_placeholder,
    )


def chains(output: VerifyOutput) -> list[list[int]]:
    """Return the tokens of each request, without padding."""
    counts = (output.num_accepted + 1).tolist()
    return [row[:count] for row, count in zip(output.token_ids.tolist(), counts, strict=True)]


def make_call(
    subject: VerifySubject,
    rng: Generator,
    case: Case,
    domains: Factors,
    noise: AcceptanceNoise,
    further: Sequence[Fields] = (),
) -> CrossedCall:
    """Make a call with the request of a case first, followed by random requests of the same form.

    :param further: fields of filters, of which each request has one; (): the filters are those of the case.
    """
    capabilities = subject.capabilities
    mode, kind = case["way"]
    form = Form(
        site=case["site"],
        draft_dtype=case["draft_dtype"],
        mode=mode,
        kind=kind,
        gumbel_dtype=case["gumbel_dtype"],
    )
    request_factors = {name: domains[name] for name in _REQUEST_FACTORS}
    cases, form_case = [case], {"site": form.site, "way": case["way"]}
    for _ in range(min(case["batch"], _MOST_DISTINCT) - 1):
        other = case | random_case(request_factors, rng, lambda part: is_allowed({**form_case, **part}))
        if not capabilities.ragged_drafts:
            other["drafts"] = case["drafts"]
        if rng.random() < 0.7:
            other["poison"] = ()
        cases.append(other)
    requests = []
    for each in cases:
        num_best = each["best"] if each["logprobs_mode"] else None
        params = factors.params_of(each, logprobs=num_best)
        if further:
            fields = further[int(rng.integers(len(further)))]
            params = replace(further_params(per_row(capabilities), fields, rng), logprobs=num_best)
        if capabilities.logprob_token_ids and num_best is not None and each["drafts"] % 2 == 0:
            last = form.site.size - 1
            params = replace(params, logprob_token_ids=(last, 0, last // 3))
        requests.append(make_request(rng, form, each, params, noise))
    order = [*range(len(requests)), *rng.integers(0, len(requests), case["batch"] - len(requests)).tolist()]
    return CrossedCall(
        form=form,
        requests=requests,
        order=rng.permutation(order).tolist(),
        logprobs_mode=case["logprobs_mode"],
        layout=case["layout"],
    )


SAMPLE: Final = (reference.TOKEN, reference.TILE)
RESIDUAL: Final = (reference_walk.RESIDUAL_TOKEN, reference_walk.RESIDUAL_TILE)
DRAFT: Final = (reference_walk.DRAFT_TOKEN, reference_walk.DRAFT_TILE)
"""Streams of the tokens and of the tiles of a draw."""
_REJECTED_DRAFT: Final = VOCAB_SIZE - 1
"""A draft that no telling row has any mass for."""
_ACCEPTED_DRAFT: Final = 3
"""A draft with all the mass of its row."""


def telling_call(
    way: tuple[VerifyMode, DraftKind],
    params: SamplingParams,
    dtype: str = "float32",
    *,
    filtered: bool,
    luck: float = 0.0,
    gumbel_dtype: GumbelDtype = "fp32",
) -> CrossedCall:
    """Make a call of requests with one draft each, drawn for certain, whose tokens depend on a single variate.

    :param params: of all of them, but for their seeds.
    :param dtype: of the logits, by its torch name.
    :param filtered: whether each has a top-k that drops the tokens without mass.
    :param luck: of :func:`telling_rows`.
    """
    mode, kind = way
    site, draft_dtype = Site(dtype, VOCAB_SIZE), "float32" if kind == "probs" else dtype
    form = Form(site=site, draft_dtype=draft_dtype, mode=mode, kind=kind, gumbel_dtype=gumbel_dtype)
    telling = [
        (telling_draft(), 0, False),
        *((row, _REJECTED_DRAFT, False) for row in telling_rows(*RESIDUAL, luck)),
        *((row, _ACCEPTED_DRAFT, True) for row in telling_rows(*SAMPLE, luck)),
    ]
    sure, requests = _sure_row(_ACCEPTED_DRAFT), []
    for row, draft, is_bonus in telling:
        x = place_row(row, site.torch_dtype, VOCAB_SIZE).float().numpy()
        target = [sure, x] if is_bonus else [x, sure]
        own = replace(params, seed=row.seed, top_k=row.kept if filtered else 0)
        drawn_from = _sure_row(draft)
        requests.append(
            DraftRequest(
                params=own,
                first=POSITION - 1 if is_bonus else POSITION,
                target=target,
                rows=[reference.prepare(each, own) for each in target],
                draft=[np.exp(drawn_from) if kind == "probs" else drawn_from] if kind != "chosen" else [],
                draft_rows=[reference.prepare(drawn_from, own)]
                if kind == "logits" and mode != "coupled"
                else [],
                ids=[draft],
                about="a request that tells noise",
            )
        )
    order = list(range(len(requests)))
    return CrossedCall(form=form, requests=requests, order=order, logprobs_mode=None, layout="flat")


def _sure_row(token: int) -> Array:
    """Make logits [V] float32 with all the mass on one token."""
    return np.where(np.arange(VOCAB_SIZE) == token, 0.0, -1000.0).astype(np.float32)
