"""Draws of drafts in the V2 runner, in the place of vLLM's ``gumbel_sample``.

The kernels run in test_vllm_v2_itself.py and in tests/kernels/interpreted; here torch stands in their place.
"""

import numpy as np
import pytest
import torch

import tokendraw
import tokendraw_vllm
import vllm_stand_in
from goodness_of_fit import FALSE_ALARM, chi_square
from tokendraw import SamplingMetadata
from vllm_stand_in import MODULES, DraftingEngine, request

pytest.importorskip("triton", reason="Triton is not installed")

from triton_stand_ins import TARGETS, compilations, machine_code

V, K = 40, 3
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(2)).mul_(2.0)
BEST = int(LOGITS.argmax())
SPECULATOR = "vllm.v1.worker.gpu.spec_decode.speculator"
VLLMS = 0
"""The draft that the stand-in of vLLM draws."""


@pytest.fixture
def torch_keeps_logits(monkeypatch):
    from tokendraw_vllm import _v2_draft_kernels

    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    monkeypatch.setattr(_v2_draft_kernels, "keep_logits", vllm_stand_in.keep_logits)


@pytest.fixture
def registered(vllm, torch_keeps_logits):
    tokendraw_vllm.register()


def cache(size=V, dtype=torch.float32):
    return torch.full((8, K, size), 7.0, dtype=dtype)


def drafts_of(rows, *, temperature, seed, positions):
    """Return the drafts that ``tokendraw.Sampler.draft`` draws."""
    columns = {"temperature": torch.full((rows,), temperature), "seed": torch.full((rows,), seed)}
    metadata = SamplingMetadata(**columns, positions=torch.tensor(positions))
    return tokendraw.load_sampler("native").draft(LOGITS.repeat(rows, 1), metadata).token_ids.tolist()


def test_drafts_are_drawn_at_the_temperature_of_their_request_without_its_filters(registered):
    engine, draws, kept = DraftingEngine(V, K, drawn=True), 3000, cache()
    engine.add(3, request(temperature=1.7, top_k=2, top_p=0.5, seed=9))
    found = engine.draft(LOGITS.repeat(draws, 1), [3] * draws, list(range(draws)), 1, kept)
    assert chi_square(np.array(found), (LOGITS.double() / 1.7).softmax(0).numpy()) > FALSE_ALARM
    places = [position + (1 << 32) for position in range(draws)]
    assert found == drafts_of(draws, temperature=1.7, seed=9, positions=places)


def test_the_logits_before_the_temperature_are_kept_for_their_slot_and_step(registered):
    engine, kept = DraftingEngine(V, K, drawn=True), cache()
    for slot in (2, 5):
        engine.add(slot, request(temperature=0.0, seed=slot))
    rows = torch.stack([LOGITS, LOGITS.flip(0), -LOGITS])
    found = engine.draft(rows, [5, 2, -1], [4, 9, 0], 2, kept)
    assert found[:2] == [BEST, V - 1 - BEST]
    expected = cache()
    expected[5, 2], expected[2, 2] = rows[0], rows[1]
    assert torch.equal(kept, expected)


def test_the_same_request_draws_the_same_drafts_beside_others_and_other_ones_in_another_step(registered):
    engine, places = DraftingEngine(V, K, drawn=True), list(range(100))
    engine.add(1, request(temperature=2.0, seed=4))
    engine.add(6, request(temperature=0.5, seed=5))
    alone = engine.draft(LOGITS.repeat(100, 1), [1] * 100, places, 0, cache())
    both = engine.draft(LOGITS.repeat(200, 1), [6, 1] * 100, np.repeat(places, 2).tolist(), 0, cache())
    later = engine.draft(LOGITS.repeat(100, 1), [1] * 100, places, 1, cache())
    assert both[1::2] == alone
    assert sum(mine != other for mine, other in zip(alone, later, strict=True)) > 50


def test_a_slot_draws_at_the_temperature_of_its_new_request(registered):
    engine = DraftingEngine(V, K, drawn=True)
    engine.add(1, request(temperature=5.0, seed=4))
    assert len(set(engine.draft(LOGITS.repeat(50, 1), [1] * 50, list(range(50)), 0, cache()))) > 5
    engine.add(1, request(temperature=0.0, seed=4))
    assert set(engine.draft(LOGITS.repeat(50, 1), [1] * 50, list(range(50)), 0, cache())) == {BEST}


