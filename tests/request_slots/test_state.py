"""The state of slots on its device: its memory, writes without waiting, and ignored rows."""

import random

import pytest
import torch

from cuda_batches import NoWait, Operations
from request_slots_model import Held, assert_holds, random_params
from tokendraw import RequestSlots, SamplingParams, VerifyOutput
from tokendraw._torch import tensors
from tokendraw_testing import sync_is_an_error

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
)


def test_tensors_never_move_and_lie_aligned():
    slots = RequestSlots(5, 10, 33)
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


def test_a_request_comes_in_one_copy_and_goes_without_one(monkeypatch):
    copies = []
    copied = tensors._copy
    slots = RequestSlots(4, 10, 33, device="meta")
    monkeypatch.setattr(tensors, "_copy", lambda host, device: copies.append(device) or copied(host, device))
    slots.add(1, EVERYTHING, [1, 2])
    assert len(copies) == 1
    slots.remove(1)
    assert len(copies) == 1


def test_a_step_reads_no_value_from_the_device():
    """Runs on tensors without data, which have no values to read; and nothing is uploaded."""
    slots = RequestSlots(4, 10, 33, device="meta")
    slots.add(1, EVERYTHING, [1, 2])
    slots.add(2, SamplingParams(), [])
    rows = torch.empty(2, dtype=torch.int32, device="meta")
    drawn = torch.empty(2, dtype=torch.int64, device="meta")
    chains = torch.empty(2, 3, dtype=torch.int64, device="meta")
    metadata = slots.metadata(rows, drawn)
    slots.append(rows, drawn)
    slots.append_verified(rows, VerifyOutput(chains, drawn, drawn))
    assert metadata.row_index is rows
    assert metadata.positions is drawn


def test_no_write_waits_for_the_device():
    """A request may come with placeholders, repeated ids and an output."""
    slots = RequestSlots(4, 10, 33, device="meta")
    slots.add(1, EVERYTHING, [1, 2])
    rows, one, several = (torch.tensor(ids, device="meta") for ids in ([1], [[4]], [[4, 5, 5]]))
    with NoWait("meta"):
        slots._histories.append(rows, one)
        slots._histories.append(rows, several)
        slots._writer.clean(1, slots._population.requests[1])
        slots.add(2, EVERYTHING, [1, 1, -1], [2, 40])
        slots.remove(2)


@pytest.mark.parametrize("width", [None, 1])
def test_a_step_is_at_most_15_operations_of_torch(width):
    slots = RequestSlots(4, 10, 33, device="meta")
    slots.add(1, EVERYTHING, [1, 2])
    rows = torch.empty(2, dtype=torch.int64, device="meta")
    tokens = rows if width is None else rows.unsqueeze(1)
    out = VerifyOutput(tokens, rows, rows)
    with Operations() as found:
        slots.append(rows, tokens) if width is None else slots.append_verified(rows, out)
    assert found.count <= 15


@pytest.mark.parametrize(("prompt", "most"), [((), 12), (range(512), 21)])
def test_a_request_comes_and_goes_by_few_operations_of_torch(prompt, most):
    slots = RequestSlots(4, 600, 1000, device="meta")
    with Operations("meta") as found:
        slots.add(1, SamplingParams(repetition_penalty=1.5), prompt)
        slots.remove(1)
    assert found.count <= most


def test_what_the_host_cannot_see_is_left_out():
    """Ignored are rows with a missing or empty slot, and with a negative token or a token beyond the capacity."""
    slots = RequestSlots(3, 4, 10)
    held = {0: Held(SamplingParams(), [1]), 1: Held(SamplingParams(), [2, 2])}
    for slot, one in held.items():
        slots.add(slot, one.params, one.prompt)
    rows = torch.tensor([3, -1, 2, 1, 2**40])
    tokens = torch.tensor([[5, 6], [5, 6], [5, 6], [-9, 7], [5, 6]])
    slots._histories.append(rows, tokens)
    held[1].output = [7]
    assert_holds(slots, held)
    slots._histories.append(torch.tensor([1, 0]), torch.tensor([[-1, 8, 8], [3, -1, 3]]))
    held[1].output, held[0].output = [7, 8], [3, 3]
    assert_holds(slots, held)


def test_a_slot_named_twice_on_the_device_leaves_ids_and_lengths_within_bounds():
    slots = RequestSlots(1, 4, 10)
    slots.add(0, SamplingParams(), [1])
    for step in range(3):
        slots._histories.append(torch.zeros(2, dtype=torch.int64), torch.tensor([[2, 3], [4, 5]]) + step)
    tables = slots.tables
    assert tables.num_tokens.tolist() == [4]
    assert 0 < int(tables.num_distinct[0]) <= 4
    assert int(tables.distinct.max()) < 10
    slots.remove(0)
    assert slots.tables.num_tokens.tolist() == [0]


@pytest.mark.parametrize("tokens", [[], [4], [1, 2, 4, 4, 9]])
def test_a_reused_slot_starts_clean(tokens, device):
    slots = RequestSlots(2, 16, 10, device=device)
    for seed in range(10):
        request = Held(random_params(random.Random(seed), 10), [seed % 10, 3])
        slots.add(1, EVERYTHING, [1, 1, 5])
        for token in tokens:
            slots.append([1], [token])
        slots.remove(1)
        assert int(slots.tables.counts.count_nonzero()) == 0
        slots.add(1, request.params, request.prompt)
        assert_holds(slots, {1: request})
        slots.remove(1)


def test_slots_that_were_made_in_inference_mode_serve_outside_of_it():
    with torch.inference_mode():
        slots = RequestSlots(2, 4, 10)
        slots.add(0, EVERYTHING, [1])
    slots.append([0], [2])
    with torch.inference_mode():
        slots.append([0], torch.tensor([3]))
    assert_holds(slots, {0: Held(EVERYTHING, [1], [2, 3])})


def test_prompts_come_as_lists_or_tensors_of_any_length_up_to_the_limit():
    slots = RequestSlots(4, 5000, 300)
    prompt = [i * 7 % 300 for i in range(5000)]
    given = prompt, torch.tensor(prompt), torch.tensor(prompt, dtype=torch.int16), iter(prompt)
    for slot, ids in enumerate(given):
        slots.add(slot, SamplingParams(), ids)
    assert_holds(slots, {slot: Held(SamplingParams(), prompt) for slot in range(4)})


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


@pytest.mark.gpu
def test_a_step_waits_for_no_device():
    slots = RequestSlots(4, 12, 20, device="cuda")
    slots.add(1, EVERYTHING, [1, 2])
    rows, tokens = torch.tensor([1], device="cuda"), torch.tensor([4], device="cuda")
    chains = VerifyOutput(torch.tensor([[4, -1]], device="cuda"), tokens, tokens)
    with sync_is_an_error():
        slots.metadata(rows, tokens)
        slots.append(rows, tokens)
        slots.append_verified(rows, chains)
        slots.add(2, EVERYTHING, [1, 2])
        slots.remove(2)
