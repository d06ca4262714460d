"""Drafts in the V2 runner: chosen drafts leave a request its tokens, drawn drafts its distribution."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tokendraw
import tokendraw_vllm
from goodness_of_fit import FALSE_ALARM, chi_square, filtered_probabilities
from vllm_stand_in import DraftingEngine, request

V, K = 40, 3
EDITS = {
    "plain": {},
    "penalties": {"repetition_penalty": 1.7, "frequency_penalty": 0.8},
    "lists": {
        "logit_bias": {7: 4.0},
        "bad_words_token_ids": [[7, 7]],
        "min_tokens": 5,
        "all_stop_token_ids": {4},
    },
}
RULES = {
    "a filter and typical-p": {"top_n_sigma": 1.5, "typical_p": 0.7},
    "XTC": {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    "joint": {"filter_order": "joint"},
    "temperature last": {"filter_order": "temperature_last"},
}
ASKED = EDITS | {name: {"extra_args": {"tokendraw": rules}} for name, rules in RULES.items()}
FILTERED = {"temperature": 2.0, "top_k": 12, "top_p": 0.8, "seed": 11}
KIND = {"temperature": 0.9, "top_k": 30, "min_p": 0.01, "seed": 11}
PROMPT = [4, 9, 9, 2]
LENGTH = 14


def logits_at(position):
    """Logits [V] of a position."""
    generator = torch.Generator().manual_seed(position)
    return (torch.randn(V, generator=generator) * 2.0).to(torch.bfloat16)


def rows_from(first, count):
    return [logits_at(first + step) for step in range(count)]


@pytest.fixture
def verified(vllm, monkeypatch):
    """The modes and kinds of the verifications."""
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    calls, verify = [], tokendraw.Sampler.verify

    def noted(self, logits, drafts, metadata, *, mode):
        calls.append((mode, drafts.kind, logits.dtype))
        return verify(self, logits, drafts, metadata, mode=mode)

    monkeypatch.setattr(tokendraw.Sampler, "verify", noted)
    return calls


def parameters(asked):
    """The request: rules stand beside filters at a temperature at which each changes the text."""
    return request(**(FILTERED if "extra_args" in asked else KIND), **asked)


def plain_text(asked):
    """The tokens of a request without drafts."""
    engine = DraftingEngine(V, K)
    engine.add(5, parameters(asked), PROMPT)
    while len(engine.tokens[5]) < LENGTH:
        engine.step(logits_at(len(engine.tokens[5]) - 1)[None], [5])
    return engine.tokens[5][len(PROMPT) : LENGTH]


@pytest.mark.parametrize("neighbours", [False, True], ids=["alone", "among others"])
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_request_with_chosen_drafts_draws_the_tokens_that_it_draws_without(verified, asked, neighbours):
    """The drafts are right, wrong from the first, from the second, or missing, in turns; some steps have none."""
    text = plain_text(asked)
    engine, rng, longest = DraftingEngine(V, K), np.random.default_rng(5), 0
    engine.add(5, parameters(asked), PROMPT)
    if neighbours:
        engine.add(1, request(seed=3, presence_penalty=1.0), [8, 8])
        engine.add(2, request(temperature=0.0), [3])
    turn = 0
    while len(engine.tokens[5]) < LENGTH:
        turn += 1
        first = len(engine.tokens[5]) - 1
        if turn % 4 == 0:
            engine.step(logits_at(first)[None], [5])
            continue
        coming = text[first + 1 - len(PROMPT) :][: (K, 1, 2)[turn % 3]]
        if turn % 2:
            coming = [*coming[:-1], (coming[-1] + 1) % V]
        slots, drafts, rows = [5], [coming], rows_from(first, len(coming) + 1)
        if neighbours:
            slots, drafts = [1, 5, 2], [rng.integers(V, size=2).tolist(), coming, []]
            own = [len(engine.tokens[slot]) - 1 for slot in (1, 2)]
            rows = [*rows_from(own[0], 3), *rows, *rows_from(own[1], 1)]
        emitted = engine.verify(torch.stack(rows), slots, drafts)
        longest = max(longest, len(emitted[slots.index(5)]))
    assert engine.tokens[5][len(PROMPT) : LENGTH] == text
    assert longest > 2
    assert {(mode, kind) for mode, kind, _ in verified} == {("coupled", "chosen")}
    is_edited = neighbours or bool(asked.keys() - {"extra_args"})
    assert {dtype for _, _, dtype in verified} == {torch.float32 if is_edited else torch.bfloat16}


def test_every_rule_changes_the_text(verified):
    """Otherwise equal texts would say nothing of the rule."""
    plain = plain_text({"extra_args": None})
    assert all(plain_text(ASKED[name]) != plain for name in RULES)


@pytest.mark.fast_first
@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize(
    "kind",
    [{"temperature": 0.7, "top_k": 6}, {"temperature": 1.3, "min_p": 0.05}, {}, {"top_n_sigma": 1.0}],
)
def test_drawn_drafts_leave_the_distribution_as_it_is(verified, method, kind):
    """The drafts are drawn as vLLM draws them: at the request's temperature, without its filters."""
    engine, at_once, draws = DraftingEngine(V, K, method=method, drawn=True), 500, 6000
    is_rule = "top_n_sigma" in kind
    engine.add(3, request(**({"extra_args": {"tokendraw": kind}} if is_rule else kind), seed=1), PROMPT)
    target = torch.stack(rows_from(0, K + 1))
    draft_logits = torch.zeros(8, K, V)
    draft_logits[3] = target[:K].float() + torch.randn(K, V, generator=torch.Generator().manual_seed(1))
    chances = torch.softmax(draft_logits[3] / kind.get("temperature", 1.0), 1)
    generator, firsts, seconds = torch.Generator().manual_seed(2), [], []
    for start in range(0, draws, at_once):
        drafts = torch.multinomial(chances, at_once, replacement=True, generator=generator).T.tolist()
        places = list(range(start, start + at_once))
        emitted = engine.verify(
            target.repeat(at_once, 1), [3] * at_once, drafts, positions=places, draft_logits=draft_logits
        )
        firsts += [tokens[0] for tokens in emitted]
        seconds += [tokens[1] for tokens in emitted if len(tokens) > 1]
    for tokens, row in ((firsts, target[0]), (seconds, target[1])):
        if is_rule:
            kept = row.float() >= row.float().max() - row.float().std(correction=0)
            expected = row.double().masked_fill(~kept, -float("inf")).softmax(0).numpy()
        else:
            expected = filtered_probabilities(row, **kind)
        assert chi_square(np.array(tokens), expected) > FALSE_ALARM
    assert len(seconds) > draws / 5
    assert {mode for mode, _, _ in verified} == {"block" if method == "block" else "rejection"}


