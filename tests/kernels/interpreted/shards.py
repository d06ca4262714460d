"""Draws from columns of ranks by triton-gumbel on CPU tensors, in Triton's interpreter.

Ranks are threads. ``python shards.py tokens SIZE DTYPE FAMILY ...`` prints, as JSON, how many rows were
drawn by so many ranks, and which differ from native's draw on one device; ``blind`` does where the host may not look at
values, as on a GPU. ``surveys DTYPE`` compares what a rank says before the draw with what native says.
"""

import json
import sys
from dataclasses import replace

import fast_interpreter  # first: it has Triton interpret

fast_interpreter.hurry()

import torch  # noqa: E402

import shard_cases  # noqa: E402
import shard_surveys  # noqa: E402
import tokendraw  # noqa: E402
from tokendraw import Need, SamplingMetadata  # noqa: E402
from tokendraw.vocab_parallel import thresholds  # noqa: E402
from tokendraw.vocab_parallel.agreement import agree  # noqa: E402
from tokendraw_testing.shards.thread_ranks import on_ranks  # noqa: E402
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler  # noqa: E402

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


def metadata_of(params, *, in_slots):
    """Metadata of rows, whose parameters may stand in slots of another order, one temperature far from the next."""
    if not in_slots:
        return SamplingMetadata.from_params(params, positions=range(ROWS))
    order = [*range(ROWS)][::-1]
    found = SamplingMetadata.from_params(params[::-1], positions=range(ROWS), row_index=order)
    if found.temperature is None:
        return found
    return replace(found, temperature=torch.stack([found.temperature] * 3, 1)[:, 1])


def tokens(size, dtype, *families, gumbel_dtype="fp32"):
    """Draw batches of some families by so many ranks."""
    sampler = Beside(Need(gumbel_dtype=gumbel_dtype))
    drawn, wrong = 0, []
    for seed, (family, vocab_size) in enumerate((f, v) for f in families for v in (1, 7, 1024, 3500)):
        logits = shard_cases.logits_of(ROWS, vocab_size, seed, getattr(torch, dtype))
        params = shard_cases.params_of(ROWS, vocab_size, family, seed)
        metadata = metadata_of(params, in_slots=seed % 2 == 1)

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
    thresholds.may_read_values = lambda device: False
    return tokens(*what)


def surveys(dtype):
    """Survey columns with ties of every kind, and add them up by digits."""
    return shard_surveys.compared(getattr(torch, dtype), CPU)


PROGRAMS = {"tokens": tokens, "blind": blind, "surveys": surveys}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](*sys.argv[2:])))
