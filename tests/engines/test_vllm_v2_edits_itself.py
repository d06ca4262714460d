"""Edits of logits by tokendraw and by the kernels of vLLM's V2 sampler, from vLLM's sources: the same logits.

In Triton's interpreter, or on a GPU: see test_vllm_v2_itself.py.
"""

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vllm_stand_in
import vllm_v2_sources
import vllm_v2_steps
from tokendraw_vllm._v2_edits import Processor

V = 50
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def sources():
    if os.environ.get("VLLM_SOURCES"):
        return Path(os.environ["VLLM_SOURCES"])
    spec = importlib.util.find_spec("vllm")
    return None if spec is None or spec.origin is None else Path(spec.origin).parents[1]


if sources() is None or not (ON_GPU or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip("needs vLLM's sources and a GPU or TRITON_INTERPRET=1", allow_module_level=True)
if not ON_GPU:
    importlib.import_module("triton_masks")


@pytest.fixture(scope="module", autouse=True)
def vllm():
    """vLLM's modules, with tokendraw in them."""
    where, before = sources(), list(sys.meta_path)
    vllm_stand_in.forget()
    vllm_v2_sources.use(where, DEVICE)
    with pytest.MonkeyPatch.context() as patch:
        if not ON_GPU:
            patch.setenv("TOKENDRAW_SAMPLER", "native")
        from tokendraw_vllm import _v2

        _v2.install()
        yield
    sys.meta_path[:] = before
    vllm_stand_in.forget()


REQUESTS = {
    0: {"repetition_penalty": 1.7},
    1: {"frequency_penalty": 1.1, "presence_penalty": -0.7},
    2: {"logit_bias": {3: 2.5, 9: -4.0}, "repetition_penalty": 0.6},
    3: {"allowed_token_ids": [1, 4, 9, 17, 30], "presence_penalty": 1.5},
    4: {"bad_words_token_ids": [[5], [9, 4], [30, 30, 2]], "frequency_penalty": -0.4},
    5: {"min_tokens": 4, "all_stop_token_ids": {4, 9, 17}, "logit_bias": {9: 3.0}},
    6: {},
}
PROMPT = [4, 9, 9, 2]


def model_logits(rows, step):
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(rows, V, generator=generator) * 2.0).to(DEVICE, torch.bfloat16)


def same_logits(ours, theirs):
    """Equal but for the last bits: vLLM multiplies by the reciprocal of a repetition penalty."""
    torch.testing.assert_close(ours, theirs, rtol=3e-7, atol=3e-7)
    assert ours.argmax(1).tolist() == theirs.argmax(1).tolist()


@pytest.fixture(params=["native", "triton-gumbel"])
def processor(request):
    if request.param == "native":
        return None  # as loaded
    processor = pytest.importorskip("tokendraw_triton_gumbel.processor", reason="needs triton-gumbel")
    return Processor(request.param, processor.TritonLogitsProcessor(DEVICE).process)


@pytest.mark.parametrize("output", [(), (4, 9, 4)], ids=["new", "preempted"])
def test_tokendraw_edits_as_vllm_s_kernels_do(output, processor):
    """With the processor that is loaded, and with triton-gumbel's in the interpreter."""
    engine = vllm_v2_steps.Engine(V, 8, DEVICE, dtype=torch.bfloat16)
    if processor is not None:
        assert engine.sampler._tokendraw.can_draw()
        engine.sampler._tokendraw._edits._processor = processor
    for slot, edits in REQUESTS.items():
        engine.start(slot, PROMPT, output, seed=slot, **edits)
    slots, checked = engine.sampler._tokendraw, 0
    apply = slots._edits.apply

    def compared(logits, edited):
        nonlocal checked
        ours = apply(logits, edited)
        same_logits(ours, engine.edited(logits, batch)[edited.places])
        checked += len(ours)
        return ours

    slots._edits.apply = compared
    for step in range(7):
        batch = ([0, 1, 2, 3, 4, 5, 6], [5, 3, 1, 6], [2, 4, 0])[step % 3]
        logits = model_logits(len(batch), step)
        before = logits.clone()
        engine.decode(logits, batch)
        assert torch.equal(logits, before)
    assert checked == 6 + 3 + 3 + 6 + 3 + 3 + 6
    engine.stop(2)
    engine.start(2, [7], (), seed=1, frequency_penalty=2.0)
    batch = [2, 1]
    engine.decode(model_logits(2, 9), batch)
    assert checked == 30 + 2


def test_a_mixed_batch_gives_greedy_rows_vllm_s_own_tokens():
    """The adapter's argmax of edited logits, and that of vLLM without it."""
    texts = []
    for ours in (True, False):
        engine = vllm_v2_steps.Engine(V, 8, DEVICE, dtype=torch.bfloat16)
        if not ours:
            engine.leave_to_vllm()
        for slot, edits in REQUESTS.items():
            engine.start(slot, PROMPT, temperature=0.0, **edits)
        engine.start(7, PROMPT, seed=1)
        texts.append([engine.decode(model_logits(8, step), list(range(8)))[:7] for step in range(8)])
    assert texts[0] == texts[1]