def test_greedy_rows_accept_their_argmax_alone(verified):
    engine = DraftingEngine(V, 2, drawn=True)
    engine.add(0, request(temperature=0.0), PROMPT)
    engine.add(1, request(seed=1), PROMPT)
    best = [int(logits_at(3 + step).float().argmax()) for step in range(3)]
    draft_logits = torch.randn(8, 2, V, generator=torch.Generator().manual_seed(1))
    for drafts, tokens in (
        ([best[0], best[1]], best),
        ([best[0], 5], best[:2]),
        ([5, best[1]], best[:1]),
        ([-1, -1], best[:1]),
    ):
        emitted = engine.verify(
            torch.stack(rows_from(3, 3) * 2),
            [0, 1],
            [drafts, [1, 2]],
            positions=[3, 3],
            draft_logits=draft_logits,
        )
        assert emitted[0] == tokens


@pytest.mark.parametrize(
    ("options", "attributes"),
    [
        ({"method": "synthetic"}, {}),
        ({"method": "fly"}, {}),
        ({}, {"watermark_key": 7}),
    ],
)
def test_other_ways_to_judge_drafts_are_vllms(verified, options, attributes):
    engine = DraftingEngine(V, K, **options)
    vars(engine.rejection_sampler).update(attributes)
    engine.add(0, request(seed=1), PROMPT)
    assert engine.verify(torch.stack(rows_from(3, 2)), [0], [[1]]) == [[0]]
    assert verified == []


def test_greedy_batches_edits_of_vllm_s_and_a_smaller_draft_vocabulary_are_vllms(verified):
    engine = DraftingEngine(V, K)
    engine.add(0, request(temperature=0.0), PROMPT)
    engine.add(1, request(seed=1, biased=3), PROMPT)
    engine.add(2, request(seed=1), PROMPT)
    rows = torch.stack(rows_from(3, 2))
    assert engine.verify(rows, [0], [[1]]) == [[0]]
    assert engine.verify(rows, [1], [[1]]) == [[0]]
    assert engine.verify(rows, [2], [[1]], draft_logits=torch.zeros(8, K, V - 8)) == [[0]]
    assert verified == []


def test_a_failing_verification_is_vllms_from_then_on_and_plain_steps_are_not(
    verified, log_lines, monkeypatch
):
    engine = DraftingEngine(V, K)
    engine.add(0, request(seed=1, top_k=1), PROMPT)

    def broken(self, logits, drafts, metadata, *, mode):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(tokendraw.Sampler, "verify", broken)
    for _ in range(2):
        assert engine.verify(torch.stack(rows_from(3, 2)), [0], [[1]]) == [[0]]
    assert engine.step(logits_at(3)[None], [0]) == [int(logits_at(3).float().argmax())]
    assert [line for _, line in log_lines()[1:]] == [
        "tokendraw: V2 verification is vLLM's own again: 'native' raised RuntimeError: no kernel image"
    ]


