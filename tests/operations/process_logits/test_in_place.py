"""Edits are made in the caller's logits, whichever provider serves the call; without edits no provider is called."""

import importlib

import pytest
import torch

import tokendraw
from fake_dists import offering
from tokendraw import Drafts, PluginError, RequestSlots, SamplerFallbackWarning, SamplingParams

VOCAB_SIZE = 40
OFFERED = (
    'ProcessCapabilities(dtypes=("float32", "bfloat16"), max_vocab_size=50, edits=tokendraw.plugin.EDITS)'
)
PROCESSOR = """
from tokendraw_native.logits_processing import NativeProcessor

CALLS = []


class Processor(NativeProcessor):
    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        CALLS.append(logits.data_ptr())
        {process}
        return super().process(logits, slots, row_index, bitmask, drafts)


def build(device, need):
    return Processor()
"""


def add(dists, process=""):
    source = offering("process_logits", OFFERED, PROCESSOR.format(process=process))
    module = importlib.import_module(dists.add_plugin("acme", source))
    processor = tokendraw.load("process_logits", device="cpu")
    module.CALLS.clear()
    return module, processor


def slots_of(params, vocab_size=VOCAB_SIZE):
    slots = RequestSlots(num_slots=2, max_tokens=8, vocab_size=vocab_size, device="cpu")
    for slot in range(2):
        slots.add(slot, params, prompt_token_ids=[3])
    return slots


def biased(logits, slots, processor, **more):
    """Return the logit of id 3 after adding 2."""
    assert processor.process(logits, slots, torch.arange(len(logits)), **more) is logits
    return logits[:, 3].tolist()


BIAS = SamplingParams(logit_bias={3: 2.0})


def test_the_first_call_of_a_kind_edits_a_copy_and_later_ones_the_logits_themselves(dists):
    module, processor = add(dists)
    logits, slots = torch.ones(1, VOCAB_SIZE), slots_of(BIAS)
    assert [biased(logits, slots, processor) for _ in range(3)] == [[3.0], [5.0], [7.0]]
    assert [address == logits.data_ptr() for address in module.CALLS] == [False, True, True]
    assert (processor.name, processor.stats()) == ("acme", {"acme": 3})


def test_columns_of_wider_logits_are_edited_and_what_lies_beside_them_is_not(dists):
    _, processor = add(dists)
    wide, slots = torch.ones(2, VOCAB_SIZE + 5), slots_of(BIAS)
    needed = wide.clone()
    for _ in range(2):  # by way of a copy, then in place
        assert biased(wide[:, 2:-3], slots, processor) == [needed[0, 5] + 2] * 2
        needed[:, 5] += 2
        assert torch.equal(wide, needed)


def test_native_takes_over_from_one_that_fails_half_way(dists):
    """Native edits the original logits, since the failed processor was given a copy."""
    _, processor = add(
        dists, "if len(CALLS) > 0 and slots.vocab_size == 41: logits += 9; raise OSError('no')"
    )
    logits = torch.ones(1, 41)
    with pytest.warns(SamplerFallbackWarning, match="'acme' failed: its call raised OSError: no"):
        assert biased(logits, slots_of(BIAS, 41), processor) == [3.0]
    assert processor.name == "native"


def test_logits_of_inference_mode_are_edited_outside_of_it(dists):
    _, processor = add(dists)
    with torch.inference_mode():
        logits = torch.ones(1, VOCAB_SIZE)
    slots = slots_of(BIAS)
    assert [biased(logits, slots, processor) for _ in range(2)] == [[3.0], [5.0]]


def test_where_nothing_is_asked_for_nobody_is_called(dists):
    module, processor = add(dists)
    logits, slots = torch.ones(1, VOCAB_SIZE), slots_of(SamplingParams(temperature=0.5, stop_token_ids=[3]))
    assert biased(logits, slots, processor) == [1.0]
    assert module.CALLS == []
    mask = torch.tensor([[~8, -1]], dtype=torch.int32)
    assert biased(logits, slots, processor, bitmask=mask) == [float("-inf")]
    slots.remove(1)
    slots.add(1, BIAS)
    slots.remove(1)
    assert biased(torch.ones(1, VOCAB_SIZE), slots, processor) == [1.0]
    assert biased(torch.ones(0, VOCAB_SIZE), slots, processor, bitmask=mask[:0]) == []
    assert len(module.CALLS) == 1


def test_calls_beyond_a_processor_go_to_native(dists):
    module, processor = add(dists)
    assert processor.resolution.companion == "native"
    assert processor.resolution.beyond == (
        "logits in float16",
        "rows of a vocabulary above its limit",
        "rows of a verification",
    )
    assert biased(torch.ones(1, VOCAB_SIZE, dtype=torch.float16), slots_of(BIAS), processor) == [3.0]
    assert biased(torch.ones(1, 51), slots_of(BIAS, 51), processor) == [3.0]
    drafted = torch.ones(2, VOCAB_SIZE)
    processor.process(drafted, slots_of(BIAS), torch.tensor([1]), drafts=Drafts.from_lists([[7]]))
    assert drafted[:, 3].tolist() == [3.0, 3.0]
    assert module.CALLS == []
    assert processor.stats() == {"native": 4}


def test_a_need_leaves_out_who_cannot_meet_it(dists):
    add(dists)
    need = tokendraw.plugin.ProcessNeed(dtype="float16")
    resolution = tokendraw.resolve(operation="process_logits", device="cpu", need=need)
    assert resolution.explain() == (
        "process_logits on cpu: native\n"
        "  + native: best available, priority 0\n"
        "  - acme: the request needs logits in float16, found float32 and bfloat16"
    )


def test_who_returns_other_logits_is_at_fault(dists, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "acme")
    _, processor = add(dists, "logits = logits.clone() if slots.vocab_size == 41 else logits")
    with pytest.raises(PluginError) as refused:
        biased(torch.ones(1, 41), slots_of(BIAS, 41), processor)
    assert str(refused.value) == (
        "'acme' needs to return the logits that it was given, found another Tensor. Mend the plugin, or set "
        "TOKENDRAW_DISABLE=acme."
    )
