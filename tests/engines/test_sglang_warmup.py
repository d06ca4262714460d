"""The warmup compiles for SGLang's calls: the same tensors, dtypes and facts, in SGLang's layout of logits."""

import itertools

import pytest
import torch

import tokendraw
from sglang_drafts import speculation
from sglang_engine import Request, draw, info_of
from tokendraw.calls import warmup
from tokendraw.calls.dispatch import dispatch
from tokendraw_sglang._logprobs import LEAST_BEST, Scorer
from tokendraw_sglang._metadata import metadata_of
from tokendraw_sglang._warmup import BATCH_SIZES, batches, warm_up, warm_up_scores

pytestmark = pytest.mark.usefixtures("sglang")
V = 200
FILTERS = [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 50, "top_p": 0.9}]
FILTERS.append({"top_k": 50, "top_p": 0.9, "min_p": 0.05})


WIDTH = 4


def layout(metadata):
    """The properties by which a kernel may be compiled."""
    tensors = {name: value for name, value in vars(metadata).items() if isinstance(value, torch.Tensor)}
    facts = metadata.facts
    return (
        tuple(sorted((name, tensor.dtype) for name, tensor in tensors.items())),
        (
            facts.any_greedy,
            facts.any_top_p,
            facts.any_min_p,
            facts.max_top_k,
            facts.any_joint,
            facts.all_top_k,
        ),
    )


def test_the_warmup_draws_every_kind_of_batch_of_sglang():
    warmed = {layout(metadata) for metadata in batches(torch.device("cpu"), V)}
    for params, greedy, seed in itertools.product(FILTERS, (False, True), (None, 7)):
        requests = [
            Request(**params, sampling_seed=seed),
            Request(temperature=0.0) if greedy else Request(**params),
        ]
        assert layout(metadata_of(info_of(*requests), torch.tensor([3, 4]))) in warmed


@pytest.mark.parametrize(
    "rules", [{"filter_order": "temperature_last"}, {"xtc_probability": 0.5, "p_less": 1}]
)
def test_the_warmup_draws_the_rules_that_a_variable_names_in_every_set(monkeypatch, rules):
    """``layout`` of a batch names its rules' tensors and their dtypes; filters from moments stand in the facts."""

    def seen(metadata):
        return layout(metadata), metadata.facts.filters, metadata.facts.any_temperature_last

    def warmed():
        return {seen(metadata) for metadata in batches(torch.device("cpu"), V)}

    asked = [rules, dict([next(iter(rules.items()))])]
    found = [
        seen(
            metadata_of(
                info_of(*[Request(**params, custom_params={"tokendraw": each})] * 2), torch.tensor([3, 4])
            )
        )
        for params, each in itertools.product(FILTERS, asked)
    ]
    assert not warmed().intersection(found)
    monkeypatch.setenv("TOKENDRAW_WARMUP_RULES", ",".join(rules))
    assert warmed().issuperset(found)


def test_the_batches_are_small_and_large():
    assert {metadata.num_rows for metadata in batches(torch.device("cpu"), V)} == set(BATCH_SIZES)


def test_the_warmup_draws_the_rows_of_drafts_that_sglang_verifies(monkeypatch):
    """A sampler for plain steps alone draws no rows of drafts."""
    from sglang.srt.layers.sampler import create_sampler

    options = []
    monkeypatch.setattr("tokendraw_sglang._sampler.warm_up", lambda *_, **named: options.append(named))
    for leaves in ({}, {"speculative_use_rejection_sampling": True}):
        with speculation(speculative_num_draft_tokens=WIDTH, **leaves):
            create_sampler().is_ready(torch.zeros(1, V))
    create_sampler().is_ready(torch.zeros(1, V))
    assert options == [
        {"width": WIDTH, "mode": None},
        {"width": WIDTH, "mode": "rejection"},
        {"width": 1, "mode": None},
    ]
    sizes = {each.num_rows for each in batches(torch.device("cpu"), V, width=WIDTH)}
    assert sizes == {size * width for size in BATCH_SIZES for width in (1, WIDTH)}
    warmed = {layout(each) for each in batches(torch.device("cpu"), V, width=WIDTH)}
    with speculation():
        create_sampler()
        for params, greedy, seed in itertools.product(FILTERS, (False, True), (None, 7)):
            other = Request(temperature=0.0) if greedy else Request(**params)
            info = info_of(Request(**params, sampling_seed=seed), other)
            assert layout(metadata_of(info, torch.arange(2 * WIDTH), WIDTH)) in warmed


