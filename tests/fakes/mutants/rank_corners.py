"""Bugs of native in calls of several ranks."""

import functools
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from mutants.corner_calls import INF
from mutants.corners import Corner, draw
from tokendraw import philox
from tokendraw.row_parameters import RowParameters
from tokendraw.vocab_parallel import TorchMerging, sample_shard
from tokendraw_native.noise import Noise
from tokendraw_native.shards import LocalColumns

TILE = philox.TILE_SIZE


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Changes to the logits, parameters, results and transport of a rank.

    Those of results take the columns of the rank and what native makes of them; that of the surveys of all ranks takes
    these, the plan and the parameters.
    """

    where: Any = lambda logits: True
    logits: Any = lambda logits: logits
    params: Any = lambda params: params
    transport: Any = lambda transport: transport
    bounds: Any = lambda columns, bounds: bounds
    drawn: Any = lambda columns, draws, seeds: draws
    argmax: Any = lambda columns, best: best
    largest: Any = lambda columns, largest: largest
    surveys: Any = lambda surveys, plan, params: surveys
    counted: Any = lambda columns, count: count

    def sample(self, sampler, logits, metadata, shard):
        """Draw with the rest of the group."""
        if not self.where(logits):
            return sampler.native.sample(logits, metadata, shard=shard)
        transport, layout = shard.agreement
        params = self.params(RowParameters.of(metadata, len(logits), logits.device))
        columns = Columns(self.logits(logits), params, layout, sampler.need.gumbel_dtype)
        columns.changes, columns.rank = self, transport.rank
        shard.agreed.by_all = shard.agreement._replace(transport=self.transport(transport))
        merging = Merging(params, layout, sampler.need.gumbel_dtype)
        merging.changes = self
        return sample_shard(columns, params, metadata, shard, sampler.need, merging)


class Merging(TorchMerging):
    """Merges the messages of all ranks, with the changes of a mutant."""

    def thresholds(self, received, plan, histograms):
        surveys = self.changes.surveys(received.tensors(), plan, self._params)
        return super().thresholds(SimpleNamespace(tensors=lambda: surveys), plan, histograms)


class Columns(LocalColumns):
    """The columns of a rank, with the changes of a mutant."""

    def draw(self, bounds, seeds, *, best):
        if bounds is not None:
            bounds = self.changes.bounds(self, bounds)
        return self.changes.drawn(self, super().draw(bounds, seeds, best=best), seeds)

    def argmax(self):
        return self.changes.argmax(self, super().argmax())

    def largest(self, *asked):
        return self.changes.largest(self, super().largest(*asked))

    def count(self, least):
        return self.changes.counted(self, super().count(least))

    @property
    def ids(self):
        return self._layout.ids

    @property
    def is_last(self):
        return self._layout.ids.end == self._layout.vocab_size


class Transport:
    """Passes messages between ranks, with some methods replaced."""

    def __init__(self, transport, **changed):
        names = ("all_gather", "all_sum", "broadcast_from_first", "gather_objects", "rank", "size")
        vars(self).update({name: getattr(transport, name) for name in names} | changed)


def own_seeds(transport):
    def broadcast(tensor):
        transport.broadcast_from_first(tensor.clone())
        return lambda: None

    return Transport(transport, broadcast_from_first=broadcast)


def extremes_of_first(transport):
    def all_gather(tensor):
        gathered = transport.all_gather(tensor)
        is_extremes = tensor.dtype is torch.float32 and tensor.shape[-1] == 3
        return gathered[:1].expand_as(gathered) if is_extremes else gathered

    return Transport(transport, all_gather=all_gather)


def histogram_of_first(transport):
    def all_sum(tensor):
        if tensor.dim() > 1 and transport.rank:
            tensor.zero_()
        transport.all_sum(tensor)

    return Transport(transport, all_sum=all_sum)


def noise_again(columns, draws, seeds):
    if seeds is None:
        return draws
    at = torch.tensor([columns.ids.start // TILE, max(columns.ids.end - 1, 0) // TILE])
    noise = Noise(*seeds()).gumbel(at, TILE, columns._dtype)
    return draws._replace(log_sum=draws.log_sum + noise.to(draws.log_sum.dtype))


def changed_column(name, column, change):
    """Change a column of a field of the draws."""

    def drawn(columns, draws, seeds):
        values = getattr(draws, name).clone()
        values[:, column] = change(columns, values[:, column])
        return draws._replace(**{name: values})

    return drawn


def changed_field(name, change):
    """Change an optional field of the draws."""

    def drawn(columns, draws, seeds):
        values = getattr(draws, name)
        return draws if values is None else draws._replace(**{name: change(columns, values)})

    return drawn


def next_maximum(columns, result):
    return result._replace(max=result.max.nextafter(torch.tensor(INF))) if columns.rank else result


def no_nan_behind_first(columns, result, seeds=None):
    return result._replace(has_nan=result.has_nan * (columns.rank == 0))


def padding_read(logits):
    rows, size = logits.shape
    if not len(logits) or logits.stride(0) <= size or not size:
        return logits
    wide = logits.as_strided((rows, size + 1), logits.stride(), logits.storage_offset())
    return torch.cat((logits[:, :-1], torch.maximum(wide[:, -1:], wide[:, -2:-1])), -1)


def lowered(parameter, least):
    """Lower the threshold to ``least(columns, parameter)`` in rows with a filter."""

    def bounds(columns, bounds):
        values = getattr(columns._params, parameter)
        if values is None:
            return bounds
        lower = bounds.threshold.minimum(least(columns, values))
        return bounds._replace(threshold=torch.where(values > 0, lower, bounds.threshold))

    return bounds


def least_of_top_k(columns, k):
    x = columns._logits.float().nan_to_num(nan=-INF).sort(-1, descending=True).values
    return x.gather(-1, (k - 1).clamp(0, x.shape[-1] - 1))


def second_mass_twice(columns, largest):
    mass = largest.mass
    return largest._replace(mass=None if mass is None else mass * (1 + (columns.rank == 1)))


def of_the_first(columns, largest):
    return largest if largest.sums is None else largest._replace(sums=largest.sums * (columns.rank == 0))


def changed_sums(change):
    """Change sums behind moments, [R, B, 1] each, by how far the maxima of ranks lie below the largest, in x and y."""

    def surveys(surveys, plan, params):
        if surveys.sums is None:
            return surveys
        below = (surveys.x[..., :1].double() - surveys.x[..., :1].amax(0)).clamp(min=-1e30)
        parts = surveys.sums.split(1, -1)
        changed = [
            change(name, part, below, (below * params.inverse_temperature).clamp(min=-600.0))
            for name, part in zip(plan.sums, parts, strict=True)
        ]
        return surveys._replace(sums=torch.cat(changed, -1))

    return surveys


def unmoved_mean(name, part, below, y):
    return part - below if name == "mean" else part


def unmoved_weights(name, part, below, y):
    return part * (-{"mass": 1, "entropy": 1, "collision": 2}.get(name, 0) * y).exp()


def ranked(name, line="sharded requests", **changes):
    """A bug on a rank."""
    return draw(f"Over ranks: {name}", line, sizes=(33, 1025, 5003), rank=Rank(**changes))


logprobs = functools.partial(ranked, line="sharded logprobs")
moments = functools.partial(ranked, line="sharded filters from moments")
# fmt: off
RANKS = (
    ranked("the weight of a tile that begins on the rank before counts twice",
           drawn=changed_field("log_sum", lambda columns, sums: sums + torch.tensor([math.log(2), 0.0]))),
    ranked("each part of a tile adds the tile's noise", drawn=noise_again),
    ranked("the token of a whole tile has the number of its column",
           drawn=changed_column("ids", 0, lambda columns, ids: ids - columns.ids.start)),
    ranked("the whole tiles of the last rank are never drawn", drawn=lambda columns, draws, seeds: (
               draws._replace(score=torch.full_like(draws.score, -INF)) if columns.is_last else draws)),
    ranked("of a tile that goes on behind a rank, its token is never the best",
           drawn=changed_column("key", 1, lambda columns, keys: -INF)),
    ranked("without filters, weights stay relative to the rank's own maximum",
           drawn=changed_field("max", lambda columns, top: top.clamp(min=-1e30) * 0 + 1.0)),
    ranked("a greedy row takes the token of the later rank on a tie", argmax=next_maximum,
           drawn=lambda columns, draws, seeds: (
               draws if columns._params.greedy is None else next_maximum(columns, draws))),
    ranked("each rank draws rows without a seed from seeds of its own", transport=own_seeds),
    ranked("NaN on another rank than the first leaves valid True", "sharded NaN and infinities",
           argmax=no_nan_behind_first, drawn=no_nan_behind_first),
    ranked("the column behind the last one of a rank is read where its rows are wider", logits=padding_read),
    ranked("NaN is replaced in the logits themselves", "sharded NaN and infinities",
           logits=lambda logits: logits.nan_to_num_(nan=-INF, posinf=INF, neginf=-INF)),
    ranked("a rank without columns leaves out its part of the gathers", where=lambda logits: not logits.shape[1],
           transport=lambda transport: Transport(
               transport, all_gather=lambda tensor: tensor.expand(transport.size, *tensor.shape))),
    ranked("min-p is relative to the largest probability on the rank", bounds=lowered(
               "min_p", lambda columns, min_p:
               (columns.argmax()[0] + columns._params.temperature * min_p.clamp(max=1).log()).float())),
    ranked("each rank keeps its own k largest", bounds=lowered("top_k", least_of_top_k)),
    ranked("of the tokens that tie with the last of the largest, those that are not among them do not count",
           largest=lambda columns, largest: largest._replace(ties=torch.zeros_like(largest.ties))),
    ranked("top-p counts what top-k leaves, in the joint order too", params=lambda params: replace(params, joint=None)),
    logprobs("top-p counts the mass of the second one twice", largest=second_mass_twice),
    logprobs("a nucleus that is wider than what they send is searched for in the columns of the first one",
             transport=histogram_of_first),
    logprobs("the rank of the token is counted among the columns of the last one",
             counted=lambda columns, count: count * bool(columns.is_last and columns.ids.size)),
    logprobs("raw log-probabilities are normalised by the mass of the first one",
             drawn=changed_field("raw", lambda columns, raw: raw * (columns.rank == 0))),
    logprobs("log_kept_mass leaves out the mass that the last one keeps",
             drawn=changed_field("kept", lambda columns, kept: kept * (not columns.is_last))),
    ranked("the threshold is that of the first one's columns", line="sharded thresholds", transport=extremes_of_first),
    moments("the moments are those of the first one's columns", largest=of_the_first),
    moments("the mean of a rank stays relative to the rank's largest value", surveys=changed_sums(unmoved_mean)),
    moments("sums of weights stay relative to the rank's largest value", surveys=changed_sums(unmoved_weights)),
    moments("the variance is the mean of the ranks' variances", surveys=changed_sums(
        lambda name, part, below, y: -below if name == "mean" else part)),
    logprobs("the N best have the numbers of their columns",
             drawn=changed_field("best_ids", lambda columns, ids: ids - columns.ids.start)),
)
# fmt: on
MUTANTS: dict[str, tuple[Corner, ...]] = {"Ranks that each hold some columns": RANKS}
