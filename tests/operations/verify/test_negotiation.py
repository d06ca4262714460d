"""``Sampler.verify`` and ``Sampler.draft``: their backends, refusals, and metadata by request or row."""

from dataclasses import replace

import pytest
import torch

import tokendraw
from calling import loaded, select, selected
from fake_dists import EVERYTHING, plugin
from tokendraw import (
    Drafts,
    InvalidInputError,
    InvalidParameterError,
    Need,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
    speculative,
)
from tokendraw_native.sampler import NativeSampler

CPU = torch.device("cpu")
PARAMS = [SamplingParams(seed=i, temperature=0.8, top_k=20) for i in range(3)]
LISTS = [[1, 2], [], [3]]
FIRST = [5, 9, 1]
LOGITS = torch.randn(6, 50, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def sampler():
    return tokendraw.load_sampler("native", device="cpu")


def requests(params=PARAMS):
    return SamplingMetadata.from_params(params, positions=FIRST[: len(params)])


def same(left, right):
    assert torch.equal(left.token_ids, right.token_ids)
    assert torch.equal(left.num_accepted, right.num_accepted)
    assert torch.equal(left.valid, right.valid)


@pytest.mark.parametrize("mode", ["rejection", "coupled", "block"])
def test_entries_of_requests_are_spread_over_the_rows_of_their_drafts(sampler, mode):
    drafts = Drafts.from_lists(LISTS)
    rows = SamplingMetadata.from_params(
        PARAMS,
        positions=speculative.row_positions(drafts.cu_num_logits, torch.tensor(FIRST), 6),
        row_index=speculative.row_index(drafts.cu_num_logits, 6),
    )
    assert rows.positions.tolist() == [5, 6, 7, 9, 1, 2]
    expected = NativeSampler(CPU, Need()).verify(LOGITS, drafts, rows, mode=mode)
    same(sampler.verify(LOGITS, drafts, rows, mode=mode), expected)
    same(sampler.verify(LOGITS, drafts, requests(), mode=mode), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "exact"}, "'mode' needs rejection, coupled or block, found 'exact'. Pass one of these."),
        (
            {"target_logits": LOGITS[:5]},
            "'target_logits' needs 6 rows, one for each draft and one more for each of the 3 requests, found 5.",
        ),
        ({"target_logits": LOGITS[0]}, "'target_logits' needs shape [B, V] with V >= 1, found [50]."),
        (
            {"target_logits": LOGITS.double()},
            "'target_logits' needs dtype float32, bfloat16, float16, found torch.float64.",
        ),
        (
            {"metadata": requests(PARAMS[:2])},
            "'metadata' needs one entry a request, 3, or one a row of 'target_logits', 6, found 2.",
        ),
    ],
    ids=["mode", "rows", "shape", "dtype", "metadata"],
)
def test_what_does_not_fit_is_refused_before_and_after_a_call_that_fits(sampler, change, message):
    fitting = {"target_logits": LOGITS, "drafts": Drafts.from_lists(LISTS), "metadata": requests()}
    for _ in range(2):
        with pytest.raises((InvalidInputError, InvalidParameterError)) as refused:
            sampler.verify(**(fitting | change))
        assert str(refused.value) == message
        sampler.verify(**fitting)


def test_the_resolution_is_its_own(sampler):
    assert sampler.verify_resolution.operation == "verify"
    assert sampler.verify_resolution.chosen == "native"
    assert sampler.resolution.operation == "sample"


def test_by_default_whoever_verifies_does_even_if_another_one_draws(dists):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
    sampler = tokendraw.load_sampler(device="cpu")
    assert sampler.name == "acme"
    assert sampler.verify_resolution.chosen == "native"
    assert sampler.verify(LOGITS, Drafts.from_lists(LISTS), requests()).valid.all()


class Verifier:
    """Accepts nothing and emits the invalid token 99."""

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        tokens = torch.full((drafts.num_requests, drafts.max_drafts + 1), 99)
        return tokendraw.VerifyOutput(tokens, tokens[:, 0].int() * 0, tokens[:, 0] == 99)


