"""Kept sets of random rows, beside float64: ``tokendraw check NAME --kept-sets --fuzz SECONDS``.

Whole batches are made and judged on the subject's device, so that a GPU looks at millions of rows in minutes. A row is
wrong if the number of kept tokens, by the threshold that the sampler reports, is none that float32 may come to; if the
drawn token is not kept; or if ``log_kept_mass`` is not that of the kept tokens. No sampler's code takes part.

How far float32 may go: with D the mean of -y by mass, rounding T, x / T and exp costs a mass at most 3 D 2^-24 + 2^-22
of itself, and adding up a row in blocks about 2^-20. So a nucleus holds at least p (1 - bound) of the mass and would
hold less than p (1 + bound) without its last value. Values of which y differs by 2^-21 of itself may tie.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from tokendraw import InvalidParameterError, SamplingMetadata, SamplingParams
from tokendraw_testing.kit.operation import find
from tokendraw_testing.kit.subject import Subject
from tokendraw_testing.reference_filters import EDGE
from tokendraw_testing.reference_floors import EDGE as FLOOR_EDGE
from tokendraw_testing.rows.logprobs import TOLERANCE
from tokendraw_testing.rows.requests import describe
from tokendraw_testing.verify.subject import row_metadata

WAYS: Final = ("p", "k, p", "min-p, p", "joint", "temperature last", "moments, p", "p, XTC")
_OPERATIONS: Final = ("sample", "verify", "score")
_SIZES: Final = (32_000, 50_257, 128_256, 151_936, 256_000)
_MOST_LOGITS: Final = {"cpu": 1 << 21, "cuda": 1 << 25}
_TIES: Final = 2.0**-21
_MOST_FINDINGS: Final = 20


@dataclass
class WayCount:
    """Rows of one operation and way."""

    rows: int = 0
    wrong: int = 0
    uncertain: int = 0
    """Rows in which float32 may keep more than one set."""
    worst_ratio: float = 1.0
    """Mass of the kept set over that of the float64 one, where it is farthest from 1 among the wrong rows."""


@dataclass
class KeptSets:
    """Counts of a sweep by operation and way, and the first wrong rows in words."""

    seed: int
    batches: int = 0
    counts: dict[str, WayCount] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the sweep as JSON types."""
        return {**asdict(self), "passed": not any(count.wrong for count in self.counts.values())}


def sweep(
    subject: Subject, seconds: float, operation: str | None = None, only: int | None = None
) -> KeptSets:
    """Judge random batches for so many seconds; another seed of the subject goes on with other rows.

    :param operation: the only one to look at; None: each that reports thresholds, in turn.
    :param only: number of the only batch to look at, however long it takes.
    :raises InvalidParameterError: no operation of the subject reports thresholds.
    """
    operations = [
        name
        for name in _OPERATIONS
        if operation in (None, name) and getattr(subject.capabilities.get(name), "threshold", False)
    ]
    if not operations:
        raise InvalidParameterError(
            f"'kept sets' needs an operation that reports thresholds, found none of {subject.name!r}. "
            "Check its properties instead."
        )
    result, deadline = KeptSets(subject.seed), time.perf_counter() + seconds
    in_time = itertools.takewhile(lambda _: time.perf_counter() < deadline, itertools.count())
    for number in in_time if only is None else (only,):
        _judge_batch(subject, operations[number % len(operations)], number, result)
        result.batches += 1
    return result


class _Found(NamedTuple):
    """What a call says of each of L rows: [L] each; None where it does not."""

    token: Tensor
    """int64; -1 where there is none."""
    threshold: Tensor
    ceiling: Tensor | None
    log_kept_mass: Tensor | None
    logprob: Tensor | None
    """Of ``token``, which may be one that is not kept."""


