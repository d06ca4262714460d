"""The start of a V2 sampler: loads beside vLLM's weights, and kernels for all that vLLM may ask for later.

The kernels are those of triton-gumbel for an H200, which compile and launch nothing.
"""

import threading
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import tokendraw
import tokendraw_vllm
import vllm_stand_in
from calling import CPU, provider_of
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
from tokendraw_vllm.v2.edits import Edits, edit_states, edits_of, load_processor
from tokendraw_vllm.v2.logprobs import Scorer
from triton_stand_ins import compilations, sampler_for
from vllm_engine import DraftingEngine, Engine, Parameters

V, SLOTS, K, MOST = 300, 130, 3, 20  # more than 128 rows take kernels of their own
EDITS = (
    {"presence_penalty": 1.0},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.5},
    {"logit_bias": {5: 1.0}},
    {"allowed_token_ids": [5, 299]},
    {"bad_words_token_ids": [[1, 2]]},
    {"min_tokens": 2, "all_stop_token_ids": {5}},
)
each_padding = pytest.mark.parametrize("vocab_size", [V, 320, 301], ids=["padded rows", "no padding", "odd"])


def vllm_config(pipelines=1, **changes):
    """vLLM's configuration, as far as the adapter reads it."""
    model = {
        "dtype": vllm_stand_in.MODEL_DTYPE,
        "runner_type": "generate",
        "logprobs_mode": "raw_logprobs",
        "return_sampling_mask": False,
        "use_fp64_gumbel": False,
    }
    return SimpleNamespace(
        model_config=SimpleNamespace(**model | changes),
        parallel_config=SimpleNamespace(pipeline_parallel_size=pipelines),
    )


@pytest.fixture
def started(vllm, monkeypatch, kernels, warmup_on_a_cpu):
    """``started(engine)``: the engine that a function makes, loaded, and what has compiled so far."""

    def start(make):
        vllm_stand_in.draw_through_kernels(monkeypatch)
        tokendraw_vllm.register()
        engine = make()
        assert engine.sampler._tokendraw.can_draw()
        return engine, compilations(kernels)

    return start


@pytest.mark.slow
@each_padding
def test_no_batch_compiles_a_kernel(started, kernels, vocab_size):
    engine, compiled = started(lambda: Engine(vocab_size, slots=SLOTS, config=vllm_config()))
    assert compiled["draw_rows"] >= 8  # of two dtypes and two sizes, with filters and without
    for requests in vllm_stand_in.batches(SLOTS, {"biased": 3}):
        for slot, parameters in enumerate(requests):
            engine.start(slot, **parameters)
        slots = list(range(len(requests)))
        engine.draw(vllm_stand_in.model_logits(len(slots), vocab_size), slots, slots)
        assert compilations(kernels) == compiled, requests[0]


@pytest.mark.fast_first
@pytest.mark.parametrize(
    ("named", "more"),
    [
        ("filter_order, xtc_probability", 20),
        ("", 0),
        ("typical_p", 0),
        ("filter_order", 8),
        ("xtc_probability", 6),
        ("top_n_sigma", 10),
    ],
)
def test_rules_that_a_variable_names_compile_nothing_in_requests(started, monkeypatch, kernels, named, more):
    """Without rules 18 kernels: of two dtypes, two sizes, with filters and without."""
    monkeypatch.setenv("TOKENDRAW_WARMUP_RULES", named)
    engine, compiled = started(lambda: Engine(320, slots=SLOTS, config=vllm_config()))
    assert sum(compiled.values()) == 18 + more
    values = {
        "typical_p": 0.5,
        "filter_order": "temperature_last",
        "xtc_probability": 0.3,
        "top_n_sigma": 1.0,
    }
    names = [name.strip() for name in named.split(",") if name]
    kinds = [{name: values[name]} for name in names] + [{name: values[name] for name in names}]
    tail = {} if "top_n_sigma" in names else {"temperature": 1.5, "top_p": 0.9, "min_p": 0.1}
    fields_of_kinds = ({}, {"top_k": 50, "top_p": 0.9, "temperature": 0.7}, tail)
    for rules, biased, fields in product(kinds, (None, 3), fields_of_kinds):
        for slot in range(SLOTS):
            ask = {"tokendraw": rules} if slot % 2 == 0 else None
            engine.sampler.add_request(slot, Parameters(**fields, biased=biased, extra_args=ask))
        engine.sampler.sampling_states.apply_staged_writes()
        for rows in (1, 5, SLOTS):
            engine.draw(vllm_stand_in.model_logits(rows, 320), list(range(rows)), [3] * rows)
            assert compilations(kernels) == compiled, (rules, rows)


