"""The load of the V2 runner's edits and verifications compiles the kernels of all that vLLM may ask for."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import tokendraw
import tokendraw_vllm
import vllm_stand_in
from calling import CPU, provider_of
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
from tokendraw_vllm._v2_edits import Mirror, RequestTokens, edits_of, load_processor
from triton_stand_ins import compilations
from vllm_stand_in import request

V = 300
EDITS = (
    {"presence_penalty": 1.0},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.5},
    {"logit_bias": {5: 1.0}},
    {"allowed_token_ids": [5, 299]},
    {"bad_words_token_ids": [[1, 2]]},
    {"min_tokens": 2, "all_stop_token_ids": {5}},
)


def test_no_request_with_edits_compiles_a_kernel(kernels, monkeypatch):
    offered = plugin.tokendraw_describe().operations["process_logits"]
    provider = provider_of("process_logits", TritonLogitsProcessor(CPU), offered)
    monkeypatch.setattr(tokendraw, "load", lambda operation, names, *, device, need: provider)
    processor = load_processor(CPU, V, "triton-gumbel")
    compiled, launched = (
        compilations(kernels),
        {name: len(kernel.launches) for name, kernel in kernels.items()},
    )
    assert {name: count for name, count in compiled.items() if count} == {
        "process_logits": 2,
        "append_tokens": 1,
    }
    for together in (False, True):
        mirror = Mirror(8, 128, V, CPU, 1)
        for slot, edits in enumerate(EDITS):
            if not together:
                mirror = Mirror(8, 128, V, CPU, 1)
            mirror.add(slot, edits_of(request(**edits)), RequestTokens(slot, 2, [1, 2, 3]))
            rows = mirror.rows(torch.arange(8).numpy())
            processor.process(torch.zeros(len(rows.places), V), mirror.requests, rows.mirror)
            mirror.requests.append(rows.mirror, rows.mirror)
            assert compilations(kernels) == compiled, edits
    assert len(kernels["process_logits"].launches) > launched["process_logits"]


@pytest.mark.slow
@pytest.mark.usefixtures("warmup_on_a_cpu")
@pytest.mark.parametrize("drawn", [False, True], ids=["chosen", "drawn"])
def test_no_verification_compiles_a_kernel(vllm, monkeypatch, kernels, drawn):
    """Of the model's bfloat16 logits, and of edited ones, for batches with filters and without."""
    vllm_stand_in.draw_through_kernels(monkeypatch)
    tokendraw_vllm.register()
    engine = vllm_stand_in.DraftingEngine(320, 3, drawn=drawn, slots=8, dtype=torch.bfloat16)
    slots = engine.sampler._tokendraw
    assert slots.can_draw()
    assert slots._replacement.verifies
    compiled = compilations(kernels)
    draft_logits = torch.zeros(8, 3, 320) if drawn else None
    batches = [[kind] * 8 for kind in vllm_stand_in.KERNEL_REQUESTS] + [[*vllm_stand_in.KERNEL_REQUESTS, {}]]
    for requests in batches:
        if all(fields.get("temperature") == 0.0 for fields in requests):
            continue  # vLLM's
        for slot, fields in enumerate(requests):
            engine.add(slot, request(**fields))
        for count, drafts in ((8, [[1, 2, 3]]), (8, [[1], []]), (1, [[1, 2, 3]])):
            ids = (drafts * 8)[:count]
            rows = vllm_stand_in.model_logits(sum(len(each) + 1 for each in ids), 320)
            engine.verify(rows, list(range(count)), ids, positions=[3] * count, draft_logits=draft_logits)
            assert compilations(kernels) == compiled, (requests[0], ids)
    assert slots._replacement.verifies
    assert slots._replacement.sampler is not None