@pytest.mark.parametrize(
    ("size", "kept", "options"),
    [
        (V - 8, {}, {}),
        (V, {"size": V - 8}, {}),
        (V, {"dtype": torch.bfloat16}, {}),
        (V, {}, {"is_drafting": False}),
        (V, {}, {"logits_cache_source": LOGITS[None]}),
        (V, {}, {"logits_cache": None}),
    ],
    ids=["a smaller vocabulary", "a smaller cache", "another dtype", "no draft", "other logits", "no cache"],
)
def test_draws_of_another_form_are_vllms(registered, log_lines, size, kept, options):
    engine = DraftingEngine(V, K, drawn=True)
    engine.add(0, request(temperature=0.0))
    assert engine.draft(LOGITS[None, :size], [0], [3], 0, cache(**kept), **options) == [VLLMS]
    assert not any("drafting" in line for _, line in log_lines())


@pytest.mark.parametrize("options", [{"drawn": False}, {"drawn": True, "method": "synthetic"}])
def test_drafts_that_are_chosen_or_that_vllm_verifies_are_vllms(registered, options):
    engine = DraftingEngine(V, K, **options)
    engine.add(0, request(temperature=0.0))
    assert engine.draft(LOGITS[None], [0], [3], 0, cache()) == [VLLMS]


# Successive verifications.


def emitted_texts(engine, target, draft_logits, requests, length):
    """The first tokens of requests that speculate from the start: [requests, length].

    All positions have equal logits, so that each token has the target's distribution whatever stands before.
    """
    count = len(target)
    texts = [[] for _ in range(requests)]
    while True:
        slots = [slot for slot in range(requests) if len(texts[slot]) < length]
        if not slots:
            return np.array([text[:length] for text in texts])
        first, kept = [len(texts[slot]) for slot in slots], torch.zeros(requests, K, count)
        drafts = [
            engine.draft(draft_logits.repeat(len(slots), 1), slots, [at + step for at in first], step, kept)
            for step in range(K)
        ]
        emitted = engine.verify(
            target.repeat(len(slots) * (K + 1), 1),
            slots,
            np.array(drafts).T.tolist(),
            positions=first,
            draft_logits=kept,
        )
        for slot, tokens in zip(slots, emitted, strict=True):
            texts[slot] += tokens


@pytest.mark.parametrize("method", ["standard", "block"])
def test_tokens_behind_rejected_drafts_have_the_targets_distribution(registered, method):
    """In ``block`` a rejection tells of the drafts behind it too, so their noise must not return.

    With equal noise in all steps the p-value of the third token is 7e-21.
    """
    requests, length = 6000, 3
    target, drafted = torch.tensor([0.0, 0.7]), torch.tensor([0.7, 0.0])
    engine = DraftingEngine(2, K, method=method, drawn=True, slots=requests)
    for slot in range(requests):
        engine.add(slot, request(seed=slot))
    texts = emitted_texts(engine, target, drafted, requests, length)
    for step in range(length):
        p_value = chi_square(np.ascontiguousarray(texts[:, step]), target.double().softmax(0).numpy())
        assert p_value > FALSE_ALARM, step


# Kernels.


@pytest.mark.slow
@pytest.mark.usefixtures("warmup_on_a_cpu")
@pytest.mark.parametrize("vocab_size", [300, 320, 301], ids=["padded rows", "no padding", "odd"])
def test_after_the_warmup_no_draft_compiles_a_kernel(
    vllm, torch_keeps_logits, monkeypatch, kernels, vocab_size
):
    vllm_stand_in.draw_through_kernels(monkeypatch)
    tokendraw_vllm.register()
    engine = DraftingEngine(vocab_size, K, drawn=True, slots=130, dtype=vllm_stand_in.MODEL_DTYPE)
    assert engine.sampler._tokendraw.can_draw()
    compiled = compilations(kernels)
    kept = torch.zeros(130, K, vocab_size, dtype=vllm_stand_in.MODEL_DTYPE)
    for slot in range(130):
        engine.add(slot, request(seed=slot, temperature=slot % 2))
    for rows in (1, 5, 130):
        logits = vllm_stand_in.model_logits(rows, vocab_size)
        engine.draft(logits, list(range(rows)), [3] * rows, 0, kept)
        assert compilations(kernels) == compiled, rows


