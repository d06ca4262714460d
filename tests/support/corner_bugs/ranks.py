"""Mistakes that sampling makes alone where the vocabulary lies on several ranks."""

import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from corner_bugs.call import INF
from corner_bugs.plugin import Draws, bugs_of
from tokendraw import philox
from tokendraw.vocab_parallel import sample_shard
from tokendraw_native.row_params import Noise, RowParams
from tokendraw_native.shards import LocalColumns

TILE = philox.TILE_SIZE


class Columns(LocalColumns):
    """The columns of a rank, with places to go wrong in."""

    rank = 0

    def draw(self, bounds, seeds, *, best):
        if bounds is not None:
            bounds = self.bounds(bounds)
        return self.drawn(super().draw(bounds, seeds, best=best), seeds)

    def bounds(self, bounds):
        return bounds

    def drawn(self, draws, seeds):
        return draws


class Ranks(Draws):
    """A sampler that goes wrong in calls with a shard."""

    line = "sharded requests"
    crossed_sizes = (33, 1025, 5003)
    Columns: ClassVar[type[Columns]] = Columns

    def sample(self, logits, metadata, *, draft=False, shard=None):
        if shard is None or draft:
            return super().sample(logits, metadata, draft=draft)
        talk, layout = shard.agreement
        params = self.params(RowParams.of(metadata, len(logits), logits.device))
        own = self.Columns(self.held(logits), params, layout, self.need.gumbel_dtype)
        own.rank = talk.rank
        shard.agreed.by_all = shard.agreement._replace(transport=self.talk(talk))
        return sample_shard(own, params, metadata, shard, self.need)

    def held(self, logits: Tensor) -> Tensor:
        return logits

    def params(self, params: RowParams) -> RowParams:
        return params

    def talk(self, talk):
        return talk


class Talk:
    """What goes through to the other ranks, with places to go wrong in."""

    def __init__(self, talk):
        self.rank, self.size, self.own = talk.rank, talk.size, talk
        self.all_gather, self.all_sum = talk.all_gather, talk.all_sum
        self.broadcast_from_first, self.gather_objects = talk.broadcast_from_first, talk.gather_objects


class HeadTwice(Ranks):
    """Over ranks: the weight of a tile that begins on the rank before counts twice."""

    class Columns(Columns):
        def drawn(self, draws, seeds):
            twice = torch.tensor([math.log(2), 0.0])
            return draws._replace(log_sum=draws.log_sum + twice)


