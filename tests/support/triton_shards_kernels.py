"""Draws from columns of ranks by triton-gumbel on CPU tensors: run as triton_kernels.py, whose interpreter it takes.

Ranks are threads. ``python triton_shards_kernels.py tokens SIZE DTYPE FAMILY ...`` prints, as JSON, how many rows were
drawn by so many ranks, and which differ from native's draw on one device; ``blind`` does where the host may not look at
values, as on a GPU. ``surveys DTYPE`` compares what a rank says before the draw with what native says.
"""

import json
import sys

import triton_kernels  # first: it says that kernels are interpreted

triton_kernels.hurry()

import torch  # noqa: E402

import shard_cases  # noqa: E402
import tokendraw  # noqa: E402
from shard_cases import INF, NAN  # noqa: E402
from tokendraw import Need, SamplingMetadata, SamplingParams  # noqa: E402
from tokendraw.testing.shards.thread_ranks import on_ranks  # noqa: E402
from tokendraw.vocab_parallel import (  # noqa: E402
    Digits,
    Layout,
    Span,
    Weighing,
    keys,
    thresholds,
)
from tokendraw.vocab_parallel.agreement import agree  # noqa: E402
from tokendraw_native.row_params import RowParams  # noqa: E402
from tokendraw_native.shards import LocalColumns  # noqa: E402
from tokendraw_triton_gumbel.device import LaunchDevice  # noqa: E402
from tokendraw_triton_gumbel.launches.parameters import kind_of, tensors_of  # noqa: E402
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler  # noqa: E402
from tokendraw_triton_gumbel.sharding import ShardSampler  # noqa: E402

CPU = torch.device("cpu")
ROWS = 12


class Beside:
    """Draws from a shard by triton-gumbel, and from all columns by native."""

    def __init__(self, need):
        self.need = need
        self.triton = TritonGumbelSampler(CPU, need)
        self.native = tokendraw.load_sampler(
            "native", device="cpu", need=need, logprobs_mode=need.logprobs_mode
        )

    def sample(self, logits, metadata, shard=None):
        if shard is None:
            return self.native.sample(logits, metadata)
        generator = torch.get_rng_state()
        agree(shard, logits, metadata, self.need, "triton-gumbel", None)
        torch.set_rng_state(generator)  # other ranks had their turn
        return self.triton.sample(logits, metadata, shard=shard)


def tokens(size, dtype, *families, gumbel_dtype="fp32"):
    """Draw batches of some families by so many ranks."""
    sampler = Beside(Need(gumbel_dtype=gumbel_dtype))
    drawn, wrong = 0, []
    for seed, (family, vocab_size) in enumerate((f, v) for f in families for v in (1, 7, 1024, 3500)):
        logits = shard_cases.logits_of(ROWS, vocab_size, seed, getattr(torch, dtype))
        params = shard_cases.params_of(ROWS, vocab_size, family, seed)
        metadata = SamplingMetadata.from_params(params, positions=range(ROWS))

        def work(rank, batch=(logits, metadata, seed)):
            return shard_cases.both(rank.rank, rank.size, sampler, *batch, rank)

        found = on_ranks(int(size), work, seconds=300)
        alone, first = found[0]
        drawn += ROWS
        for _, out in found:
            same = (out.token_ids == alone.token_ids) & (out.valid == alone.valid)
            same &= out.token_ids == first.token_ids
            rows = (~same).nonzero().flatten().tolist()
            wrong += [[family, vocab_size, row, str(params[row])] for row in rows]
    return {"drawn": drawn, "wrong": wrong}


def blind(*what):
    """Draw as :func:`tokens` does where the host looks at no value."""
    thresholds.may_look = lambda device: False
    return tokens(*what)


def surveys(dtype):
    """Survey columns with ties of every kind, and add them up by digits."""
    rng = torch.Generator().manual_seed(3)
    size, layout = 2900, Layout.of([Span(0, 700), Span(700, 3600)], 1, 3600, CPU)
    normal = torch.randn(size, generator=rng)
    families = {
        "gaussian": normal,
        "all equal": torch.full((size,), 3.5),
        "few values": (normal * 2).round() / 2,
        "two values": (normal > 1.5).float(),
        "few finite": normal.where(normal > 1.9, -INF),
        "NaN": normal.where(normal > -1, NAN),
        "infinities": normal.where(normal < 2, INF),
        "nothing": torch.full((size,), -INF),
        "close": 1 + normal * 1e-6,
        "wide": normal.sign() * (3 * normal).exp(),
    }
    logits = torch.stack(list(families.values())).to(getattr(torch, dtype))
    params = [SamplingParams(temperature=0.3 + 0.2 * i, top_p=0.9) for i in range(len(families))]
    metadata = SamplingMetadata.from_params(params)
    sampler = ShardSampler(LaunchDevice.of(CPU), TritonGumbelSampler(CPU, Need())._target, Need())
    tensors, kind = tensors_of(metadata), kind_of(metadata)
    native = LocalColumns(logits, RowParams.of(metadata, len(logits), CPU), layout, "fp32")
    judged, wrong = 0, []

    def compare(what, found, expected, tolerance=0.0):
        nonlocal judged
        for row, name in enumerate(families):
            judged += 1
            a, b = found[row].double(), expected[row].double()
            size = b.abs().max().item() if tolerance else 0.0
            if not torch.allclose(a, b, rtol=tolerance, atol=tolerance * size):
                wrong.append([what, name, a.tolist()[:8], b.tolist()[:8]])

    columns = sampler._columns(logits, metadata.facts, layout, tensors, kind)
    fresh = torch.arange(len(logits)).unsqueeze(-1) - (1 << 40)
    for count in (1, 5, 64, 65, 300, 1024):
        found, expected = columns.largest(count, 1, fresh), native.largest(count, 1, None)
        compare(f"values {count}", found.x, expected.x)
        compare(
            f"ties {count}",
            found.ties * (found.x[:, -1:] > -INF),
            expected.ties * (expected.x[:, -1:] > -INF),
        )
        compare(f"seeds {count}", found.fresh, fresh)
        some = expected.x[:, :1] > -INF
        compare(f"mass {count}", found.mass * some, expected.mass * some, 2e-6)
    columns = sampler._columns(logits, metadata.facts, layout, tensors, kind)
    found, expected = columns.largest(1, 256, None), native.largest(1, 256, None)
    some = expected.x > -INF
    compare("mass by digit", found.mass * some, expected.mass * some, 2e-6)
    middle = keys(expected.x)
    for shift in (24, 16, 8, 0):
        for median in (False, True):
            of = (
                keys(logits.float().nan_to_num(nan=-INF, posinf=INF).median(-1, keepdim=True)[0])
                if median
                else middle
            )
            digits = Digits(None if shift == 24 else of >> (shift + 8), shift)
            compare(f"counts {shift}", columns.histogram(digits, None), native.histogram(digits, None))
            weighing = Weighing(expected.x, torch.where(expected.x > 3, expected.x - 1, -INF), 40)
            own, other = columns.histogram(digits, weighing), native.histogram(digits, weighing)
            compare(f"weights {shift}", own * some, other * some, 2e-6)
    return {"judged": judged, "wrong": wrong}


PROGRAMS = {"tokens": tokens, "blind": blind, "surveys": surveys}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](*sys.argv[2:])))
