"""Filtered logits in the V2 runner, which vLLM reads for log-probabilities and for sampling masks."""

import dataclasses

import numpy as np
import pytest
import torch

import tokendraw
import tokendraw_vllm
from goodness_of_fit import filtered_probabilities
from vllm_stand_in import DraftingEngine, V2Engine, request

V = 40
LOGITS = torch.randn(6, V, generator=torch.Generator().manual_seed(3)).mul_(2.0).to(torch.bfloat16)
KINDS = [
    {"temperature": 0.7, "top_k": 6, "top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.05},
    {},
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 9, "logit_bias": {3: 2.0, 5: -3.0}},
    {"temperature": 0.5, "top_p": 0.5, "logit_bias": {1: 5.0}},
]


@pytest.fixture(autouse=True)
def registered(vllm, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()


def engine(slots, **options):
    v2_engine = V2Engine(V, **options)
    for slot in slots:
        v2_engine.add(slot, request(**KINDS[slot], seed=slot))
    return v2_engine


def sample(v2_engine, slots, *, return_logprobs):
    """A step with positions of 0: the ids, and the logits that vLLM reads."""
    mapping, rows = torch.tensor(slots), LOGITS[slots]
    before = rows.clone()
    given = torch.zeros(len(slots), dtype=torch.int64), torch.ones(len(slots), dtype=torch.int32)
    ids, processed = v2_engine.sampler.sample(
        rows, mapping, mapping, np.array(slots), *given, None, np.ones(len(slots), dtype=np.int32),
        return_logprobs,
    )  # fmt: skip
    assert torch.equal(rows, before)
    assert (processed is rows) == torch.equal(processed, before)
    return ids.tolist(), processed


def needed(slot):
    """The logits of a request, edited, divided and filtered."""
    kind, logits = dict(KINDS[slot]), LOGITS[slot].float()
    for token, bias in kind.pop("logit_bias", {}).items():
        logits[token] += bias
    if kind.get("temperature") == 0.0:
        return logits
    kept = torch.as_tensor(filtered_probabilities(logits, **kind) > 0)
    return (logits / kind.get("temperature", 1.0)).masked_fill(~kept, -float("inf"))


WAYS = {
    "logprobs": ({"logprobs_mode": "processed_logprobs"}, True),
    "logits": ({"logprobs_mode": "processed_logits"}, True),
    "masks": ({"return_sampling_mask": True}, False),
}


@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [3, 4, 0, 2], [4, 1, 5], [4, 5]], ids=str)
@pytest.mark.parametrize(("options", "return_logprobs"), WAYS.values(), ids=WAYS)
def test_vllm_reads_the_logits_that_its_own_filters_would_write(slots, options, return_logprobs):
    ids, processed = sample(engine(slots, **options), slots, return_logprobs=return_logprobs)
    assert processed.dtype is torch.float32
    torch.testing.assert_close(processed, torch.stack([needed(slot) for slot in slots]), rtol=1e-6, atol=0)
    plain, _ = sample(engine(slots), slots, return_logprobs=False)
    assert ids == plain


def test_batches_without_log_probabilities_write_no_logits():
    _, processed = sample(engine([0, 1], logprobs_mode="processed_logprobs"), [0, 1], return_logprobs=False)
    assert torch.equal(processed, LOGITS[:2])
    _, processed = sample(engine([0, 1]), [0, 1], return_logprobs=True)
    assert torch.equal(processed, LOGITS[:2])


def test_behind_edits_of_vllm_s_the_logits_are_filtered_too():
    v2_engine = engine([0, 1], return_sampling_mask=True)
    v2_engine.add(7, request(biased=9))
    kept = torch.stack([needed(0), needed(1)])
    mapping = torch.tensor([0, 1, 7])
    rows = LOGITS[[0, 1, 2]]
    given = (
        torch.zeros(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.int32),
        None,
        np.ones(3, dtype=np.int32),
    )
    ids, processed = v2_engine.sampler.sample(rows, mapping, mapping, np.array([0, 1, 7]), *given)
    torch.testing.assert_close(processed[:2], kept, rtol=1e-6, atol=0)
    assert ids[2] == 9
    assert torch.equal(rows, LOGITS[[0, 1, 2]])


