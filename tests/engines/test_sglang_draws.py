"""The adapter's results for SGLang: the distribution, greedy tokens and log-probabilities of SGLang's sampling.

Each check of a distribution calls a correct sampler wrong with a probability of 1e-7.
"""

import numpy as np
import pytest
import torch

from goodness_of_fit import FALSE_ALARM, chi_square
from sglang_engine import Request, backend, draw, info_of

pytestmark = pytest.mark.usefixtures("sglang")
V, DRAWS = 60, 10_000
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(3)) * 2
SETTINGS = {
    "no filter": {"temperature": 1.7},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.6},
    "min-p": {"min_p": 0.1},
    "top-k and top-p": {"temperature": 1.5, "top_k": 12, "top_p": 0.8},
    "top-p and min-p": {"temperature": 2.0, "top_p": 0.8, "min_p": 0.08},
    "all": {"temperature": 2.0, "top_k": 20, "top_p": 0.8, "min_p": 0.06},
}


@pytest.fixture
def sampler():
    from sglang.srt.layers.sampler import create_sampler

    return create_sampler()


@pytest.fixture
def reference():
    """SGLang's sampler, with its backend in plain PyTorch."""
    from sglang.srt.layers.sampler import Sampler

    class Own(Sampler):
        def forward(self, *args, **kwargs):
            with backend("pytorch"):
                return super().forward(*args, **kwargs)

    return Own()


def joint(logits, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
    """Probabilities by SGLang's order: each filter looks at the mass of the whole row."""
    x = logits.double().numpy() / temperature
    probs = np.exp(x - x.max())
    probs /= probs.sum()
    order = np.argsort(-probs)
    kept = np.zeros(len(x), dtype=bool)
    mass_before = np.cumsum(probs[order]) - probs[order]
    kept[order] = (mass_before < top_p) & (np.arange(len(x)) < (top_k or len(x)))
    kept &= probs >= min_p * probs.max()
    return np.where(kept, probs, 0.0)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.fast_first
def test_draws_have_the_distribution_of_sglangs_filters(sampler, name):
    torch.manual_seed(5)
    tokens, _ = draw(sampler, LOGITS.expand(DRAWS, -1), info_of(*[Request(**SETTINGS[name])] * DRAWS))
    assert chi_square(tokens.numpy(), joint(LOGITS, **SETTINGS[name])) > FALSE_ALARM


@pytest.mark.fast_first
@pytest.mark.parametrize("name", SETTINGS)
def test_sglangs_draws_have_the_same_distribution(reference, name):
    torch.manual_seed(6)
    tokens, _ = draw(reference, LOGITS.expand(DRAWS, -1), info_of(*[Request(**SETTINGS[name])] * DRAWS))
    assert chi_square(tokens.numpy(), joint(LOGITS, **SETTINGS[name])) > FALSE_ALARM


def test_the_settings_distinguish_joint_from_sequential_filters():
    k, p, t = (SETTINGS["top-k and top-p"][name] for name in ("top_k", "top_p", "temperature"))
    after_top_k = torch.from_numpy(joint(LOGITS, t, top_k=k))
    in_turn = joint(after_top_k.log(), top_p=p)
    assert not np.array_equal(in_turn > 0, joint(LOGITS, t, k, p) > 0)


@pytest.mark.slow
def test_in_a_mixed_batch_every_row_has_its_own_distribution(sampler):
    torch.manual_seed(7)
    rows = DRAWS // 2
    requests = [Request(**settings) for settings in SETTINGS.values()]
    requests.append(Request(temperature=0.0))
    batch = [request for request in requests for _ in range(rows)]
    tokens, _ = draw(sampler, LOGITS.expand(len(batch), -1), info_of(*batch))
    *drawn, greedy = tokens.view(-1, rows)
    assert greedy.unique().tolist() == [int(LOGITS.argmax())]
    for tokens_of, settings in zip(drawn, SETTINGS.values(), strict=True):
        assert chi_square(tokens_of.numpy(), joint(LOGITS, **settings)) > FALSE_ALARM


@pytest.mark.parametrize("beside", [[], [Request]])
def test_greedy_rows_are_the_first_of_the_largest_logits(sampler, reference, beside):
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    logits[:32, [300, 700]] = 9.0  # tied
    greedy = [Request(temperature=0.0)] * 32 + [Request(top_k=1, temperature=0.7)] * 32
    info = info_of(*greedy, *(make() for make in beside))
    tokens, _ = draw(sampler, torch.cat([logits, torch.randn(len(beside), 1000)]), info)
    assert tokens[:64].tolist() == logits.argmax(-1).tolist()
    assert tokens[:64].tolist() == draw(reference, logits, info_of(*greedy))[0].tolist()


def test_logprobs_of_greedy_batches_are_sglangs_own(sampler, reference):
    logits, info = torch.randn(2, V), info_of(Request(temperature=0.0), Request(top_k=1, temperature=0.5))
    tokens, ours = draw(sampler, logits, info, top=[3, 1])
    expected, theirs = draw(reference, logits, info, top=[3, 1])
    assert tokens.tolist() == expected.tolist()
    assert torch.equal(ours.next_token_logprobs, theirs.next_token_logprobs)


def test_tokens_are_int32_as_sglangs_own_draws(sampler, reference):
    logits, info = torch.randn(2, V), info_of(Request(), Request(top_k=4))
    assert draw(sampler, logits, info)[0].dtype is draw(reference, logits, info)[0].dtype is torch.int32


def test_ranks_agree_on_the_tokens_as_sglang_has_them_agree(sampler, monkeypatch):
    def smallest_of_all_ranks(self, batch_next_token_ids, sampling_info):
        batch_next_token_ids.clamp_(max=3)

    monkeypatch.setattr(type(sampler).__mro__[1], "_sync_token_ids_across_tp", smallest_of_all_ranks)
    logits = torch.full((2, V), -1e4)
    logits[[0, 1], [2, 50]] = 0.0
    assert draw(sampler, logits, info_of(Request(), Request(top_k=4)))[0].tolist() == [2, 3]


def test_an_empty_batch_draws_nothing(sampler):
    assert draw(sampler, torch.empty(0, V), info_of())[0].tolist() == []


class TestLeftToSGLang:
    """Batches with results that depend on SGLang's way to draw go to SGLang's sampler and backend."""

    @pytest.fixture
    def forbid_tokendraw(self, sampler, monkeypatch):
        monkeypatch.setattr(sampler, "_draw", lambda *_: pytest.fail("tokendraw drew"))
        return sampler

    def test_sampling_masks(self, forbid_tokendraw):
        tokens, output = draw(
            forbid_tokendraw, torch.randn(2, V), info_of(Request(top_k=3), Request(top_k=5, mask=True))
        )
        assert tokens.shape == (2,)
        assert output.sampling_mask_output is not None

    def test_logprobs_before_a_watermark(self, forbid_tokendraw):
        logits, plain = torch.full((1, V), -1e4), torch.randn(1, V)
        logits[0, 5] = 0.0  # what a watermark forces
        tokens, output = draw(
            forbid_tokendraw, logits, info_of(Request(top_k=3)), top=[1], logprob_logits=plain
        )
        assert tokens.tolist() == [5]
        torch.testing.assert_close(output.next_token_logprobs, plain.log_softmax(-1)[:, 5])
