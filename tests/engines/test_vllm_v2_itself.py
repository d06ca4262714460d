"""vLLM's V2 sampler from its sources, with and without the adapter: on a GPU, or in Triton's interpreter.

Here are many rows of chosen logits, and kernels counted; whole requests are in test_vllm_v2_runner.py.
``make test-engines`` runs it with the sources of the installed vLLM; ``VLLM_SOURCES`` names other ones, such as those
of an unpacked wheel for CUDA.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vllm_stand_in
import vllm_v2_sources
from goodness_of_fit import FALSE_ALARM, chi_square, filtered_probabilities

V = 50
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
DRAWS = 20000 if ON_GPU else 400  # the interpreter takes milliseconds a row
HALF = torch.bfloat16 if ON_GPU else torch.float16  # the interpreter compares the bits of bfloat16
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(4)).to(DEVICE) * 2.0


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


def engine(*, ours=True, **options):
    v2_engine = vllm_v2_sources.Engine(V, 8, DEVICE, **options)
    assert v2_engine.sampler._tokendraw is not None
    if not ours:
        v2_engine.leave_to_vllm()
    return v2_engine


def tokens(output):
    return output.sampled_token_ids.flatten().tolist()


def batch(rows):
    return LOGITS.repeat(rows, 1)


def test_vllm_has_the_expected_signatures():
    from tokendraw_vllm._engine import misfit

    assert misfit() is None


KINDS = {
    0: {"temperature": 0.7, "top_k": 6, "top_p": 0.9},
    1: {"temperature": 1.3, "min_p": 0.05},
    2: {"top_p": 0.6},
    3: {},
    4: {"temperature": 0.0},
}
EDITING = {"logit_bias": {7: 1000.0}}


@pytest.mark.parametrize("editing", [False, True], ids=["raw logits", "processed logits"])
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "vLLM's own"])
def test_every_row_is_drawn_from_its_distribution(ours, editing):
    v2_engine, at_once, draws = engine(ours=ours), 200, DRAWS
    for slot, kind in KINDS.items():
        v2_engine.add(slot, **kind)
    slots = [2, 4, 0, 3, 1]
    if editing:
        v2_engine.add(7, **EDITING)
        slots.append(7)
    result = []
    for start in range(0, draws, at_once):
        places = np.repeat(np.arange(start, start + at_once), len(slots)).tolist()
        result += tokens(v2_engine.step(batch(len(slots) * at_once), slots * at_once, places))
    result = np.array(result).reshape(draws, len(slots))
    assert set(result[:, 1]) == {int(LOGITS.argmax())}
    if editing:
        assert set(result[:, 5]) == {7}
    for place, slot in enumerate(slots):
        if slot in (0, 1, 2, 3):
            p_value = chi_square(
                np.ascontiguousarray(result[:, place]), filtered_probabilities(LOGITS, **KINDS[slot])
            )
            assert p_value > FALSE_ALARM, (slot, p_value)


@pytest.mark.parametrize("editing", [False, True], ids=["raw logits", "processed logits"])
def test_filter_orders_are_kept_beside_vllms_own_edits(editing):
    """Filters at temperature 1, as in llama.cpp; vLLM divides and filters the row beside it."""
    kind = {"temperature": 2.5, "top_k": 12, "min_p": 0.1}
    v2_engine, rows, draws = engine(), 200, DRAWS
    v2_engine.add(0, **kind, extra_args={"tokendraw": {"filter_order": "temperature_last"}})
    v2_engine.add(1, temperature=0.8, min_p=0.2, **(EDITING if editing else {}))
    result = []
    for start in range(0, draws, rows):
        places = np.repeat(np.arange(start, start + rows), 2).tolist()
        result += tokens(v2_engine.step(batch(2 * rows), [0, 1] * rows, places))
    result = np.array(result).reshape(draws, 2)
    kept = filtered_probabilities(LOGITS, **(kind | {"temperature": 1.0})) > 0
    masked = LOGITS.float().masked_fill(~torch.as_tensor(kept, device=DEVICE), -float("inf"))
    expected = filtered_probabilities(masked, temperature=2.5)
    assert chi_square(np.ascontiguousarray(result[:, 0]), expected) > FALSE_ALARM
    assert not editing or set(result[:, 1]) == {7}


def test_greedy_rows_and_logprobs_are_vllms(monkeypatch):
    """Rows of few distinct values, with many ties among the best."""
    logits = torch.randint(0, 6, (6, V), generator=torch.Generator().manual_seed(1))
    logits = logits.to(DEVICE, HALF)
    both, scored = [], []
    for ours in (True, False):
        v2_engine = engine(ours=ours)
        scored.append(scores_of(monkeypatch))
        for slot in range(6):
            sampled = {"temperature": 0.8, "top_k": 3, "seed": 5} if slot == 3 else {"temperature": 0.0}
            v2_engine.add(slot, **sampled, logprobs=4)
        both.append(v2_engine.step(logits, range(6), [9] * 6))
    mine, theirs = both
    greedy = [0, 1, 2, 4, 5]
    assert [tokens(mine)[row] for row in greedy] == [tokens(theirs)[row] for row in greedy]
    assert_same_scores(logits, mine.logprobs_tensors, theirs.logprobs_tensors, rows=greedy)
    assert_same_scores(logits, mine.logprobs_tensors, theirs.logprobs_tensors, first=1)
    assert [len(calls) for calls in scored] == [1, 0]


def scores_of(monkeypatch):
    """A list of the calls of tokendraw's scores from now on."""
    from tokendraw.operations.row_methods import ScoreProvider

    calls, score = [], ScoreProvider.score
    monkeypatch.setattr(ScoreProvider, "score", lambda *call: calls.append(call) or score(*call))
    return calls


