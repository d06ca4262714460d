"""A processor with an ``append`` serves the tokens of slots that it has been called with; others leave it to torch."""

import pytest
import torch

from calling import provider_of
from tokendraw import PluginError, RequestSlots, SamplingParams, VerifyOutput
from tokendraw.edits.append import Histories
from tokendraw.edits.process import prove
from tokendraw.plugin import EDITS, ProcessCapabilities, ProcessNeed
from tokendraw_native.logits_processing import NativeProcessor

CPU = torch.device("cpu")
V = 40


class AppendingProcessor(NativeProcessor):
    """Appends by the core's own operations, and notes the tokens."""

    def __init__(self):
        self.appended = []

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


def held(**params):
    slots = RequestSlots(num_slots=2, max_tokens=8, vocab_size=V)
    slots.add(1, SamplingParams(**params), [3])
    return slots


def process(backend, slots):
    provider_of("process_logits", backend, None).process(torch.ones(1, V), slots, torch.tensor([1]))


@pytest.mark.parametrize("params", [{}, {"repetition_penalty": 1.5}], ids=str)
def test_tokens_go_to_the_processor_of_the_last_call_even_where_it_had_nothing_to_edit(params):
    slots, backend = held(**params), AppendingProcessor()
    slots.append([1], [4])
    process(backend, slots)
    tokens, chains = torch.tensor([5]), torch.tensor([[6, -1]])
    slots.append([1], tokens)
    slots.append_verified([1], VerifyOutput(chains, chains, chains))
    assert [*map(id, backend.appended)] == [id(tokens), id(chains)]
    assert slots.tables.history[1].tolist() == [3, 4, 5, 6, 0, 0, 0, 0]
    process(NativeProcessor(), slots)
    slots.append([1], [7])
    assert len(backend.appended) == 2
    assert slots.tables.num_tokens.tolist() == [0, 5]


def test_the_checks_come_first():
    slots, backend = held(), AppendingProcessor()
    process(backend, slots)
    with pytest.raises(ValueError, match="needs a slot with a request, found 0"):
        slots.append([0], [4])
    with pytest.raises(ValueError, match="needs room for 8 in slot 1"):
        slots.append_verified([1], VerifyOutput(*[torch.ones(1, 8, dtype=torch.int64)] * 3))
    assert backend.appended == []


def test_the_proof_accepts_a_right_append():
    backend = AppendingProcessor()
    prove(backend, ProcessCapabilities(edits=EDITS), CPU, ProcessNeed())
    assert len(backend.appended) == 1


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("history", lambda tables: tables.history[1, 3].fill_(5)),
        ("num_tokens", lambda tables: tables.num_tokens[1].fill_(5)),
        ("distinct ids", lambda tables: tables.distinct[1, 2].fill_(1)),
        ("num_distinct", lambda tables: tables.num_distinct[1].fill_(4)),
        ("counts", lambda tables: tables.counts[1, 5].fill_(16)),
        ("counts", lambda tables: tables.counts[0, 1].fill_(16)),
    ],
)
def test_the_proof_rejects_a_wrong_append(field, wrong):
    class WrongProcessor(AppendingProcessor):
        def append(self, tables, row_index, token_ids):
            super().append(tables, row_index, token_ids)
            wrong(tables)

    with pytest.raises(PluginError, match=f"the proof call of append needs .* as {field}, found"):
        prove(WrongProcessor(), ProcessCapabilities(edits=EDITS), CPU, ProcessNeed())
