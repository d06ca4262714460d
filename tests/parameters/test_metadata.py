"""The tensors and the facts of a batch: how they are made, what may change in place, and what a step shares."""

import copy
import math
import pickle
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import call_tables
import tokendraw
from calling import recording, refused
from tokendraw import (
    BatchFacts,
    Drafts,
    InvalidParameterError,
    RowKinds,
    SamplingMetadata,
    SamplingParams,
    speculative,
)

V = 600
EVERYTHING = SamplingParams(0.7, 20, 0.9, 0.1, seed=2**64 - 1, logprobs=3, filter_order="joint")
PARAMS = [SamplingParams(temperature=0.7, top_k=300, seed=3, logprobs=2), SamplingParams(top_p=0.4, seed=4)]


# Columns of requests


COLUMNS = {
    "temperature": [0.7, 1.0, 0.7],
    "top_k": [20, 0, 20],
    "top_p": [0.9, 1.0, 0.9],
    "min_p": [0.1, 0.0, 0.1],
    "seed": [-1, 0, -1],
    "seeded": [True, False, True],
    "joint": [True, False, True],
    "logprobs": [3, 0, 3],
    "positions": [0, 1, 2],
    "row_index": [0, 1, 2],
}
DTYPES = {float: torch.float64, int: torch.int64, bool: torch.bool}


def full(rows):
    params = [EVERYTHING, SamplingParams()] * rows
    return SamplingMetadata.from_params(params[:rows], positions=range(rows), row_index=range(rows))


def test_columns_hold_what_was_asked_for():
    metadata = full(3)
    assert {name: getattr(metadata, name).tolist() for name in COLUMNS} == COLUMNS
    assert {name: getattr(metadata, name).dtype for name in COLUMNS} == {
        name: DTYPES[type(values[0])] for name, values in COLUMNS.items()
    }
    odd = [
        SamplingParams(temperature=-0.0, top_k=2**70, seed=2**64 - 1, logprobs=2**40),
        SamplingParams(temperature=1e308, top_k=-1, seed=-5),
    ]
    metadata = SamplingMetadata.from_params(odd, positions=[0, 1])
    assert [math.copysign(1, metadata.temperature[0]), *metadata.temperature.tolist()] == [1, 0, 1e308]
    assert (metadata.top_k.tolist(), metadata.seed.tolist()) == ([2**62, 0], [-1, -5])
    assert metadata.facts.max_logprobs == 2**31 - 1