def assert_same_scores(logits, mine, theirs, *, rows=slice(None), first=0):
    """Two ``LogprobsTensors`` are equal but for the last bits, and for ids of equal logits.

    :param first: the first column to compare; 0: and the ranks.
    """
    ids, their_ids = mine.logprob_token_ids[rows, first:], theirs.logprob_token_ids[rows, first:]
    assert (ids.dtype, ids.shape) == (their_ids.dtype, their_ids.shape)
    assert torch.equal(logits[rows].gather(1, ids), logits[rows].gather(1, their_ids))
    values, their_values = mine.logprobs[rows, first:], theirs.logprobs[rows, first:]
    torch.testing.assert_close(values, their_values, rtol=1e-5, atol=1e-5)
    if not first:
        assert torch.equal(ids[:, 0], their_ids[:, 0])
        ranks, their_ranks = mine.selected_token_ranks[rows], theirs.selected_token_ranks[rows]
        assert ranks.dtype == their_ranks.dtype
        assert torch.equal(ranks, their_ranks)
    assert mine[3] is theirs[3]
    assert mine[4] is theirs[4]


SCORED_LOGITS = {
    "the model's": (HALF, 14, 0.0),
    "edited": (torch.float32, 0, 0.0),
    "filtered": (torch.float32, 0, 0.4),
}
"""Dtype, padding of rows, and the share of logits that are -inf."""


@pytest.mark.parametrize("returns_logits", [False, True], ids=["log-probabilities", "logits"])
@pytest.mark.parametrize(("num_best", "num_own"), [(0, 0), (4, 0), (20, 0), (0, 5), (0, 128)])
@pytest.mark.parametrize("kind", SCORED_LOGITS)
def test_scores_equal_those_of_vllms_kernels(monkeypatch, kind, num_best, num_own, returns_logits):
    from vllm.v1.worker.gpu.sample import prompt_logprob
    from vllm.v1.worker.gpu.sample.logprob import LogprobTokenIdsState

    mode = "raw_logits" if returns_logits else "raw_logprobs"
    assert engine(logprobs_mode=mode).sampler._tokendraw.can_draw()
    dtype, padding, dropped = SCORED_LOGITS[kind]
    generator = torch.Generator().manual_seed(5)
    made = torch.randn(7, V + padding, generator=generator) * 4.0
    made.masked_fill_(torch.rand(made.shape, generator=generator) < dropped, -float("inf"))
    logits = made.to(DEVICE, dtype)[:, :V]
    before, tokens = logits.clone(), logits.float().argsort(descending=True)[:, 3].contiguous()
    state = LogprobTokenIdsState(9, DEVICE)
    for slot, ids in {1: range(num_own), 4: [7, 7, 0][:num_own], 2: [], 8: range(3, 5)}.items():
        lists = [token % V for token in ids]
        state.add_request(slot, vllm_v2_sources.Parameters(logprob_token_ids=lists))
    state.apply_staged_writes()
    mapping = torch.tensor([4, 1, 2, 2, 8, 4, 1], dtype=torch.int32, device=DEVICE)
    bounds = [0, 3, 7] if num_best else torch.tensor([0, 3, 7], device=DEVICE)
    arguments = (logits, num_best, tokens, bounds, state, mapping, num_own, returns_logits)
    calls = scores_of(monkeypatch)
    mine = prompt_logprob.compute_topk_scores(*arguments)
    assert len(calls) == 1
    theirs = prompt_logprob.compute_topk_scores.__wrapped__(*arguments)
    assert len(calls) == 1
    assert torch.equal(logits, before)
    assert_same_scores(logits, mine, theirs)


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
def test_ids_of_requests_are_scored_as_by_vllm_in_every_mode(monkeypatch, mode):
    """Beside a request that asks for no log-probabilities; of rows with one token to draw."""
    logits, results, scored = LOGITS.repeat(3, 1) * torch.arange(1.0, 4.0, device=DEVICE)[:, None], [], []
    for ours in (True, False):
        v2_engine = engine(ours=ours, logprobs_mode=mode)
        scored.append(scores_of(monkeypatch))
        v2_engine.add(0, top_k=1, logprob_token_ids=[3, 44])
        v2_engine.add(1, temperature=0.0)
        v2_engine.add(2, temperature=0.7, top_k=1, logprob_token_ids=[1, 2, 3])
        results.append(v2_engine.step(logits, range(3), [9] * 3))
    mine, theirs = results
    assert tokens(mine) == tokens(theirs)
    assert mine.logprobs_tensors.logprob_token_ids.shape == (3, 4)
    assert_same_scores(logits, mine.logprobs_tensors, theirs.logprobs_tensors)
    assert [len(calls) for calls in scored] == [1, 0]


