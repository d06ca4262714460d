"""Lists and masks take memory from their first request on, and a refused request leaves nothing behind."""

from dataclasses import FrozenInstanceError

import pytest
import torch

import cuda_batches
from request_slots_model import Held, assert_holds
from tokendraw import RequestSlots, SamplingParams
from tokendraw.edits import slots as slots_module
from tokendraw.edits import tables as tables_module
from tokendraw.plugin import EditFacts
from tokendraw_native.logits_processing import NativeProcessor

S, M, V = 3, 8, 70
ASKING = {
    "any_bias": SamplingParams(logit_bias={3: 1.0}),
    "any_allowed": SamplingParams(allowed_token_ids=[1, 69]),
    "any_bad_words": SamplingParams(bad_words=[[1, 2], [4]]),
    "any_min_tokens": SamplingParams(min_tokens=2, stop_token_ids=[5]),
    "any_thinking_budget": SamplingParams(thinking_budget=(0, [1], [5, 6])),
    "any_dry": SamplingParams(dry_multiplier=0.5, dry_allowed_length=0, dry_sequence_breakers=[4, 9]),
}
SHAPES = {
    "any_bias": {"bias_ids": (S, 6), "bias": (S, 6)},
    "any_allowed": {"allowed": (S, 3)},
    "any_bad_words": {"bad_words": (S, 4, 2), "bad_lens": (S, 4)},
    "any_min_tokens": {"stop_ids": (S, 5)},
    "any_thinking_budget": {"thinking_start": (S, 3), "thinking_end": (S, 3)},
    "any_dry": {"dry_breakers": (S, 7)},
}
EVERYTHING = SamplingParams(
    logit_bias={3: 1.0},
    allowed_token_ids=[1],
    bad_words=[[2]],
    min_tokens=2,
    stop_token_ids=[5],
    dry_multiplier=0.5,
    dry_sequence_breakers=[4],
    thinking_budget=(2, [1], [5]),
)
LISTS = {name for tensors in SHAPES.values() for name in tensors}


def small_slots(device="cpu"):
    return RequestSlots(
        S,
        M,
        V,
        device=device,
        max_bias=6,
        max_stop_ids=5,
        max_bad_words=4,
        max_bad_word_len=2,
        max_dry_breakers=7,
        max_thinking_ids=3,
    )


def widths(slots):
    """Return the shapes of the tables with memory for a list."""
    return {name: tuple(t.shape) for name, t in vars(slots.tables).items() if name in LISTS and t.numel()}


@pytest.mark.parametrize(("slots", "tokens", "ids"), [(1, 1, 1), (64, 2048, 32001), (256, 8192, 151936)])
def test_without_lists_a_slot_takes_8_bytes_a_token_4_bytes_an_id_and_little_more(slots, tokens, ids):
    found = RequestSlots(slots, tokens, ids, device="meta")
    needed = slots * (8 * tokens + 4 * ids)
    parameters, a_step, shared = 160, 64, 16 * 160 + 64 + 164 + 16 * 164
    assert needed + slots * parameters < found.num_bytes
    assert found.num_bytes <= needed + slots * (parameters + a_step) + shared
    plain = SamplingParams(
        seed=1, top_k=4, repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=1.0
    )
    before = found.num_bytes
    found.add(0, plain, [0])
    assert found.num_bytes == before


@pytest.mark.parametrize("edit", ASKING)
def test_each_family_comes_with_the_first_request_that_asks_for_it_and_stays(edit):
    slots = small_slots()
    slots.add(0, SamplingParams(repetition_penalty=1.5), [1])
    before, tables = slots.num_bytes, slots.tables
    assert widths(slots) == {}
    slots.add(1, ASKING[edit], [2])
    after = slots.tables
    assert widths(slots) == SHAPES[edit]
    assert slots.num_bytes == before + sum(getattr(after, name).nbytes for name in SHAPES[edit])
    others = vars(after).keys() - SHAPES[edit]
    assert all(getattr(after, name) is getattr(tables, name) for name in others)
    with pytest.raises(FrozenInstanceError):
        after.bias = None
    slots.remove(1)
    slots.add(2, ASKING[edit], [2])
    assert slots.tables is after
    assert_holds(slots, {0: Held(SamplingParams(repetition_penalty=1.5), [1]), 2: Held(ASKING[edit], [2])})


