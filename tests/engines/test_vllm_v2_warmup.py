"""The start of a V2 sampler: the time of loads and compilations, and no compilation in later requests."""

import threading
from itertools import product
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import tokendraw
import tokendraw_vllm
import vllm_stand_in
from triton_stand_ins import compilations
from vllm_stand_in import V2Engine, request

V, SLOTS = 300, 130  # more than 128 rows take kernels of their own


def vllm_config(**changes):
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
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("warmup_on_a_cpu")
@pytest.mark.parametrize("vocab_size", [V, 320, 301], ids=["padded rows", "no padding", "odd"])
def test_after_the_warmup_no_batch_compiles_a_kernel(vllm, monkeypatch, kernels, vocab_size):
    vllm_stand_in.draw_through_kernels(monkeypatch)
    tokendraw_vllm.register()
    engine = V2Engine(vocab_size, slots=SLOTS, config=vllm_config())
    assert engine.sampler._tokendraw.can_draw()
    compiled = compilations(kernels)
    assert compiled["draw_rows"] >= 8  # of two dtypes and two sizes, with filters and without
    for requests in vllm_stand_in.batches(SLOTS, {"biased": 3}):
        for slot, parameters in enumerate(requests):
            engine.add(slot, request(**parameters))
        slots = list(range(len(requests)))
        engine.draw(vllm_stand_in.model_logits(len(slots), vocab_size), slots, slots)
        assert compilations(kernels) == compiled, requests[0]


@pytest.mark.usefixtures("warmup_on_a_cpu")
def test_a_vocabulary_without_padding_needs_eighteen_kernels(vllm, monkeypatch, kernels):
    """Two dtypes, two sizes, with and without filters; the statistics of float32 tiles share a kernel."""
    vllm_stand_in.draw_through_kernels(monkeypatch)
    tokendraw_vllm.register()
    engine = V2Engine(320, slots=SLOTS, config=vllm_config())
    assert engine.sampler._tokendraw.can_draw()
    counts = {name: count for name, count in compilations(kernels).items() if count}
    assert counts == {"tile_statistics": 6, "draw_rows": 8, "draw_large_sets": 4}


@pytest.mark.fast_first
@pytest.mark.usefixtures("warmup_on_a_cpu")
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
def test_rules_that_a_variable_names_compile_nothing_in_requests(vllm, monkeypatch, kernels, named, more):
    monkeypatch.setenv("TOKENDRAW_WARMUP_RULES", named)
    vllm_stand_in.draw_through_kernels(monkeypatch)
    tokendraw_vllm.register()
    engine = V2Engine(320, slots=SLOTS, config=vllm_config())
    assert engine.sampler._tokendraw.can_draw()
    compiled = compilations(kernels)
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
    for rules, biased, fields in product(
        kinds, (None, 3), ({}, {"top_k": 50, "top_p": 0.9, "temperature": 0.7}, tail)
    ):
        for slot in range(SLOTS):
            ask = {"tokendraw": rules} if slot % 2 == 0 else None
            engine.sampler.add_request(slot, request(**fields, biased=biased, extra_args=ask))
        engine.sampler.sampling_states.apply_staged_writes()
        for rows in (1, 5, SLOTS):
            engine.draw(vllm_stand_in.model_logits(rows, 320), list(range(rows)), [3] * rows)
            assert compilations(kernels) == compiled, (rules, rows)


def test_an_unknown_rule_to_warm_up_is_named(vllm, monkeypatch, log_lines):
    monkeypatch.setenv("TOKENDRAW_WARMUP_RULES", "top_nsigma")
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    assert not V2Engine(V).sampler._tokendraw.can_draw()
    ((_, line),) = log_lines()
    assert line.endswith("found 'top_nsigma', the nearest is 'top_n_sigma'. Correct it.")
    assert "'TOKENDRAW_WARMUP_RULES' needs names of filters or parameters" in line


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


def make_requests(device="cuda:0", vocab_size=V):
    from vllm.v1.worker.gpu.states import RequestState

    return RequestState(8, 128, 8, 0, vocab_size, torch.device(device))


def make_sampler(requests, config, device="cuda:0", vocab_size=V):
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    return Sampler(config, 8, vocab_size, torch.device(device), requests)


def test_making_a_sampler_waits_for_nothing_and_its_first_call_does(loads):
    engine = V2Engine(V)
    engine.add(0, request(top_k=1))
    logits = torch.zeros(1, V)
    logits[0, 7] = 9.0
    done = []
    call = threading.Thread(target=lambda: done.append(engine.draw(logits, [0], [3])))
    call.start()
    call.join(timeout=0.2)
    assert call.is_alive()
    loads.gate.set()
    call.join(timeout=60)
    assert done == [[7]]
    assert loads.threads[0] is not call


def test_greedy_batches_wait_too_since_graphs_are_captured_after_the_first_call(loads):
    engine = V2Engine(V)
    engine.add(0, request(temperature=0.0))
    call = threading.Thread(target=lambda: engine.draw(torch.zeros(1, V), [0], [3]))
    call.start()
    call.join(timeout=0.2)
    assert call.is_alive()
    loads.gate.set()
    call.join(timeout=60)
    assert not call.is_alive()


def begun(monkeypatch, config, device="cuda:0"):
    """The load begun by a runner's ``RequestState`` under a current configuration."""
    import vllm.config

    monkeypatch.setattr(vllm.config, "current", config)
    return getattr(make_requests(device), "_tokendraw", None)


def test_loading_begins_before_the_weights_are_loaded_and_is_the_sampler_s(loads, monkeypatch):
    config = vllm_config()
    loading = begun(monkeypatch, config)
    assert loading is not None
    requests = SimpleNamespace(_tokendraw=loading)
    sampler = make_sampler(requests, config)
    assert sampler._tokendraw._wait_for_load == loading.result
    loads.gate.set()
    loading.result()
    assert loads.devices == ["cuda:0"]


def test_a_sampler_of_another_vocabulary_is_loaded_anew(loads, monkeypatch):
    config = vllm_config()
    loading = begun(monkeypatch, config)
    sampler = make_sampler(SimpleNamespace(_tokendraw=loading), config, vocab_size=V + 1)
    assert sampler._tokendraw._wait_for_load != loading.result
    loads.gate.set()


@pytest.mark.parametrize(
    ("device", "config"),
    [
        ("cpu", vllm_config()),
        ("cuda:0", None),
        ("cuda:0", vllm_config(runner_type="pooling")),
        (
            "cuda:0",
            SimpleNamespace(
                model_config=vllm_config().model_config,
                parallel_config=SimpleNamespace(pipeline_parallel_size=2),
            ),
        ),
    ],
    ids=["a CPU", "no configuration", "pooling", "pipeline"],
)
def test_nothing_is_loaded_beside_the_weights_where_tokendraw_may_replace_nothing(
    loads, monkeypatch, device, config
):
    assert begun(monkeypatch, config, device) is None
    assert loads.devices == []