def test_no_request_with_edits_compiles_a_kernel(vllm, kernels, monkeypatch):
    offered = plugin.tokendraw_describe().operations["process_logits"]
    provider = provider_of("process_logits", TritonLogitsProcessor(CPU), offered)
    monkeypatch.setattr(tokendraw, "load", lambda operation, names, *, device, need: provider)
    processor = load_processor(CPU, V, "triton-gumbel")
    compiled = compilations(kernels)
    assert {name: count for name, count in compiled.items() if count} == {
        "process_logits": 2,
        "append_tokens": 1,
    }
    launched = len(kernels["process_logits"].launches)
    sizes, limits = SimpleNamespace(max_num_reqs=8, vocab_size=V), SimpleNamespace(max_model_len=128)
    states = [kind() for kind in edit_states()]
    sampler = SimpleNamespace(
        sampling_states=sizes, req_states=limits, logits_processors=states, num_speculative_tokens=1
    )
    for together in (False, True):
        for slot, asked in enumerate(EDITS):
            if not (together and slot):
                edits = Edits(sampler, CPU)
                edits.open(processor)
            assert edits.add(slot, edits_of(Parameters(**asked)), np.array([1, 2, 3]), 2)
            rows = edits.rows(np.arange(8))
            assert len(edits.apply(torch.zeros(8, V), rows)) == len(rows.places)
            edits.requests.append(rows.own, rows.own)
            assert compilations(kernels) == compiled, asked
    assert len(kernels["process_logits"].launches) > launched


@pytest.mark.slow
@pytest.mark.parametrize("method", ["chosen", "standard", "block"])
@each_padding
def test_no_draft_and_no_verification_compiles_a_kernel(started, monkeypatch, kernels, vocab_size, method):
    """Of as many drafts in every request or of others, in batches with filters and without."""
    from tokendraw_vllm.v2 import draft_kernels

    monkeypatch.setattr(draft_kernels, "keep_logits", vllm_stand_in.keep_logits)
    drawn, dtype = method != "chosen", vllm_stand_in.MODEL_DTYPE
    options = {"method": method} if drawn else {}
    engine, compiled = started(
        lambda: DraftingEngine(vocab_size, K, drawn=drawn, slots=SLOTS, dtype=dtype, **options)
    )
    kept = torch.zeros(SLOTS, K, vocab_size, dtype=dtype) if drawn else None
    kinds = [[kind] for kind in vllm_stand_in.KERNEL_REQUESTS if kind.get("temperature") != 0.0]
    for kind in [*kinds, [*vllm_stand_in.KERNEL_REQUESTS]]:
        for slot in range(SLOTS):
            engine.start(slot, **{"seed": slot} | kind[slot % len(kind)])
        for count, drafts in ((1, [[1]]), (1, [[1, 2, 3]]), (8, [[1], []]), (SLOTS, [[1, 2, 3]])):
            ids = (drafts * SLOTS)[:count]
            rows = vllm_stand_in.model_logits(sum(len(each) + 1 for each in ids), vocab_size)
            engine.rejection_sampler(rows, engine.rows(list(range(count)), ids), kept)
            assert compilations(kernels) == compiled, (kind, count, drafts)
        for rows in (1, 5, SLOTS) if drawn else ():
            vllm_stand_in.draft(
                engine, vllm_stand_in.model_logits(rows, vocab_size), list(range(rows)), [3] * rows, 0, kept
            )
            assert compilations(kernels) == compiled, rows
    served = {"V2 sampler", "V2 verification"} | ({"V2 drafting"} if drawn else set())
    assert engine.sampler._tokendraw._replacement.serves == served


