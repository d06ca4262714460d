"""Log-probabilities of the V2 runner: who computes them, in which form, and the kernels of the start.

test_vllm_v2_itself.py compares the values with those of vLLM's kernels.
"""

import importlib
import sys
from itertools import product
from types import SimpleNamespace

import pytest
import torch

import tokendraw
import tokendraw_vllm
import vllm_stand_in
from calling import CPU, provider_of
from tokendraw_vllm import _v2_logprobs
from tokendraw_vllm._v2_loading import Setup
from tokendraw_vllm._v2_logprobs import Scorer, load_scorer
from vllm_stand_in import V2Engine

V, PADDING, MOST = 40, 24, 20
LOGITS = torch.randn(3, V + PADDING, generator=torch.Generator().manual_seed(4))[:, :V]
TOKENS = torch.tensor([7, 0, 39])
VLLMS = "vLLM's"
CALLERS = ("sample.sampler", "sample.prompt_logprob", "spec_decode.rejection_sampler")


def config(**changes):
    model = {"dtype": torch.float32, "max_logprobs": MOST, **changes}
    return SimpleNamespace(model_config=SimpleNamespace(**model), speculative_config=None)


@pytest.fixture(autouse=True)
def registered(vllm, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()


def loaded(mode="raw_logprobs", **changes):
    """An engine whose scorer is loaded."""
    engine = V2Engine(V, config=config(**changes), logprobs_mode=mode)
    assert engine.sampler._tokendraw.can_draw()
    return engine


def function(caller="sample.sampler"):
    """vLLM's function, as a module of its runner calls it."""
    return importlib.import_module(f"vllm.v1.worker.gpu.{caller}").compute_topk_scores


def is_vllms(result):
    return result.cu_num_generated_tokens == VLLMS


def requests_ids(lists, most=128):
    """vLLM's ``LogprobTokenIdsState``; behind the ids of a request stand those of an earlier one."""
    ids = torch.full((len(lists), most), 33, dtype=torch.int32)
    for slot, given in enumerate(lists):
        ids[slot, : len(given)] = torch.tensor(given, dtype=torch.int32)
    counts = torch.tensor([len(given) for given in lists], dtype=torch.int32)
    return SimpleNamespace(token_ids=SimpleNamespace(gpu=ids), num_token_ids=SimpleNamespace(gpu=counts))


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("best", [0, 1, 5, MOST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_caller_gets_the_token_the_best_and_the_rank(caller, best, dtype):
    loaded()
    logits = torch.empty(3, V + PADDING, dtype=dtype)[:, :V].copy_(LOGITS)
    before = logits.clone()
    result = function(caller)(logits, best, TOKENS)
    assert torch.equal(logits, before)
    expected = logits.float().log_softmax(1)
    ids = torch.cat((TOKENS[:, None], logits.float().topk(best).indices), 1)
    if dtype is torch.float32:  # bfloat16 has ties
        assert torch.equal(result.logprob_token_ids, ids)
    assert result.logprob_token_ids.dtype == result.selected_token_ranks.dtype == torch.int64
    torch.testing.assert_close(result.logprobs, expected.gather(1, ids), rtol=1e-5, atol=1e-5)
    of_tokens = logits.gather(1, TOKENS[:, None])
    assert torch.equal(result.selected_token_ranks, (logits >= of_tokens).sum(1))
    assert result[3:] == (None, None)


def test_the_bounds_of_requests_are_passed_on():
    loaded()
    assert function()(LOGITS, 1, TOKENS, [0, 1, 3])[3:] == ([0, 1, 3], None)
    on_device = torch.tensor([0, 1, 3])
    bounds = function()(LOGITS, 1, TOKENS, on_device)[3:]
    assert bounds[0] is None
    assert bounds[1] is on_device


def test_rows_get_the_ids_of_their_requests():
    loaded()
    state, mapping = requests_ids([[5], [], [1, 39, 1], []]), torch.tensor([2, 1, 0], dtype=torch.int32)
    result = function()(LOGITS, 0, TOKENS, None, state, mapping, 3)
    ids = [[7, 1, 39, 1], [0, 0, 0, 0], [39, 5, 0, 0]]
    assert result.logprob_token_ids.tolist() == ids
    expected = LOGITS.log_softmax(1).gather(1, torch.tensor(ids))
    is_padding = torch.tensor([[False] * 4, [False, True, True, True], [False, False, True, True]])
    expected.masked_fill_(is_padding, -float("inf"))
    torch.testing.assert_close(result.logprobs, expected, rtol=1e-5, atol=1e-5)


def test_an_id_outside_the_vocabulary_stays_and_has_no_probability():
    loaded()
    outside = torch.tensor([-1, V + 3, 4])
    result = function()(LOGITS, 2, outside)
    assert torch.equal(result.logprob_token_ids[:, 0], outside)
    assert result.logprobs[:2, 0].tolist() == [-float("inf")] * 2
    assert result.logprobs[:, 1:].isfinite().all()


@pytest.mark.parametrize(
    "arguments",
    [
        (LOGITS, MOST + 1, TOKENS),
        (LOGITS, V, TOKENS),
        (LOGITS[:0], 1, TOKENS[:0]),
        (LOGITS.to("meta"), 1, TOKENS),
        (LOGITS, 1, TOKENS, None, requests_ids([[1]] * 3), torch.arange(3), 1),
        (LOGITS, 1, TOKENS, None, None, None, 0, True),
    ],
    ids=["above max_logprobs", "all", "no rows", "another device", "best beside ids", "logits"],
)
def test_other_batches_are_vllms_and_later_ones_are_not(arguments):
    loaded()
    assert is_vllms(function()(*arguments))
    assert not is_vllms(function()(LOGITS, 1, TOKENS))


@pytest.mark.parametrize("allowed", [-1, 5000])
def test_at_most_as_many_best_tokens_are_served_as_kernels_order(allowed):
    loaded(max_logprobs=allowed)
    wide = torch.randn(1, 1100)
    assert not is_vllms(function()(wide, 1024, TOKENS[:1]))
    assert is_vllms(function()(wide, 1025, TOKENS[:1]))


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits"])
def test_modes_of_logits_return_logits(mode):
    loaded(mode)
    masked = LOGITS.masked_fill(LOGITS < 0.0, -float("inf"))
    result = function()(masked, 3, TOKENS, logits_mode=True)
    assert torch.equal(result.logprobs, masked.gather(1, result.logprob_token_ids))
    assert torch.equal(result.logprob_token_ids[:, 1:], masked.topk(3).indices)
    assert is_vllms(function()(LOGITS, 3, TOKENS))


def test_filtered_logits_count_as_they_are():
    loaded("processed_logprobs")
    masked = LOGITS.masked_fill(LOGITS < 1.0, -float("inf"))
    result = function()(masked, V // 2, TOKENS)
    expected = masked.log_softmax(1).gather(1, result.logprob_token_ids)
    torch.testing.assert_close(result.logprobs, expected, rtol=1e-5, atol=1e-5)
    assert (result.logprobs == -float("inf")).any()


def test_log_probabilities_do_not_depend_on_the_draws():
    engine = loaded()
    engine.sampler._tokendraw = None
    assert not is_vllms(function()(LOGITS, 1, TOKENS))


def test_the_load_asks_for_the_best_scorer_of_the_engines_mode_by_its_name(monkeypatch):
    asked, load = [], tokendraw.load
    monkeypatch.setattr(
        tokendraw,
        "load",
        lambda *names, **named: asked.append((*names, named["need"])) or load(*names, **named),
    )
    monkeypatch.setattr("vllm.envs.VLLM_BATCH_INVARIANT", True)
    loaded("processed_logits")
    ((*names, need),) = asked
    assert (names, need.logprobs_mode, need.batch_invariant) == (
        ["score", {"score": ("native",)}],
        "raw_logits",
        True,
    )


@pytest.mark.parametrize(
    ("mode", "layouts"),
    [
        ("raw_logprobs", [(64, torch.bfloat16)]),
        ("processed_logprobs", [(64, torch.bfloat16), (V, torch.float32)]),
    ],
)
def test_the_load_knows_the_layouts_of_the_logits(monkeypatch, mode, layouts):
    """Processed logits are a float32 copy without padding; those of prompts and greedy batches are the model's."""
    given = []
    monkeypatch.setattr(
        "tokendraw_vllm._v2_loading.load_scorer", lambda *arguments, **_: given.append(arguments)
    )
    loaded(mode, dtype=torch.bfloat16)
    assert given == [(CPU, V, layouts)]


def test_the_load_imports_nothing_of_vllm():
    """The thread of the load runs beside vLLM's own imports, which may be half done."""
    setup = Setup.of(
        config(),
        device=CPU,
        vocab_size=V,
        max_requests=4,
        use_fp64=False,
        logprobs_mode="processed_logprobs",
        return_sampling_mask=False,
    )
    vllm_stand_in.forget()
    assert setup.load() is not None
    assert not [name for name in sys.modules if name.partition(".")[0] == "vllm"]


def test_on_a_gpu_the_reference_in_pytorch_scores_nothing(monkeypatch, log_lines):
    monkeypatch.setattr(tokendraw, "resolve", lambda **_: SimpleNamespace(chosen="native"))
    load_scorer(torch.device("cuda:0"), V, [(V, torch.float32)], need=tokendraw.Need(), max_best=MOST)
    assert _v2_logprobs._scorers == {}
    assert log_lines() == [
        (
            "WARNING",
            "tokendraw: V2 scoring left alone: 'native' is the best scorer for cuda:0, and no quicker than vLLM's own",
        )
    ]


def test_a_load_that_fails_leaves_log_probabilities_to_vllm_and_draws_to_tokendraw(monkeypatch, log_lines):
    load = tokendraw.load

    def without_room(operation, *arguments, **named):
        if operation == "score":
            raise RuntimeError("no room")
        return load(operation, *arguments, **named)

    monkeypatch.setattr(tokendraw, "load", without_room)
    loaded()
    assert is_vllms(function()(LOGITS, 1, TOKENS))
    assert [line for _, line in log_lines()] == [
        "tokendraw: V2 sampler replaced (native 0.1.0, vLLM 0.33.0)",
        "tokendraw: V2 scoring left alone: RuntimeError: no room",
    ]


# Kernels.


def kernel_scorer(mode, max_best=MOST):
    """A scorer of triton-gumbel for an H200, and the kernels of :mod:`triton_stand_ins`."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from tokendraw_triton_gumbel import plugin
    from triton_stand_ins import sampler_for

    backend = sampler_for("sm_90", logprobs_mode=mode)
    backend._current_index = lambda: -1
    offered = plugin.tokendraw_describe().operations["score"]
    return Scorer(provider_of("score", backend, offered), max_best)


NUMBERS = {
    "raw": ("raw_logprobs", [torch.bfloat16], (6, 5)),
    "processed": ("raw_logprobs", [torch.bfloat16, torch.float32], (11, 9)),
    "logits": ("raw_logits", [torch.bfloat16], (6, 5)),
}
"""Of small vocabularies, where the best 17 to 20 tokens take a search of their own, and of large ones."""


@pytest.mark.parametrize("vocab_size", [32000, 32001, 151936])
@pytest.mark.parametrize(("mode", "dtypes", "numbers"), NUMBERS.values(), ids=NUMBERS)
def test_no_request_compiles_a_kernel_and_the_start_compiles_few(kernels, vocab_size, mode, dtypes, numbers):
    from triton_stand_ins import compilations

    scorer = kernel_scorer(mode)
    padded = -(-vocab_size // 64) * 64
    layouts = [(padded if dtype is dtypes[0] else vocab_size, dtype) for dtype in dtypes]
    scorer.warm_up(CPU, vocab_size, layouts)
    compiled = compilations(kernels)
    assert sum(compiled.values()) == numbers[vocab_size > 100_000], compiled
    for (stride, dtype), rows in product(layouts, (1, 2, 64, 129, 1024)):
        logits = torch.empty(rows, stride, dtype=dtype)[:, :vocab_size]
        tokens = torch.zeros(rows, dtype=torch.int64)
        for best in range(MOST + 1):
            scorer.score(logits, tokens, best)
            assert compilations(kernels) == compiled, (rows, best)
        for count in (1, 7, 128):
            scorer.score(logits, tokens, 0, torch.zeros(rows, count, dtype=torch.int32))
            assert compilations(kernels) == compiled, (rows, count)