def test_edits_that_fail_before_a_verification_leave_it_to_vllm(verified, log_lines, monkeypatch):
    engine = DraftingEngine(V, K)
    engine.add(0, request(seed=1, presence_penalty=1.0), PROMPT)

    def broken(logits, *given):
        logits.fill_(7.0)
        raise RuntimeError("no kernel image")

    edits = engine.sampler._tokendraw._edits
    monkeypatch.setattr(edits, "_processor", SimpleNamespace(name="native", process=broken))
    assert engine.verify(torch.stack(rows_from(3, 2)), [0], [[1]]) == [[0]]
    assert verified == []
    assert [line for _, line in log_lines()[1:]] == [
        "tokendraw: V2 editing is vLLM's own again: 'native' raised RuntimeError: no kernel image"
    ]


def test_a_sampler_that_verifies_nothing_leaves_drafts_to_vllm_and_the_log_says_so(
    vllm, log_lines, monkeypatch
):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    warmup = tokendraw.Sampler.warmup

    def refuse(self, *given, max_drafts=None, **named):
        if max_drafts is not None:
            raise tokendraw.SamplerUnavailableError("nobody verifies here")
        return warmup(self, *given, **named)

    monkeypatch.setattr(tokendraw.Sampler, "warmup", refuse)
    tokendraw_vllm.register()
    engine = DraftingEngine(V, K)
    engine.add(0, request(seed=1), PROMPT)
    assert engine.verify(torch.stack(rows_from(3, 2)), [0], [[1]]) == [[0]]
    assert [line for _, line in log_lines()] == [
        "tokendraw: V2 sampler replaced (native 0.1.0, vLLM 0.33.0)",
        "tokendraw: V2 verification left alone: SamplerUnavailableError: nobody verifies here",
    ]


@pytest.mark.parametrize("counts", [[0], [2], [K], [K, K], [K, 1, 0, K], [0, 0], [K - 1, K - 1]])
@pytest.mark.parametrize("may_compact", [False, True])
def test_drafts_lie_as_the_offsets_say(counts, may_compact):
    """The host reads no offset, and needs none where all requests have as many drafts. A second step lies as well."""
    from tokendraw_vllm._v2_drafts import DraftLayouts, VerifiedRows

    slots = torch.zeros(32, dtype=torch.int32)
    layouts, offsets = DraftLayouts(), tokendraw.speculative.cu_num_logits(torch.tensor(counts))
    for step in range(2):
        rows = int(offsets[-1]) + (3 if may_compact else 0)
        fed = torch.randint(V, (rows,), generator=torch.Generator().manual_seed(step), dtype=torch.int32)
        of_batch = [
            torch.zeros(rows, V),
            None,
            fed,
            torch.arange(rows),
            offsets.to(torch.int32),
            np.arange(len(counts)),
        ]
        drafts = layouts.lay_out(
            VerifiedRows(*of_batch, slots, slots, fed, may_compact), K, lambda: slots, verifies=True
        )
        expected = [fed[first + 1 : end].tolist() for first, end in itertools.pairwise(offsets.tolist())]
        found = drafts.draft_token_ids.tolist()[: sum(counts)]
        assert found == [token for tokens in expected for token in tokens]
        assert drafts.cu_num_logits.tolist() == offsets.tolist()
        assert drafts.draft_token_ids.dtype == drafts.cu_num_logits.dtype == torch.int64


@pytest.mark.parametrize(
    ("asked", "is_left"),
    [
        ({}, True),
        ({"seed": 3}, False),
        ({"top_p": 0.9}, False),
        ({"presence_penalty": 1.0}, False),
        ({"extra_args": {"tokendraw": {"typical_p": 0.9}}}, False),
        ({"extra_args": {"tokendraw": {"filter_order": "joint"}}}, False),
        ({"extra_args": {"tokendraw": {"filter_order": "top_k_first"}}}, True),
    ],
)
def test_few_rows_without_filters_seeds_rules_and_edits_are_left_to_vllm(verified, asked, is_left):
    engine = DraftingEngine(V, K)
    for slot, params in ((5, asked), (1, {})):
        engine.add(slot, request(**{"temperature": 0.9, "seed": None} | params), PROMPT)
    rows = rows_from(len(PROMPT) - 1, 2)
    engine.verify(torch.stack(rows * 2), [5, 1], [[7], [7]])
    assert len(verified) == (0 if is_left else 1)


def test_drawn_drafts_without_filters_and_seeds_are_left_to_vllm_in_batches_of_any_size(verified):
    engine, requests = DraftingEngine(V, 1, drawn=True, slots=200), 200
    for slot in range(requests):
        engine.add(slot, request(seed=None), PROMPT)
    rows, draft_logits = torch.stack(rows_from(3, 2) * requests), torch.zeros(requests, 1, V)
    engine.verify(rows, list(range(requests)), [[7]] * requests, draft_logits=draft_logits)
    assert verified == []
    engine.add(5, request(seed=3), PROMPT)
    engine.verify(rows, list(range(requests)), [[7]] * requests, draft_logits=draft_logits)
    assert len(verified) == 1