def test_one_value_of_another_type_changes_nothing_for_the_others():
    """A column of plain numbers is checked as a whole, any other value by value."""
    plain = [SamplingParams(temperature=0.5, top_k=-1, seed=1), SamplingParams(min_p=0.1, seed=2)]
    expected = SamplingMetadata.from_params(plain, positions=[0, 1])
    for same in ({"temperature": np.float32(0.5)}, {"top_k": np.int64(-1)}, {"seed": np.uint64(1)}):
        odd = SamplingParams(**{"temperature": 0.5, "top_k": -1, "seed": 1} | same)
        found = SamplingMetadata.from_params([odd, plain[1]], positions=[0, 1])
        for name in ("temperature", "top_k", "min_p", "seed", "seeded"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert (found.facts, found.row_kinds.kinds) == (expected.facts, expected.row_kinds.kinds)


def known(**asked):
    """Return the facts in which a request differs from a plain request."""
    kinds = RowKinds.of([SamplingParams(**asked)])
    assert kinds.kinds == (kinds.facts,)
    both = RowKinds.of([SamplingParams(**asked), EVERYTHING])
    merged = BatchFacts.merged([kinds.facts, RowKinds.of([EVERYTHING]).facts])
    assert both.facts == BatchFacts.merged(both.kinds) == merged
    plain, found = asdict(RowKinds.of([SamplingParams()]).facts), asdict(kinds.facts)
    return {name: value for name, value in found.items() if value != plain[name]}


def test_what_is_known_of_a_request_follows_from_its_parameters():
    table = call_tables.Table(__file__, "facts.txt")
    assert table.found(lambda: {"known": known}) == table.text


def test_facts_of_logprobs_are_those_of_the_widest_request():
    given = RowKinds.of([SamplingParams(logprob_token_ids=ids) for ids in ([3, 7], [9], None)])
    assert (given.facts.max_logprobs, given.facts.max_logprob_token_id) == (0, 9)
    assert SamplingMetadata.from_params([], positions=[]).top_k.shape == (0,)
    assert (
        BatchFacts.merged([BatchFacts(), RowKinds.of([SamplingParams()]).facts]).max_logprob_token_id is None
    )
    widths = {None: None, 0: 0, 4: 4, 6: 5, 10**9: 5, -1: 5}
    assert {n: BatchFacts(max_logprobs=n).logprobs_width(5) for n in widths} == widths


def test_inference_mode_a_default_device_and_pickle_do_not_change_them():
    with torch.inference_mode(), torch.device("meta"):
        metadata = full(2)
    for made in (metadata, pickle.loads(pickle.dumps(metadata))):
        assert made.device == torch.device("cpu")
        assert not made.temperature.is_inference()
        assert made.temperature.tolist() == [0.7, 1.0]


# Integers of any dtype


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_offsets_of_every_integer_dtype_count_rows_beyond_what_8_bits_hold(dtype):
    offsets = torch.tensor([0, 3, 100], dtype=dtype)
    assert speculative.row_index(offsets, 300)[[0, 2, 3, 99, 299]].tolist() == [0, 0, 1, 1, 1]
    positions = speculative.row_positions(offsets, torch.tensor([100, 120], dtype=dtype), 300)
    assert positions[[0, 2, 3, 299]].tolist() == [100, 102, 120, 416]
    assert speculative.target_rows(offsets, 98)[[0, 1, 2, 97]].tolist() == [0, 1, 3, 98]


# Changes in place


def test_debug_looks_at_indices_that_changed_since(monkeypatch):
    (ours, backend), logits = recording(debug=True), torch.zeros(2, V)
    metadata = SamplingMetadata(
        top_k=torch.tensor([3, 4]), row_index=torch.tensor([0, 1]), positions=torch.tensor([5, 6])
    )
    ours.sample(logits, metadata)
    metadata.row_index[1] = 2
    message = "'row_index' of row 1 needs an integer in [0, 1], found 2."
    refused(message, InvalidParameterError, lambda: ours.sample(logits, metadata))
    metadata.row_index[1], metadata.positions[0] = 1, -1
    message = "'positions' of row 0 needs an integer >= 0, found -1."
    refused(message, InvalidParameterError, lambda: ours.sample(logits, metadata))
    assert len(backend.logits) == 1
    monkeypatch.setenv("TOKENDRAW_DEBUG", "1")
    native, drafts = tokendraw.load_sampler("native", device="cpu"), Drafts.from_lists([[1], [2]])
    native.verify(torch.zeros(4, 20), drafts, SamplingMetadata())
    drafts.cu_num_logits[1] = 3
    refused(
        "'cu_num_logits' needs 2, as 'num_drafts' says, where request 0 ends, which begins at 0, found 3.",
        InvalidParameterError,
        lambda: native.verify(torch.zeros(4, 20), drafts, SamplingMetadata()),
    )


# A step: other positions, the same requests


@pytest.mark.parametrize(
    "given",
    [[3, 4], (3, 4), np.array([3, 4]), torch.tensor([3, 4]), torch.tensor([3, 0, 4, 0])[::2]],
    ids=str,
)
def test_other_positions_leave_everything_else_as_it_is(given):
    first = SamplingMetadata.from_params(PARAMS, positions=[1, 2])
    moved = first.with_positions(given)
    assert (first.positions.tolist(), moved.positions.tolist()) == ([1, 2], [3, 4])
    assert (moved.num_rows, moved.device, moved.positions.dtype) == (2, torch.device("cpu"), torch.int64)
    for name in (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "seeded",
        "logprobs",
        "facts",
        "row_kinds",
    ):
        assert getattr(moved, name) is getattr(first, name), name
    assert first != moved
    if isinstance(given, torch.Tensor):
        assert moved.positions is given  # so that it may change in place
    with pytest.raises(AttributeError):
        moved.positions = None


def test_what_was_computed_once_is_shared_by_all_that_differ_in_positions_alone():
    first = SamplingMetadata.from_params(PARAMS, positions=[1, 2])
    first.memo["launch"] = lambda: None  # it cannot be pickled, and need not be
    assert first.with_positions([3, 4]).with_positions(torch.tensor([5, 6])).memo is first.memo
    for other in (
        replace(first, top_k=torch.tensor([3, 4])),
        replace(first, positions=torch.tensor([3, 4])),
        first.with_positions(torch.tensor([3, 4], dtype=torch.int32)),
        copy.copy(first),
        copy.deepcopy(first),
        pickle.loads(pickle.dumps(first)),
    ):
        assert (other.memo, other.num_rows, other.facts) == ({}, 2, first.facts)
        assert other.memo is not first.memo


# Drafts


def test_lists_of_drafts_are_laid_out_request_after_request(device):
    drafts = Drafts.from_lists(((t for t in tokens) for tokens in ([5, -1], [], [7])), device=device)
    assert (drafts.draft_token_ids.tolist(), drafts.cu_num_logits.tolist()) == ([5, -1, 7], [0, 3, 4, 6])
    assert drafts.draft_token_ids.dtype == drafts.cu_num_logits.dtype == torch.int64
    assert (drafts.num_drafts, drafts.max_drafts, drafts.num_requests, drafts.num_rows) == (
        (2, 0, 1),
        2,
        3,
        6,
    )
    assert drafts.device.type == device.type
    assert drafts.cu_num_logits.data_ptr() - drafts.draft_token_ids.data_ptr() == 32  # in one memory
    with pytest.raises(AttributeError):
        drafts.max_drafts = 2
    assert drafts != Drafts.from_lists([[5, -1], [], [7]], device=device)


@pytest.mark.parametrize(
    ("ids", "counts", "sizes"),
    [
        (torch.tensor([5, 6, 7]), [2, 0, 1], (2, 3, 6)),
        (torch.full((3, 4), -1), [2, 0, 1], (4, 3, 6)),
        (torch.empty(0, dtype=torch.int64), [0, 0], (0, 2, 2)),
        (torch.empty(0, 5, dtype=torch.int64), [], (5, 0, 0)),
    ],
)
def test_sizes_of_drafts_are_known_from_counts_or_from_shapes(ids, counts, sizes):
    drafts = Drafts.from_counts(ids, counts)
    assert (drafts.max_drafts, drafts.num_requests, drafts.num_rows) == sizes
    assert drafts.num_drafts == tuple(counts)
    ready = Drafts(draft_token_ids=ids, cu_num_logits=drafts.cu_num_logits, max_drafts=drafts.max_drafts)
    assert (ready.max_drafts, ready.num_requests) == sizes[:2]
    assert ready.num_rows == (None if ids.dim() == 2 and counts else sizes[2])