def test_a_least_length_beside_a_grammar_is_vllm_s():
    engine = vllm_v2_steps.Engine(V, 8, DEVICE)
    engine.start(0, PROMPT, seed=1, min_tokens=2, all_stop_token_ids={4}, structured_outputs="a grammar")
    engine.start(1, PROMPT, seed=1, min_tokens=2, all_stop_token_ids={4})
    may_draw_raw = engine.sampler._tokendraw.may_draw_raw
    assert [may_draw_raw(np.array([slot])) for slot in (0, 1)] == [False, True]


DRAFTS = {0: [4, 9, 9], 1: [30], 2: [], 3: [9, 1], 4: [9, 4], 5: [9, 4, 2], 6: [1, 1]}


def test_a_verification_is_edited_as_vllm_s_kernels_do_it_draft_by_draft():
    engine = vllm_v2_steps.DraftingEngine(V, 8, DEVICE, 3, dtype=torch.bfloat16)
    for slot, edits in REQUESTS.items():
        engine.start(slot, PROMPT, (), seed=slot, **edits)
    engine.decode(model_logits(7, 99), list(range(7)))  # vLLM drops drafts of the step after a prompt
    slots, checked = engine.sampler._tokendraw, []
    apply = slots._edits.apply

    def compared(logits, edited, drafts=None):
        ours = apply(logits, edited, drafts)
        batch = engine.drafted(order, [DRAFTS[slot] for slot in order])
        same_logits(ours, engine.edited_rows(logits, batch))
        checked.append(len(ours))
        return ours

    slots._edits.apply = compared
    emitted = []
    for step in range(5):
        order = ([0, 1, 2, 3, 4, 5, 6], [5, 3, 1, 6])[step % 2]
        logits = model_logits(sum(len(DRAFTS[slot]) + 1 for slot in order), step)
        emitted += engine.verify(logits, order, [DRAFTS[slot] for slot in order])
    assert checked == [20, 12, 20, 12, 20]
    assert max(map(len, emitted)) > 1


# vLLM's residual of drawn drafts calls a function of the device, which the interpreter lacks
@pytest.mark.parametrize("drawn", [False, True] if ON_GPU else [False])
def test_greedy_requests_emit_in_a_verification_what_vllm_s_own_emits(drawn):
    texts = []
    for ours in (True, False):
        engine = vllm_v2_steps.DraftingEngine(V, 8, DEVICE, 3, dtype=torch.bfloat16)
        if not ours:
            engine.leave_to_vllm()
        for slot, edits in REQUESTS.items():
            engine.start(slot, PROMPT, temperature=0.0, **edits)
        engine.start(7, PROMPT, seed=1)
        greedy, emitted = list(range(7)), []
        engine.decode(model_logits(8, 99), list(range(8)))
        generator = torch.Generator().manual_seed(3)
        draft_logits = torch.randn(8, 3, V, generator=generator).to(DEVICE) if drawn else None
        for step in range(4):
            logits = model_logits(8 * 4, step)
            best = logits.float().argmax(1).view(8, 4).tolist()
            drafts = [row[:2] if step % 2 else [*row[:2], 5] for row in best[:7]] + [[1, 2]]
            count = sum(len(each) + 1 for each in drafts)
            emitted.append(engine.verify(logits[:count], [*greedy, 7], drafts, draft_logits)[:7])
            emitted.append(engine.decode(model_logits(7, 50 + step), greedy))
        texts.append(emitted)
    assert texts[0] == texts[1]
    assert max(len(tokens) for tokens in texts[0][0]) > 1


def test_filtered_logits_masks_and_log_probabilities_are_vllm_s():
    """Of the same tokens: those of greedy rows, and of rows with a single token left."""
    outputs = []
    for ours in (True, False):
        engine = vllm_v2_steps.Engine(
            V, 8, DEVICE, dtype=torch.bfloat16, logprobs_mode="processed_logprobs", return_sampling_mask=True
        )
        if not ours:
            engine.leave_to_vllm()
        engine.start(0, PROMPT, temperature=0.0, logprobs=3)
        engine.start(1, PROMPT, temperature=0.7, top_k=1, logprobs=3)
        engine.start(2, PROMPT, temperature=0.7, top_k=6, top_p=0.9, seed=1)
        engine.start(3, PROMPT, temperature=1.4, min_p=0.1, presence_penalty=1.0, seed=1)
        engine.start(4, PROMPT, seed=1, logit_bias={3: 2.0})
        drawn = engine.sampler(model_logits(5, 1), engine.rows([0, 1, 2, 3, 4]))
        masks = drawn.sampling_mask_tensors.tolists()
        logprobs = drawn.logprobs_tensors
        outputs.append((masks.token_ids.tolist(), masks[1].tolist(), logprobs))
    (ours, ours_offsets, logprobs), (theirs, theirs_offsets, their_logprobs) = outputs
    assert (ours, ours_offsets) == (theirs, theirs_offsets)
    is_kept = logprobs.logprobs[:2] > -torch.inf  # the order of dropped tokens means nothing
    kept_ids = [each.logprob_token_ids[:2][is_kept].tolist() for each in (logprobs, their_logprobs)]
    assert kept_ids[0] == kept_ids[1]
    torch.testing.assert_close(logprobs.logprobs[:2], their_logprobs.logprobs[:2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        logprobs.logprobs[2:, 1:], their_logprobs.logprobs[2:, 1:], rtol=1e-5, atol=1e-5
    )