@pytest.mark.slow
@pytest.mark.usefixtures("warmup_on_a_cpu")
@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize("vocab_size", [300, 320, 301], ids=["padded rows", "no padding", "odd"])
def test_after_the_warmup_no_verification_of_drawn_drafts_compiles_a_kernel(
    vllm, torch_keeps_logits, monkeypatch, kernels, vocab_size, method
):
    vllm_stand_in.draw_through_kernels(monkeypatch)
    tokendraw_vllm.register()
    slots, dtype = 130, vllm_stand_in.MODEL_DTYPE
    engine = DraftingEngine(vocab_size, K, drawn=True, slots=slots, dtype=dtype, method=method)
    assert engine.sampler._tokendraw.can_draw()
    compiled = compilations(kernels)
    kept = torch.zeros(slots, K, vocab_size, dtype=dtype)
    for kind in ({"top_k": 5}, {"top_p": 0.9}, {"top_k": 5, "top_p": 0.9, "temperature": 0.7}, {}):
        for slot in range(slots):
            engine.add(slot, request(seed=slot, **kind))
        for count, drafts in ((1, [1]), (1, [1, 2, 3]), (5, [1]), (slots, [1, 2, 3])):
            logits = vllm_stand_in.model_logits(count * (len(drafts) + 1), vocab_size)
            engine.verify(
                logits, list(range(count)), [drafts] * count, positions=[3] * count, draft_logits=kept
            )
            assert compilations(kernels) == compiled, (kind, count, drafts)


# Faults.


def test_a_draw_that_raises_leaves_drafts_to_vllm_and_nothing_else(registered, log_lines, monkeypatch):
    engine = DraftingEngine(V, K, drawn=True)
    engine.add(0, request(seed=1, top_k=1))

    calls = []

    def broken(self, logits, metadata):
        calls.append(logits)
        raise RuntimeError("no kernel image")

    assert engine.draft(LOGITS[None], [0], [3], 0, cache()) != [VLLMS]
    monkeypatch.setattr(tokendraw.Sampler, "draft", broken)
    for _ in range(2):
        assert engine.draft(LOGITS[None], [0], [3], 0, cache()) == [VLLMS]
    assert len(calls) == 1
    assert engine.verify(LOGITS.repeat(2, 1), [0], [[BEST]])[0][0] == BEST
    assert [line for _, line in log_lines()[1:]] == [
        "tokendraw: V2 drafting is vLLM's own again: 'native' raised RuntimeError: no kernel image"
    ]


@pytest.mark.parametrize("old", ["is_drafting, logits_cache", "gumbel_sample"])
def test_a_changed_signature_of_the_draw_leaves_drafts_to_vllm(install, torch_keeps_logits, log_lines, old):
    install(modules={**MODULES, SPECULATOR: MODULES[SPECULATOR].replace(old, f"other_{old}")})
    tokendraw_vllm.register()
    engine = DraftingEngine(V, K, drawn=True)
    engine.add(0, request(seed=1, top_k=1))
    assert engine.verify(LOGITS.repeat(2, 1), [0], [[BEST]])[0][0] == BEST
    line = log_lines()[0][1]
    assert line.startswith(
        "tokendraw: V2 drafting left alone: 'gumbel_sample' needs the parameters logits, expanded"
    )


# Machine code.


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_kernels_compile_for_every_target(monkeypatch, target, dtype):
    from tokendraw_vllm import _v2_draft_kernels as kernels

    ids, block = ("slots", "positions", "steps", "row_index", "noise_positions", "rows"), {"BLOCK_SIZE": 4096}
    floats = dict.fromkeys(("temperature", "sums", "probs"), "*fp32")
    types = dict.fromkeys(ids, "*i64") | floats | {"logits": f"*{dtype}", "cache": f"*{dtype}"}
    for kernel, constants in (
        (kernels.cache_logits, block),
        (kernels.block_sums, block),
        (kernels.write_probabilities, block | {"BLOCKS": 32}),
    ):
        of_kernel = {name: kind for name, kind in types.items() if name in kernel.arg_names}
        code = machine_code(kernel, of_kernel | {"slot_stride": "i64"}, constants, target)
        assert len(code) > 1000, kernel
