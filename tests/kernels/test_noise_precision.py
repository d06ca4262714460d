"""Float64 noise reaches every draw of triton-gumbel: in Triton's interpreter, in the kernels of a warmup, on a GPU."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import tokendraw
from calling import CPU, drafting, substitute
from goodness_of_fit import ACCEPTED, BONUS, DRAFT, DTYPES, RECOVERED, SAMPLE, drawn_with, verified_with
from tokendraw import Need
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from triton_stand_ins import interpreted

DRAWING = ("draw_rows", "draw_large_sets", "accept_drafts")


@pytest.mark.slow
@pytest.mark.parametrize(("what", "least"), [("draws", 48), ("verifications", 52)])
def test_tokens_show_the_requested_noise(what, least):
    assert interpreted("noise", what) == {"judged": least, "wrong": []}


@pytest.mark.usefixtures("warmup_on_a_cpu")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_warmup_compiles_the_kernels_of_the_noise_that_was_asked_for(kernels, dtype):
    backend = TritonGumbelSampler(CPU, Need(gumbel_dtype=dtype))
    operations = plugin.tokendraw_describe().operations
    sampler = drafting(operations["verify"], backend, companion_capabilities=None)
    substitute(sampler, backend, "triton-gumbel")
    sampler.warmup(3000, dtypes=[torch.float32], batch_sizes=[2], max_drafts=2)
    compiled = {(name, named["config"].FP64) for name in DRAWING for _, _, named in kernels[name].calls}
    assert compiled == {(name, dtype == "fp64") for name in DRAWING}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_so_do_all_draws_on_a_cuda_device(dtype):
    need = Need(gumbel_dtype=dtype)
    sampler = tokendraw.load_sampler("triton-gumbel", device="cuda", need=need)
    for top_k in (0, 2000):
        for streams in (SAMPLE, DRAFT):
            assert drawn_with(sampler, streams, device="cuda", top_k=top_k) == dtype, (top_k, streams)
    for part in (ACCEPTED, RECOVERED, BONUS):
        for kind in ("chosen", "probs", "logits"):
            for filtered in (False, True):
                result = verified_with(sampler, part, kind, device="cuda", filtered=filtered)
                assert result == dtype, (part, kind, filtered)
    assert verified_with(sampler, BONUS, mode="coupled", device="cuda") == dtype
