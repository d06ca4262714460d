"""A rank of a group whose other ranks say what it says: for calls of which only the launches are looked at."""

from dataclasses import dataclass
from itertools import pairwise

import torch

from tokendraw import VocabShard
from tokendraw.vocab_parallel import Layout, Span
from tokendraw.vocab_parallel.shard import Agreement


@dataclass
class EchoingRank:
    rank: int
    size: int

    def all_gather(self, tensor):
        return torch.stack([tensor] * self.size)

    def all_sum(self, tensor):
        tensor *= self.size

    def broadcast_from_first(self, tensor):
        return lambda: None

    def gather_objects(self, value):
        return [value] * self.size


def agreed_shard(bounds, rank):
    """A shard of the rank's ids on which its group has agreed.

    :param bounds: [R + 1]: the first ids of the ranks, and the end of the last.
    """
    spans = [Span(*ids) for ids in pairwise(bounds)]
    talk = EchoingRank(rank, len(spans))
    shard = VocabShard(bounds[rank], bounds[-1], talk)
    shard.agreed.by_all = Agreement(talk, Layout.of(spans, rank, bounds[-1], torch.device("cpu")))
    return shard
