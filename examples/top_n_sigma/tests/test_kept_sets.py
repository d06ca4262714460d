"""The filter keeps the tokens that a comparison with ``torch.std`` keeps."""

import pytest
import torch

import tokendraw
from tokendraw import InvalidParameterError, Need, SamplingMetadata, SamplingParams


@pytest.mark.parametrize("n", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_tokens_within_n_sample_deviations_are_kept(n, temperature):
    sampler = tokendraw.load_sampler("native", device="cpu", need=Need(threshold=True))
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(temperature=temperature, filters={"top_n_sigma_sample": n})
    out = sampler.sample(logits, SamplingMetadata.from_params([params] * 4))
    x = logits.double()
    needed = x >= x.amax(-1, keepdim=True) - n * x.std(-1, keepdim=True)
    assert torch.equal(tokendraw.kept_mask(logits, out.threshold), needed)


def test_a_row_of_one_token_keeps_it():
    """The deviation of one value is 0 / 0, and a floor of NaN is off."""
    sampler = tokendraw.load_sampler("native", device="cpu")
    params = SamplingParams(filters={"top_n_sigma_sample": 1.0})
    out = sampler.sample(torch.zeros(1, 1), SamplingMetadata.from_params([params]))
    assert out.token_ids.tolist() == [0]


def test_a_bad_value_is_refused():
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(filters={"top_n_sigma_sample": "1"}).check()
    assert str(caught.value) == "'filters': 'top_n_sigma_sample' needs a finite number, found '1'."
