"""One look at the logits: what is left of them once the draw needs to see one tile a row.

There are two ways to look. :func:`survey` reads every logit, in chunks of rows, on any device. :func:`survey_head`
looks only at the largest values, which is enough where every row keeps few; it has to find out whether it was, so it
is for CPUs, where finding out does not wait for anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import philox
from tokendraw.probabilities import PerRow
from tokendraw_native.filters import HEAD, floors
from tokendraw_native.largest import largest
from tokendraw_native.request import Request
from tokendraw_native.rows import Rows, kept, known_finite, load, real_dtype, scaled
from tokendraw_native.scratch import Scratch

_TILE = philox.TILE_SIZE
_CHUNK = {"cpu": 1 << 19}
_CHUNK_ELSEWHERE = 1 << 24


@dataclass(frozen=True, slots=True)
class Head(PerRow):
    """The largest values of each row [rows, n], in descending order: every token that is kept, and maybe more."""

    ids: Tensor
    """int64."""
    tile: Tensor
    """int64: the tile of each."""
    x: Tensor
    """float32."""
    y: Tensor
    """The same after temperature, relative to the largest."""


@dataclass(frozen=True, slots=True)
class Survey(PerRow):
    """What is known of a batch after the first look. [rows, 1] where no shape is given."""

    top: Tensor
    """float32: the largest value."""
    valid: Tensor
    """bool."""
    floor: Tensor
    """float32: the least value kept."""
    tile_weights: Tensor
    """[rows, tiles]: the sum of ``exp(y)`` over the kept tokens of each tile."""
    finite: bool
    """As in :class:`~tokendraw_native.rows.Rows`."""
    mass: Tensor | None = None
    """Sum of ``exp(y)`` over the row, after temperature and before filters, if it was asked for."""
    raw_mass: Tensor | None = None
    """The same at T = 1."""
    head: Head | None = None
    """If it was found on the way."""


def chunks(logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a batch in pieces."""
    for part in stretches(logits.shape[0], logits):
        yield part, logits[part]


def stretches(count: int, logits: Tensor) -> Iterator[slice]:
    """Cut ``count`` rows like those of ``logits`` into what a CPU's caches hold, elsewhere into what fills the device.

    There is always one piece, if only an empty one.
    """
    rows = max(1, _CHUNK.get(logits.device.type, _CHUNK_ELSEWHERE) // logits.shape[1])
    for start in range(0, max(count, 1), rows):
        yield slice(start, min(start + rows, count))


def survey(logits: Tensor, request: Request, *, masses: bool) -> Survey:
    """Read every logit.

    :param masses: whether log-probabilities will be asked for.
    """
    scratch = Scratch(logits.device)
    parts = []
    for rows, part in chunks(logits):
        own = request if len(part) == len(logits) else request.chunk(rows)
        parts.append(_survey_chunk(load(part, scratch), own, scratch, masses))
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[Survey]) -> Survey:
    """One survey from those of successive rows."""

    def column(name: str) -> Any:
        own = [getattr(part, name) for part in parts]
        return None if own[0] is None else torch.cat(own)

    tensors = {f.name: column(f.name) for f in fields(Survey) if f.name not in ("finite", "head")}
    return Survey(**tensors, finite=all(part.finite for part in parts))


def _survey_chunk(rows: Rows, request: Request, scratch: Scratch, masses: bool) -> Survey:
    count, vocab_size = rows.x.shape
    width = vocab_size if vocab_size < _TILE else -(-vocab_size // _TILE) * _TILE
    padded = scratch.lend("weight", count, width, real_dtype(rows.x.device))
    if width > vocab_size:
        padded[:, vocab_size:].zero_()
    weight = padded[:, :vocab_size]
    mass = raw_mass = None
    if masses:
        one = torch.ones_like(request.temperature)
        raw_mass = scaled(rows.x, rows.top, one, finite=rows.finite).exp_().sum(-1, keepdim=True)
    scaled(rows.x, rows.top, request.inverse_temperature, out=weight, finite=rows.finite).exp_()
    if masses:
        mass = _tile_sums(padded).sum(-1, keepdim=True)
    floor = floors(rows, weight, request, vocab_size, scratch)
    if request.filters:
        weight *= kept(rows.x, floor, scratch)
    return Survey(rows.top, rows.valid, floor, _tile_sums(padded), rows.finite, mass, raw_mass)


def tile_sums(weight: Tensor) -> Tensor:
    """[rows, tiles] from the weights [rows, V] of all tokens."""
    vocab_size = weight.shape[-1]
    return _tile_sums(weight if vocab_size < _TILE else pad(weight, (0, -vocab_size % _TILE)))


def _tile_sums(padded: Tensor) -> Tensor:
    rows, width = padded.shape
    return padded.view(rows, -(-width // _TILE), min(width, _TILE)).sum(-1)


def survey_head(logits: Tensor, request: Request) -> Survey | None:
    """Look at the largest values only, or None if that cannot be enough, or turns out not to be."""
    vocab_size = logits.shape[-1]
    if not request.all_top_k or request.joint is not None or (request.max_top_k or 0) >= HEAD:
        return None
    n = min(max(request.max_top_k or 0, 1) + 1, vocab_size)
    values, ids = largest(logits, n)
    top = values[:, :1].to(torch.float32)
    if not known_finite(top):  # NaN comes first
        return None
    x, scratch = values.to(torch.float32), Scratch(logits.device)
    y = scaled(x, top, request.inverse_temperature, finite=True)
    weight = y.exp()
    rows = Rows(x, top, torch.ones_like(top, dtype=torch.bool), finite=True, descending=True)
    floor = floors(rows, weight, request, vocab_size, scratch)
    if n < vocab_size and not (floor > x[:, -1:]).all():  # there may be ties beyond the head
        return None
    tile = ids // _TILE
    tile_weights = weight.new_zeros(logits.shape[0], -(-vocab_size // _TILE))
    tile_weights.scatter_add_(-1, tile, weight * kept(x, floor, scratch))
    return Survey(top, rows.valid, floor, tile_weights, finite=True, head=Head(ids, tile, x, y))
