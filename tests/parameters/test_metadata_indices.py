"""Positions and slots: dtypes are always checked, values on the host, and with TOKENDRAW_DEBUG=1 on any device."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import tokendraw
from calling import assert_same_rows, recording, refused
from tokendraw import (
    BatchFacts,
    Drafts,
    InvalidInputError,
    InvalidParameterError,
    SamplingMetadata,
    SamplingParams,
    speculative,
)

V = 600
PARAMS = [SamplingParams(temperature=0.7, top_k=300, seed=3, logprobs=2), SamplingParams(top_p=0.4, seed=4)]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]


@pytest.mark.parametrize("name", ["positions", "row_index"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.uint32])
def test_indices_of_another_dtype_are_not_cast(name, dtype):
    given = {"positions": torch.tensor([1, 1]), name: torch.tensor([1, 1]).to(dtype)}
    with pytest.raises(InvalidInputError, match=rf"^'{name}' needs an integer dtype.*, found {dtype}\."):
        SamplingMetadata.from_params(PARAMS, **given)
    with pytest.raises(InvalidInputError, match=rf"^'{name}' needs an integer dtype.*, found {dtype}\."):
        SamplingMetadata(**given)


OUT_OF_RANGE = {
    "'row_index' of row 1 needs an integer in [0, 1], found 7.": {"row_index": [0, 7]},
    "'row_index' of row 0 needs an integer in [0, 1], found -1.": {"row_index": [-1, 0]},
    "'row_index' of row 1 needs an integer in [0, 1], found 2.": {"row_index": [1, 2]},
    "'positions' of row 1 needs an integer >= 0, found -3.": {"positions": [4, -3]},
}


@pytest.mark.parametrize("message", OUT_OF_RANGE)
def test_values_on_the_host_are_looked_at_however_they_are_given(message):
    given = {"positions": [1, 1]} | OUT_OF_RANGE[message]
    tensors = {name: torch.tensor(values) for name, values in given.items()}
    known = SamplingMetadata.from_params(PARAMS, positions=[0, 0])
    for call in (
        lambda: SamplingMetadata.from_params(PARAMS, **given),
        lambda: SamplingMetadata.from_params(PARAMS, **tensors),
        lambda: SamplingMetadata.from_params(PARAMS, **{n: t.to(torch.int8) for n, t in tensors.items()}),
        lambda: SamplingMetadata(top_k=torch.tensor([3, 4]), **tensors),
        lambda: replace(known, **tensors),
    ):
        refused(message, InvalidParameterError, call)
    if "row_index" not in given:
        refused(message, InvalidParameterError, lambda: known.with_positions(tensors["positions"]))
        refused(message, InvalidParameterError, lambda: known.with_positions(given["positions"]))


def test_slots_are_not_negative_where_nobody_knows_how_many_there_are():
    message = "'row_index' of row 1 needs an integer >= 0, found -2."
    refused(message, InvalidParameterError, lambda: SamplingMetadata(row_index=torch.tensor([9, -2])))


def test_a_slot_that_does_not_exist_demotes_nobody():
    ours, backend = recording()
    logits, index = torch.zeros(2, V), torch.tensor([0, 7])
    message = "'row_index' of row 1 needs an integer in [0, 1], found 7."
    refused(
        message,
        InvalidParameterError,
        lambda: ours.sample(logits, SamplingMetadata(top_k=torch.tensor([3, 4]), row_index=index)),
    )
    assert ours.name == "acme"
    assert backend.logits == []


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_dtype_means_the_same_parameters(load_native, device, dtype):
    """Also where a byte could be a mask, or where 8 bits do not hold V."""
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(3, V)).astype(np.float32)).to(device)
    parameters = {
        "row_index": [1, 0, 1],
        "positions": [5, 6, 7],
        "top_k": [20, 120],
        "seed": [3, 4],
        "logprobs": [1, 3],
    }

    def draw(kind, *, by_slot):
        given = {n: torch.tensor(v, dtype=kind, device=device) for n, v in parameters.items()}
        if not by_slot:
            given |= {n: given[n][given["row_index"].long()] for n in ("top_k", "seed", "logprobs")}
            del given["row_index"]
        return load_native().sample(logits, SamplingMetadata(**given, facts=BatchFacts(max_logprobs=3)))

    for by_slot in (True, False):
        assert_same_rows(draw(dtype, by_slot=by_slot), draw(torch.int64, by_slot=by_slot))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_dtype_means_the_same_drafts(load_native, device, dtype):
    target = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 90)).astype(np.float32)).to(device)
    metadata = SamplingMetadata.from_params([SamplingParams(seed=3)] * 3, device=device, positions=[4, 5, 6])

    def verified(kind):
        drafts = Drafts(
            draft_token_ids=torch.tensor([17, 4, 9], dtype=kind, device=device),
            cu_num_logits=torch.tensor([0, 3, 4, 6], dtype=kind, device=device),
            max_drafts=2,
        )
        return load_native().verify(target, drafts, metadata).token_ids.tolist()

    assert verified(dtype) == verified(torch.int64)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_small_offsets_count_rows_beyond_what_they_hold(dtype):
    offsets = torch.tensor([0, 3, 100], dtype=dtype)
    rows = speculative.row_index(offsets, 300)
    assert (rows.dtype, rows[[0, 2, 3, 99, 299]].tolist()) == (torch.int64, [0, 0, 1, 1, 1])
    positions = speculative.row_positions(offsets, torch.tensor([100, 120], dtype=dtype), 300)
    assert positions[[0, 2, 3, 299]].tolist() == [100, 102, 120, 416]
    assert speculative.target_rows(offsets, 98)[[0, 1, 2, 97]].tolist() == [0, 1, 3, 98]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8, torch.int32])
def test_small_top_ks_are_compared_with_the_whole_vocabulary(dtype):
    """The arguments of FlashInfer's and aiter's kernels."""
    from tokendraw.probabilities import Filters

    metadata = SamplingMetadata(top_k=torch.tensor([0, 5, 127], dtype=dtype))
    assert Filters.of(metadata, 151_936).top_k.tolist() == [151_936, 5, 127]
    assert Filters.of(metadata, 60).top_k.tolist() == [60, 5, 60]


def test_positions_may_come_as_numbers():
    metadata = SamplingMetadata.from_params(PARAMS, positions=[1, 2])
    for given in ([3, 4], (3, 4), iter((3, 4)), np.array([3, 4]), torch.tensor([3, 4])):
        moved = metadata.with_positions(given)
        assert (moved.positions.tolist(), moved.positions.dtype) == ([3, 4], torch.int64)
        assert moved.temperature is metadata.temperature
        assert moved.facts is metadata.facts
        assert moved.row_kinds is metadata.row_kinds
    for bad, message in (
        (5, "'positions' needs a list of integers, found int. Pass a list."),
        ([1.5, 2], "'positions' of row 0 needs an integer >= 0, found 1.5."),
    ):
        refused(message, InvalidParameterError, lambda bad=bad: metadata.with_positions(bad))


OTHER_POSITIONS = {
    "'positions' needs one dimension, found shape [1, 2].": torch.tensor([[1, 2]]),
    "'positions' needs an integer dtype, found torch.float32.": torch.tensor([1.0, 2.0]),
    "'positions' needs a dense tensor, found layout torch.sparse_coo. Pass positions.to_dense().": (
        torch.tensor([1, 2]).to_sparse()
    ),
    "'positions' needs a tensor as it is in memory, found its negative. Pass positions.resolve_neg().": (
        torch._neg_view(torch.tensor([1, 2]))
    ),
    "the tensors need one length, found temperature 2, top_k 2, positions 3.": [1, 2, 3],
    "the tensors need one device, found temperature on cpu, top_k on cpu, positions on meta.": (
        torch.tensor([1, 2], device="meta")
    ),
}


@pytest.mark.parametrize("message", OTHER_POSITIONS)
def test_positions_that_do_not_fit_are_refused(message):
    metadata = SamplingMetadata(
        temperature=torch.ones(2), top_k=torch.tensor([3, 4]), positions=torch.tensor([1, 2])
    )
    refused(message, InvalidInputError, lambda: metadata.with_positions(OTHER_POSITIONS[message]))


def test_a_tensor_of_positions_is_kept_so_that_it_may_change_in_place():
    positions = torch.tensor([1, 2])
    assert SamplingMetadata.from_params(PARAMS, positions=positions).positions is positions
    assert (
        SamplingMetadata.from_params(PARAMS, positions=[0, 0]).with_positions(positions).positions
        is positions
    )


def test_debug_looks_at_indices_that_changed_since():
    (ours, backend), logits = recording(debug=True), torch.zeros(2, V)
    metadata = SamplingMetadata(
        top_k=torch.tensor([3, 4]), row_index=torch.tensor([0, 1]), positions=torch.tensor([5, 6])
    )
    ours.sample(logits, metadata)
    metadata.row_index[1] = 2
    message = "'row_index' of row 1 needs an integer in [0, 1], found 2."
    refused(message, InvalidParameterError, lambda: ours.sample(logits, metadata))
    metadata.row_index[1], metadata.positions[0] = 1, -1
    refused(
        "'positions' of row 0 needs an integer >= 0, found -1.",
        InvalidParameterError,
        lambda: ours.sample(logits, metadata),
    )
    assert len(backend.logits) == 1


def test_debug_looks_at_the_rows_of_drafts_that_changed_since(monkeypatch):
    monkeypatch.setenv("TOKENDRAW_DEBUG", "1")
    native = tokendraw.load_sampler("native", device="cpu")
    target = torch.zeros(4, 20)
    drafts = Drafts.from_lists([[1], [2]])
    native.verify(target, drafts, SamplingMetadata())
    drafts.cu_num_logits[1] = 3
    refused(
        "'cu_num_logits' needs 2, as 'num_drafts' says, where request 0 ends, which begins at 0, found 3.",
        InvalidParameterError,
        lambda: native.verify(target, drafts, SamplingMetadata()),
    )


def test_kinds_of_rows_stay_known_when_positions_change_in_place():
    """All columns arrive in a single allocation, and yet count their changes separately."""
    metadata = SamplingMetadata.from_params(PARAMS, positions=[1, 2])
    metadata.positions.add_(1)
    assert metadata.row_kinds.is_current()
    metadata.top_k.add_(1)
    assert not metadata.row_kinds.is_current()
