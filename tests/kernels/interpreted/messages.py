"""Merge messages of ranks by triton-gumbel's kernels, in Triton's interpreter.

The columns of each rank are native's, so that nothing but the merging is compared.
"""

import math
from itertools import pairwise

import torch

import shard_cases
import tokendraw
from shard_cases import cuts, logits_of, params_of
from tokendraw import Need, SamplingMetadata, SamplingParams, VocabShard
from tokendraw.row_parameters import MetadataParameters, RowParameters
from tokendraw.vocab_parallel import sample_shard, thresholds
from tokendraw.vocab_parallel.agreement import agree
from tokendraw_native.shards import LocalColumns
from tokendraw_testing.shards.thread_ranks import on_ranks
from tokendraw_triton_gumbel.host import params_layout
from tokendraw_triton_gumbel.host.arguments import TensorConverter
from tokendraw_triton_gumbel.ranks.merge_launches import MergeLaunches
from tokendraw_triton_gumbel.ranks.merging import KernelMerging

LAUNCHES = MergeLaunches()
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Checked(KernelMerging):
    """Compares thresholds with plain torch."""

    def thresholds(self, received, plan, histograms):
        result, fresh = super().thresholds(received, plan, histograms)
        expected, other_fresh = self._torch.thresholds(received, plan, histograms)
        self.apart = sum(int((own != other).sum()) for own, other in zip(result, expected, strict=True))
        if fresh is not None:
            self.apart += int((fresh != other_fresh).sum())
        return result, fresh


def merged(logits, metadata, shard, need):
    """Draw from native's columns, and merge by kernels: the output, and how many bounds are not torch's."""
    agree(shard, logits, metadata, need, "kernels", None)
    layout = shard.agreement.layout
    params = RowParameters.of(metadata, len(logits), logits.device)
    columns = LocalColumns(logits, params, layout, need.gumbel_dtype)
    given = params_layout.contiguous_params(metadata)[0]
    plain = MetadataParameters(metadata, len(logits), logits.device)
    merging = Checked(LAUNCHES, TensorConverter(), layout, given, plain, need)
    merging.apart = 0
    return sample_shard(columns, params, metadata, shard, need, merging), merging.apart


def differing(logits, metadata, borders, need, seed):
    """Compare the output of each rank with a single device; return the number of rows, and the wrong rows."""
    rows, vocab_size = logits.shape
    thresholds.may_read_values = lambda device: False
    native = tokendraw.load_sampler("native", device="cpu", need=need)
    torch.manual_seed(seed)
    alone = native.sample(logits, metadata)

    def work(group):
        lo, hi = list(pairwise(borders))[group.rank]
        if not group.rank:
            torch.manual_seed(seed)
        return merged(logits[:, lo:hi], metadata, VocabShard(lo, vocab_size, group), need)

    outputs, wrong = on_ranks(len(borders) - 1, work), []
    for rank, (out, apart) in enumerate(outputs):
        wrong += [[vocab_size, rank, "bounds", apart]] * (apart > 0)
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


def designed():
    """Compare rows decided by ties with the k-th value, by a tail below the value, by one token on a rank."""
    size, rows = 2600, 24
    y = torch.full((rows, size), -20.0)
    y[:, :3], y[:, 3:43] = 0.0, -1.0
    y[1::3], y[1::3, :5] = math.log(5 / (size - 5)), torch.linspace(0.0, -1.0, 5)
    y[2::3], y[2::3, 0] = torch.linspace(0.0, -2.0, size) + math.log(3 / size), 0.0
    shuffled = torch.stack(
        [row[torch.randperm(size, generator=torch.Generator().manual_seed(i))] for i, row in enumerate(y)]
    )
    kinds = [{"top_k": 4, "top_p": 0.3}, {"top_k": 5, "top_p": 0.2}, {"top_k": 3, "top_p": 0.7}]
    orders = ("top_k_first", "joint")
    params = [
        SamplingParams(seed=row, filter_order=orders[row // 3 % 2], **kinds[row % 3]) for row in range(rows)
    ]
    wide = [SamplingParams(seed=row, top_p=0.9, min_p=0.01 * (row % 2)) for row in range(rows)]
    result = {}
    for name, requests in (("small k", params), ("top-p", wide[::2]), ("top-p and min-p", wide)):
        metadata = SamplingMetadata.from_params(requests, positions=range(len(requests)))
        logits = shuffled[:: rows // len(requests)]
        _, result[name] = differing(logits, metadata, [0, 700, 1300, size], Need(), 0)
    return result


def made():
    """Compare metadata from every constructor: in slots, at later positions, of values unknown to the host."""
    result = {}
    for name, make in shard_cases.MADE.items():
        logits = logits_of(shard_cases.METADATA_ROWS, shard_cases.METADATA_VOCAB_SIZE, 2, torch.bfloat16)
        borders = cuts(2, shard_cases.METADATA_VOCAB_SIZE, 1)
        _, result[name] = differing(logits, make(), borders, Need(), 3)
    return result
