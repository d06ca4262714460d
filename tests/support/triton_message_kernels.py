"""Merges what ranks tell each other by triton-gumbel's kernels: run as triton_kernels.py, whose interpreter it takes.

The columns of each rank are native's, so that nothing but the merging is looked at. ``python triton_message_kernels.py
tokens plain 2`` prints, as JSON, how many rows there were and which of them differ from one device's.
"""

import json
import sys
from itertools import pairwise

import triton_kernels  # first: it says that kernels are interpreted

triton_kernels.hurry()

import torch  # noqa: E402

import shard_metadata  # noqa: E402
import tokendraw  # noqa: E402
from shard_cases import cuts, logits_of, params_of  # noqa: E402
from tokendraw import Need, SamplingMetadata, VocabShard  # noqa: E402
from tokendraw.testing.shards.thread_ranks import on_ranks  # noqa: E402
from tokendraw.vocab_parallel import MetadataParameters, sample_shard, thresholds  # noqa: E402
from tokendraw.vocab_parallel.agreement import agree  # noqa: E402
from tokendraw_native.row_params import RowParams  # noqa: E402
from tokendraw_native.shards import LocalColumns  # noqa: E402
from tokendraw_triton_gumbel.arguments import Tensors  # noqa: E402
from tokendraw_triton_gumbel.launches import parameters  # noqa: E402
from tokendraw_triton_gumbel.launches.shard_messages import MessageLaunches  # noqa: E402
from tokendraw_triton_gumbel.shard_merging import KernelMerging  # noqa: E402

LAUNCHES = MessageLaunches(is_interpreted=True)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def merged(logits, metadata, shard, need):
    """Draw from native's columns, and merge by kernels."""
    agree(shard, logits, metadata, need, "kernels", None)
    layout = shard.agreement.layout
    params = RowParams.of(metadata, len(logits), logits.device)
    columns = LocalColumns(logits, params, layout, need.gumbel_dtype)
    given = parameters.readable(parameters.tensors_of(metadata))
    plain = MetadataParameters(metadata, len(logits), logits.device)
    merging = KernelMerging(LAUNCHES, Tensors(), layout, given, plain, need)
    return sample_shard(columns, params, metadata, shard, need, merging)


def differing(logits, metadata, borders, need, seed):
    """Compare what each rank gets with one device's: the number of rows, and those that differ."""
    rows, vocab_size = logits.shape
    thresholds.may_look = lambda device: False
    native = tokendraw.load_sampler("native", device="cpu", need=need)
    torch.manual_seed(seed)
    alone = native.sample(logits, metadata)

    def work(group):
        lo, hi = list(pairwise(borders))[group.rank]
        if not group.rank:
            torch.manual_seed(seed)
        return merged(logits[:, lo:hi], metadata, VocabShard(lo, vocab_size, group), need)

    outputs, wrong = on_ranks(len(borders) - 1, work), []
    for rank, out in enumerate(outputs):
        for name in ("token_ids", "valid"):
            differ = (getattr(out, name) != getattr(alone, name)).nonzero().flatten().tolist()
            wrong += [[vocab_size, rank, name, row] for row in differ]
    return rows * len(outputs), wrong


def tokens(family, size, rows=24, gumbel_dtype="fp32"):
    """Seeded and unseeded rows of every dtype and several vocabularies."""
    need, judged, wrong = Need(gumbel_dtype=gumbel_dtype), 0, []
    for seed, vocab_size in enumerate((1, 7, 1030, 3500)):
        logits = logits_of(int(rows), vocab_size, seed, DTYPES[seed % 3])
        params = params_of(len(logits), vocab_size, family, seed)
        metadata = SamplingMetadata.from_params(params, positions=range(len(logits)))
        borders = cuts(int(size), vocab_size, seed)
        more, other = differing(logits, metadata, borders, need, seed)
        judged, wrong = judged + more, wrong + other
    return {"judged": judged, "wrong": wrong}


def made():
    """Metadata as engines make it: in slots, at other positions, of values that the host does not know."""
    found = {}
    for name, make in shard_metadata.MADE.items():
        logits = logits_of(shard_metadata.ROWS, shard_metadata.V, 2, torch.bfloat16)
        borders = cuts(2, shard_metadata.V, 1)
        _, found[name] = differing(logits, make(), borders, Need(), 3)
    return found


PROGRAMS = {"tokens": tokens, "made": made}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](*sys.argv[2:])))
