"""Edits are made in the caller's logits, by a processor that serves all of them; what is impossible is refused."""

import importlib

import numpy as np
import pytest
import torch

import call_tables
import tokendraw
from calling import provider_of
from cuda_batches import NoWait
from fake_dists import offering
from tokendraw import Drafts, PluginError, RequestSlots, SamplerFallbackWarning, SamplingParams, VerifyOutput
from tokendraw.edits.process import prove
from tokendraw.edits.requests import Histories
from tokendraw.plugin import EDITS, EditFacts, ProcessCapabilities, ProcessNeed
from tokendraw_native.logits_processing import NativeProcessor

CPU, V, INF = torch.device("cpu"), 40, float("inf")
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
FIELDS = {
    "allowed_token_ids": {"allowed_token_ids": [1, 2]},
    "bad_words": {"bad_words": [[1]]},
    "min_tokens": {"min_tokens": 1, "stop_token_ids": [1]},
    "thinking_budget": {"thinking_budget": (0, [1], [2])},
    "logit_bias": {"logit_bias": {1: 1.0}},
    "repetition_penalty": {"repetition_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "presence_penalty": {"presence_penalty": 1.0},
    "penalty_last_n": {"presence_penalty": 1.0, "penalty_last_n": 3},
    "dry_multiplier": {"dry_multiplier": 0.8},
}
"""The fields of a request that asks for an edit, in the order of edits."""


def add(dists, process="", edits=EDITS, more='dtypes=("float32", "bfloat16"), max_vocab_size=50'):
    """Install native's processor as ``acme``, with fewer promises; return its module and the provider."""
    source = offering(
        "process_logits", f"ProcessCapabilities({more}, edits={edits!r})", PROCESSOR.format(process=process)
    )
    module = importlib.import_module(dists.add_plugin("acme", source))
    processor = tokendraw.load("process_logits", device="cpu")
    module.CALLS.clear()
    return module, processor


def slots_of(*requests, vocab_size=V):
    slots = RequestSlots(num_slots=16, max_tokens=8, vocab_size=vocab_size)
    for slot, fields in enumerate(requests):
        slots.add(slot, SamplingParams(**fields), prompt_token_ids=[3])
    return slots


BIAS = {"logit_bias": {3: 2.0}}


def biased(logits, processor, *, slots=None, **more):
    """Return the logit of id 3 after adding 2."""
    slots = slots_of(BIAS, BIAS, vocab_size=logits.shape[1]) if slots is None else slots
    assert processor.process(logits, slots, torch.arange(len(logits)), **more) is logits
    return logits[:, 3].tolist()


# In the caller's logits


def test_the_first_call_of_a_kind_edits_a_copy_and_later_ones_the_logits_themselves(dists):
    module, processor = add(dists)
    wide = torch.ones(2, V + 5)
    with torch.inference_mode():
        inner = torch.ones(1, V)
    for step in (1, 2, 3):
        assert biased(wide[:, 2:-3], processor) == [1 + 2 * step] * 2
        assert wide.sum() == wide.numel() + 2 * 2 * step  # what lies beside the columns is not edited
        assert biased(inner, processor) == [1 + 2 * step]  # logits of inference mode, outside of it
    own = wide[:, 2:-3].data_ptr()
    assert [address in (own, inner.data_ptr()) for address in module.CALLS[::2]] == [False, True, True]
    assert (processor.name, processor.stats()) == ("acme", {"acme": 9})


def test_native_takes_over_the_original_logits_from_one_that_fails_half_way(dists):
    _, processor = add(dists, "if slots.vocab_size == 41: logits += 9; raise OSError('no')")
    with pytest.warns(SamplerFallbackWarning, match="'acme' failed: its call raised OSError: no"):
        assert biased(torch.ones(1, 41), processor) == [3.0]
    assert processor.name == "native"


def test_who_returns_other_logits_is_at_fault(dists, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "acme")
    _, processor = add(dists, "logits = logits.clone() if slots.vocab_size == 41 else logits")
    with pytest.raises(PluginError, match="'acme' needs to return the logits that it was given, found"):
        biased(torch.ones(1, 41), processor)


def test_where_nothing_is_asked_for_nobody_is_called(dists):
    module, processor = add(dists)
    slots, mask = (
        slots_of({"temperature": 0.5, "stop_token_ids": [3]}),
        torch.tensor([[~8, -1]], dtype=torch.int32),
    )
    assert biased(torch.ones(1, V), processor, slots=slots) == [1.0]
    slots.add(1, SamplingParams(**BIAS))
    slots.remove(1)
    assert biased(torch.ones(1, V), processor, slots=slots) == [1.0]
    assert biased(torch.ones(0, V), processor, slots=slots, bitmask=mask[:0]) == []
    assert module.CALLS == []
    assert biased(torch.ones(1, V), processor, slots=slots, bitmask=mask) == [-INF]
    assert len(module.CALLS) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_nan_that_nobody_edits_keeps_its_bits_beside_ids_that_are_edited(dtype):
    """The list is long enough for torch's vectorized copy, which changes the bits of every NaN."""
    slots = RequestSlots(3, 60, V)
    for slot in range(3):
        slots.add(slot, SamplingParams(presence_penalty=1.0, logit_bias={1: 1.0}), prompt_token_ids=range(V))
        slots.append([slot], [2])
    logits = torch.full((3, V), float("nan"), dtype=dtype)
    before = logits.view(torch.int16).clone()
    NativeProcessor().process(logits, slots, torch.arange(3))
    assert torch.equal(logits.view(torch.int16), before)


@pytest.mark.parametrize("drafted", [False, True])
def test_no_edit_waits_for_the_device(drafted):
    history = {**FIELDS["thinking_budget"], **FIELDS["penalty_last_n"], **FIELDS["dry_multiplier"], **BIAS}
    slots, rows, drafts = RequestSlots(2, 16, V, device="meta"), 5 if drafted else 2, None
    for slot in range(2):
        slots.add(slot, SamplingParams(**history), [1, 2, 3, 4, 1], output_token_ids=[2, 3])
    if drafted:
        ids, offsets = torch.tensor([1, 2, 3]).to("meta"), torch.tensor([0, 3, 5]).to("meta")
        drafts = Drafts(draft_token_ids=ids, cu_num_logits=offsets, max_drafts=2)
    bitmask = torch.full((rows, 2), -1, dtype=torch.int32, device="meta")
    arguments = torch.zeros(rows, V, device="meta"), slots, torch.tensor([1, 0]).to("meta"), bitmask, drafts
    with NoWait("meta"):
        NativeProcessor().process(*arguments)


# Who serves


def test_calls_beyond_a_processor_go_to_native(dists):
    module, processor = add(dists)
    assert processor.resolution.companion == "native"
    assert processor.resolution.beyond == (
        "logits in float16",
        "rows of a vocabulary above its limit",
        "rows of a verification",
    )
    assert biased(torch.ones(1, V, dtype=torch.float16), processor) == [3.0]
    assert biased(torch.ones(1, 51), processor) == [3.0]
    drafted = torch.ones(2, V)
    processor.process(drafted, slots_of(BIAS, BIAS), torch.tensor([1]), drafts=Drafts.from_lists([[7]]))
    assert drafted[:, 3].tolist() == [3.0, 3.0]
    assert (module.CALLS, processor.stats()) == ([], {"native": 4})
    need = ProcessNeed(dtype="float16")
    assert tokendraw.resolve(operation="process_logits", device="cpu", need=need).explain() == (
        "process_logits on cpu: native\n"
        "  + native: best available, priority 0\n"
        "  - acme: the request needs logits in float16, found float32 and bfloat16"
    )


@pytest.mark.parametrize("edit", EDITS)
def test_a_call_with_an_edit_that_a_processor_lacks_goes_whole_to_the_companion(dists, edit):
    _, processor = add(dists, edits=tuple(name for name in EDITS if name != edit), more="drafts=True")
    slots, words = slots_of({}, FIELDS.get(edit, {})), torch.full((1, 2), -1, dtype=torch.int32)
    rows = torch.ones(1, V), slots, torch.zeros(1).long()
    processor.process(*rows, words if edit == "bitmask" else None)
    assert processor.stats() == {"native": 1}
    if edit != "bitmask":
        slots.remove(1)
    slots.add(2, SamplingParams(**FIELDS["bad_words" if edit != "bad_words" else "logit_bias"]))
    processor.process(*rows)
    assert processor.stats() == {"native": 1, "acme": 1}
    lacking = "rows with a bitmask" if edit == "bitmask" else f"requests with {edit}"
    assert [words for words in processor.resolution.beyond if "with" in words] == [lacking]


@pytest.mark.parametrize("edit", FIELDS)
def test_slots_know_by_name_what_their_requests_ask_for(edit):
    asked = tuple(
        name for name in FIELDS if name == edit or {edit, name} == {"penalty_last_n", "presence_penalty"}
    )
    asked = asked if edit == "penalty_last_n" else (edit,)
    slots = slots_of(FIELDS[edit], FIELDS[edit], {"min_tokens": 3})  # without stop ids, so nothing
    assert slots.edits == asked
    slots.remove(0)
    assert slots.edits == asked
    slots.remove(1)
    assert slots.edits == ()
    assert slots_of(*reversed(FIELDS.values())).edits == EDITS[1:] == tuple(FIELDS)
    for nothing in (
        {"dry_multiplier": 1.0, "dry_penalty_last_n": 0},
        {"presence_penalty": 1.0, "penalty_last_n": 0},
    ):
        assert (slots_of(nothing).edits, slots_of(nothing).facts.any_edit) == ((), False)


def test_a_graph_under_capture_may_serve_what_captured_edits_say(monkeypatch):
    slots = slots_of({})
    monkeypatch.setattr("tokendraw.edits.slots.is_capturing", lambda: True)
    assert slots.edits == EDITS[1:]
    slots.captured_edits = EditFacts.of(["bitmask", "logit_bias", "presence_penalty"])
    assert slots.edits == ("logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty")


# Descriptions, and proofs


class Deaf(NativeProcessor):
    """Edits nothing."""

    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        return logits


@pytest.mark.parametrize("edit", EDITS)
def test_the_proof_asks_for_each_edit_that_is_advertised_and_for_no_other(edit):
    edits = ("presence_penalty", edit) if edit == "penalty_last_n" else (edit,)
    asked = []

    class Recording(NativeProcessor):
        def process(self, logits, slots, row_index, bitmask=None, drafts=None):
            asked.append((*(("bitmask",) if bitmask is not None else ()), *slots.edits))
            return super().process(logits, slots, row_index, bitmask, drafts)

    prove(Recording(), ProcessCapabilities(edits=edits), CPU, ProcessNeed())
    assert asked == [edits]
    with pytest.raises(PluginError, match=r"the proof call needs .* as logit"):
        prove(Deaf(), ProcessCapabilities(edits=edits), CPU, ProcessNeed())


# A processor with an ``append`` serves the tokens of slots that it has been called with; others leave it to torch


class AppendingProcessor(NativeProcessor):
    """Appends by the core's own operations, and notes the tokens."""

    def __init__(self, wrong=lambda tables: None):
        self.appended, self.wrong = [], wrong

    def append(self, tables, row_index, token_ids):
        self.appended.append(token_ids)
        lengths = torch.zeros(3, tables.history.shape[0] + 1, dtype=torch.int32)
        lengths[:, :-1] = torch.stack((tables.num_tokens, tables.num_distinct, tables.limit))
        tokens = torch.stack((tables.history, tables.distinct))
        Histories(tokens, lengths, tables.counts).append(row_index, token_ids)
        tables.history.copy_(tokens[0])
        tables.distinct.copy_(tokens[1])
        tables.num_tokens.copy_(lengths[0, :-1])
        tables.num_distinct.copy_(lengths[1, :-1])
        self.wrong(tables)


@pytest.mark.parametrize("params", [{}, {"repetition_penalty": 1.5}], ids=str)
def test_tokens_go_to_the_processor_of_the_last_call_even_if_it_edited_nothing(params):
    slots, backend = slots_of({}, params), AppendingProcessor()

    def process(backend):
        provider_of("process_logits", backend, None).process(torch.ones(1, V), slots, torch.tensor([1]))

    slots.append([1], [4])
    process(backend)
    tokens, chains = torch.tensor([5]), torch.tensor([[6, -1]])
    slots.append([1], tokens)
    slots.append_verified([1], VerifyOutput(chains, chains, chains))
    assert [*map(id, backend.appended)] == [id(tokens), id(chains)]
    assert slots.tables.history[1].tolist() == [3, 4, 5, 6, 0, 0, 0, 0]
    for wrong, call in (
        ("needs a slot with a request, found 9", lambda: slots.append([9], [4])),
        (
            "needs room for 8 in slot 1",
            lambda: slots.append_verified([1], VerifyOutput(*[torch.ones(1, 8).long()] * 3)),
        ),
    ):
        with pytest.raises(ValueError, match=wrong):
            call()
    process(NativeProcessor())
    slots.append([1], [7])
    assert len(backend.appended) == 2
    assert slots.tables.num_tokens[1] == 5


WRONG = [
    ("history", lambda tables: tables.history[1, 3].fill_(5)),
    ("num_tokens", lambda tables: tables.num_tokens[1].fill_(5)),
    ("distinct ids", lambda tables: tables.distinct[1, 2].fill_(1)),
    ("num_distinct", lambda tables: tables.num_distinct[1].fill_(4)),
    ("counts", lambda tables: tables.counts[1, 5].fill_(16)),
    ("counts", lambda tables: tables.counts[0, 1].fill_(16)),
]


def test_the_proof_accepts_a_right_append_and_rejects_a_wrong_one():
    right, capabilities = AppendingProcessor(), ProcessCapabilities(edits=EDITS)
    prove(right, capabilities, CPU, ProcessNeed())
    assert len(right.appended) == 1
    for field, wrong in WRONG:
        with pytest.raises(PluginError, match=f"the proof call of append needs .* as {field}, found"):
            prove(AppendingProcessor(wrong), capabilities, CPU, ProcessNeed())


# Refusals


def names():
    """The arguments of a sound call; ``process(name=value)`` changes one."""
    processor = tokendraw.load("process_logits", "native", device="cpu")
    slots = RequestSlots(num_slots=4, max_tokens=8, vocab_size=70)
    for slot in range(3):
        slots.add(slot, SamplingParams(logit_bias={1: 1.0}), prompt_token_ids=[1])
    logits, index, mask = torch.zeros(3, 70), torch.tensor([2, 0, 1]), torch.zeros(3, 3, dtype=torch.int32)

    def process(**changes):
        given = {"logits": logits, "slots": slots, "row_index": index, "bitmask": mask, "drafts": None}
        try:
            processor.process(**given | changes)
        finally:
            assert not logits.any()

    def warmup(**changes):
        processor.warmup(**{"vocab_size": 40, "dtypes": [torch.float32]} | changes)

    own = {"process": process, "warmup": warmup, "LOGITS": logits, "INDEX": index, "MASK": mask}
    return globals() | own | {"META": RequestSlots(4, 8, 70, device="meta"), "np": np}


def test_what_is_refused_with_which_words_before_a_logit_changes():
    table = call_tables.Table(__file__, "process_refusals.txt")
    assert table.found(names) == table.text