@pytest.mark.parametrize("edit", ASKING)
def test_native_edits_by_one_family_as_where_all_have_memory(edit):
    edited = []
    for everything in (False, True):
        slots = small_slots()
        if everything:
            slots.add(2, EVERYTHING, [])
            slots.remove(2)
        slots.add(1, ASKING[edit], [2])
        slots.append([1], [1])
        edited.append(NativeProcessor().process(torch.ones(2, V), slots, torch.tensor([1, 0])))
    assert torch.equal(*edited)
    assert not torch.equal(edited[0], torch.ones(2, V))


@pytest.mark.parametrize("fails_at", range(6))
def test_a_request_for_which_there_is_no_memory_changes_nothing(monkeypatch, fails_at):
    slots, held, made = small_slots(), {0: Held(SamplingParams(presence_penalty=1.0), [1])}, []
    slots.add(0, held[0].params, held[0].prompt)
    filled, before = tables_module._allocated, (slots.tables, slots.num_bytes, slots.facts)

    def scarce(*given):
        made.append(given)
        if len(made) > fails_at:
            raise torch.OutOfMemoryError
        return filled(*given)

    monkeypatch.setattr(tables_module, "_allocated", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        slots.add(1, EVERYTHING, [1, 2])
    assert (slots.tables, slots.num_bytes, slots.facts) == before
    assert_holds(slots, held)
    monkeypatch.setattr(tables_module, "_allocated", filled)
    slots.add(1, EVERYTHING, [1, 2])
    assert_holds(slots, held | {1: Held(EVERYTHING, [1, 2])})


def test_a_capture_gives_all_families_memory_and_writes_nothing_to_it(monkeypatch):
    """A write during the capture would be repeated by every replay. Only a GPU shows the memory itself."""
    slots = small_slots()
    slots.add(0, ASKING["any_bias"], [1])
    tables = slots.tables
    with monkeypatch.context() as capture:
        capture.setattr(
            tables_module, "memory_outside_graphs", lambda size, device: torch.full((size,), 77).byte()
        )
        for module in (tables_module, slots_module):
            capture.setattr(module, "is_capturing", lambda: True)
        found, facts = slots.tables, slots.facts
    assert facts == EditFacts()
    assert slots.tables is found
    assert widths(slots) == {name: shape for tensors in SHAPES.values() for name, shape in tensors.items()}
    assert found.bias is tables.bias
    assert set(found.stop_ids.view(torch.uint8).unique().tolist()) == {77}
    held = {0: Held(ASKING["any_bias"], [1])}
    for slot, params in ((1, ASKING["any_allowed"]), (2, EVERYTHING)):
        held[slot] = Held(params, [3])
        slots.add(slot, params, [3])
        assert_holds(slots, held)


def test_a_capture_records_the_edits_that_the_engine_names_and_gives_memory_to_no_others(monkeypatch):
    slots = small_slots()
    slots.captured_edits = EditFacts(
        any_bias=False,
        any_allowed=False,
        any_bad_words=False,
        any_min_tokens=False,
        any_dry=False,
        any_thinking_budget=False,
    )
    before = slots.num_bytes
    monkeypatch.setattr(slots_module, "is_capturing", lambda: True)
    assert (slots.facts, slots.tables.bias.numel(), slots.num_bytes) == (slots.captured_edits, 0, before)


def test_memory_for_a_family_is_no_reason_to_wait():
    slots = small_slots("meta")
    with cuda_batches.NoWait("meta"):
        slots.add(1, EVERYTHING, [1, 2])
        slots.remove(1)


@pytest.mark.gpu
def test_a_graph_captured_without_requests_edits_by_those_that_come_later():
    """The lists do not lie in the graph's temporary memory, freed during its capture."""
    slots, kept, processor = small_slots("cuda"), small_slots("cuda"), NativeProcessor()
    logits, row_index = torch.ones(S, V, device="cuda"), torch.arange(S, device="cuda")
    kept.add(0, EVERYTHING, [1])
    processor.process(logits, kept, row_index)
    kept.remove(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for size in (2 * S, 3 * S, 4 * S, 6 * S, 8 * S, 1000):
            torch.full((size,), 7, dtype=torch.int32, device="cuda")
        processor.process(logits, slots, row_index)
    assert len(widths(slots)) == len(LISTS)
    for slot, params in enumerate((*ASKING.values(), EVERYTHING)):
        if slot >= S:
            slots.remove(slot % S)
            kept.remove(slot % S)
        slots.add(slot % S, params, [2, 1])
        kept.add(slot % S, params, [2, 1])
        logits.fill_(1.0)
        graph.replay()
        assert torch.equal(logits, processor.process(torch.ones_like(logits), kept, row_index))
        assert not torch.equal(logits[slot % S], torch.ones_like(logits[0]))
