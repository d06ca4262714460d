"""The state of slots on its device: its memory, writes without waiting, ignored rows, and what a capture records."""

from dataclasses import FrozenInstanceError

import pytest
import torch

from cuda_batches import NoWait
from request_slots_model import Held, assert_holds
from tokendraw import RequestSlots, SamplingParams, VerifyOutput
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
    temperature=0.5,
    top_k=3,
    seed=7,
    logprobs=2,
    filter_order="joint",
    repetition_penalty=1.5,
    frequency_penalty=1.0,
    presence_penalty=0.5,
    logit_bias={3: 1.0, 8: -2.0},
    allowed_token_ids=[3, 8, 9],
    bad_words=[[1, 2], [3]],
    min_tokens=4,
    stop_token_ids=[0, 3],
    dry_multiplier=0.5,
    dry_sequence_breakers=[4],
    thinking_budget=(2, [1], [5]),
)
LISTS = {name for tensors in SHAPES.values() for name in tensors}
SIZES = {"max_bias": 6, "max_stop_ids": 5, "max_bad_words": 4, "max_bad_word_len": 2}
SIZES |= {"max_dry_breakers": 7, "max_thinking_ids": 3}


def small_slots(device="cpu"):
    return RequestSlots(S, M, V, device=device, **SIZES)


def widths(slots):
    """Return the shapes of the tables with memory for a list."""
    return {name: tuple(t.shape) for name, t in vars(slots.tables).items() if name in LISTS and t.numel()}


# Memory


@pytest.mark.parametrize(("slots", "tokens", "ids"), [(1, 1, 1), (64, 2048, 32001), (256, 8192, 151936)])
def test_without_lists_a_slot_takes_8_bytes_a_token_4_bytes_an_id_and_little_more(slots, tokens, ids):
    found = RequestSlots(slots, tokens, ids, device="meta")
    needed = slots * (8 * tokens + 4 * ids)
    parameters, a_step, shared = 160, 64, 16 * 160 + 64 + 164 + 16 * 164
    assert needed + slots * parameters < found.num_bytes
    assert found.num_bytes <= needed + slots * (parameters + a_step) + shared
    before = found.num_bytes
    found.add(0, SamplingParams(seed=1, top_k=4, repetition_penalty=1.5, presence_penalty=1.0), [0])
    assert found.num_bytes == before


@pytest.mark.parametrize("edit", ASKING)
def test_each_family_comes_with_the_first_request_that_asks_for_it_and_stays(edit):
    slots, penalized = small_slots(), SamplingParams(repetition_penalty=1.5)
    slots.add(0, penalized, [1])
    before, tables = slots.num_bytes, slots.tables
    assert widths(slots) == {}
    slots.add(1, ASKING[edit], [2])
    after = slots.tables
    assert widths(slots) == SHAPES[edit]
    assert slots.num_bytes == before + sum(getattr(after, name).nbytes for name in SHAPES[edit])
    assert all(getattr(after, name) is getattr(tables, name) for name in vars(after).keys() - SHAPES[edit])
    with pytest.raises(FrozenInstanceError):
        after.bias = None
    slots.remove(1)
    slots.add(2, ASKING[edit], [2])
    assert slots.tables is after
    assert_holds(slots, {0: Held(penalized, [1]), 2: Held(ASKING[edit], [2])})
    alone = small_slots()
    alone.add(2, ASKING[edit], [2])
    slots.add(1, EVERYTHING, [])  # native edits alike where all have memory
    logits = []
    for each in (slots, alone):
        each.append([2], [1])
        logits.append(NativeProcessor().process(torch.ones(1, V), each, torch.tensor([2])))
    assert torch.equal(*logits)
    assert not torch.equal(logits[0], torch.ones(1, V))


