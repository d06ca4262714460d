"""Kept sets of random rows beside float64: lines of ``sample``, ``verify`` and ``score``, and ``check --kept-sets``.

Rows of every flatness and p from 1e-5 on, alone and behind other filters, are made and judged in batches on the
subject's device, so that a GPU looks at millions in minutes. A row is wrong if the number of tokens above its threshold
is none that float32 may come to, if its token is not kept, or if ``log_kept_mass`` is not that of the kept tokens. The
same call without thresholds has to draw the same tokens for seeds, and the mass of the kept tokens above a drawn one is
uniform: that is judged of samplers without thresholds, too.

How far float32 may go: with D the mean of -y by mass, rounding T, x / T and exp costs a mass at most 3 D 2^-24 + 2^-22
of itself, and adding up a row in blocks about 2^-20. So a nucleus holds at least p (1 - bound) of the mass and would
hold less than p (1 + bound) without its least value. Values of which y differs by 2^-21 of itself may tie.
A sampler without thresholds may draw from float32 probabilities, of which exp and rounding cost up to 2^-22 of
themselves: there values of which y differs by 2^-21 at all may tie or change places.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from tokendraw import InvalidParameterError, SamplingMetadata, SamplingParams
from tokendraw_testing.cases.requests import describe, log_uniform
from tokendraw_testing.kit.property import Properties, Property, find
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_testing.kit.subject import Subject
from tokendraw_testing.kit.trial import Trial, Verdict, Violation
from tokendraw_testing.reference_filters import EDGE, FLOOR_EDGE
from tokendraw_testing.row_judge import TOLERANCE

_OPERATIONS: Final = ("sample", "verify", "score")
_MODE: Final = "processed_logprobs"
_SIZES: Final = (32_000, 50_257, 128_256, 151_936, 256_000)
_INTERPRETED_SIZE: Final = 20_000
"""The only vocabulary where kernels are interpreted: of a flat row in it, exp(y) adds up to more than 2^14."""
_CPU_LOGITS, _GPU_LOGITS = 1 << 20, 1 << 25
"""Logits of a batch."""
_QUICK_ROWS, _FULL_ROWS, _INTERPRETED_ROWS = 120, 1200, 14
_TIES: Final = 2.0**-21
_XTC_EDGE: Final = 1e-5
_LEAST_P: Final = 1e-9
_LEAST_KEPT, _SMALL_P = 8, 0.05
"""Fewest kept tokens and largest p of rows whose tokens are counted by quarters; other lines draw from others."""
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
    """Counts by operation and way, quarters of kept sets in which tokens of small p lie, first wrong rows in words."""

    batches: int = 0
    counts: dict[str, WayCount] = field(default_factory=dict)
    quarters: list[int] = field(default_factory=list)
    seeded: int = 0
    others: int = 0
    """Rows with a seed, and those of them that draw another token without thresholds."""
    findings: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(count.rows for count in self.counts.values())

    @property
    def uniformity(self) -> Verdict:
        """Judge the quarters of the tokens, all equally likely."""
        found = np.array(self.quarters, np.int64)
        return fit(found, np.full(4, 0.25), np.arange(4)) if len(found) else Verdict(1.0, "", 0)

    @property
    def fault(self) -> str | None:
        """Describe the first wrong row, or other tokens than near ties explain; None without any."""
        quarters, words = self.uniformity, self.findings[0] if self.findings else None
        if words is None and self.others > 2 + self.seeded // 1000:
            words = f"seeded rows need the tokens of calls with thresholds, found {self.others} others in {self.seeded}"
        if words is None and quarters.p_value < _LEAST_P:
            found = f"p = {quarters.p_value:.1e}: {quarters.worst}"
            words = f"tokens need to be uniform over their kept sets, found {found}"
        return words

    def as_json(self) -> dict[str, Any]:
        """Return the counts as JSON types."""
        quarters = np.bincount(self.quarters, minlength=4).tolist()
        return {**asdict(self), "quarters": quarters, "places": self.uniformity.p_value}


def lines(operation: str) -> tuple[Property, ...]:
    """Return the line about kept sets of an operation."""
    properties = Properties(operation)
    prefix = "" if operation == "sample" else f"{operation} "
    properties.advertised(f"{prefix}kept sets", _is_judged, is_long=True)(_check)
    return tuple(properties.all)


def _check(view: Any, trial: Trial) -> str:
    """Kept sets, by mass, are those of float64 in rows of every flatness, with any p and behind other filters."""
    effort, seen = view.effort, Counter[str]()
    rows = _INTERPRETED_ROWS if effort.interpreted else _QUICK_ROWS if effort.quick else _FULL_ROWS
    rows *= 1 if view.capabilities.threshold else 3

    def experiment(rng: Generator, count: int) -> Verdict:
        result = KeptSets()
        while result.rows < count or result.batches <= len(_ways(view.capabilities)):
            _judge_batch(view, f"{result.batches}", result.batches, rng, result, most_rows=count // 6)
            if result.fault:
                raise Violation(result.fault)
        seen.update({way: each.rows for way, each in result.counts.items()})
        return result.uniformity

    if view.operation == "score":
        experiment(trial.generator("rows"), rows)
    else:
        trial.judge("quarters of kept sets, by mass", experiment, rows)
    return f"{seen.total()} rows in {len(seen)} ways"


def sweep(
    subject: Subject, seconds: float, operation: str | None = None, only: int | None = None
) -> KeptSets:
    """Judge random batches for so many seconds; another seed of the subject goes on with other rows.

    :param operation: the only one to look at; None: each that can be judged, in turn.
    :param only: number of the only batch to look at, however long it takes.
    :raises InvalidParameterError: no operation of the subject can be judged.
    """
    served = subject.capabilities
    names = [name for name in _OPERATIONS if operation in (None, name) and name in served]
    operations = [name for name in names if _is_judged(served[name])]
    if not operations:
        raise InvalidParameterError(
            f"'kept sets' needs an operation with top-p by value, found none of {subject.name!r}. "
            "Check its properties instead."
        )
    result, deadline = KeptSets(), time.perf_counter() + seconds
    in_time = itertools.takewhile(lambda _: time.perf_counter() < deadline, itertools.count())
    for number in in_time if only is None else (only,):
        kit = find(operations[number % len(operations)])
        assert kit is not None
        rng, turn = np.random.default_rng([subject.seed, number]), number // len(operations)
        _judge_batch(kit.view(subject), f"{subject.seed}:{number}", turn, rng, result)
    return result


def _is_judged(c: Any) -> bool:
    return c.tie_rule == "value" and bool(_ways(c))


class _Found(NamedTuple):
    """What a call says of each of L rows: [L] each; None where it does not."""

    token: Tensor
    """int64; -1 where there is none."""
    threshold: Tensor | None = None
    ceiling: Tensor | None = None
    log_kept_mass: Tensor | None = None
    logprob: Tensor | None = None
    """Of ``token``, which may be one that is not kept."""


def _judge_batch(
    view: Any, name: str, turn: int, rng: Generator, result: KeptSets, most_rows: int = 1 << 30
) -> None:
    torch.manual_seed(int(rng.integers(2**62)))
    c, device = view.capabilities, view.device
    size = int(rng.choice(_SIZES) if rng.random() < 0.6 else np.exp(rng.uniform(*np.log((5e3, 2.56e5)))))
    size = min(_INTERPRETED_SIZE if view.effort.interpreted else size, c.max_vocab_size or size)
    most = min(most_rows, (_CPU_LOGITS if device.type == "cpu" else _GPU_LOGITS) // size)
    rows = 2 * max(1, int(most if rng.random() < 0.7 else max(1, most) ** rng.random()) // 2)
    served = _ways(c)
    way = [*served, "mixed"][turn % (len(served) + 1)]
    step = 2 if view.operation == "verify" else 1
    requests = [
        _request(c, str(rng.choice(served)) if way == "mixed" else way, size, rng)
        for _ in range(rows // step)
    ]
    ways, params, shapes = zip(*[request for request in requests for _ in range(step)], strict=True)
    dtype = getattr(torch, str(rng.choice(c.dtypes)))
    logits = _logits(shapes, size, rng, device).to(dtype)
    row, calls = _rows(view, logits, params), _calls(view, logits, params, step, rng)
    judged = [row.judge(logits, found) for found in calls]
    wrong, counts = torch.stack([is_wrong for is_wrong, _, _ in judged]).any(0), judged[0][2]
    _, above, count = judged[-1]
    if view.operation != "score":
        is_small = (calls[-1].token >= 0) & (row.p <= _SMALL_P) & (count - above >= _LEAST_KEPT)
        result.quarters += row.quarters(logits, calls[-1].token, above, count)[is_small].tolist()
        is_seeded = torch.tensor([each.seed is not None for each in params], device=device)
        result.seeded += int(is_seeded.sum())
        result.others += int((is_seeded & (calls[0].token != calls[-1].token)).sum())
    ratio = _at(row.mass, counts.clamp(min=1) - 1) / _at(row.mass, row.exact - 1)
    tensors = wrong, row.low, counts, row.exact, row.high, ratio
    columns = zip(ways, *(column.tolist() for column in tensors), strict=True)
    for i, (each, is_wrong, least, count, needed, most, share) in enumerate(columns):
        entry = result.counts.setdefault(f"{view.operation}: {each}", WayCount())
        entry.rows += 1
        entry.uncertain += least < most
        entry.wrong += is_wrong
        if not is_wrong:
            continue
        entry.worst_ratio = max(entry.worst_ratio, share, key=lambda r: abs(np.log(max(r, 1e-30))))
        if len(result.findings) < _MOST_FINDINGS:
            needs = f"needs {needed if least == most else f'{least} to {most}'} kept tokens, found {count}"
            if least <= count <= most:
                mass = "" if calls[-1].log_kept_mass is None else " and a log_kept_mass"
                needs = f"needs a token{mass} of its {count} kept tokens, found others"
            request = slice(i - i % step, i - i % step + step)
            is_wrong_alone = _is_wrong(view, logits[request], params[request], step, rng)
            result.findings.append(
                f"{each}, batch {name}, row {i} of {rows}, V = {size} in {dtype}, {shapes[i]}, "
                f"{describe(params[i])}: {needs} ({share:.4g} of the needed mass), token "
                f"{calls[-1].token[i].item()}; {'wrong' if is_wrong_alone else 'right'} in a call of its own"
            )
    result.batches += 1


def _is_wrong(view: Any, logits: Tensor, params: Sequence[SamplingParams], step: int, rng: Generator) -> bool:
    row = _rows(view, logits, params)
    return any(bool(row.judge(logits, each)[0].any()) for each in _calls(view, logits, params, step, rng))


def _rows(view: Any, logits: Tensor, params: Sequence[SamplingParams]) -> _Rows:
    return _Rows(logits, params, by_probability=not view.capabilities.threshold)


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index.unsqueeze(1)).squeeze(1)


def _search(ascending: Tensor, value: Tensor, *, right: bool = False) -> Tensor:
    return torch.searchsorted(ascending, value.unsqueeze(1), right=right).squeeze(1)


class _Rows:
    """Rows sorted in descending order, with the running sums of their masses, and their requests as columns [L].

    The logits [L, V] have no NaN and no +inf.
    """

    def __init__(self, logits: Tensor, params: Sequence[SamplingParams], *, by_probability: bool) -> None:
        self.ties = _TIES if by_probability else 0.0
        self.x = logits.float().sort(-1, descending=True).values.double()
        self.finite = (self.x > -torch.inf).sum(1)
        temperature = self._column(p.temperature for p in params)
        is_last = self._column(p.filter_order == "temperature_last" for p in params) > 0
        self.is_last, self.is_joint = is_last, self._column(p.filter_order == "joint" for p in params) > 0
        self.p = self._column(p.top_p for p in params)
        self.k = self._column(p.top_k or 2**31 for p in params).long()
        self.min_depth = -self._column(p.min_p for p in params).log()
        self.xtc = self._column(p.xtc_threshold if p.xtc_probability else np.inf for p in params)
        self.depth = self._depths(torch.where(is_last, 1.0, temperature))
        weight = self.depth.neg().exp()
        self.mass = weight.cumsum(1)
        self.drawn_mass = self._depths(temperature).neg().exp().cumsum(1) if is_last.any() else self.mass
        depth, total = self.depth.nan_to_num(posinf=0.0), self.mass[:, -1]
        mean_depth = (weight * depth).sum(1) / total
        self.bound = 2.0**-20 + 2.0**-22 + 3 * 2.0**-24 * mean_depth
        self.floor = torch.full_like(total, torch.inf)
        if any(p.filters for p in params):
            self._set_floors(params, weight, depth)
        self.low, self.exact, self.high = (self._kept(slack) for slack in (-1, 0, 1))

    def _column(self, values: Iterable[Any]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float64, device=self.x.device)

    def _depths(self, temperature: Tensor) -> Tensor:
        return (self.x[:, :1] - self.x) / temperature.unsqueeze(1)

    def _set_floors(self, params: Sequence[SamplingParams], weight: Tensor, depth: Tensor) -> None:
        """Set ``floor``: how far below the largest the highest floor of the filters from moments lies."""
        total = self.mass[:, -1]
        is_finite = torch.arange(depth.shape[1], device=depth.device) < self.finite.unsqueeze(1)
        distance = depth - (depth.sum(1) / self.finite).unsqueeze(1)
        std = ((distance.square() * is_finite).sum(1) / self.finite).sqrt()
        entropy = total.log() + (weight * depth).sum(1) / total
        collision = (weight / total.unsqueeze(1)).square().sum(1)

        def values(name: str) -> Tensor:
            return self._column(np.float32((p.filters or {}).get(name, np.nan)) for p in params)

        log_eta = values("eta_cutoff").log()
        floors = (
            values("top_n_sigma") * std,
            -values("epsilon_cutoff").log() - total.log(),
            -torch.minimum(log_eta, log_eta / 2 - entropy) - total.log(),
            -collision.log() - total.log() + 0 * values("p_less"),
        )
        for floor in floors:
            self.floor = self.floor.fmin(floor).clamp(min=0.0)

    def _kept(self, slack: int) -> Tensor:
        """Count the tokens that the filters keep, [L] int64; ``slack`` 1: the most in float32, -1: the fewest."""
        n = self.finite.minimum(self._count(self.floor, slack * FLOOR_EDGE))
        by_min_p = self._count(self.min_depth, slack * EDGE)
        n = torch.where(self.is_last, n, n.minimum(by_min_p))
        n = n.minimum(self._closed(n.minimum(self.k), slack))
        whole = torch.where(self.is_joint, self.finite, n)
        target = self.p * (1 + slack * self.bound) * _at(self.mass, whole - 1)
        last = _search(self.mass, target).minimum(whole - 1)
        n = torch.where(self.p < 1, n.minimum(self._closed(last + 1, slack)), n)
        return torch.where(self.is_last, n.minimum(by_min_p), n)

    def _count(self, limit: Tensor, edge: float = 0.0) -> Tensor:
        """Count the tokens at most so deep, and at least those of the largest value."""
        limit = torch.where(limit < torch.inf, (limit + edge * limit.clamp(min=1.0)).clamp(min=0.0), limit)
        return _search(self.depth, limit, right=True)

    def _closed(self, n: Tensor, slack: int) -> Tensor:
        """Add the tokens tied with the last of n; with slack also tokens tied in float32 alone."""
        slack = max(slack, 0)
        return self._count(_at(self.depth, n - 1) * (1 + slack * _TIES) + slack * self.ties)

    def _above(self, count: Tensor, factor: float = 1.0) -> Tensor:
        """Count the tokens that XTC drops of the first ``count``, [L] int64, at a multiple of its threshold."""
        limit = -(self.xtc * factor * _at(self.mass, count - 1)).log()
        likely = _search(self.depth, limit, right=True).minimum(count)
        return _search(self.depth, _at(self.depth, (likely - 1).clamp(min=0)))

    def _share(self, above: Tensor, count: Tensor) -> Tensor:
        """Return the log of the share of the tokens from ``above`` to ``count`` in what is drawn from, [L]."""
        return ((self._drawn(count) - self._drawn(above)) / self.drawn_mass[:, -1]).log()

    def _drawn(self, count: Tensor) -> Tensor:
        return torch.where(count > 0, _at(self.drawn_mass, (count - 1).clamp(min=0)), 0.0)

    def judge(self, logits: Tensor, found: _Found) -> tuple[Tensor, Tensor, Tensor]:
        """Return the wrong rows, and the range of kept tokens: how many stand above it, and where it ends."""
        low, exact, high = self.low, self.exact, self.high
        above, count = self._above(exact), exact
        is_shown, wrong = found.threshold is not None, torch.zeros_like(exact, dtype=torch.bool)
        dropped = torch.zeros_like(exact)  # from above, of what the mass is of
        if found.threshold is not None:
            count = _search(self.x.neg(), -found.threshold.double(), right=True).minimum(self.finite)
            wrong = (count < low) | (count > high)
            low = high = count = count.clamp(min=1)
            above = dropped
        if found.ceiling is not None:
            above = _search(self.x.neg(), -found.ceiling.double())
            least, most = self._above(count, 1 + _XTC_EDGE), self._above(count, 1 - _XTC_EDGE)
            wrong |= (above < least) | (above > most)
            dropped = above
        value = _at(logits, found.token.clamp(min=0)).double()
        is_kept = (value >= _at(self.x, high - 1)) & (value > -torch.inf)
        is_kept &= True if found.ceiling is None else value <= found.ceiling
        if found.logprob is None:
            wrong |= ~is_kept & (found.token >= 0)
        elif is_shown:
            wrong |= is_kept != (found.logprob > -torch.inf)
        if found.log_kept_mass is not None:
            least, most = (self._share(dropped, each) for each in (low, high))
            mass = found.log_kept_mass.double()
            slack = TOLERANCE + 2 * self.bound - least * 2.0**-23
            is_near = (mass >= least - slack) & (mass <= most + slack)
            wrong |= ~is_near & (is_shown | (self.xtc == torch.inf))
        return wrong, above, count

    def quarters(self, logits: Tensor, token: Tensor, above: Tensor, count: Tensor) -> Tensor:
        """Return the quarter, by mass, of the kept tokens in which a token lies, at random among equals: [L] int64."""
        x, value = self.x.neg(), -_at(logits, token.clamp(min=0)).double()
        start, end = self._drawn(_search(x, value)), self._drawn(_search(x, value, right=True))
        first, last = self._drawn(above), self._drawn(count)
        share = (start + torch.rand_like(start) * (end - start) - first) / (last - first)
        return (share * 4).long().clamp(0, 3)


def _ways(c: Any) -> list[str]:
    filters = {name for name, how in c.filters if how == "per_row"}
    is_usual = "top_k_first" in c.filter_orders
    has = {
        "p": is_usual,
        "k, p": is_usual and "top_k" in filters,
        "min-p, p": is_usual and "min_p" in filters,
        "joint": "joint" in c.filter_orders,
        "temperature last": {"top_k", "min_p"} <= filters and "temperature_last" in c.filter_orders,
        "moments, p": is_usual and {"std", "log_mass", "entropy", "collision"} <= {*c.row_moments},
        "p, XTC": is_usual and {"top_k", "xtc"} <= filters and c.seeding == "counter",
    }
    return [way for way, served in has.items() if served and "top_p" in filters]


class _Shape(NamedTuple):
    """The shape of a row: a family, its width sigma, and an offset of all logits."""

    family: str
    sigma: float
    top: float

    def __str__(self) -> str:
        return f"{self.family} {self.sigma:.4g} from {self.top:.4g}"


def _log_uniform(rng: Generator, least: float, most: float) -> float:
    return float(np.float32(log_uniform(rng, least, most)))


def _request(c: Any, way: str, size: int, rng: Generator) -> tuple[str, SamplingParams, _Shape]:
    """Make a random request of a way, and the shape of its row."""
    # In flat rows a sum of exp(y) is large, and a share of it small. Of a sampler without thresholds most rows are
    # flat, for there a nucleus that is too small shows in where the tokens lie alone.
    is_flat = rng.random() < (0.5 if c.threshold else 0.8)
    ratio = _log_uniform(rng, 1e-3, 0.3 if is_flat else 10.0)
    p = _log_uniform(rng, 1e-5, 0.01 if is_flat else 0.999)
    temperature = 1.0 if rng.random() < 0.4 else _log_uniform(rng, 0.05, 20.0)
    fields: dict[str, Any] = {"temperature": temperature, "top_p": p}
    has_k = "k, p" in _ways(c) and rng.random() < 0.5
    if way == "k, p" or (has_k and way in ("joint", "temperature last", "p, XTC")):
        fields["top_k"] = int(_log_uniform(rng, 1.0, min(size - 1, c.max_top_k or size)))
    if way == "min-p, p" or (way == "temperature last" and rng.random() < 0.3):
        fields["min_p"] = max(1e-6, float(np.float32(np.exp(-ratio * rng.uniform(0.0, 8.0)))))
    if way in ("joint", "temperature last"):
        fields["filter_order"] = way.replace(" ", "_")
    if way == "moments, p":
        values = {"top_n_sigma": rng.uniform(0.1, 5.0), "epsilon_cutoff": _log_uniform(rng, 1e-7, 0.1)}
        values |= {"eta_cutoff": _log_uniform(rng, 1e-7, 0.6), "p_less": 1.0}
        name = str(rng.choice(list(values), p=[0.7, 0.1, 0.1, 0.1]))
        fields["filters"] = {name: float(values[name])}
    if way == "p, XTC":
        fields |= {"xtc_probability": 1.0, "xtc_threshold": _log_uniform(rng, 1e-5, 0.5)}
    # ``score`` leaves XTC out without a seed.
    if c.seeding == "counter" and (way == "p, XTC" or rng.random() < 0.5):
        fields["seed"] = int(rng.integers(2**63))
    sigma = ratio if way == "temperature last" else ratio * temperature
    top = 0.0 if rng.random() < 0.7 else float(rng.normal(0.0, 10.0))
    families = ("uniform", "gaussian", "exponential", "steps", "peak", "masked", "half flat")
    family = str(rng.choice(families[: 4 if is_flat else None]))
    return way, SamplingParams(**fields), _Shape(family, sigma, top)


def _logits(rows: Sequence[_Shape], size: int, rng: Generator, device: torch.device) -> Tensor:
    """Make logits [L, V] float32 of the families on the device."""
    x = torch.empty(len(rows), size, device=device, dtype=torch.float32)
    for family in dict.fromkeys(row.family for row in rows):
        index = torch.tensor([i for i, row in enumerate(rows) if row.family == family], device=device)
        part = torch.rand(len(index), size, device=device, dtype=torch.float32)
        if family in ("gaussian", "peak", "masked", "half flat"):
            part.normal_()
        elif family == "exponential":
            part.exponential_()
        elif family == "steps":
            part = (part * float(rng.integers(2, 40))).floor() / 8
        if family == "masked":
            part.masked_fill_(torch.rand_like(part) < float(rng.random()), -torch.inf)
            part[:, int(rng.integers(size))] = 0.0
        if family == "half flat":  # tiles of equal logits: their moments are rounding alone
            part[:, : size // 2] = 0.0
        if family == "peak":
            part[:, int(rng.integers(size))] = 12.0
        x[index] = part
    scale = torch.tensor([row[1:] for row in rows], device=device, dtype=torch.float32)
    return x * scale[:, :1] + scale[:, 1:]


def _calls(
    view: Any, logits: Tensor, params: Sequence[SamplingParams], step: int, rng: Generator
) -> list[_Found]:
    """Make the call of a batch with thresholds, if the subject has any, then without, from the same state of torch."""
    device, (rows, size), c = view.device, logits.shape, view.capabilities
    mode = _MODE if _MODE in c.logprobs_modes else None
    if view.operation == "sample":
        mode = mode if rng.random() < 0.3 else None
        params = [replace(each, logprobs=0) for each in params] if mode else params
    metadata = SamplingMetadata.from_params(params, device=device, positions=range(rows))
    seed = int(rng.integers(2**62))
    ids = torch.randint(size, (rows // step,), device=device)
    mode_and_kind = view.ways[int(rng.integers(len(view.ways)))] if step > 1 else ("", "")
    if mode_and_kind[1] == "chosen":  # drawn drafts come from the uniform distribution that they say
        ids[::2] = logits[::step].argmax(1)[::2]

    def call(view: Any) -> _Found:
        torch.manual_seed(seed)
        if view.operation == "sample":
            out = view.call("sample", logits, metadata, logprobs_mode=mode)
            return _Found(out.token_ids, out.threshold, out.ceiling, out.log_kept_mass)
        if view.operation == "score":
            out = view.call("score", logits, ids, metadata, logprobs_mode=mode)
            logprob = out.logprobs.logprobs[:, 0]
            return _Found(ids, out.threshold, out.ceiling, out.log_kept_mass, logprob)
        shape = torch.full((len(ids), size), 1 / size, device=device, dtype=torch.float32)
        first = range(0, rows, step)
        out = view.verify_ids(logits, ids.unsqueeze(1).tolist(), mode_and_kind, shape, params[::step], first)
        return _Found(out.token_ids[:, :step].reshape(-1), out.threshold, out.ceiling)

    return [call(view.with_need(threshold=True)), call(view)] if c.threshold else [call(view)]