@pytest.mark.parametrize(
    ("limits", "lists", "options", "who"),
    [
        ({}, LISTS, {}, "acme"),
        ({"verify_modes": ("coupled",)}, LISTS, {}, "native"),
        ({"draft_kinds": ("probs",)}, LISTS, {}, "native"),
        ({"draft_kinds": ("probs",)}, LISTS, {"draft_probs": torch.full((3, 50), 0.02)}, "acme"),
        ({"ragged_drafts": False}, LISTS, {}, "native"),
        ({"ragged_drafts": False}, [[1], [2], [3]], {}, "acme"),
        (
            {"placeholder_drafts": False},
            [[1, -1], [], [3]],
            {"draft_probs": torch.full((3, 50), 0.02)},
            "native",
        ),
        ({"placeholder_drafts": False}, LISTS, {"draft_probs": torch.full((3, 50), 0.02)}, "acme"),
        ({"placeholder_drafts": False}, LISTS, {}, "native"),
        ({"seeding": "launch"}, LISTS, {}, "native"),
    ],
    ids=str,
)
def test_a_batch_that_is_beyond_the_chosen_verifier_goes_to_its_companion(limits, lists, options, who):
    sampler = tokendraw.load_sampler("native", device="cpu")
    _ = sampler.verify_resolution
    native = selected(sampler, "verify").backend
    poor = replace(native.capabilities, **limits)
    acme = loaded("acme", Verifier(), poor, operation="verify")
    select(sampler, acme, operation="verify", companion=native)
    drafts = Drafts.from_lists(lists, **options)
    rows = sum(map(len, lists)) + 3
    output = sampler.verify(torch.zeros(rows, 50), drafts, requests())
    assert ("acme" if 99 in output.token_ids else "native") == who


def test_without_a_companion_such_a_batch_is_refused_with_the_reason():
    sampler = tokendraw.load_sampler("native", device="cpu")
    _ = sampler.verify_resolution
    native = selected(sampler, "verify").backend
    poor = replace(native.capabilities, draft_kinds=("probs",))
    select(sampler, loaded("native", native.object, poor, operation="verify"), operation="verify")
    with pytest.raises(SamplerUnavailableError) as refused:
        sampler.verify(LOGITS, Drafts.from_lists(LISTS), requests())
    assert str(refused.value) == (
        "'native' cannot serve drafts that were not drawn, which this batch may hold, and has no companion. Install "
        "one that can, or, if the batch holds none, say so in SamplingMetadata.facts or Drafts."
    )


BROKEN = """
class Wrong:
    def sample(self, logits, metadata, *, draft=False):
        return ArgmaxSampler().sample(logits, metadata)

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        import torch

        ids = target_logits.new_zeros(2, 2, dtype=torch.int64)
        return tokendraw.VerifyOutput(ids, ids[:, 0].int(), ids[:, 0] == 0)
"""


def test_building_is_proving_for_verifiers_too(dists):
    source = plugin("acme", capabilities=EVERYTHING, build="return Wrong()") + BROKEN
    source = source.replace(
        'operations={"sample": tokendraw.plugin.Capabilities(',
        'operations={op: tokendraw.plugin.VerifyCapabilities(verify_modes=("rejection",), draft_kinds=("probs",), ',
    ).replace(")},\n        )", ') for op in ("sample", "verify")},\n        )')
    dists.add_plugin("acme", source)
    sampler = tokendraw.load_sampler(device="cpu")
    assert sampler.name == "acme"
    with pytest.warns(tokendraw.SamplerFallbackWarning, match="the proof draw needs the tokens"):
        assert sampler.verify_resolution.chosen == "native"


# Batches that the chosen verifier cannot serve


class Counting:
    """Native, with a count of its requests."""

    def __init__(self):
        self.native = NativeSampler(CPU, Need())
        self.requests = []

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        self.requests.append(drafts.num_requests)
        assert len(target_logits) == drafts.num_rows
        return self.native.verify(target_logits, drafts, metadata, mode=mode)


@pytest.mark.parametrize("mode", ["rejection", "coupled", "block"])
@pytest.mark.parametrize(("n", "logprobs"), [(10, None), (40, None), (40, 2)])
def test_a_batch_with_a_request_that_is_beyond_it_goes_whole_to_the_companion(mode, n, logprobs):
    sampler = tokendraw.load_sampler("native", device="cpu")
    native, chosen, companion = selected(sampler, "verify").backend, Counting(), Counting()
    poor = replace(native.capabilities, greedy=False)
    select(
        sampler,
        loaded("acme", chosen, poor, operation="verify"),
        operation="verify",
        companion=replace(native, object=companion),
    )
    params = [SamplingParams(seed=i, temperature=0.0 if i == 3 else 0.7, logprobs=logprobs) for i in range(n)]
    metadata = SamplingMetadata.from_params(params, positions=range(n))
    drafts = Drafts.from_lists([[1, 2]] * n)
    target = torch.randn(3 * n, 50, generator=torch.Generator().manual_seed(n))
    found = sampler.verify(target, drafts, metadata, mode=mode)
    assert (chosen.requests, companion.requests) == ([], [n])
    same(found, tokendraw.load_sampler("native", device="cpu").verify(target, drafts, metadata, mode=mode))
