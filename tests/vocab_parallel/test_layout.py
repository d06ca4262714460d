"""How shards divide the tiles of a vocabulary."""

import random
from itertools import pairwise

import pytest
import torch

from tokendraw.vocab_parallel.shard import Layout, Span, Tiles

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("ids", "head", "whole", "tail"),
    [
        ((0, 5000), (0, 0), (0, 5000), (5000, 5000)),  # all of it: the last tile is short
        ((0, 1500), (0, 0), (0, 1024), (1024, 1500)),
        ((1500, 5000), (1500, 2048), (2048, 5000), (5000, 5000)),
        ((1024, 2048), (1024, 1024), (1024, 2048), (2048, 2048)),
        ((100, 200), (100, 200), (200, 200), (200, 200)),  # inside one tile
        ((1024, 1030), (1024, 1024), (1024, 1024), (1024, 1030)),
        ((1000, 1030), (1000, 1024), (1024, 1024), (1024, 1030)),  # parts of two
        ((4999, 5000), (4999, 5000), (5000, 5000), (5000, 5000)),
        ((4096, 5000), (4096, 4096), (4096, 5000), (5000, 5000)),
        ((700, 700), (700, 700), (700, 700), (700, 700)),
    ],
)
def test_a_shard_has_whole_tiles_between_parts_of_two(ids, head, whole, tail):
    assert Tiles.of(Span(*ids), 5000) == Tiles(Span(*head), Span(*whole), Span(*tail))


def test_every_part_of_a_shared_tile_is_listed_once_in_the_order_of_ids():
    shards = [Span(*ids) for ids in ((0, 1500), (1500, 1500), (1500, 1600), (1600, 3000), (3000, 5000))]
    layout = Layout.of(shards, 3, 5000, CPU)
    assert layout.shared_tiles.tolist() == [1, 2]
    assert layout.parts.tolist() == [[1, 4, 6], [7, 8, 10]]  # 10: there is none
    assert (layout.ids, layout.most_columns, layout.lead) == ((1600, 3000), 2000, 576)


def test_shards_of_whole_tiles_share_none():
    layout = Layout.of([Span(0, 2048), Span(2048, 5000)], 0, 5000, CPU)
    assert layout.shared_tiles.tolist() == []
    assert layout.parts.shape == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_every_id_is_in_one_part_or_in_a_whole_tile_of_one_rank(seed):
    rng = random.Random(seed)
    vocab_size = rng.randint(1, 6000)
    borders = sorted(rng.randint(0, vocab_size) for _ in range(rng.randint(0, 6)))
    shards = [Span(*ids) for ids in pairwise([0, *borders, vocab_size])]
    held = [
        i
        for ids in shards
        for span in spans_of(Tiles.of(ids, vocab_size))
        for i in range(span.start, span.end)
    ]
    assert held == list(range(vocab_size))


def spans_of(tiles):
    return tiles.head, tiles.whole, tiles.tail
