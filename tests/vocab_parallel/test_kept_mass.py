"""The kept mass of columns whose sums were rounded."""

import torch

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams, VocabShard
from tokendraw_native.shards import LocalColumns
from tokendraw_testing.shards.thread_ranks import on_ranks


def test_no_kept_mass_exceeds_0_however_the_masses_were_rounded(monkeypatch):
    draw = LocalColumns.draw

    def too_light(self, *bounds_and_seeds, **best):
        draws = draw(self, *bounds_and_seeds, **best)
        return draws._replace(mass=draws.mass * (1 - 2**-24))

    monkeypatch.setattr(LocalColumns, "draw", too_light)
    sampler = tokendraw.load_sampler("native", device="cpu")
    metadata = SamplingMetadata.from_params([SamplingParams(logprobs=1)] * 3, device="cpu")
    (output,) = on_ranks(
        1, lambda rank: sampler.sample(torch.ones(3, 50), metadata, shard=VocabShard(0, 50, rank))
    )
    assert output.log_kept_mass.tolist() == [0.0] * 3
