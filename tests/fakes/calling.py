"""One call of the sampler under test, and what can be read off its answer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import tokendraw
from tokendraw import SamplerOutput, SamplingMetadata, SamplingParams


def call(
    sampler: tokendraw.Sampler,
    logits: Any,
    params: SamplingParams | Sequence[SamplingParams],
    positions: Any = None,
    row_index: Any = None,
) -> SamplerOutput:
    """Sample ``logits`` (an array or a tensor) on the sampler's device; one SamplingParams serves every row."""
    logits = torch.as_tensor(logits)
    if isinstance(params, SamplingParams):
        params = [params] * len(logits)
    if positions is None and any(p.seed is not None for p in params):
        positions = torch.arange(len(logits))
    metadata = SamplingMetadata.from_params(
        params, device=sampler.device, positions=positions, row_index=row_index
    )
    return sampler.sample(logits.to(sampler.device), metadata)


def tokens(output: SamplerOutput) -> list[int]:
    """The drawn ids."""
    return output.token_ids.tolist()


def uniform_tokens(sampler: tokendraw.Sampler, seeds: Any, positions: Any, size: int = 1000) -> list[int]:
    """Tokens of flat rows: a fingerprint of the noise."""
    params = [SamplingParams(seed=seed) for seed in seeds]
    return tokens(call(sampler, torch.zeros(len(seeds), size), params, positions))


def shown_values(output: SamplerOutput) -> np.ndarray:
    """[B, V] what the logprobs mode shows for every token, from a call with ``logprobs=-1``."""
    assert output.logprobs is not None
    ids, shown = output.logprobs.token_ids[:, 1:].cpu().numpy(), output.logprobs.logprobs[:, 1:].cpu().numpy()
    values = np.full(ids.shape, np.nan, np.float32)
    np.put_along_axis(values, ids, shown, axis=1)
    assert not np.isnan(values).any(), "logprobs=-1 has to show every token once, and no NaN"
    return values


def kept_sets(sampler: tokendraw.Sampler, logits: Any, params: Any) -> np.ndarray:
    """[B, V] bool, read off the ``processed_logprobs`` of all V tokens."""
    return np.isfinite(shown_values(call(sampler, logits, params)))


def assert_same_rows(left: SamplerOutput, right: SamplerOutput, rows: Any = slice(None)) -> None:
    """Every output tensor holds the same bits in ``rows``."""
    pairs = {
        "token_ids": (left.token_ids, right.token_ids),
        "valid": (left.valid, right.valid),
        "log_kept_mass": (left.log_kept_mass, right.log_kept_mass),
    }
    if left.logprobs is not None and right.logprobs is not None:
        for name in ("token_ids", "logprobs", "ranks"):
            pairs[f"logprobs.{name}"] = (getattr(left.logprobs, name), getattr(right.logprobs, name))
    for name, (one, other) in pairs.items():
        assert (one is None) == (other is None), name
        if one is not None and other is not None:
            assert torch.equal(one[rows], other[rows]), name