@pytest.mark.parametrize("fails_at", range(6))
def test_a_request_for_which_there_is_no_memory_changes_nothing(monkeypatch, fails_at):
    slots, held, made = small_slots(), {0: Held(SamplingParams(presence_penalty=1.0), [1])}, []
    slots.add(0, held[0].params, held[0].prompt)
    allocated, before = tables_module._allocated, (slots.tables, slots.num_bytes, slots.facts)

    def scarce(*given):
        made.append(given)
        if len(made) > fails_at:
            raise torch.OutOfMemoryError
        return allocated(*given)

    monkeypatch.setattr(tables_module, "_allocated", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        slots.add(1, EVERYTHING, [1, 2])
    assert (slots.tables, slots.num_bytes, slots.facts) == before
    assert_holds(slots, held)
    monkeypatch.setattr(tables_module, "_allocated", allocated)
    slots.add(1, EVERYTHING, [1, 2])
    assert_holds(slots, held | {1: Held(EVERYTHING, [1, 2])})


def test_tensors_never_move_and_lie_aligned():
    slots = small_slots()
    slots.add(0, EVERYTHING, [])
    tables = slots.tables
    places = {name: tensor.data_ptr() for name, tensor in vars(tables).items()}
    slots.add(2, EVERYTHING, [1, 2])
    slots.append([2], [4])
    slots.remove(2)
    slots.add(2, EVERYTHING, [1, 2])
    assert slots.tables is tables
    assert {name: tensor.data_ptr() for name, tensor in vars(tables).items()} == places
    metadata = slots.metadata([2], [3])
    small = [metadata.temperature, metadata.top_p, metadata.seed, metadata.seeded, tables.repetition]
    assert {tensor.is_contiguous() for tensor in (*vars(tables).values(), *small)} == {True}
    assert {tensor.data_ptr() % 16 for tensor in small} == {0}


# Steps


def test_neither_a_step_nor_a_request_waits_for_the_device():
    """On tensors without data, which have no values to read; a request may come with placeholders and an output."""
    slots = small_slots("meta")
    rows, drawn = (
        torch.empty(2, dtype=torch.int32, device="meta"),
        torch.empty(2, dtype=torch.int64, device="meta"),
    )
    one, several = (torch.tensor(ids, device="meta") for ids in ([[4]], [[4, 5, 5]]))
    chains = VerifyOutput(torch.empty(2, 3, dtype=torch.int64, device="meta"), drawn, drawn)
    with NoWait("meta"):
        slots.add(1, EVERYTHING, [1, 1, -1], [2, 40])
        slots._histories.append(rows[:1], one)
        slots._histories.append(rows[:1], several)
        slots.remove(1)
        slots.add(1, EVERYTHING, [1, 2])
    slots.add(2, SamplingParams(), [])
    metadata = slots.metadata(rows, drawn)
    slots.append(rows, drawn)
    slots.append_verified(rows, chains)
    assert metadata.row_index is rows
    assert metadata.positions is drawn


def test_what_the_host_cannot_see_is_left_out():
    """Ignored are rows with a missing or empty slot, and with a negative token or a token beyond the capacity."""
    slots = RequestSlots(3, 4, 10)
    held = {0: Held(SamplingParams(), [1]), 1: Held(SamplingParams(), [2, 2])}
    for slot, one in held.items():
        slots.add(slot, one.params, one.prompt)
    tokens = torch.tensor([[5, 6], [5, 6], [5, 6], [-9, 7], [5, 6]])
    slots._histories.append(torch.tensor([3, -1, 2, 1, 2**40]), tokens)
    held[1].output = [7]
    assert_holds(slots, held)
    slots._histories.append(torch.tensor([1, 0]), torch.tensor([[-1, 8, 8], [3, -1, 3]]))
    held[1].output, held[0].output = [7, 8], [3, 3]
    assert_holds(slots, held)
    slots._histories.append(torch.tensor([1]), torch.tensor([[9]]))  # the slot is full
    assert_holds(slots, held)
    twice = RequestSlots(1, 4, 10)
    twice.add(0, SamplingParams(), [1])
    for step in range(3):  # a slot named twice leaves ids and lengths within bounds
        twice._histories.append(torch.zeros(2, dtype=torch.int64), torch.tensor([[2, 3], [4, 5]]) + step)
    assert twice.tables.num_tokens.tolist() == [4]
    assert 0 < int(twice.tables.num_distinct[0]) <= 4
    assert int(twice.tables.distinct.max()) < 10


# Captures


def test_a_capture_gives_all_families_memory_and_writes_nothing_to_it(monkeypatch):
    """A write during the capture would be repeated by every replay. Only a GPU shows the memory itself."""
    slots = small_slots()
    slots.add(0, ASKING["any_bias"], [1])
    tables = slots.tables
    with monkeypatch.context() as capture:
        memory = lambda size, device: torch.full((size,), 77).byte()  # noqa: E731
        capture.setattr(tables_module, "memory_outside_graphs", memory)
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


def test_a_capture_records_the_edits_that_are_named_and_gives_memory_to_no_others(monkeypatch):
    slots = small_slots()
    slots.captured_edits = EditFacts(**dict.fromkeys(ASKING, False))
    before = slots.num_bytes
    monkeypatch.setattr(slots_module, "is_capturing", lambda: True)
    assert (slots.facts, slots.tables.bias.numel(), slots.num_bytes) == (slots.captured_edits, 0, before)


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


@pytest.mark.gpu
def test_replays_of_a_graph_append_what_lies_there():
    slots = RequestSlots(4, 12, 20, device="cuda")
    held = {slot: Held(SamplingParams(frequency_penalty=1.0), [slot, 3]) for slot in (0, 2, 3)}
    for slot, one in held.items():
        slots.add(slot, one.params, one.prompt)
    rows = torch.tensor([3, 0], device="cuda")
    tokens, chains = torch.zeros(2, dtype=torch.int64, device="cuda"), torch.full((2, 2), -1, device="cuda")
    out = VerifyOutput(chains, tokens, tokens)
    warmed = RequestSlots(4, 12, 20, device="cuda")
    warmed.append(rows, tokens)
    warmed.append_verified(rows, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        slots.append(rows, tokens)
        slots.append_verified(rows, out)
    for step in range(3):
        first, second = [step, step + 1], [[5, -1], [step, 7]]
        tokens.copy_(torch.tensor(first))
        chains.copy_(torch.tensor(second))
        graph.replay()
        for row, slot in enumerate((3, 0)):
            held[slot].output += [first[row], *[token for token in second[row] if token >= 0]]
        slots.append(torch.tensor([2], device="cuda"), torch.tensor([step], device="cuda"))
        held[2].output.append(step)
    torch.cuda.synchronize()
    assert_holds(slots, held)
    with torch.cuda.graph(again := torch.cuda.CUDAGraph()):
        slots.append(rows, tokens)
    for _ in range(12):
        again.replay()
    torch.cuda.synchronize()
    assert slots.tables.num_tokens.tolist() == [12, 0, 5, 12]
