"""Requests with drafts: rows of targets and drafts, drafts picked for a fate, seeds near their decisions, and calls."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from tokendraw import Drafts, SamplingMetadata, SamplingParams, VerifyOutput
from tokendraw.plugin import DraftKind, GumbelDtype, LogprobsMode, TieRule, VerifyCapabilities, VerifyMode
from tokendraw_testing import cases, reference, reference_walk
from tokendraw_testing.cases import Case, CrossedRequest, CrossedRow, Factors, Fields, Site, telling
from tokendraw_testing.kit.subject import VerifySubject
from tokendraw_testing.reference import Array

OUTSIDE_ID: Final = 2**31 - 1
"""An id outside every vocabulary."""
WIDE_SIZE: Final = 1 << 16
LAYOUTS: Final = ("flat", "padded", "padded int32, rows behind")
"""Of the ids: [L - B], or [B, K], with more rows of logits than the requests have."""
_EXTRA_ROWS: Final = 3
FIRST_POSITIONS: Final = (0, 7, 2**31 - 3, 2**32 - 2, 2**40 + 11)
"""First positions of requests; the rows of a request cross the border of a 32-bit word."""
_DRAFTS: Final = (0, 1, 2, 5, 8, 9, 16)
FATES: Final = ("all accepted", "rejected first", "rejected later", "placeholder")
_MOST_ROWS: Final = 3
"""Different rows of a request beside the bonus row."""
_MOST_DISTINCT: Final = 7
"""Requests of a call that differ; a larger batch holds them several times."""
_MOST_ELEMENTS: Final = 1 << 18
"""Logits of the target in a large batch, for one draft."""
_DEPTH: Final = 50.0
"""Distance of y from the largest below which a token is not drawn."""
_REQUEST_FACTORS: Final = (
    *("temperature", "top_k", "top_p", "min_p", "filter_order", "best", "seeded"),
    *("drafts", "fate", "family", "poison"),
)
"""Factors that differ between the requests of a call."""
POISON: Final = (
    (),
    ("bonus", "NaN"),
    ("bonus", "nothing"),
    ("bonus", "+inf"),
    ("behind", "NaN"),
    ("used", "NaN"),
    ("draft used", "NaN"),
    ("draft used", "NaN"),
    ("draft behind", "nothing"),
    ("draft used", "-1"),
)
"""Places of special values, and the values."""


# Rows of a target and its drafts, in units of y: divided by the temperature. A mistake in one corner of a kernel
# changes most of their chains, and edges of filters lie between groups of equal tokens, to be certain in float32.

FAMILIES: Final = ("gaussian", "levels", "corners", "close")
_VALUE_FAMILIES: Final = ("levels",)
"""Families with ties at a filter's edge, which tell the tie rules apart."""
_NEGLIGIBLE: Final = -18.0
_BORDERS: Final = (1024, 4096, 1 << 15, 1 << 16, 1 << 17, 1 << 18)


def make_pair(rng: Generator, family: str, size: int, params: SamplingParams) -> tuple[Array, Array]:
    """Make one row of a target and of its draft: two [V] float64 in units of y."""

    def random(scale: float, center: float = 0.0) -> Array:
        return np.round((center + scale * rng.standard_normal(size)) * 64) / 64

    if family == "gaussian":
        y = random(2.0)
        return y, y + random(0.4)
    if family == "levels":
        return _levels(rng, size, params)
    ids = corner_ids(rng, size, 40 if family == "close" else 14)
    y, draft = np.full((2, size), _NEGLIGIBLE)
    if family == "corners" and rng.random() < 0.5:  # about as much mass as all the heavy tokens have
        y, draft = random(0.5, 1.5 - np.log(size)), random(0.5, 1.5 - np.log(size))
    y[ids] = rng.uniform(-2.0, 0.0, len(ids))
    y[size - 1] += 2.0 * (rng.random() < 0.3)
    if family == "close":  # p and q differ by little more than they would lose in half precision
        draft[ids] = y[ids] + 10 ** rng.uniform(-3.3, -1.5) * rng.choice([-1, 1], len(ids))
    elif size > 1024 and rng.random() < 0.6:  # most of the residual behind the last power of two
        draft[ids] = y[ids] + 0.1 * rng.standard_normal(len(ids))
        draft[ids[ids >= 1 << (size - 1).bit_length() - 1]] -= 6.0
    else:
        draft[ids] = rng.permutation(y[ids])
    return y, draft


