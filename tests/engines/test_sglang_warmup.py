"""The warmup compiles for SGLang's calls: the same tensors, dtypes and facts, in SGLang's layout of logits."""

import contextlib
import itertools
from unittest.mock import Mock

import pytest
import torch

import tokendraw
from sglang_drafts import speculation
from sglang_engine import Request, draw, info_of, made_sampler
from tokendraw.calls import warmup
from tokendraw_sglang._logprobs import LEAST_BEST, Scorer
from tokendraw_sglang._requests import BATCH_SIZES, batches, metadata_of, warm_up

pytestmark = pytest.mark.usefixtures("sglang")
V, WIDTH, CPU = 200, 4, torch.device("cpu")
FILTERS = [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 50, "top_p": 0.9}]
FILTERS.append({"top_k": 50, "top_p": 0.9, "min_p": 0.05})


def layout(metadata):
    """The properties by which a kernel may be compiled: tensors with their dtypes, and facts."""
    tensors = {name: value.dtype for name, value in vars(metadata).items() if isinstance(value, torch.Tensor)}
    facts = metadata.facts
    numbers = (facts.any_greedy, facts.any_top_p, facts.any_min_p, facts.max_top_k, facts.all_top_k)
    return tuple(sorted(tensors.items())), numbers, facts.any_joint, facts.any_temperature_last, facts.filters


@pytest.mark.parametrize("width", [1, WIDTH], ids=["draws", "rows of drafts"])
def test_the_warmup_draws_every_kind_of_batch_of_sglang_small_and_large(width):
    made = list(batches(CPU, V, width=width))
    assert {each.num_rows for each in made} == {size * each for size in BATCH_SIZES for each in (1, width)}
    warmed = {layout(metadata) for metadata in made}
    with speculation() if width > 1 else contextlib.nullcontext():
        made_sampler()
        for params, greedy, seed in itertools.product(FILTERS, (False, True), (None, 7)):
            other = Request(temperature=0.0) if greedy else Request(**params)
            info = info_of(Request(**params, sampling_seed=seed), other)
            assert layout(metadata_of(info, torch.arange(2 * width), width)) in warmed


@pytest.mark.parametrize(
    "rules", [{"filter_order": "temperature_last"}, {"xtc_probability": 0.5, "p_less": 1}]
)
def test_the_warmup_draws_the_rules_that_a_variable_names_in_every_set(monkeypatch, rules):
    asked = [rules, dict([next(iter(rules.items()))])]
    found = []
    for params, each in itertools.product(FILTERS, asked):
        info = info_of(*[Request(**params, custom_params={"tokendraw": each})] * 2)
        found.append(layout(metadata_of(info, torch.tensor([3, 4]))))
    assert not {layout(metadata) for metadata in batches(CPU, V)}.intersection(found)
    monkeypatch.setenv("TOKENDRAW_WARMUP_RULES", ",".join(rules))
    assert {layout(metadata) for metadata in batches(CPU, V)}.issuperset(found)


def test_the_warmup_precedes_the_first_batch_of_any_kind_and_is_that_of_the_drafts(monkeypatch):
    warm = Mock()
    monkeypatch.setattr("tokendraw_sglang._sampler.warm_up", warm)
    for leaves in ({}, {"speculative_use_rejection_sampling": True}):
        with speculation(speculative_num_draft_tokens=WIDTH, **leaves):
            made_sampler().is_ready(torch.zeros(1, V))
    sampler = made_sampler()
    for request in (Request(temperature=0.0), Request(), Request()):
        draw(sampler, torch.randn(1, V), info_of(request))
    assert [(call.args[1].shape, call.kwargs) for call in warm.call_args_list] == [
        ((1, V), {"width": WIDTH, "mode": None}),
        ((1, V), {"width": WIDTH, "mode": "rejection"}),
        ((1, V), {"width": 1, "mode": None}),
    ]


@pytest.mark.usefixtures("warmup_on_a_cpu")
@pytest.mark.parametrize("mode", [None, "rejection", "block"])
def test_the_warmup_uses_sglangs_stride_and_chains_and_leaves_the_random_state(monkeypatch, mode):
    calls, dispatch = [], warmup.dispatch

    def noted(negotiator, operation, call):
        calls.append(call)
        return dispatch(negotiator, operation, call)

    monkeypatch.setattr(warmup, "dispatch", noted)
    monkeypatch.setattr("tokendraw_sglang._requests.BATCH_SIZES", (2,))
    state = torch.get_rng_state()
    options = {} if mode is None else {"width": WIDTH, "mode": mode}
    warm_up(tokendraw.load_sampler("native", device="cpu"), torch.zeros(3, V + 56)[:, :V], **options)
    assert torch.equal(state, torch.get_rng_state())
    verified = [call for call in calls if hasattr(call, "drafts") and call.drafts.max_drafts]
    if mode is None:
        assert {(*call.logits.shape[1:], *call.logits.stride()[:1]) for call in calls} == {(V, V + 56)}
        assert {call.logits.dtype for call in calls} == {torch.float32}
        assert not verified
        return
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
    Scorer(Scored()).warm_up(logits, width=WIDTH, has_temperature=has_temperature)
    assert seen == {
        (size * width, count, width > 1, has_temperature)
        for size, width, count in itertools.product(BATCH_SIZES, (1, WIDTH), (0, LEAST_BEST))
    }
