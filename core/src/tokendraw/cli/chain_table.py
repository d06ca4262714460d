"""What each stage of a request leaves of a row: tokens and mass, by the definitions in float64 with plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw import philox
from tokendraw.cli.llama_chain import TEMPERATURE_LAST
from tokendraw.filters.base import RowMoments
from tokendraw.filters.installed import find_filter
from tokendraw.parameters.params import SamplingParams, stored_values

_INF = float("inf")


class Stage(NamedTuple):
    """Stage of a request, and the tokens left behind it.

    :ivar name: Word of llama.cpp, or name of a filter; ``vocabulary`` before all stages.
    :ivar tokens: Number of tokens left.
    :ivar mass: Their share of the probability of all tokens, at the temperature that the stage looks at.
    """

    name: str
    tokens: int
    mass: float


class _Row(NamedTuple):
    """A row at the temperature that the filters look at."""

    x: Tensor
    """[V] float64, NaN as -inf."""
    y: Tensor
    """[V] ``(x - max x) / T``."""
    p: Tensor
    """[V] softmax of y."""
    position: int


def chain(logits: Tensor, params: SamplingParams, position: int) -> list[Stage]:
    """Follow a row through the stages of its request; the last stage leaves what is drawn from.

    :param logits: [V] floating point.
    :param position: of the row in its sequence, by which xtc strikes or not.
    """
    x = logits.double().nan_to_num(nan=-_INF, posinf=_INF, neginf=-_INF)
    if params.temperature == 0:
        p = x.softmax(-1)
        return [_stage("vocabulary", x > -_INF, p), Stage("greedy", 1, float(p.max()))]
    is_last = params.filter_order == TEMPERATURE_LAST
    row = _row(x, 1.0 if is_last else params.temperature, position)
    kept = x > -_INF
    stages = [_stage("vocabulary", kept, row.p)]
    for name, keep in _keepers(params):
        kept = kept & keep(row, kept)
        stages.append(_stage(name, kept, row.p))
    if is_last:
        stages.append(_stage("temperature", kept, _row(x, params.temperature, position).p))
    return stages


def _row(x: Tensor, temperature: float, position: int) -> _Row:
    top = x.max()
    y = torch.where(x == _INF, 0.0, -_INF) if top == _INF else (x - top) / temperature
    return _Row(x, y, y.softmax(-1), position)


def _stage(name: str, kept: Tensor, p: Tensor) -> Stage:
    return Stage(name, int(kept.sum()), float(p[kept].sum()))


_Keep = Callable[[_Row, Tensor], Tensor]


def _keepers(params: SamplingParams) -> Iterator[tuple[str, _Keep]]:
    """Yield the active stages in their order, each with its rule, which marks the kept tokens among the rest."""
    last = params.filter_order == TEMPERATURE_LAST
    for name, value in sorted((params.filters or {}).items()):
        if value != find_filter(name).off:
            yield name, partial(_above_floor, name, float(value))
    min_p: tuple[str, _Keep] = "min_p", lambda row, kept: row.y >= math.log(params.min_p)
    if params.min_p > 0 and not last:
        yield min_p
    if params.top_k > 0:
        yield "top_k", lambda row, kept: row.x >= row.x.sort(descending=True).values[: params.top_k][-1]
    if params.typical_p < 1:
        yield "typ_p", lambda row, kept: _typical(row, kept, params.typical_p)
    if params.top_p < 1:
        is_joint = params.filter_order == "joint"
        yield (
            "top_p",
            lambda row, kept: (
                row.x >= _nucleus(row, torch.ones_like(kept) if is_joint else kept, params.top_p)
            ),
        )
    if params.min_p > 0 and last:
        yield "min_p", lambda row, kept: row.y >= row.y[kept].max() + math.log(params.min_p)
    if params.xtc_probability > 0:
        yield "xtc", lambda row, kept: _xtc(row, kept, params)


def _above_floor(name: str, value: float, row: _Row, kept: Tensor) -> Tensor:
    """Keep the tokens above the floor of a filter, which follows from the moments of the whole row."""
    y, p = row.y[row.x > -_INF], row.p[row.p > 0]
    moments = {
        "count": y.new_tensor(float(len(y))),
        "mean": y.mean(),
        "std": y.std(correction=0),
        "log_mass": y.logsumexp(-1),
        "entropy": -(p * p.log()).sum(),
        "collision": (p * p).sum(),
    }
    rule = find_filter(name)
    found = rule.floor(
        RowMoments(**{each: moments[each].view(1) for each in rule.moments}),
        torch.tensor([value], dtype=torch.float32, device="cpu").double(),
    )
    return row.y >= found.double().nan_to_num(nan=-_INF, posinf=0.0, neginf=-_INF).clamp(max=0.0)


def _nucleus(row: _Row, counted: Tensor, top_p: float) -> Tensor:
    """Return the least value of the fewest largest tokens with a share top_p of what is counted."""
    values, order = row.x.masked_fill(~counted, -_INF).sort(descending=True)
    mass = row.p.masked_fill(~counted, 0.0)[order]
    before = mass.cumsum(-1) - mass
    return values[before < top_p * mass.sum()].min()


def _typical(row: _Row, kept: Tensor, typical_p: float) -> Tensor:
    """Keep the least distances of -log p from the entropy whose mass reaches typical_p, and all ties."""
    p = row.p.masked_fill(~kept, 0.0)
    p = p / p.sum()
    entropy = -torch.xlogy(p, p).sum()
    distance = (-p.log() - entropy).abs().nan_to_num(nan=_INF, posinf=_INF)
    values, order = distance.sort()
    before = p[order].cumsum(-1) - p[order]
    return distance <= values[before < typical_p].max()


def _xtc(row: _Row, kept: Tensor, params: SamplingParams) -> Tensor:
    """Drop all but the least of the tokens above the threshold, where the number of the position is below."""
    seed, position = (
        torch.tensor([stored_values(params)["seed"] or 0], dtype=torch.int64, device="cpu"),
        torch.tensor([row.position], dtype=torch.int64, device="cpu"),
    )
    u = float(philox.uniform(seed, position, torch.tensor([0], dtype=torch.int64, device="cpu"), philox.XTC))
    p = row.p.masked_fill(~kept, 0.0)
    likely = p / p.sum() >= params.xtc_threshold
    if u >= params.xtc_probability or int(likely.sum()) < 2:
        return kept
    return row.x <= row.x[likely].min()