def corner_ids(rng: Generator, size: int, count: int) -> Array:
    """Pick ids on special paths of kernels: ends, borders of tiles and of powers of two, the last vector, far out."""
    ends = {0, 1, size - 2, size // 8 * 8 - 1, size // 8 * 8, (size - 1) // 1024 * 1024}
    borders = {border + step for border in _BORDERS for step in (-1, 0, 1)}
    corners = [token for token in ends | borders if 0 <= token < size]
    far = [*rng.integers(max(0, size - 1024), size, 4), *rng.integers(size // 2, size, 4)]
    preferred = rng.permutation([*rng.permutation(corners)[: count // 2], *far])
    ids = dict.fromkeys([size - 1, *preferred.tolist(), *rng.integers(0, size, 4 * count).tolist()])
    return rng.permutation(list(ids)[:count])


def _levels(rng: Generator, size: int, params: SamplingParams) -> tuple[Array, Array]:
    """Groups of ties of about equal mass: 30, then 600 where a small k ends, then thousands for a large k."""
    values = -np.arange(9) * 0.75
    counts = np.minimum(30 * np.exp(-values), size)
    counts[1] = 600
    counts = np.maximum(1, counts * min(1.0, 0.95 * size / counts.sum())).astype(int)
    if params.min_p > 0:  # levels on both sides of the threshold, closer than a step of bfloat16
        near_values = np.log(params.min_p) + 0.0015 * np.arange(-6.5, 7.0)
        count_near = int(max(1, min(size / 40, 0.1 * (counts * np.exp(values)).sum() / params.min_p)))
        values = np.append(values, near_values)
        counts = np.append(counts // 2 + 1, np.full(len(near_values), count_near))
    y = np.full(size, _NEGLIGIBLE)
    groups = np.repeat(values, counts)[:size]
    y[rng.permutation(size)[: len(groups)]] = groups
    is_raised = rng.random(size) < 0.3
    return y, np.where(is_raised & (y < 0) & (y > _NEGLIGIBLE), y + 0.75, y)


def _scale_to_logits(y: Array, params: SamplingParams, rng: Generator) -> Array:
    """Turn y into logits at the temperature of a request; some rows have their maximum at zero, of either sign."""
    shift = rng.choice([0.0, 7.0, -30.0, -y.max()])
    x = np.asarray((params.temperature or 1.0) * (y + shift))
    return np.where((x == 0) & (rng.random(len(x)) < 0.5), -0.0, x)


def _poison_row(rng: Generator, row: Tensor, what: str, *, probs: bool) -> Tensor:
    """Return a copy of a row [V] with NaN, +inf, -1 or no mass, at ids far out."""
    row, size = row.clone(), len(row)
    if what == "nothing":
        return row.fill_(0.0 if probs else -np.inf)
    ids = [*rng.integers(size // 2, size, 2), rng.choice([size - 1, size * 2 // 3])]
    row[torch.tensor(ids)] = {"NaN": float(rng.choice([np.nan, -np.nan])), "+inf": np.inf, "-1": -1.0}[what]
    return row


# Requests.


class Form(NamedTuple):
    """Common properties of all requests of a call."""

    site: Site
    """Of the target's rows."""
    draft_dtype: str
    """Of the drafts' rows, by its torch name."""
    mode: VerifyMode
    kind: DraftKind
    gumbel_dtype: GumbelDtype
    tie_rule: TieRule


@dataclass(frozen=True, kw_only=True)
class DraftRequest:
    """A request with its n drafts."""

    form: Form
    params: SamplingParams
    first: int
    """Position of the first row."""
    target: list[CrossedRow]
    """n + 1 rows, some of them the same; XTC is decided at their positions."""
    draft: list[CrossedRow]
    """n rows of logits or of probabilities, by the kind of the call; none of drafts that were chosen."""
    ids: list[int]
    about: str

    @property
    def rows(self) -> list[reference.ReferenceRow]:
        """The rows of the target after temperature and filters."""
        return [row.prepared for row in self.target]

    @property
    def draft_logits(self) -> list[CrossedRow]:
        """The rows of draft logits that the call reads."""
        return self.draft if self.form.kind == "logits" and self.form.mode != "coupled" else []

    @functools.cached_property
    def is_known(self) -> bool:
        """Whether no noise but that of the request's seed decides."""
        has_noise = self.params.seed is None and self.params.temperature > 0
        return not has_noise or all((row.kept & (row.y > -_DEPTH)).sum() == 1 for row in self.rows)

    def is_settled(self, num_used: int) -> bool:
        """Whether rounding decides no filter of the first rows, and the sampler none of their ties."""
        rows = (*self.target[:num_used], *self.draft_logits[:num_used])
        return all(row.prepared.certain if row.tie_rule == "value" else row.is_settled for row in rows)

    def drawn_by(self, step: int) -> tuple[Array, bool]:
        """Return q [V] of a draft and whether its row is valid; 1 where the call reads no row."""
        if self.form.kind == "chosen" or self.form.mode == "coupled":
            return np.ones(self.form.site.size), True
        if self.form.kind == "logits":
            row = self.draft[step].prepared
            return reference_walk.distribution(row), row.valid
        q = self.draft[step].logits.double().numpy()
        is_valid = bool((q >= 0).all() and 0 < q.max() < np.inf)
        return np.where((q > 0) & (q < np.inf), q, 0.0), is_valid

    def walk(self) -> reference.Drawing[reference_walk.Answer]:
        kind, given = self.form.kind, (self.rows, self.ids, self.params)
        positions = range(self.first, self.first + len(self.target))
        probs = np.array([row.logits.double().numpy() for row in self.draft]) if kind == "probs" else None
        logits = [row.prepared for row in self.draft_logits] if kind == "logits" else None
        return reference_walk.walking(*given, positions, probs=probs, logits=logits, mode=self.form.mode)

    def step(self, number: int) -> CrossedRequest:
        return CrossedRequest(self.target[number], self.params, self.first + number)

    def to_draw(self) -> CrossedRequest:
        """Return the first row, for drawing a draft: without XTC."""
        row = self.target[0]
        row = replace(row, params=replace(row.params, xtc_probability=0.0), design=f"first row of {self}")
        return CrossedRequest(row, self.params, self.first)

    def __str__(self) -> str:
        params = self.params
        seed = "no seed" if params.seed is None else f"seed {params.seed} from position {self.first}"
        return f"{cases.describe(params)}, {params.filter_order}, {seed}, drafts {self.ids} ({self.about})"


def request_of(
    form: Form,
    params: SamplingParams,
    first: int,
    target: Sequence[Tensor],
    draft: Sequence[Tensor],
    ids: list[int],
    about: str,
) -> DraftRequest:

    @functools.cache
    def crossed(x: Tensor, is_applied: bool) -> CrossedRow:
        own = replace(params, seed=None, xtc_probability=float(is_applied))
        return CrossedRow(form.site, about, x, own, form.tie_rule)

    def applies(position: int) -> bool:
        seed, dtype = params.seed or 0, form.gumbel_dtype
        return params.xtc_probability > 0 and reference.applies_xtc(params, seed, position, dtype)

    return DraftRequest(
        form=form,
        params=params,
        first=first,
        target=[crossed(x, applies(position)) for position, x in enumerate(target, first)],
        draft=[crossed(x, False) for x in draft if form.kind != "chosen"],
        ids=ids,
        about=about,
    )


def make_request(rng: Generator, form: Form, case: Mapping[str, Any], params: SamplingParams) -> DraftRequest:
    """Make a request with ``drafts`` K of a ``fate``, ``family`` of rows and ``poison``, which may be ``seeded``."""
    count, first, size = case["drafts"], int(rng.choice(FIRST_POSITIONS)), form.site.size
    fate = case["fate"] if count else FATES[0]
    params = replace(params, seed=int(rng.integers(0, 2**64, dtype=np.uint64)) if case["seeded"] else None)
    if params.seed is None and params.xtc_probability > 0:
        params = replace(params, xtc_probability=1.0)
    num_accepted = {"all accepted": count, "rejected first": 0}.get(fate, int(rng.integers(max(count, 1))))
    inner = [_make_rows(rng, form, params, case["family"], step) for step in range(min(count, _MOST_ROWS))]
    bonus, _ = _make_rows(rng, form, params, case["family"], 0)
    target = [*(inner[step % _MOST_ROWS][0] for step in range(count)), bonus]
    draft = [inner[step % _MOST_ROWS][1] for step in range(count)]
    where, what = case["poison"] or ("", "")
    steps = {"bonus": count, "used": int(rng.integers(num_accepted + 1)), "behind": num_accepted + 1}
    rows = draft if where.startswith("draft") else target
    if where and rows:
        step = min(steps[where.removeprefix("draft ")], len(rows) - 1)
        is_probs = form.kind == "probs" and rows is draft
        rows[step] = _poison_row(rng, rows[step], what, probs=is_probs)
    about = f"{case['family']}, {fate}" + f", {where}: {what}" * bool(where)
    request = request_of(form, params, first, target, draft, [], about)
    ids, ratios = _pick_drafts(rng, request, fate, num_accepted)
    if params.seed is not None and ratios and not params.xtc_probability > 0:
        is_rejected = num_accepted < count and fate != "placeholder"
        params = replace(params, seed=_narrow_seed(rng, first, np.array(ratios), is_rejected) or params.seed)
    return replace(request, params=params, ids=ids + rng.integers(0, size, count - len(ids)).tolist())


def _make_rows(
    rng: Generator, form: Form, params: SamplingParams, family: str, step: int
) -> tuple[Tensor, Tensor]:
    y, draft_y = make_pair(rng, family, form.site.size, params)
    if form.kind == "chosen" and step > 0:  # a chosen draft is accepted by p alone
        y[corner_ids(rng, form.site.size, 14)[0]] = y.max() + 9.0
    if not params.temperature > 0:
        y[corner_ids(rng, form.site.size, 4)] = y.max()
    target, draft = (_scale_to_logits(each, params, rng) for each in (y, draft_y))
    if form.kind == "probs" and form.mode != "coupled":
        drawn_by = SamplingParams() if rng.random() < 0.3 else replace(params, xtc_probability=0.0)
        draft = reference_walk.distribution(reference.prepare(draft.astype(np.float32), drawn_by))
    draft_dtype: torch.dtype = getattr(torch, form.draft_dtype)
    return cases.round_to_dtype(target, form.site.torch_dtype), cases.round_to_dtype(draft, draft_dtype)


def _pick_drafts(
    rng: Generator, request: DraftRequest, fate: str, num_accepted: int
) -> tuple[list[int], list[float]]:
    """Pick drafts up to the rejected draft, with a single decision by u; return the drafts and the ratios p / q."""
    ids, ratios, form = [], list[float](), request.form
    last = min(num_accepted, len(request.target) - 2)
    open_step = last if rng.random() < 0.4 else int(rng.integers(last + 1)) if last >= 0 else -1
    for step, row in enumerate(request.rows[: last + 1]):
        is_last = step == num_accepted
        if is_last and fate == "placeholder":
            ids.append(int(rng.choice([-1, -1, -1, form.site.size, OUTSIDE_ID])))
        elif form.mode == "coupled" or row.greedy:
            drawn, _ = reference.draw(row, request.params.seed or 0, request.first + step, form.gumbel_dtype)
            others = np.flatnonzero((row.x == row.x.max()) if row.greedy else row.kept)
            others = np.append(others[others != drawn], (drawn + 1) % form.site.size)
            ids.append(int(rng.choice(others[: max(1, len(others) - 1)])) if is_last else drawn)
        else:
            p, (q, _) = reference_walk.distribution(row), request.drawn_by(step)
            rules = (("open",) if step == open_step else ()) + ("rejected" if is_last else "accepted", "any")
            ids.append(_pick(rng, p, q, rules))
            ratios.append(float(p[ids[-1]] / q[ids[-1]]) if q[ids[-1]] > 0 else 0.0)
    return ids, ratios


def _pick(rng: Generator, p: Array, q: Array, rules: Sequence[str]) -> int:
    """Pick a draft by the first rule with a fitting draft: mostly a likely draft, at times any."""
    ratio, is_random = np.divide(p, q, out=np.zeros_like(p), where=q > 0), rng.random() < 0.35
    is_less = (ratio < 0.9) & (q > 0)
    # No mass in p, or none in q, or less than all others to q, or much and yet less than q.
    ways = ((p == 0) & (q > 0), (q == 0) & (p > 0), is_less & (ratio <= ratio[is_less].min(initial=1.0)))
    rejected = [way for way in (*ways, is_less & (p > 0.05), is_less & (p > 0.05)) if way.any()]
    fitting = {
        "open": (ratio > (0.003 if is_random else 0.1)) & (ratio < 0.9995),
        "rejected": rejected[int(rng.integers(len(rejected)))] if rejected else is_less,
        "accepted": ratio >= min(1.02, ratio.max()),
        "any": np.ones(len(p), bool),
    }
    ids = np.flatnonzero(next(fitting[rule] for rule in rules if fitting[rule].any()))
    return int(rng.choice(ids if is_random else ids[np.argsort(-p[ids])[:8]]))


_STEPS: Final = 17
_SEEDS: Final = 8192
_MARGIN: Final = 3 * reference.NEAR_TIE
"""Least distance of a decision from its turning point, so that float32 decides likewise."""


@functools.lru_cache(maxsize=32)
def _acceptance_noise(first: int, block: int) -> tuple[Array, Array]:
    """Return many seeds, and their u from position ``first`` on: [seeds, 17]."""
    seeds = np.random.default_rng((first, block)).integers(0, 2**64, _SEEDS, np.uint64)
    positions = np.arange(_STEPS).astype(np.uint64) + np.uint64(first)
    words = reference.random_words(seeds[:, None], positions, 0, reference_walk.ACCEPT)
    return seeds, reference.uniform(words[0])


def _narrow_seed(rng: Generator, first: int, ratios: Array, is_rejected: bool) -> int | None:
    """Find a seed that accepts by p / q = ``ratios``, all but the last if rejected, and decides one step narrowly."""
    seeds, u = _acceptance_noise(first, int(rng.integers(4)))
    u = u[:, : len(ratios)]
    is_wanted = np.arange(len(ratios)) < len(ratios) - is_rejected
    gap = np.abs(u - ratios)
    is_usable = ((u < ratios) == is_wanted).all(1) & (gap >= _MARGIN).all(1)
    narrow = np.where(is_usable, gap.min(1), np.inf)
    return int(seeds[narrow.argmin()]) if is_usable.any() else None


# Calls.


def draft_factors(subject: VerifySubject, sites: list[Site]) -> Factors:
    capabilities: VerifyCapabilities = subject.capabilities
    requests = cases.request_factors(cases.per_row(capabilities))
    if capabilities.greedy:
        requests["temperature"] = (*requests["temperature"], 0.0)
    return {
        "site": sites,
        "draft_dtype": capabilities.dtypes,
        "way": subject.ways,
        "gumbel_dtype": tuple({subject.gumbel_dtype: None} | dict.fromkeys(capabilities.gumbel_dtypes)),
        "logprobs_mode": (None, *capabilities.logprobs_modes),
        "layout": (LAYOUTS[0], *LAYOUTS) if capabilities.ragged_drafts else LAYOUTS[:1],
        "batch": (1, 2, 9, *[65] * (not subject.effort.interpreted), subject.effort.crossed_batch),
        **requests,
        "best": (None, 0, 1, 5, 21, 50, -1) if capabilities.logprobs_modes else (None,),
        "seeded": (True, True, True, False) if capabilities.seeding == "counter" else (False,),
        "drafts": _DRAFTS if capabilities.ragged_drafts else _DRAFTS[1:],
        "fate": FATES if capabilities.placeholder_drafts else FATES[:-1],
        "family": [f for f in FAMILIES if capabilities.tie_rule == "value" or f not in _VALUE_FAMILIES],
        "poison": POISON,
    }


def is_allowed(case: Mapping[str, Any]) -> bool:
    """Allow batches within the limit on logits, if :func:`cases.is_allowed` allows the case."""
    site, batch, drafts = case.get("site"), case.get("batch", 1), case.get("drafts", 0)
    if site is not None:
        copies = 4 if batch > _MOST_DISTINCT else 1
        is_long = site.size > WIDE_SIZE and drafts > (1 if case.get("best") == -1 else 9)
        if is_long or (batch - 1) * site.size * copies > _MOST_ELEMENTS:
            return False
    if case.get("fate", FATES[0]) != FATES[0] and drafts == 0 and "drafts" in case:
        return False
    mode, kind = case.get("way", ("rejection", "probs"))
    if case.get("poison") == POISON[-1] and (mode == "coupled" or kind != "probs"):
        return False
    return cases.is_allowed(case)


@dataclass(frozen=True, kw_only=True)
class CrossedCall:
    """A verification of requests of one form; a request may occur several times."""

    form: Form
    requests: list[DraftRequest]
    order: list[int]
    """Numbers of the requests, in the order of the batch."""
    logprobs_mode: LogprobsMode | None = None
    layout: str = LAYOUTS[0]
    """How the ids are laid out, one of :data:`LAYOUTS`."""

    def __str__(self) -> str:
        form, kind = self.form, self.form.kind + f" in {self.form.draft_dtype}" * (self.form.kind != "chosen")
        batch = f"B = {len(self.order)}, {self.layout} ids"
        return f"{form.site}, {form.mode}, {kind}, {form.gumbel_dtype} noise, {batch}"

    @property
    def batch(self) -> list[DraftRequest]:
        return [self.requests[i] for i in self.order]

    def arguments(self, subject: VerifySubject) -> tuple[Tensor, Drafts, SamplingMetadata]:
        """Lay out the logits of the target, the drafts and the metadata on the device."""
        form, batch = self.form, self.batch

        def stacked(rows: Iterable[CrossedRow], dtype: str) -> Tensor:
            none = torch.zeros(0, form.site.size, dtype=getattr(torch, dtype))
            return torch.cat([none, *(row.logits[None] for row in rows)]).to(subject.device)

        target = stacked((row for request in batch for row in request.target), form.site.dtype)
        draft = stacked((row for request in batch for row in request.draft), form.draft_dtype)
        ids, params, first = [r.ids for r in batch], [r.params for r in batch], [r.first for r in batch]
        _, flat, metadata = subject.arguments(target, ids, form.kind, draft, params, first)
        if self.layout == LAYOUTS[0]:
            return target, flat, metadata
        has_more = self.layout == LAYOUTS[2]
        width, behind = max(map(len, ids), default=0) + 2, _EXTRA_ROWS if has_more else 0

        def longer(rows: Any, value: float = np.nan) -> Any:
            if rows is None:
                return None
            return torch.cat((rows, rows.new_full((behind, *rows.shape[1:]), value)))

        padded = torch.tensor([[*tokens, *[-1] * (width - len(tokens))] for tokens in ids])
        drafts = Drafts(  # whose counts the device alone knows
            draft_token_ids=padded.to(subject.device, torch.int32 if has_more else torch.int64),
            cu_num_logits=flat.cu_num_logits.to(torch.int32),
            draft_probs=longer(flat.draft_probs),
            draft_logits=longer(flat.draft_logits),
            max_drafts=width,
            any_placeholder=flat.any_placeholder,
        )
        positions, row_index = longer(metadata.positions, 0), longer(metadata.row_index, 0)
        metadata = replace(metadata, positions=positions, row_index=row_index)
        return longer(target), drafts, metadata

    def verify(self, subject: VerifySubject) -> VerifyOutput:
        form = self.form
        options: Any = {"logprobs_mode": self.logprobs_mode, "gumbel_dtype": form.gumbel_dtype}
        return subject.verify(*self.arguments(subject), form.mode, **options)

    def answers(self) -> list[reference_walk.Answer | None]:
        """Walk along the drafts of every request whose noise is known; None for the rest."""
        known = [request for request in self.requests if request.is_known]
        seeds, walks = [request.params.seed or 0 for request in known], [request.walk() for request in known]
        answers = iter(reference.together(walks, seeds, self.form.gumbel_dtype) if walks else [])
        return [next(answers) if request.is_known else None for request in self.requests]


def chains(output: VerifyOutput) -> list[list[int]]:
    """Return the tokens of each request, without padding."""
    counts = (output.num_accepted + 1).tolist()
    return [row[:count] for row, count in zip(output.token_ids.tolist(), counts, strict=True)]


def make_call(
    subject: VerifySubject,
    rng: Generator,
    case: Case,
    domains: Factors,
    further: Sequence[Fields] = (),
    most_distinct: int = _MOST_DISTINCT,
) -> CrossedCall:
    """Make a call with the request of a case first, followed by random requests of the same form.

    :param further: fields of filters, of which each request has one; (): the filters are those of the case.
    """
    capabilities, (mode, kind), site = subject.capabilities, case["way"], case["site"]
    form = Form(site, case["draft_dtype"], mode, kind, case["gumbel_dtype"], capabilities.tie_rule)
    own, looks = {"site": [site], "way": [case["way"]]} | {n: domains[n] for n in _REQUEST_FACTORS}, [case]
    own["drafts"] = domains["drafts"] if capabilities.ragged_drafts else [case["drafts"]]
    while len(looks) < min(case["batch"], most_distinct):
        own["poison"] = domains["poison"] if rng.random() < 0.3 else [()]
        looks.append(case | cases.random_case(own, rng, is_allowed))
    requests = []
    for each in looks:
        asked: dict[str, Any] = {"logprobs": each["best"] if each["logprobs_mode"] else None}
        if capabilities.logprob_token_ids and asked["logprobs"] is not None and each["drafts"] % 2 == 0:
            asked["logprob_token_ids"] = (site.size - 1, 0, (site.size - 1) // 3)
        if further:
            fields = further[int(rng.integers(len(further)))]
            params = replace(cases.further_params(cases.per_row(capabilities), fields, rng), **asked)
        else:
            params = cases.params_of(each, **asked)
        requests.append(make_request(rng, form, each, params))
    order = [*range(len(requests)), *rng.integers(0, len(requests), case["batch"] - len(requests)).tolist()]
    return CrossedCall(
        form=form,
        requests=requests,
        order=rng.permutation(order).tolist(),
        logprobs_mode=case["logprobs_mode"],
        layout=case["layout"],
    )


# Calls whose chains no noise decides, and calls that tell noise.


def sure_row(token: int, size: int, dtype: str) -> Tensor:
    """Make logits [V] with all the mass on one token."""
    return cases.round_to_dtype(np.where(np.arange(size) == token, 0.0, -1000.0), getattr(torch, dtype))


def sure_draft(token: int, size: int, dtype: str, kind: DraftKind) -> Tensor:
    row = sure_row(token, size, "float32" if kind == "probs" else dtype)
    return (row == 0).float() if kind == "probs" else row


def call_of(
    subject: VerifySubject,
    way: tuple[VerifyMode, DraftKind],
    site: Site,
    requests: Iterable[tuple[SamplingParams, int, Sequence[Tensor], list[int]]],
    gumbel_dtype: GumbelDtype | None = None,
) -> CrossedCall:
    """Make a call of (parameters, first position, rows of the target, drafts), each draft drawn for certain.

    The row of a placeholder is NaN.
    """
    (mode, kind), made = way, []
    dtype = "float32" if kind == "probs" else site.dtype
    form = Form(site, dtype, mode, kind, gumbel_dtype or subject.gumbel_dtype, subject.capabilities.tie_rule)
    for params, first, target, ids in requests:
        rows = [sure_draft(token, site.size, dtype, kind) for token in ids]
        rows = [row if 0 <= x < site.size else row * np.nan for row, x in zip(rows, ids, strict=True)]
        made.append(request_of(form, params, first, target, rows, ids, "drawn for certain"))
    return CrossedCall(form=form, requests=made, order=list(range(len(made))))


def telling_call(
    subject: VerifySubject, way: tuple[VerifyMode, DraftKind], dtype: str, gumbel_dtype: GumbelDtype
) -> CrossedCall:
    """Make requests with one draft each, whose tokens depend on a single variate, without a filter and with top-k."""
    site, has_top_k = Site(dtype, telling.VOCAB_SIZE), ("top_k", "per_row") in subject.capabilities.filters
    accepted, rejected = 3, site.size - 1  # the draft with all the mass of its row, and one without any
    looks = (
        ([telling.telling_draft()], 0, False),
        (telling.telling_rows(*reference_walk.RESIDUAL), rejected, False),
        (telling.telling_rows(*reference.SAMPLE), accepted, True),
    )
    sure, requests = sure_row(accepted, site.size, dtype), []
    for rows, draft, is_bonus in looks:
        for params, x in telling.placed_requests(subject, site, rows, has_top_k):
            target = [sure, x] if is_bonus else [x, sure]
            requests.append((params, telling.POSITION - is_bonus, target, [draft]))
    return call_of(subject, way, site, requests, gumbel_dtype)
