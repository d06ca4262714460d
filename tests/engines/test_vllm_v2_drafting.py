"""Draws of drafts in the V2 runner, in the place of vLLM's ``gumbel_sample``.

The kernels run in test_vllm_v2_itself.py and in tests/kernels/interpreted; here torch stands in their place.
"""

import random

import numpy as np
import pytest
import torch

import tokendraw
import tokendraw_vllm
import vllm_stand_in
from goodness_of_fit import FALSE_ALARM, chi_square
from tokendraw import SamplingMetadata
from vllm_stand_in import DraftingEngine, request

pytest.importorskip("triton", reason="Triton is not installed")

from triton_stand_ins import TARGETS, machine_code

V, K, SLOTS = 40, 3, 8
VLLMS = 0
"""The draft that the stand-in of vLLM draws."""


@pytest.fixture(autouse=True)
def registered(vllm, monkeypatch):
    from tokendraw_vllm import _v2_draft_kernels

    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    monkeypatch.setattr(_v2_draft_kernels, "keep_logits", vllm_stand_in.keep_logits)
    tokendraw_vllm.register()


def cache(size=V, dtype=torch.float32):
    return torch.full((SLOTS, K, size), 7.0, dtype=dtype)


def test_drafts_are_tokendraws_at_the_temperature_of_their_request_and_their_logits_are_kept():
    """Whatever the filters and the other rows are. The noise is that of the seed, the position and the step."""
    rng, sampler, generator = (
        random.Random(4),
        tokendraw.load_sampler("native"),
        torch.Generator().manual_seed(2),
    )
    DraftingEngine(V, K, drawn=True)  # an earlier one of the process
    engine, asked = DraftingEngine(V, K, drawn=True), {}
    for _ in range(40):
        slot = rng.randrange(SLOTS)
        asked[slot] = {"temperature": rng.choice([0.0, 0.5, 1.7]), "seed": rng.randrange(2**40)}
        engine.add(slot, request(**asked[slot], top_k=2, top_p=0.5))
        slots = rng.sample([*asked, *[-1] * 2], rng.randint(1, len(asked)))  # -1 pads a batch
        rows = [row for row, each in enumerate(slots) if each >= 0]
        positions, step = [rng.randrange(90) for _ in slots], rng.randrange(K)
        logits, kept, expected = torch.randn(len(slots), V, generator=generator) * 2, cache(), cache()
        found = engine.draft(logits, slots, positions, step, kept)
        requests = [asked[slots[row]] for row in rows]
        metadata = SamplingMetadata(
            temperature=torch.tensor([each["temperature"] for each in requests]),
            seed=torch.tensor([each["seed"] for each in requests], dtype=torch.int64),
            positions=torch.tensor([positions[row] + (step << 32) for row in rows], dtype=torch.int64),
        )
        drafts = sampler.draft(logits[rows], metadata).token_ids.tolist() if rows else []
        assert [found[row] for row in rows] == drafts
        for row in rows:
            expected[slots[row], step] = logits[row]
        assert torch.equal(kept, expected)


@pytest.mark.parametrize(
    ("size", "kept", "options", "engine"),
    [
        (V - 8, {}, {}, {}),
        (V, {"size": V - 8}, {}, {}),
        (V, {"dtype": torch.bfloat16}, {}, {}),
        (V, {}, {"is_drafting": False}, {}),
        (V, {}, {"logits_cache_source": torch.zeros(1, V)}, {}),
        (V, {}, {"logits_cache": None}, {}),
        (V, {}, {}, {"drawn": False}),
        (V, {}, {}, {"method": "synthetic"}),
    ],
    ids=[
        *("a smaller vocabulary", "a smaller cache", "another dtype", "no draft", "other logits", "no cache"),
        *("chosen drafts", "vLLM verifies"),
    ],
)
def test_draws_of_another_form_are_vllms(log_lines, size, kept, options, engine):
    drafting = DraftingEngine(V, K, **{"drawn": True} | engine)
    drafting.add(0, request(temperature=0.0))
    logits = torch.arange(float(size))[None]
    assert drafting.draft(logits, [0], [3], 0, cache(**kept), **options) == [VLLMS]
    assert not any("drafting" in line for _, line in log_lines())


def emitted_texts(engine, target, draft_logits, requests, length):
    """The first tokens of requests that speculate from the start: [requests, length].

    All positions have equal logits, so that each token has the target's distribution whatever stands before.
    """
    count = len(target)
    texts = [[] for _ in range(requests)]
    while slots := [slot for slot in range(requests) if len(texts[slot]) < length]:
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
    return np.array([text[:length] for text in texts])


@pytest.mark.parametrize("method", ["standard", "block"])
def test_tokens_behind_rejected_drafts_have_the_targets_distribution(method):
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


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_kernels_compile_for_every_target(target, dtype):
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
