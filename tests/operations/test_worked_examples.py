"""What draws and logprobs promise, by rows small enough to check by eye; the kit looks at all others."""

import math

import pytest
import torch

import call_tables
import tokendraw
from calling import call
from judged_rows import judge
from tokendraw import BatchFacts, Drafts, Need, SamplingMetadata, SamplingParams, philox

INF, NAN = math.inf, math.nan
MODES = ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs"]
FIVE = (0.4, 0.3, 0.2, 0.06, 0.04)
ALWAYS = {"xtc_probability": 1.0}


@pytest.fixture(scope="module")
def with_threshold():
    return tokendraw.load_sampler("native", device="cpu", need=Need(threshold=True))


def logits_of(*probabilities):
    return torch.tensor(probabilities).log()


# Which tokens a row keeps


def kept(sampler, logits, metadata):
    out = sampler.sample(logits, metadata)
    mask = tokendraw.kept_mask(logits, out.threshold, out.ceiling)
    assert mask[0, out.token_ids[0]]
    return mask[0].nonzero().flatten().tolist()


def test_the_worked_examples_of_kept_sets(with_threshold):
    def of_request(probabilities, **fields):
        metadata = SamplingMetadata.from_params([SamplingParams(**fields)])
        return kept(with_threshold, logits_of(probabilities), metadata)

    def of_tensors(probabilities, **fields):
        tensors = {name: torch.tensor([value]) for name, value in fields.items()}
        return kept(with_threshold, logits_of(probabilities), SamplingMetadata(**tensors))

    table = call_tables.Table(__file__, "kept_sets.txt")
    names = {"request": of_request, "tensors": of_tensors, "NAN": NAN}
    assert table.found(lambda: dict(names)) == table.text


def test_bounds_are_the_least_and_the_greatest_kept_logit(with_threshold):
    params = [
        SamplingParams(),
        SamplingParams(**ALWAYS),
        SamplingParams(typical_p=0.45),
        SamplingParams(**ALWAYS),
    ]
    logits = torch.stack([*logits_of(FIVE, FIVE, FIVE), torch.full((5,), -INF)])
    out, x = with_threshold.sample(logits, SamplingMetadata.from_params(params)), logits[0].tolist()
    assert (out.threshold[:3].tolist(), out.ceiling[:3].tolist()) == ([-INF, x[4], x[2]], [INF, x[2], x[1]])
    assert out.threshold[3].isnan()
    assert out.ceiling[3].isnan()
    largest = SamplingMetadata.from_params([SamplingParams(top_k=2)] * 3)
    assert with_threshold.sample(logits[:3], largest).threshold.tolist() == [x[1]] * 3


def test_a_row_has_xtc_where_the_uniform_of_its_seed_is_below_the_probability(with_threshold):
    seeds = torch.arange(64)
    params = [SamplingParams(xtc_probability=0.5, seed=seed) for seed in range(64)]
    out = with_threshold.sample(
        logits_of(*[FIVE] * 64), SamplingMetadata.from_params(params, positions=range(64))
    )
    u = philox.uniform(seeds, seeds, torch.zeros_like(seeds), philox.XTC)
    assert (out.threshold > -INF).tolist() == (u < 0.5).tolist()
    drafting = SamplingMetadata.from_params([SamplingParams(xtc_threshold=0.3, **ALWAYS)] * 2)
    logits = logits_of(*[(0.999, 1e-3)] * 2)
    assert with_threshold.draft(logits, drafting).token_ids.tolist() == [0, 0]  # drafts are drawn without


# Which token is drawn


@pytest.mark.parametrize("mode", MODES)
def test_extreme_temperatures_and_logits_draw_and_show_what_float64_does(load_native, device, mode):
    """1e-40 is a subnormal float32, 1e-300 is 0 there, 1e300 is finite in float64 alone, and so is x - max(x)."""
    common, apart = [1.5, -0.5, 1.0, -INF], [[3e38, -3e38, 3e38, 0.0], [-3e38, -3.2e38, -3.4e38, -3e38]]
    rows = [*((common, t) for t in (1e-300, 1e-40, 1e-30, 1e20, 1e39, 1e300)), *((row, 1.0) for row in apart)]
    requests = [SamplingParams(temperature=t, seed=1, logprobs=1) for _, t in rows]
    logits = torch.tensor([row for row, _ in rows], device=device)
    found = judge(load_native(mode), logits, requests, mode=mode)
    assert (found.wrong, found.judged > 5) == ([], True)


# Logprobs


def test_more_than_the_vocabulary_is_all_of_it(load_native, device):
    """Rows with fewer are padded as ever; nothing of the requested width is allocated."""
    logits = torch.tensor([[0.0, 1.0, 1.0], [2.0, -1.0, 0.0]], device=device)
    for mode in MODES:
        everything = call(
            load_native(mode), logits, [SamplingParams(logprobs=n, seed=1, top_k=2) for n in (-1, 1)]
        )
        assert everything.logprobs.token_ids[:, 1:].tolist() == [[1, 2, 0], [0, -1, -1]]
        assert everything.logprobs.logprobs[1, 2:].tolist() == [-INF, -INF]
        for wanted in (6, 10**7, 2**31, 10**30):
            out = call(
                load_native(mode), logits, [SamplingParams(logprobs=n, seed=1, top_k=2) for n in (wanted, 1)]
            )
            assert torch.equal(out.logprobs.token_ids, everything.logprobs.token_ids)
            assert torch.equal(out.logprobs.logprobs, everything.logprobs.logprobs)
    params = SamplingMetadata.from_params([SamplingParams(logprobs=10**9)], device=device)
    verified = load_native().verify(logits, Drafts.from_lists([[1]], device=device), params)
    assert verified.logprobs.token_ids.shape == (1, 2, 4)
    nobody = load_native().sample(logits[:0], SamplingMetadata(facts=BatchFacts(max_logprobs=10**9)))
    assert nobody.logprobs.token_ids.shape == (0, 4)
