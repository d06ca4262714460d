"""Mistakes that sampling makes alone where the vocabulary lies on several ranks."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from corner_bugs.call import INF
from corner_bugs.plugin import Draws, bugs_of
from tokendraw import philox
from tokendraw.row_parameters import RowParameters
from tokendraw.vocab_parallel import sample_shard
from tokendraw_native.noise import Noise
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
        params = self.params(RowParameters.of(metadata, len(logits), logits.device))
        own = self.Columns(self.held(logits), params, layout, self.need.gumbel_dtype)
        own.rank = talk.rank
        shard.agreed.by_all = shard.agreement._replace(transport=self.talk(talk))
        return sample_shard(own, params, metadata, shard, self.need)

    def held(self, logits: Tensor) -> Tensor:
        return logits

    def params(self, params: RowParameters) -> RowParameters:
        return params

    def talk(self, talk):
        return talk


class Talk:
    """Passes what goes to the other ranks, with places to go wrong in."""

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
            found = super().argmax()
            return found._replace(max=found.max.nextafter(torch.tensor(INF))) if self.rank else found

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
            found = super().argmax()
            return found._replace(has_nan=found.has_nan * (self.rank == 0))

        def drawn(self, draws, seeds):
            return draws._replace(has_nan=draws.has_nan * (self.rank == 0))


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


BUGS = tuple(bug for bug in bugs_of(globals()) if bug is not Ranks)
