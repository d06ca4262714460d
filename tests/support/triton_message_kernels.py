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


def tokens(family, size, rows=24, gumbel_dtype="fp32"):
    """Compare seeded and unseeded rows of every dtype and several vocabularies with one device's."""
    size, need, wrong, judged = int(size), Need(gumbel_dtype=gumbel_dtype), [], 0
    thresholds.may_look = lambda device: False
    native = tokendraw.load_sampler("native", device="cpu", need=need)
    for seed, vocab_size in enumerate((1, 7, 1030, 3500)):
        logits = logits_of(rows, vocab_size, seed, DTYPES[seed % 3])
        metadata = SamplingMetadata.from_params(
            params_of(rows, vocab_size, family, seed), positions=range(rows)
        )
        borders = cuts(size, vocab_size, seed)
        torch.manual_seed(seed)
        alone = native.sample(logits, metadata)

        def work(group, logits=logits, metadata=metadata, borders=borders, seed=seed):
            lo, hi = list(pairwise(borders))[group.rank]
            if not group.rank:
                torch.manual_seed(seed)
            shard = VocabShard(lo, logits.shape[1], group)
            return merged(logits[:, lo:hi], metadata, shard, need)

        for out in on_ranks(size, work):
            judged += rows
            for name in ("token_ids", "valid"):
                differ = (getattr(out, name) != getattr(alone, name)).nonzero().flatten().tolist()
                wrong += [[family, vocab_size, name, row] for row in differ]
    return {"judged": judged, "wrong": wrong}


PROGRAMS = {"tokens": tokens}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](*sys.argv[2:])))
