"""vLLM's own engine with a model of exact logits, on a GPU: each seeded token is the one of float64.

``make test-engines-gpu`` runs it. Two ranks run on a CPU too, in ``make test-engines``.
"""

import collections
import functools
from pathlib import Path

import pytest
import torch

from engine_process import run_script
from exact_model import text, weights
from special_rows import FALSE_ALARM
from tokendraw import SamplingParams
from tokendraw.resolution import installed_version
from tokendraw_testing import reference_edits
from tokendraw_testing.expectation import expect
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_vllm._engine import DISTRIBUTIONS

if not any(map(installed_version, DISTRIBUTIONS)):
    pytest.skip("needs vLLM", allow_module_level=True)

import vllm_judged as judged
from vllm_v2_cases import DRAWN, EDITED, JUDGED, MODEL, VERIFIED, VLLM

SCRIPT = Path(judged.__file__)
TOKENS = 1000 if judged.ON_GPU else 24
LEAST_COUNT = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    judged.write_models(folder)
    return folder


@pytest.fixture(scope="module")
def of_one(folder):
    """``of_one(setup)``: its result, from the process of its group."""
    running = functools.cache(lambda group: run_script(SCRIPT, folder, "one", group)[0])
    return lambda name: running(next(group for group, names in judged.GROUPS.items() if name in names))[name]


@pytest.fixture(scope="module")
def of_two(folder):
    """The result of two ranks, and the lines of the log."""
    if judged.ON_GPU and torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    on_gpu = {"VLLM_ALLREDUCE_USE_FLASHINFER": "0"}  # which is compiled for minutes
    on_cpu = {"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "TOKENDRAW_SAMPLER": "native"}
    return run_script(
        SCRIPT,
        folder,
        "two",
        TOKENS,
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
        VLLM_ALLOW_INSECURE_SERIALIZATION="1",
        VLLM_USE_V2_MODEL_RUNNER="1",
        VLLM_WORKER_MULTIPROC_METHOD="spawn" if judged.ON_GPU else "fork",
        **on_gpu if judged.ON_GPU else on_cpu,
    )


@functools.cache
def expected(number, tokens, *, long):
    """The text of a request."""
    request = judged.REQUESTS[number] | {"max_tokens": tokens}
    dtype = getattr(torch, judged.DTYPE)
    return text(request, judged.prompts_of(long=long)[number], judged.V, judged.HIDDEN_SIZE, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", judged.SETUPS)
def test_each_token_is_that_of_float64(of_one, name):
    found, (_, long) = of_one(name), judged.SETUPS[name]
    wanted = [expected(i, each["max_tokens"], long=long) for i, each in enumerate(judged.REQUESTS)]
    wrong = sum(
        x != y for pair in zip(found["texts"], wanted, strict=True) for x, y in zip(*pair, strict=True)
    )
    print(f"\n{name}: {sum(map(len, wanted))} tokens, {wrong} wrong, {found['places']}")
    assert found["texts"] == wanted
    assert ("preempted" in name) == ("preempted" in found["places"])
    assert {MODEL, EDITED} <= set(found["places"])
    assert ("drafts" in name) == (VERIFIED in found["places"])


@pytest.mark.gpu
def test_drawn_drafts_leave_the_distribution_of_a_floor_and_a_bias(of_one):
    texts, places = of_one(DRAWN).values()
    assert VERIFIED in places
    assert VLLM not in places
    following = collections.defaultdict(list)
    for each in texts:
        for token, drawn in zip([judged.SHARED_PROMPT[-1], *each], each, strict=False):
            following[token].append(drawn)
    judged_states = {token: drawn for token, drawn in following.items() if len(drawn) >= LEAST_COUNT}
    print(f"\n{len(judged_states)} states, {sum(map(len, judged_states.values()))} tokens, {places}")
    assert len(judged_states) >= 2
    embeddings, head = weights(judged.V, judged.HIDDEN_SIZE)
    params = SamplingParams(**judged.FLOORED)
    for token, drawn in judged_states.items():
        logits = (head @ embeddings[token]).to(getattr(torch, judged.DTYPE)).double().numpy()
        row = reference_edits.edit(logits, params, [], []).values
        assert fit(drawn, expect(row, params).probabilities).p_value > FALSE_ALARM


def test_two_ranks_draw_equal_tokens_and_a_rank_that_fails_ends_the_engine(of_two):
    results, log_lines = of_two
    first, second = results["held"]
    assert first == second
    prompts = judged.prompts_of(long=False)
    assert sorted(filter(None, first)) == sorted(
        prompt + each for prompt, each in zip(prompts, results["texts"], strict=False)
    )
    seeded, unseeded = results["texts"][: len(JUDGED)], results["texts"][len(JUDGED) :]
    assert seeded == [expected(i, TOKENS, long=False) for i in range(len(JUDGED))]
    assert seeded[1:] != unseeded[1:]
    assert results["error"] == "EngineDeadError"
    assert log_lines[-1].startswith("tokendraw failed on rank 1: RuntimeError: injected")
