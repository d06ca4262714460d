"""The load of the V2 runner's edits compiles the kernels of every edit that a request of vLLM may ask for."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import tokendraw
from calling import CPU, provider_of
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
from tokendraw_vllm._v2_mirror import Mirror, RequestTokens
from tokendraw_vllm._v2_processor import edits_of, load_processor
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
    monkeypatch.setattr(tokendraw, "load", lambda operation, *, device, need: provider)
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
        mirror = Mirror(8, 128, V, CPU)
        for slot, edits in enumerate(EDITS):
            if not together:
                mirror = Mirror(8, 128, V, CPU)
            mirror.add(slot, edits_of(request(**edits)), RequestTokens(slot, 2, [1, 2, 3]))
            rows = mirror.rows(torch.arange(8).numpy())
            processor.process(torch.zeros(len(rows.places), V), mirror.requests, rows.mirror)
            mirror.requests.append(rows.mirror, rows.mirror)
            assert compilations(kernels) == compiled, edits
    assert len(kernels["process_logits"].launches) > launched["process_logits"]
