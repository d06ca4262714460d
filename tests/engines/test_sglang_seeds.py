"""Seeds of requests reach the sampler through SGLang's hooks, and tokens of a row do not depend on the batch."""

import pytest
import torch

import tokendraw
from goodness_of_fit import FALSE_ALARM, chi_square
from sglang_engine import Request, backend, draw, info_of, keep
from tokendraw_sglang import _metadata
from tokendraw_sglang._metadata import NO_SEED

pytestmark = pytest.mark.usefixtures("sglang")
V = 1000
PARAMS = {"temperature": 0.9, "top_k": 40, "top_p": 0.95}


@pytest.fixture
def sampler():
    from sglang.srt.layers.sampler import create_sampler

    return create_sampler()


@pytest.fixture
def logits():
    return torch.randn(5, V, generator=torch.Generator().manual_seed(1))


def own_draws(logits, seeds, positions):
    """The tokens of tokendraw for the same seeds and positions, without SGLang."""
    params = [tokendraw.SamplingParams(seed=seed, filter_order="joint", **PARAMS) for seed in seeds]
    metadata = tokendraw.SamplingMetadata.from_params(params, positions=positions)
    return tokendraw.load_sampler("native", device="cpu").sample(logits, metadata).token_ids.tolist()


def test_a_seeded_row_draws_tokendraws_token_in_any_batch(sampler, logits):
    seeds, positions = [7, -1, 2**63 - 1, 0, -5], [3, 100, 0, 7, 5000]
    expected = own_draws(logits, seeds, positions)
    requests = [Request(sampling_seed=seed, **PARAMS) for seed in seeds]
    assert draw(sampler, logits, info_of(*requests), positions)[0].tolist() == expected
    for row, request in enumerate(requests):
        alone, _ = draw(sampler, logits[[row]], info_of(request), [positions[row]])
        assert alone.tolist() == [expected[row]]


def test_a_seeded_row_keeps_tokens_beside_rows_of_every_kind(sampler, logits):
    (expected,) = own_draws(logits[:1], [7], [3])
    others = [Request(), Request(temperature=0.0), Request(min_p=0.1), Request(sampling_seed=8)]
    for turn in range(5):
        requests = [Request(sampling_seed=7, **PARAMS), *others]
        order = [*range(turn, 5), *range(turn)]
        tokens, _ = draw(sampler, logits[order], info_of(*(requests[i] for i in order)), [3] * 5)
        assert tokens[order.index(0)] == expected


@pytest.mark.slow
def test_unseeded_rows_beside_a_seeded_row_draw_anew(sampler, logits):
    torch.manual_seed(2)
    rows = 1000
    info = info_of(Request(sampling_seed=7), *[Request(temperature=1.3, top_k=20)] * rows)
    info.merge_batch(info_of(*[Request(temperature=1.3, top_k=20)] * rows))
    first, second = (draw(sampler, logits[[0]].expand(2 * rows + 1, -1), info)[0] for _ in range(2))
    assert first[0] == second[0]
    assert (first[1:] != second[1:]).any()
    kept = logits[0] >= logits[0].topk(20).values[-1]
    probabilities = (logits[0].double() / 1.3).softmax(-1).where(kept, 0.0).numpy()
    for tokens in (first[1:], second[1:]):
        assert chi_square(tokens.numpy(), probabilities) > FALSE_ALARM


class TestTheColumnOfSeeds:
    def test_exists_with_a_seeded_request(self):
        column = info_of(Request(), Request(sampling_seed=3), Request(sampling_seed=NO_SEED)).sampling_seed
        assert column.tolist() == [NO_SEED, 3, 2**63 - 1]

    def test_is_missing_without_seeded_requests(self):
        assert info_of(Request(), Request()).sampling_seed is None

    @pytest.mark.parametrize("seeded_first", [True, False])
    def test_grows_with_the_batch(self, seeded_first):
        seeded, plain = info_of(Request(sampling_seed=3)), info_of(Request(), Request())
        info, other = (seeded, plain) if seeded_first else (plain, seeded)
        info.merge_batch(other)
        expected = [3, NO_SEED, NO_SEED]
        assert info.sampling_seed.tolist() == (expected if seeded_first else expected[::-1])
        keep(info, [1])
        assert info.sampling_seed.tolist() == [NO_SEED]

    def test_is_left_out_where_another_backend_draws(self):
        with backend("pytorch"):
            assert info_of(Request(sampling_seed=3)).sampling_seed is None

    def test_is_left_out_where_drafts_are_verified(self):
        from sglang.srt.runtime_context import get_spec

        with get_spec().override(speculative_algorithm="EAGLE"):
            assert info_of(Request(sampling_seed=3)).sampling_seed is None

    def test_is_sglangs_own_in_deterministic_inference(self):
        from sglang.srt.runtime_context import get_exec

        with get_exec().deterministic.override(enable_deterministic_inference=True):
            info = info_of(Request(), Request(sampling_seed=3))
        assert info.sampling_seed.tolist() == [42, 3]


def test_batches_left_to_sglang_go_without_seeds(sampler, logits):
    info = info_of(Request(sampling_seed=3, top_k=5), Request(top_k=9, mask=True))
    column, drawn = info.sampling_seed, []
    for seed in range(20):  # SGLang's FlashInfer refuses seeds; its PyTorch would draw with them
        torch.manual_seed(seed)
        drawn += draw(sampler, logits[:1].expand(2, -1), info)[0][:1].tolist()
    assert len(set(drawn)) > 1
    assert info.sampling_seed is column


@pytest.fixture
def described(monkeypatch):
    """How often a batch has been described, as the length of a list."""
    calls, real = [], _metadata.metadata_of
    monkeypatch.setattr(_metadata, "metadata_of", lambda *args: (calls.append(1), real(*args))[1])
    return calls


def test_a_batch_is_described_once_for_all_its_steps(sampler, logits, described):
    info = info_of(Request(sampling_seed=3), Request(temperature=0.0))
    for position in range(4):
        draw(sampler, logits[:2], info.copy_for_forward(), [position] * 2)
    assert len(described) == 1
    keep(info, [0])
    draw(sampler, logits[:1], info, [5])
    assert len(described) == 2


@pytest.mark.parametrize("changed", ["temperatures", "top_ks", "top_ps", "min_ps", "sampling_seed"])
def test_a_batch_is_described_again_when_a_tensor_changes(sampler, logits, described, changed):
    info = info_of(Request(sampling_seed=3, top_p=0.9), Request(min_p=0.1, top_k=9))
    draw(sampler, logits[:2], info)
    setattr(info, changed, getattr(info, changed).clone())
    draw(sampler, logits[:2], info)
    assert len(described) == 2


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ("is_any_greedy", True),
        ("need_top_k_sampling", False),
        ("need_top_p_sampling", False),
        ("need_min_p_sampling", False),
        ("max_top_k", 9),
    ],
)
def test_a_batch_is_described_again_when_a_fact_changes(sampler, logits, described, changed, value):
    info = info_of(Request(top_p=0.9), Request(min_p=0.1, top_k=9))
    draw(sampler, logits[:2], info)
    setattr(info, changed, value)
    draw(sampler, logits[:2], info)
    assert len(described) == 2
