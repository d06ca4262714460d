"""Log-probabilities at their ends: widths beyond the vocabulary, tiny kept masses, special rows, unwanted ranks."""

from dataclasses import replace

import numpy as np
import torch

from calling import call, shown_values
from cuda_batches import Operations
from tokendraw import BatchFacts, Drafts, Need, SamplingMetadata, SamplingParams
from tokendraw_native.sampler import NativeSampler

MODES = ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs"]
INF = float("inf")
PAD = (-1, -INF)


def assert_values(found, expected):
    """Compare within 1e-5, or the last bits of a large float32; -inf has to be exact."""
    np.testing.assert_allclose(found, np.asarray(expected, np.float64), rtol=5e-7, atol=1e-5)


def test_more_than_the_vocabulary_is_all_of_it(load_native):
    """Rows with fewer are padded as ever; nothing of the requested width is allocated."""
    logits = np.array([[0.0, 1.0, 1.0], [2.0, -1.0, 0.0]], np.float32)
    for mode in MODES:
        for wanted in (6, 10**7, 10**9, 2**31, 10**30):
            params = [SamplingParams(logprobs=n, seed=1, top_k=2) for n in (wanted, 1)]
            out = call(load_native(mode), logits, params)
            everything = call(load_native(mode), logits, [replace(params[0], logprobs=-1), params[1]])
            assert out.logprobs.token_ids[:, 1:].tolist() == [[1, 2, 0], [0, -1, -1]]
            assert out.logprobs.logprobs[1, 2:].tolist() == [-INF, -INF]
            assert torch.equal(out.logprobs.token_ids, everything.logprobs.token_ids)
            assert torch.equal(out.logprobs.logprobs, everything.logprobs.logprobs)


def test_ranks_that_no_caller_needs_are_not_counted():
    """Ranks take three operations of torch and more: to look the drawn logit up, to compare, and to add up."""
    logits, metadata = torch.zeros(3, 50), SamplingMetadata.from_params([SamplingParams(logprobs=2)] * 3)
    counts = []
    for wants_ranks in (True, True, False):  # the first call computes constants
        sampler = NativeSampler(torch.device("cpu"), Need(logprob_ranks=wants_ranks))
        with Operations() as operations:
            sampler.sample(logits, metadata)
        counts.append(operations.count)
    assert counts[2] <= counts[1] - 3


def test_drafts_and_verifications_are_no_wider_than_the_vocabulary(sampler, device):
    logits, params = torch.zeros(2, 4, device=device), [SamplingParams(logprobs=10**9)]
    drafted = sampler.draft(logits, SamplingMetadata.from_params(params * 2, device=device))
    assert drafted.logprobs.token_ids.shape == (2, 5)
    drafts = Drafts.from_lists([[1]], device=device)
    verified = sampler.verify(logits, drafts, SamplingMetadata.from_params(params, device=device))
    assert verified.logprobs.token_ids.shape == (1, 2, 5)
    nobody = sampler.sample(logits[:0], SamplingMetadata(facts=BatchFacts(max_logprobs=10**9)))
    assert nobody.logprobs.token_ids.shape == (0, 5)


def test_a_kept_mass_of_a_tiny_share_keeps_its_relative_precision(load_native):
    """A kept share of 2e-5 is as exact as a share of 0.9: importance weights use the identity."""
    logits = np.zeros((2, 50_000), np.float32)
    logits[1, 7] = 1e-3
    out = call(load_native("temperature_logprobs"), logits, SamplingParams(top_k=1, logprobs=0))
    np.testing.assert_allclose(out.log_kept_mass.cpu(), [0.0, 1e-3 - np.log(50_000 + 1e-3)], atol=1e-5)


def test_special_rows_show_what_the_draw_saw(load_native):
    """NaN is -inf, +inf is uniform among its equals, and an empty row is -inf everywhere, of rank V."""
    nan = float("nan")
    logits = np.array([[nan, 1.0, nan, 1.0], [INF, 3.0, INF, -INF], [-INF, nan, -INF, nan]], np.float32)
    half = -np.log(2.0)
    uniform = {
        "two NaN": [-INF, half, -INF, half],
        "two +inf": [half, -INF, half, -INF],
        "nothing": [-INF] * 4,
    }
    logit_rows = [[-INF, 1.0, -INF, 1.0], [INF, 3.0, INF, -INF], [-INF] * 4]
    processed_rows = [[-INF, 0.0, -INF, 0.0], [0.0, -INF, 0.0, -INF], [-INF] * 4]
    for mode in MODES:
        out = call(load_native(mode), logits, SamplingParams(seed=2, logprobs=-1))
        special = {"raw_logits": logit_rows, "processed_logits": processed_rows}
        assert_values(shown_values(out), special.get(mode, list(uniform.values())))
        assert out.logprobs.ranks.tolist() == [2, 2, 4]
        assert out.logprobs.logprobs[2, 0] == -INF
        assert out.log_kept_mass.tolist()[:2] == [0.0, 0.0]


def test_a_rank_counts_the_values_that_the_mode_shows(load_native):
    """In greedy rows with ties, behind XTC and typical-p, where larger tokens are not shown, and beside infinities."""
    row = [9.0, 9.0, 9.0, 8.5, 8.0, *np.linspace(-2, 2, 20)]
    requests = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, xtc_probability=1.0),
        SamplingParams(xtc_probability=1.0, xtc_threshold=0.01),
        SamplingParams(typical_p=0.3),
        SamplingParams(top_k=3, filter_order="joint"),
        SamplingParams(temperature=0.5, xtc_probability=1.0, filter_order="temperature_last"),
    ]
    logits = np.array([row] * len(requests) + [[INF, -INF, *row[2:]]] * 2, np.float32)
    params = [*requests, *requests[:2]]
    for mode in MODES:
        out = call(load_native(mode), logits, [replace(p, seed=7, logprobs=-1) for p in params])
        shown = shown_values(out)
        drawn = np.take_along_axis(shown, out.token_ids[:, None].cpu().numpy(), 1)
        assert out.logprobs.ranks.tolist() == (shown >= drawn).sum(1).tolist(), mode


def test_values_below_a_ceiling_are_exact_at_any_temperature(load_native):
    """Three tied tokens share what XTC left, or one has all of it, however far T moves them from the largest."""
    logits = np.array([[9.0, 8.0, 8.0, 8.0, 0.0], [9.0, 8.5, 0.0, 0.0, 0.0]], np.float32)
    params = SamplingParams(xtc_probability=1.0, filter_order="temperature_last", seed=1, logprobs=-1)
    for temperature in (1e-3, 1e-6, 1e-9, 1e-20, 1e-30, 1e-40):
        out = call(load_native("processed_logprobs"), logits, replace(params, temperature=temperature))
        third = -np.log(3.0)
        with np.errstate(over="ignore"):
            low, lower = np.float32([-8.0 / temperature + third, -8.5 / temperature])
        assert_values(shown_values(out), [[-INF, third, third, third, low], [-INF, 0.0, lower, lower, lower]])
        assert out.logprobs.token_ids[0, 1:4].tolist() == [1, 2, 3]
        assert out.logprobs.ranks.tolist() == [3, 1]
