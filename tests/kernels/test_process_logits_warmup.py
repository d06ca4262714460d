"""After a warmup no edit compiles anything: kernels record their compilations, and some are compiled."""

import math
from itertools import product

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from calling import CPU, provider_of
from tokendraw import Drafts, RequestSlots, SamplingParams
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
from triton_stand_ins import interpreted, translate

pytestmark = pytest.mark.usefixtures("warmup_on_a_cpu")
V, ROWS = 3000, 9
ASKED = (
    {"presence_penalty": 1.0},
    {"logit_bias": {5: 1.0}, "allowed_token_ids": [5, 2999]},
    {"bad_words": [[1, 2]], "min_tokens": 2, "stop_token_ids": [5]},
    {},
)
INTS = (torch.int64, torch.int32)


def warm(**options):
    offered = plugin.tokendraw_describe().operations["process_logits"]
    processor = provider_of("process_logits", TritonLogitsProcessor(CPU), offered)
    processor.warmup(V, dtypes=[torch.bfloat16], **options)
    return processor


def layouts(ids, offsets):
    """Yield drafts of three requests, nine rows, in every layout that an engine may use."""
    counts = torch.tensor([0, 3, 4, 9], dtype=offsets)
    for shape, most in (((6,), 4), ((3, 4), 4), ((3, 7), 7)):
        yield Drafts(draft_token_ids=torch.ones(shape, dtype=ids), cu_num_logits=counts, max_drafts=most)


def edit(processor, *, drafts=(None,), indices=(*INTS, torch.int16), dtype=torch.bfloat16):
    """Apply all edits that an engine may request, to logits at any alignment."""
    for params in ASKED:
        slots = RequestSlots(2 * ROWS, 100, V, max_bias=7, max_bad_words=3)
        slots.add(4, SamplingParams(**params), prompt_token_ids=[1, 2])
        slots.add(ROWS, SamplingParams(**params), prompt_token_ids=range(99))
        for index, drafted, masked, offset in product(indices, drafts, (True, False), range(3)):
            logits = torch.zeros(ROWS * (V + 5) + offset, dtype=dtype)[offset:].view(ROWS, V + 5)[:, :V]
            words = torch.full((ROWS, 100), -1, dtype=torch.int32)[:, :94] if masked else None
            named = torch.arange(ROWS if drafted is None else 3).to(index)
            processor.process(logits, slots, named, words, drafted)


def test_without_drafts_no_edit_compiles_anything(kernels):
    processor = warm()
    kernel = kernels["process_logits"]
    before = len(kernel.compilations)
    launched = len(kernel.launches)
    edit(processor)
    assert len(kernel.launches) > launched
    assert len(kernel.compilations) == before > 0


@pytest.mark.slow
def test_with_drafts_no_edit_compiles_anything(kernels):
    processor = warm(max_drafts=2, batch_sizes=[2])
    kernel = kernels["process_logits"]
    before = len(kernel.compilations)
    edit(processor)
    for dtypes in product(INTS, INTS):
        edit(processor, drafts=list(layouts(*dtypes)))
    assert len(kernel.compilations) == before > 0


def test_calls_beyond_the_warmup_compile_on_demand(kernels):
    processor = warm(index_dtypes=[torch.int64])
    kernel = kernels["process_logits"]
    for more in (
        {"indices": [torch.int32]},
        {"indices": [torch.int64], "drafts": list(layouts(*INTS))},
        {"indices": [torch.int64], "dtype": torch.float32},
    ):
        before = len(kernel.compilations)
        edit(processor, **more)
        assert len(kernel.compilations) > before, more


@pytest.mark.slow
def test_the_calls_of_a_warmup_have_types_that_fit(kernels):
    """Kernels of some calls are compiled to machine code in ``test_process_logits.py``."""
    warm(max_drafts=2, batch_sizes=[1])
    calls = kernels["process_logits"].calls
    assert len(calls) > 10
    for call in calls:
        translate(call, "sm_90")


@pytest.mark.slow
def test_the_calls_of_a_warmup_run_in_the_interpreter():
    assert interpreted("edits", "warmup") == math.ceil(3 * 127 / 7)