SCORES = {
    "raw": ("raw_logprobs", [torch.bfloat16], (6, 5)),
    "processed": ("raw_logprobs", [torch.bfloat16, torch.float32], (11, 9)),
    "logits": ("raw_logits", [torch.bfloat16], (6, 5)),
}
"""Kernels of small vocabularies, where the best 17 to 20 tokens take a search of their own, and of large ones."""


@pytest.mark.parametrize("vocab_size", [32000, 32001, 151936])
@pytest.mark.parametrize(("mode", "dtypes", "numbers"), SCORES.values(), ids=SCORES)
def test_no_log_probability_compiles_a_kernel(kernels, vocab_size, mode, dtypes, numbers):
    backend = sampler_for("sm_90", logprobs_mode=mode)
    backend._current_index = lambda: -1
    scorer = Scorer(provider_of("score", backend, plugin.tokendraw_describe().operations["score"]), MOST)
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


# The load, which begins with the runner's states and ends before the first step.


@pytest.fixture
def loads(vllm, monkeypatch):
    """Devices and threads of the loads of samplers; each waits for ``loads.gate``."""
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    result = SimpleNamespace(devices=[], threads=[], gate=threading.Event())
    load_sampler = tokendraw.load_sampler

    def noted(sampler, *, device, need):
        result.devices.append(str(device))
        result.threads.append(threading.current_thread())
        assert result.gate.wait(timeout=60)
        return load_sampler(sampler, device="cpu", need=need)

    monkeypatch.setattr(tokendraw, "load_sampler", noted)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, **named: zeros(*size, **named | {"device": "cpu"}))
    tokendraw_vllm.register()
    yield result
    result.gate.set()
    for thread in result.threads:
        thread.join(timeout=60)


@pytest.mark.parametrize(
    ("params", "token"), [({"top_k": 1}, 7), ({"temperature": 0.0}, 7)], ids=["drawn", "greedy"]
)
def test_making_a_sampler_waits_for_nothing_and_its_first_step_does(loads, params, token):
    """A greedy step too: CUDA graphs are captured after it."""
    engine, logits, done = Engine(V), torch.zeros(1, V), []
    logits[0, 7] = 9.0
    engine.start(0, **params)
    call = threading.Thread(target=lambda: done.append(engine.draw(logits, [0], [3])))
    call.start()
    call.join(timeout=0.2)
    assert call.is_alive()
    loads.gate.set()
    call.join(timeout=60)
    assert done == [[token]]
    assert loads.threads[0] is not call


def begun(monkeypatch, config, device="cuda:0"):
    """The load begun by a runner's ``RequestState`` under a current configuration."""
    import vllm.config
    from vllm.v1.worker.gpu.states import RequestState

    monkeypatch.setattr(vllm.config, "current", config)
    return getattr(RequestState(8, 128, 8, 0, V, torch.device(device)), "_tokendraw", None)


@pytest.mark.parametrize("vocab_size", [V, V + 1], ids=["the same", "another vocabulary"])
def test_the_load_begins_before_the_weights_are_loaded_and_is_the_sampler_s(loads, monkeypatch, vocab_size):
    from vllm.v1.worker.gpu.model_states.interface import ModelState
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    config = vllm_config()
    loading = begun(monkeypatch, config)
    requests, state = SimpleNamespace(_tokendraw=loading), ModelState(config, torch.device("cuda:0"))
    sampler = Sampler(config, 8, vocab_size, state.device, requests)
    assert state.custom_sampler(sampler) is None
    assert (sampler._tokendraw._wait_for_load == loading.result) == (vocab_size == V)
    loads.gate.set()
    loading.result()
    assert set(loads.devices) == {"cuda:0"}


@pytest.mark.parametrize(
    ("device", "config"),
    [
        ("cpu", vllm_config()),
        ("cuda:0", None),
        ("cuda:0", vllm_config(runner_type="pooling")),
        ("cuda:0", vllm_config(pipelines=2)),
    ],
    ids=["a CPU", "no configuration", "pooling", "pipeline"],
)
def test_nothing_is_loaded_beside_the_weights_where_tokendraw_may_replace_nothing(
    loads, monkeypatch, device, config
):
    assert begun(monkeypatch, config, device) is None
    assert loads.devices == []