@pytest.mark.usefixtures("warmup_on_a_cpu")
@pytest.mark.parametrize("mode", ["rejection", "block"])
def test_the_warmup_verifies_chains_of_drafts_with_probabilities(monkeypatch, mode):
    sampler, calls = tokendraw.load_sampler("native", device="cpu"), []
    monkeypatch.setattr(warmup, "dispatch", lambda negotiator, operation, call: calls.append(call))
    monkeypatch.setattr("tokendraw_sglang._warmup.BATCH_SIZES", (2,))
    warm_up(sampler, torch.zeros(3, V), width=WIDTH, mode=mode)
    verified = [call for call in calls if hasattr(call, "drafts") and call.drafts.max_drafts]
    assert {(call.mode, call.drafts.kind) for call in verified} == {(mode, "probs")}
    assert {call.drafts.max_drafts for call in verified} >= {WIDTH - 1}
    assert {call.metadata.seed for call in calls} == {None}


@pytest.mark.parametrize("has_temperature", [False, True])
def test_the_warmup_scores_rows_in_the_form_of_draws_and_of_verifications(has_temperature):
    seen = set()

    class Scored:
        def score(self, logits, token_ids, metadata):
            assert (logits.stride(0), token_ids.dtype) == (V + 56, torch.int32)
            has_rows, has_any = metadata.row_index is not None, metadata.temperature is not None
            seen.add((len(logits), metadata.facts.max_logprobs, has_rows, has_any))
            return sampler.score(logits, token_ids, metadata)

    sampler = tokendraw.load_sampler("native", device="cpu", logprobs_mode="temperature_logprobs")
    logits = torch.zeros(1, V + 56)[:, :V]
    warm_up_scores(Scorer(Scored()), logits, width=WIDTH, has_temperature=has_temperature)
    assert seen == {
        (size * width, count, width > 1, has_temperature)
        for size, width, count in itertools.product(BATCH_SIZES, (1, WIDTH), (0, LEAST_BEST))
    }


@pytest.mark.usefixtures("warmup_on_a_cpu")
def test_the_warmup_uses_sglangs_row_stride_and_leaves_the_random_state(monkeypatch):
    sampler, drawn = tokendraw.load_sampler("native", device="cpu"), []
    monkeypatch.setattr(
        warmup,
        "dispatch",
        lambda negotiator, operation, call: (
            drawn.append(call.logits),
            dispatch(negotiator, operation, call),
        )[1],
    )
    state = torch.get_rng_state()
    warm_up(sampler, torch.zeros(3, V + 56)[:, :V])
    assert {tuple(logits.shape[1:]) + logits.stride()[:1] for logits in drawn} == {(V, V + 56)}
    assert {logits.dtype for logits in drawn} == {torch.float32}
    assert torch.equal(state, torch.get_rng_state())


def test_the_warmup_precedes_the_first_batch_of_any_kind(monkeypatch):
    from sglang.srt.layers.sampler import create_sampler

    warmed = []
    monkeypatch.setattr(
        "tokendraw_sglang._sampler.warm_up", lambda sampler, logits, **_: warmed.append(logits.shape)
    )
    sampler = create_sampler()
    for request in (Request(temperature=0.0), Request(), Request()):
        draw(sampler, torch.randn(1, V), info_of(request))
    assert warmed == [(1, V)]