@torch.no_grad()
def _judge_batch(subject: Subject, operation: str, number: int, result: KeptSets) -> None:
    rng = np.random.default_rng([subject.seed, number])
    torch.manual_seed(int(rng.integers(2**62)))
    kit = find(operation)
    assert kit is not None
    view = kit.view(subject).with_need(threshold=True)
    c, device = view.capabilities, subject.device
    size = int(rng.choice(_SIZES) if rng.random() < 0.3 else np.exp(rng.uniform(*np.log((5e3, 2.56e5)))))
    size = min(size, c.max_vocab_size or size)
    most = max(2, _MOST_LOGITS.get(device.type, 1 << 22) // size)
    rows = 2 * max(1, int(most if rng.random() < 0.7 else most ** rng.random()) // 2)
    ways = _ways(c)
    ways = [ways[int(rng.integers(len(ways)))]] if rng.random() < 0.7 else ways
    per_request = 2 if operation == "verify" else 1
    named = [_request(c, str(rng.choice(ways)), size, rng) for _ in range(rows // per_request)]
    shapes = [row for _, _, row in named for _ in range(per_request)]
    dtype = getattr(torch, str(rng.choice(c.dtypes)))
    logits = _logits(shapes, size, rng, device).to(dtype)
    params = [params for _, params, _ in named]
    found = _call(view, operation, logits, params, rng)
    rows_params = [each for each in params for _ in range(per_request)]
    verdict = judge(logits, rows_params, found)
    names = [f"{operation}: {way}" for way, _, _ in named for _ in range(per_request)]
    host = [column.tolist() for column in verdict]
    for row, (name, wrong, low, count, exact, high, ratio) in enumerate(zip(names, *host, strict=True)):
        entry = result.counts.setdefault(name, WayCount())
        entry.rows += 1
        entry.uncertain += low < high
        entry.wrong += wrong
        if not wrong:
            continue
        entry.worst_ratio = max(entry.worst_ratio, ratio, key=lambda r: abs(np.log(max(r, 1e-30))))
        if len(result.findings) < _MOST_FINDINGS:
            needed = str(exact) if low == high else f"{low} to {high}"
            result.findings.append(
                f"{name}, batch {subject.seed}:{number}, row {row} of {rows}, V = {size} in {dtype}, "
                f"{shapes[row]}, {describe(rows_params[row])}: needs {needed} tokens, found {count} "
                f"({ratio:.4g} of the mass), token {found.token[row].item()}"
            )


class Verdict(NamedTuple):
    """Judgement of L rows: [L] each."""

    wrong: Tensor
    low: Tensor
    found: Tensor
    exact: Tensor
    high: Tensor
    """Least number of kept tokens that float32 may come to, the found one, that of float64, the greatest."""
    ratio: Tensor


def judge(logits: Tensor, params: Sequence[SamplingParams], found: _Found) -> Verdict:
    """Compare what a call says of its rows with float64.

    :param logits: [L, V] without NaN or +inf; ``params`` one a row.
    """
    row = _Rows(logits, params)
    x = row.x.neg()
    count = torch.searchsorted(x, -found.threshold.double().unsqueeze(1), right=True).squeeze(1)
    count = count.minimum(row.finite)
    low, exact, high = (row.kept(slack) for slack in (-1, 0, 1))
    wrong = (count < low) | (count > high)
    count = count.clamp(min=1)
    above = torch.zeros_like(count)
    if found.ceiling is not None:
        above = torch.searchsorted(x, -found.ceiling.double().unsqueeze(1)).squeeze(1)
        least, most = (row.above(count, 1 + slack * 1e-5) for slack in (1, -1))
        wrong |= (above < least) | (above > most)
    value = logits.gather(1, found.token.clamp(min=0).unsqueeze(1)).squeeze(1).double()
    is_kept = (value >= found.threshold) & (value > -torch.inf)
    if found.ceiling is not None:
        is_kept &= value <= found.ceiling
    if found.logprob is None:
        wrong |= ~is_kept & (found.token >= 0)
    else:
        wrong |= is_kept != (found.logprob > -torch.inf)
    if found.log_kept_mass is not None:
        share = row.log_share(above, count)
        bound = TOLERANCE + 2 * row.bound + share.abs() * 2.0**-23
        wrong |= ~((found.log_kept_mass.double() - share).abs() <= bound)
    ratio = _at(row.mass, count - 1) / _at(row.mass, exact - 1)
    return Verdict(wrong, low, count, exact, high, ratio)


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index.unsqueeze(1)).squeeze(1)


class _Rows:
    """Rows sorted in descending order, with the running sums of their masses, and their requests as columns [L]."""

    def __init__(self, logits: Tensor, params: Sequence[SamplingParams]) -> None:
        def column(values: Iterable[Any]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float64, device=logits.device)

        self.x = logits.float().sort(-1, descending=True).values.double()
        self.finite = (self.x > -torch.inf).sum(1)
        self.temperature = column(p.temperature for p in params)
        self.is_last = column(p.filter_order == "temperature_last" for p in params) > 0
        self.is_joint = column(p.filter_order == "joint" for p in params) > 0
        self.p = column(p.top_p for p in params)
        self.k = column(p.top_k or 2**31 for p in params).long()
        self.min_depth = -column(p.min_p for p in params).log()
        self.xtc = column(p.xtc_threshold if p.xtc_probability else np.inf for p in params)
        self.depth = self._depths(torch.where(self.is_last, 1.0, self.temperature))
        weight = self.depth.neg().exp()
        self.mass = weight.cumsum(1)
        total = self.mass[:, -1]
        finite_depth = self.depth.nan_to_num(posinf=0.0)
        mean_depth = (weight * finite_depth).sum(1) / total
        self.bound = 2.0**-20 + 2.0**-22 + 3 * 2.0**-24 * mean_depth
        self.floor = torch.full_like(total, torch.inf)
        if any(p.filters for p in params):
            self._set_floors(params, weight, finite_depth, column)

    def _depths(self, temperature: Tensor) -> Tensor:
        return (self.x[:, :1] - self.x) / temperature.unsqueeze(1)

    def _set_floors(
        self, params: Sequence[SamplingParams], weight: Tensor, depth: Tensor, column: Any
    ) -> None:
        """Set ``floor``: how far below the largest the highest floor of the filters from moments lies."""
        total = self.mass[:, -1]
        mean = depth.sum(1) / self.finite
        is_finite = torch.arange(depth.shape[1], device=depth.device) < self.finite.unsqueeze(1)
        variance = ((depth - mean.unsqueeze(1)).square() * is_finite).sum(1) / self.finite
        entropy = total.log() + (weight * depth).sum(1) / total
        collision = (weight / total.unsqueeze(1)).square().sum(1)

        def values(name: str) -> Tensor:
            asked: Tensor = column(np.float32((p.filters or {}).get(name, np.nan)) for p in params)
            return asked

        epsilon, eta = values("epsilon_cutoff"), values("eta_cutoff")
        floors = [
            values("top_n_sigma") * variance.sqrt(),
            -epsilon.log() - total.log(),
            -torch.minimum(eta.log(), eta.log() / 2 - entropy) - total.log(),
            -collision.log() - total.log() + 0 * values("p_less"),
        ]
        for floor in floors:
            self.floor = self.floor.fmin(floor).clamp(min=0.0)

    def kept(self, slack: int) -> Tensor:
        """Count the tokens that the filters keep, [L] int64; ``slack`` 1: the most in float32, -1: the fewest."""
        n = self.finite.minimum(self._count(self.floor, slack * FLOOR_EDGE))
        by_min_p = self._count(self.min_depth, slack * EDGE)
        n = torch.where(self.is_last, n, n.minimum(by_min_p))
        n = n.minimum(self._closed(n.minimum(self.k), slack))
        whole = torch.where(self.is_joint, self.finite, n)
        target = self.p * (1 + slack * self.bound) * _at(self.mass, whole - 1)
        index = torch.searchsorted(self.mass, target.unsqueeze(1)).squeeze(1).minimum(whole - 1)
        n = torch.where(self.p < 1, n.minimum(self._closed(index + 1, slack)), n)
        return torch.where(self.is_last, n.minimum(by_min_p), n)

    def _count(self, limit: Tensor, edge: float = 0.0) -> Tensor:
        """Count the tokens at most so deep, and at least those of the largest value."""
        limit = torch.where(limit < torch.inf, (limit + edge * limit.clamp(min=1.0)).clamp(min=0.0), limit)
        count: Tensor = torch.searchsorted(self.depth, limit.unsqueeze(1), right=True).squeeze(1)
        return count

    def _closed(self, n: Tensor, slack: int) -> Tensor:
        """Add the tokens tied with the last of n; with slack also those that float32 may tie with it."""
        return self._count(_at(self.depth, n - 1) * (1 + max(slack, 0) * _TIES))

    def above(self, count: Tensor, factor: Tensor | float) -> Tensor:
        """Count the tokens that XTC drops of the first ``count``, [L] int64, at a multiple of its threshold."""
        limit = -(self.xtc * factor * _at(self.mass, count - 1)).log()
        likely = torch.searchsorted(self.depth, limit.unsqueeze(1), right=True).squeeze(1).minimum(count)
        depth = _at(self.depth, (likely - 1).clamp(min=0))
        return torch.searchsorted(self.depth, depth.unsqueeze(1)).squeeze(1)

    def log_share(self, above: Tensor, count: Tensor) -> Tensor:
        """Return the log of the share of the tokens from ``above`` to ``count`` at the temperature, [L]."""
        mass = self._depths(self.temperature).neg().exp().cumsum(1) if self.is_last.any() else self.mass
        dropped = torch.where(above > 0, _at(mass, (above - 1).clamp(min=0)), 0.0)
        return ((_at(mass, count - 1) - dropped) / mass[:, -1]).log()


def _ways(c: Any) -> list[str]:
    """List the ways that capabilities have."""
    filters = {name for name, how in c.filters if how == "per_row"}
    needed = {"p": {"top_p"}, "k, p": {"top_p", "top_k"}, "min-p, p": {"top_p", "min_p"}}
    needed |= {"p, XTC": {"top_p", "xtc"}}
    has = {way: names <= filters for way, names in needed.items()}
    has |= {"joint": "joint" in c.filter_orders, "temperature last": "temperature_last" in c.filter_orders}
    has |= {"moments, p": {"std", "log_mass", "entropy", "collision"} <= {*c.row_moments}}
    return [way for way in WAYS if has[way]]


class _Shape(NamedTuple):
    """The shape of a row: a family, its width sigma, and what is added to all of it."""

    family: str
    sigma: float
    top: float

    def __str__(self) -> str:
        return f"{self.family} {self.sigma:.4g} from {self.top:.4g}"


def _log_uniform(rng: Generator, low: float, high: float) -> float:
    return float(np.float32(np.exp(rng.uniform(np.log(low), np.log(high)))))


def _request(c: Any, way: str, size: int, rng: Generator) -> tuple[str, SamplingParams, _Shape]:
    """Make a random request of a way, and the shape of its row."""
    ratio, p = _log_uniform(rng, 1e-3, 10.0), _log_uniform(rng, 1e-5, 0.999)
    temperature = 1.0 if rng.random() < 0.4 else _log_uniform(rng, 0.05, 20.0)
    fields: dict[str, Any] = {"temperature": temperature, "top_p": p}
    if way == "k, p" or (way in ("joint", "temperature last", "p, XTC") and rng.random() < 0.5):
        fields["top_k"] = int(_log_uniform(rng, 1.0, min(size - 1, c.max_top_k or size)))
    if way == "min-p, p" or (way == "temperature last" and rng.random() < 0.3):
        fields["min_p"] = max(1e-6, float(np.float32(np.exp(-ratio * rng.uniform(0.0, 8.0)))))
    if way in ("joint", "temperature last"):
        fields["filter_order"] = way.replace(" ", "_")
    if way == "moments, p":
        values = {"top_n_sigma": rng.uniform(0.1, 5.0), "epsilon_cutoff": _log_uniform(rng, 1e-7, 0.1)}
        values |= {"eta_cutoff": _log_uniform(rng, 1e-7, 0.6), "p_less": 1.0}
        name = rng.choice(list(values), p=[0.7, 0.1, 0.1, 0.1])
        fields["filters"] = {str(name): float(values[name])}
    if way == "p, XTC":
        fields |= {"xtc_probability": 1.0, "xtc_threshold": _log_uniform(rng, 1e-5, 0.5)}
    if c.seeding == "counter" and (way == "p, XTC" or rng.random() < 0.5):  # XTC needs a seed in ``score``
        fields["seed"] = int(rng.integers(2**63))
    sigma = ratio if way == "temperature last" else ratio * temperature
    top = 0.0 if rng.random() < 0.7 else float(rng.normal(0.0, 10.0))
    family = str(rng.choice(("uniform", "gaussian", "exponential", "steps", "peak", "masked")))
    return way, SamplingParams(**fields), _Shape(family, sigma, top)


def _logits(rows: Sequence[_Shape], size: int, rng: Generator, device: torch.device) -> Tensor:
    """Make logits [L, V] float32 of the families on the device."""
    x = torch.empty(len(rows), size, device=device, dtype=torch.float32)
    for family in dict.fromkeys(row.family for row in rows):
        index = torch.tensor([i for i, row in enumerate(rows) if row.family == family], device=device)
        part = torch.rand(len(index), size, device=device, dtype=torch.float32)
        if family in ("gaussian", "peak", "masked"):
            part.normal_()
        elif family == "exponential":
            part.exponential_()
        elif family == "steps":
            part = (part * float(rng.integers(2, 40))).floor() / 8
        if family == "masked":
            part.masked_fill_(torch.rand_like(part) < float(rng.random()), -torch.inf)
            part[:, int(rng.integers(size))] = 0.0
        if family == "peak":
            part[:, int(rng.integers(size))] = 12.0
        x[index] = part
    sigma = torch.tensor([row.sigma for row in rows], device=device, dtype=torch.float32)
    top = torch.tensor([row.top for row in rows], device=device, dtype=torch.float32)
    return x * sigma.unsqueeze(1) + top.unsqueeze(1)


def _call(
    view: Any, operation: str, logits: Tensor, params: Sequence[SamplingParams], rng: Generator
) -> _Found:
    device, size = view.device, logits.shape[1]
    positions = list(range(len(params)))
    modes = view.capabilities.logprobs_modes
    mode = "processed_logprobs" if "processed_logprobs" in modes else None
    if operation == "verify":
        ids = [[int(token)] for token in logits[::2].argmax(1).tolist()]
        for each in ids[::2]:
            each[0] = int(rng.integers(size))
        way = view.ways[int(rng.integers(len(view.ways)))]
        shape = torch.full((len(ids), size), 1 / size, device=device, dtype=torch.float32)
        drafts = view.drafts(ids, size, way[1], shape)
        out = view.verify(logits, drafts, row_metadata(drafts, params, positions), way[0])
        token = out.token_ids[:, :2].reshape(-1)
        return _Found(token, out.threshold, out.ceiling, None, None)
    metadata = SamplingMetadata.from_params(params, device=device, positions=positions)
    if operation == "score":
        token = torch.randint(size, (len(logits),), device=device)
        call = view.new_call("score", logits, token, metadata)
        out = view.make(call, view.need(mode))
        logprob = out.logprobs.logprobs[:, 0] if mode else None
        return _Found(token, out.threshold, out.ceiling, out.log_kept_mass, logprob)
    if mode is None or rng.random() < 0.7:
        out = view.call(logits, metadata)
        return _Found(out.token_ids, out.threshold, out.ceiling, None, None)
    with_logprobs = [replace(each, logprobs=0) for each in params]
    metadata = SamplingMetadata.from_params(with_logprobs, device=device, positions=positions)
    out = view.call(logits, metadata, mode=mode)
    return _Found(out.token_ids, out.threshold, out.ceiling, out.log_kept_mass, out.logprobs.logprobs[:, 0])