def compilations(monkeypatch, tmp_path):
    """A function for how many kernels of tokendraw were compiled: on a GPU as vLLM's own monitor counts."""
    from tokendraw.calls import warmup

    if ON_GPU:
        from triton import knobs

        names = []
        monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda **event: names.append(event["fn"]))
        return lambda: sum(event.module.startswith("tokendraw") for event in names)
    monkeypatch.delenv("TRITON_INTERPRET")  # before these modules make kernels
    import triton_stand_ins
    import vllm_stand_in

    kernels = triton_stand_ins.use_stand_ins(monkeypatch, tmp_path)
    vllm_stand_in.draw_through_kernels(monkeypatch)
    monkeypatch.setattr(warmup, "max_calls_in_flight", lambda device: 1)
    return lambda: sum(triton_stand_ins.compilations(kernels).values())


@pytest.mark.parametrize("vocab_size", [301, 320], ids=["odd", "no padding"])
def test_after_the_warmup_no_batch_compiles_a_kernel(monkeypatch, tmp_path, vocab_size):
    counted = compilations(monkeypatch, tmp_path)
    import vllm_stand_in

    v2_engine = vllm_v2_sources.Engine(vocab_size, 130, DEVICE, dtype=vllm_stand_in.MODEL_DTYPE)
    assert v2_engine.sampler._tokendraw.can_draw()
    compiled = counted()
    for requests in vllm_stand_in.batches(130, {"presence_penalty": 0.5}):
        for slot, parameters in enumerate(requests):
            v2_engine.add(slot, **parameters)
        slots = list(range(len(requests)))
        v2_engine.step(vllm_stand_in.model_logits(len(slots), vocab_size).to(DEVICE), slots, slots)
        assert counted() == compiled, requests[0]


# Draws of drafts.


@pytest.fixture
def draw_drafts(monkeypatch):
    """vLLM's draw of drafts, and tokendraw's in its place."""
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    import tokendraw
    from tokendraw_vllm import _v2_draft_kernels, _v2_drafts
    from tokendraw_vllm._replacement import Replacement

    replacement = Replacement("V2 sampler", tokendraw.load_sampler(device=DEVICE), seeds_every_row=True)
    replacement.draws_drafts = True
    _v2_draft_kernels.warm_up(DEVICE, torch.bfloat16, V)
    drafter = _v2_drafts.Drafter(V, lambda: replacement)
    monkeypatch.setitem(_v2_drafts._drafters, LOGITS.device, drafter)
    return gumbel_sample, _v2_drafts._wrapped(gumbel_sample)


def drafted(draw, logits, slots, temperature, steps):
    """Drafts of rows, and the logits that are kept. Positions and seeds differ by row and slot."""
    kept = torch.full((8, 3, V), 7.0, dtype=logits.dtype, device=DEVICE)
    given = torch.tensor(slots), torch.tensor(temperature), torch.arange(8), torch.arange(len(slots))
    tensors = [tensor.to(DEVICE) for tensor in given]
    named = {"apply_temperature": True, "is_drafting": True, "use_fp64": False}
    ids = draw(
        logits, *tensors, logits_cache=kept, logits_cache_col=torch.tensor(steps, device=DEVICE), **named
    )
    return ids.tolist(), kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("steps", [1, [2, 0, 1, 0, 2]], ids=["a step", "a step of each row"])
def test_kept_logits_and_greedy_drafts_are_vllms(draw_drafts, dtype, steps):
    """The third and the last row pad the batch. Rows of the logits are padded too."""
    logits = torch.randn(5, V + 14, device=DEVICE).to(dtype)[:, :V]
    slots, temperature = [5, 2, -1, 0, -1], [0.0, 1.0, 0.7, 1.0, 1.0, 0.0, 1.0, 1.0]
    (theirs, kept_by_vllm), (mine, kept) = (
        drafted(draw, logits, slots, temperature, steps) for draw in draw_drafts
    )
    assert torch.equal(kept, kept_by_vllm)
    assert (mine[0], mine[3]) == (theirs[0], theirs[3])
    assert mine[0] == int(logits[0].float().argmax())


def test_drafts_are_drawn_at_the_temperature_alone(draw_drafts):
    found, _ = drafted(draw_drafts[1], batch(DRAWS), [3] * DRAWS, [1.6] * 8, 0)
    expected = filtered_probabilities(LOGITS, temperature=1.6)
    assert chi_square(np.array(found), expected) > FALSE_ALARM
    later, _ = drafted(draw_drafts[1], batch(DRAWS), [3] * DRAWS, [1.6] * 8, 1)
    assert chi_square(np.array(later), expected) > FALSE_ALARM
    assert found != later