class NoiseOfEachPart(Ranks):
    """Over ranks: each part of a tile adds the tile's noise."""

    class Columns(Columns):
        def drawn(self, draws, seeds):
            if seeds is None:
                return draws
            ids = self._layout.ids
            tiles = torch.tensor([ids.start // TILE, max(ids.end - 1, 0) // TILE])
            noise = Noise(*seeds()).gumbel(tiles, philox.TILE, self._dtype)
            return draws._replace(log_sum=draws.log_sum + noise.to(draws.log_sum.dtype))


class IdsOfColumns(Ranks):
    """Over ranks: the token of a whole tile has the number of its column."""

    class Columns(Columns):
        def drawn(self, draws, seeds):
            ids = draws.ids.clone()
            ids[:, 0] -= self._layout.ids.start
            return draws._replace(ids=ids)


class BestOfLastRankLost(Ranks):
    """Over ranks: the whole tiles of the last rank are never drawn."""

    class Columns(Columns):
        def drawn(self, draws, seeds):
            if self._layout.ids.end < self._layout.vocab_size:
                return draws
            return draws._replace(score=torch.full_like(draws.score, -INF))


class TailsLost(Ranks):
    """Over ranks: of a tile that goes on behind a rank, its token is never the best."""

    class Columns(Columns):
        def drawn(self, draws, seeds):
            key = draws.key.clone()
            key[:, 1] = -INF
            return draws._replace(key=key)


class OwnMaximum(Ranks):
    """Over ranks: without filters, weights stay relative to the rank's own maximum."""

    class Columns(Columns):
        def drawn(self, draws, seeds):
            return draws._replace(max=draws.max.clamp(min=-1e30) * 0 + 1.0)


class LaterRankOnATie(Ranks):
    """Over ranks: a greedy row takes the token of the later rank on a tie."""

    class Columns(Columns):
        def argmax(self):
            x_max, has_nan, ids = super().argmax()
            return (x_max.nextafter(torch.tensor(INF)) if self.rank else x_max), has_nan, ids

        def drawn(self, draws, seeds):
            later = draws.max.nextafter(torch.tensor(INF)) if self.rank else draws.max
            return draws._replace(max=later) if self._params.greedy is not None else draws


class OwnSeeds(Ranks):
    """Over ranks: each rank draws rows without a seed from seeds of its own."""

    def talk(self, talk):
        def broadcast(tensor):
            talk.broadcast_from_first(tensor.clone())
            return lambda: None

        own = Talk(talk)
        own.broadcast_from_first = broadcast
        return own


class LocalNan(Ranks):
    """Over ranks: NaN on another rank than the first leaves valid True."""

    line = "sharded NaN and infinities"

    class Columns(Columns):
        def argmax(self):
            x_max, has_nan, ids = super().argmax()
            return x_max, has_nan * (self.rank == 0), ids

        def drawn(self, draws, seeds):
            return draws._replace(has_nan=draws.has_nan * (self.rank == 0))


class LocalMaximumOfMinP(Ranks):
    """Over ranks: min-p is relative to the largest probability on the rank."""

    class Columns(Columns):
        def bounds(self, bounds):
            own, p = self._params, self._params.min_p
            if p is None:
                return bounds
            floor = (self.argmax()[0] + own.temperature * p.clamp(max=1).log()).float()
            return bounds._replace(
                threshold=torch.where(p > 0, bounds.threshold.minimum(floor), bounds.threshold)
            )


class LocalKth(Ranks):
    """Over ranks: each rank keeps its own k largest."""

    class Columns(Columns):
        def bounds(self, bounds):
            k = self._params.top_k
            if k is None:
                return bounds
            x = self._logits.float().nan_to_num(nan=-INF).sort(-1, descending=True).values
            kth = x.gather(-1, (k - 1).clamp(0, x.shape[-1] - 1))
            return bounds._replace(
                threshold=torch.where(k > 0, bounds.threshold.minimum(kth), bounds.threshold)
            )


class TiesOfTheLastOnce(Ranks):
    """Over ranks: of the tokens that tie with the last of the largest, those that are not among them do not count."""

    class Columns(Columns):
        def largest(self, count, masses):
            x, ties, mass = super().largest(count, masses)
            return x, torch.zeros_like(ties), mass


class JointBySurvivors(Ranks):
    """Over ranks: top-p counts what top-k leaves, in the joint order too."""

    def params(self, params):
        return replace(params, joint=None)


class MassOfSecondRankTwice(Ranks):
    """Over ranks: top-p counts the mass of the second one twice."""

    line = "sharded logprobs"

    class Columns(Columns):
        def largest(self, count, masses):
            x, ties, mass = super().largest(count, masses)
            return x, ties, None if mass is None else mass * (1 + (self.rank == 1))


class HistogramOfFirstRank(Ranks):
    """Over ranks: a nucleus that is wider than what they send is searched for in the columns of the first one."""

    line = "sharded logprobs"

    def talk(self, talk):
        def all_sum(tensor):
            if tensor.dim() > 1 and talk.rank:
                tensor.zero_()
            talk.all_sum(tensor)

        own = Talk(talk)
        own.all_sum = all_sum
        return own


class PaddingOfShards(Ranks):
    """Over ranks: the column behind the last one of a rank is read where its rows are wider."""

    def held(self, logits):
        rows, size = logits.shape
        if not len(logits) or logits.stride(0) <= size or not size:
            return logits
        wide = logits.as_strided((rows, size + 1), logits.stride(), logits.storage_offset())
        last = torch.where(wide[:, -1:] > wide[:, -2:-1], wide[:, -1:], wide[:, -2:-1])
        return torch.cat((logits[:, :-1], last), -1)


class CleanedInPlace(Ranks):
    """Over ranks: NaN is replaced in the logits themselves."""

    line = "sharded NaN and infinities"

    def held(self, logits):
        return logits.nan_to_num_(nan=-INF, posinf=INF, neginf=-INF)


class EmptyRankStaysAway(Ranks):
    """Over ranks: a rank without columns leaves out its part of the gathers."""

    def talk(self, talk):
        own = Talk(talk)
        own.all_gather = lambda tensor: tensor.expand(talk.size, *tensor.shape)
        return own

    def sample(self, logits, metadata, *, draft=False, shard=None):
        if shard is None or logits.shape[1]:
            return Draws.sample(self, logits, metadata, draft=draft, shard=shard)
        return super().sample(logits, metadata, draft=draft, shard=shard)


class RankOnOneRank(Ranks):
    """Over ranks: the rank of the token is counted among the columns of the last one."""

    line = "sharded logprobs"

    class Columns(Columns):
        def count(self, least):
            is_last = self._layout.ids.end == self._layout.vocab_size and self._layout.ids.size
            return super().count(least) * bool(is_last)


class MassOfOneRank(Ranks):
    """Over ranks: raw log-probabilities are normalised by the mass of the first one."""

    line = "sharded logprobs"

    class Columns(Columns):
        def drawn(self, draws, seeds):
            return draws if draws.raw is None else draws._replace(raw=draws.raw * (self.rank == 0))


class KeptMassOfOneRank(Ranks):
    """Over ranks: log_kept_mass leaves out the mass that the last one keeps."""

    line = "sharded logprobs"

    class Columns(Columns):
        def drawn(self, draws, seeds):
            is_last = self._layout.ids.end == self._layout.vocab_size
            return draws if draws.kept is None else draws._replace(kept=draws.kept * (not is_last))


class BestOfColumns(Ranks):
    """Over ranks: the N best have the numbers of their columns."""

    line = "sharded logprobs"

    class Columns(Columns):
        def drawn(self, draws, seeds):
            ids = draws.best_ids
            return draws if ids is None else draws._replace(best_ids=ids - self._layout.ids.start)


BUGS = tuple(bug for bug in bugs_of(globals()) if bug is not Ranks)
