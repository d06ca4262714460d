"""Draws of drafts in the V2 runner, in the place of vLLM's ``gumbel_sample``.

The kernels run in test_vllm_v2_itself.py and in tests/kernels/interpreted; here torch stands in their place.
"""

import pytest
import torch

import tokendraw_vllm
import vllm_stand_in
from vllm_engine import DraftingEngine

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
    drafting.start(0, temperature=0.0)
    logits = torch.arange(float(size))[None]
    assert vllm_stand_in.draft(drafting, logits, [0], [3], 0, cache(**kept), **options) == [VLLMS]
    assert not any("drafting" in line for _, line in log_lines())


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