def test_a_filter_order_behind_edits_of_vllm_s_is_left_to_vllm(log_lines):
    """vLLM's own temperature and min-p are withheld there until the draw."""
    v2_engine = engine([], return_sampling_mask=True)
    rules = {"tokendraw": {"filter_order": "temperature_last"}}
    v2_engine.add(0, request(temperature=2.5, min_p=0.1, extra_args=rules))
    v2_engine.add(7, request(biased=9))
    mapping = torch.tensor([0, 7])
    given = (
        torch.zeros(2, dtype=torch.int64),
        torch.ones(2, dtype=torch.int32),
        None,
        np.ones(2, dtype=np.int32),
    )
    ids, processed = v2_engine.sampler.sample(LOGITS[:2], mapping, mapping, np.array([0, 7]), *given)
    divided = LOGITS[0].float() / 2.5
    dropped = divided < divided.max() + np.log(0.1)
    torch.testing.assert_close(processed[0], divided.masked_fill(dropped, -float("inf")), rtol=1e-6, atol=0)
    assert ids.tolist() == [0, 0]
    assert log_lines()[-1][1].startswith("tokendraw: requests lose their rules filter_order")


def test_a_failure_behind_the_draw_leaves_the_batch_to_vllm(monkeypatch, log_lines):
    v2_engine = engine([0], return_sampling_mask=True)
    sample_once = tokendraw.Sampler.sample

    def without_thresholds(self, logits, metadata):
        output = sample_once(self, logits, metadata)
        return tokendraw.SamplerOutput(output.token_ids, output.valid)

    monkeypatch.setattr(tokendraw.Sampler, "sample", without_thresholds)
    ids, _ = sample(v2_engine, [0], return_logprobs=False)
    assert ids == [0]
    assert log_lines()[-1][1] == (
        "tokendraw: V2 sampler is vLLM's own again: 'native' raised PluginError: filtered logits need the "
        "thresholds that the sampler was loaded for, found none"
    )


# Verifications of drafts.


def verifying(slots, kinds, **options):
    """An engine, and the rows of requests with a draft each: the logits of :func:`needed`, twice."""
    drafts = DraftingEngine(V, 2, **options)
    for slot in slots:
        drafts.add(slot, request(**kinds[slot], seed=slot))
    return drafts, LOGITS[slots].repeat_interleave(2, 0)


@pytest.mark.parametrize("drawn", [False, True], ids=["chosen", "drawn"])
@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [4, 1, 5], [4, 5]], ids=str)
@pytest.mark.parametrize("options", [way[0] for way in WAYS.values()], ids=WAYS)
def test_behind_a_verification_the_logits_are_filtered_too(slots, options, drawn):
    drafts, rows = verifying(slots, [{**kind, "logprobs": 1} for kind in KINDS], drawn=drawn, **options)
    draft_logits = torch.zeros(8, 2, V) if drawn else None
    emitted = drafts.verify(rows, slots, [[1]] * len(slots), draft_logits=draft_logits)
    expected = torch.stack([needed(slot) for slot in slots]).repeat_interleave(2, 0)
    torch.testing.assert_close(drafts.processed, expected, rtol=1e-6, atol=0)
    plain, rows = verifying(slots, KINDS, drawn=drawn)
    assert (
        plain.verify(rows, slots, [[1]] * len(slots), draft_logits=draft_logits)
        == emitted
        != [[0]] * len(slots)
    )


def test_verifications_without_log_probabilities_write_no_logits():
    for options, kinds in (
        ({"logprobs_mode": "processed_logprobs"}, KINDS),
        ({}, [{**kind, "logprobs": 1} for kind in KINDS]),
    ):
        drafts, rows = verifying([0, 1], kinds, **options)
        drafts.verify(rows, [0, 1], [[1], [1]])
        assert drafts.processed is rows


def test_a_failure_behind_a_verification_leaves_the_batch_to_vllm(monkeypatch, log_lines):
    drafts, rows = verifying([0], KINDS, return_sampling_mask=True)
    verify = tokendraw.Sampler.verify

    def without_thresholds(self, *given, **named):
        return dataclasses.replace(verify(self, *given, **named), threshold=None)

    monkeypatch.setattr(tokendraw.Sampler, "verify", without_thresholds)
    assert drafts.verify(rows, [0], [[1]]) == [[0]]
    assert drafts.processed is rows
    assert log_lines()[-1][1] == (
        "tokendraw: V2 verification is vLLM's own again: 'native' raised PluginError: filtered logits need the "
        "thresholds that the sampler was loaded for, found none"
    )
