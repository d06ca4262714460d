"""The parameters of a batch are uploaded in a single aligned allocation."""

import pickle

import pytest
import torch

from cuda_batches import Operations
from tokendraw import Drafts, SamplingMetadata, SamplingParams
from tokendraw._torch.tensors import uploaded

FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "seeded",
    "joint",
    "logprobs",
    "positions",
    "row_index",
)
EVERYTHING = SamplingParams(0.7, 20, 0.9, 0.1, seed=2**64 - 1, logprobs=3, filter_order="joint")


def full(rows):
    params = [EVERYTHING, SamplingParams()] * rows
    return SamplingMetadata.from_params(
        params[:rows], positions=range(rows), row_index=[row % max(rows, 1) for row in range(rows)]
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 15, 16, 17, 129])
def test_columns_share_one_memory_and_are_aligned_for_any_number_of_rows(rows):
    metadata = full(rows)
    tensors = [getattr(metadata, name) for name in FIELDS]
    assert [tensor.data_ptr() % 16 for tensor in tensors] == [0] * len(tensors)
    first = min(tensor.data_ptr() for tensor in tensors)
    assert max(tensor.data_ptr() for tensor in tensors) - first < len(tensors) * (8 * rows + 16)
    assert all(tensor.is_contiguous() and tensor.shape == (rows,) for tensor in tensors)


def test_columns_hold_what_was_asked_for():
    metadata = full(3)
    found = {name: getattr(metadata, name).tolist() for name in FIELDS}
    assert found == {
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
    dtypes = {name: getattr(metadata, name).dtype for name in FIELDS}
    assert dtypes == dict.fromkeys(FIELDS, torch.int64) | {
        "temperature": torch.float64,
        "top_p": torch.float64,
        "min_p": torch.float64,
        "seeded": torch.bool,
        "joint": torch.bool,
    }


def test_columns_count_their_changes_one_by_one():
    for device in ("cpu", "meta"):
        columns = {name: ([1, 2, 3], torch.int64) for name in "ab"} | {"c": ([True], torch.bool)}
        tensors = uploaded(columns, torch.device(device))
        assert {t.device.type for t in tensors.values()} == {device}
        tensors["a"].zero_()
        assert [tensors[name]._version for name in "abc"] == [1, 0, 0]


def test_a_batch_goes_to_the_device_by_few_operations_of_torch():
    params = [SamplingParams(temperature=0.8, top_k=20, top_p=0.9)]
    with Operations() as found:
        SamplingMetadata.from_params(params, device="meta", positions=[0])
    assert found.count <= 12


def test_columns_of_no_rows_are_empty():
    metadata = SamplingMetadata.from_params([], positions=[])
    assert [tuple(getattr(metadata, name).shape) for name in ("temperature", "top_k", "positions")] == [
        (0,)
    ] * 3
    drafts = Drafts.from_lists([])
    assert (drafts.draft_token_ids.shape, drafts.cu_num_logits.tolist()) == ((0,), [0])


def test_neither_inference_mode_nor_a_default_device_nor_pickle_changes_what_they_are():
    with torch.inference_mode(), torch.device("meta"):
        metadata = full(2)
    for made in (metadata, pickle.loads(pickle.dumps(metadata))):
        assert made.device == torch.device("cpu")
        assert not made.temperature.is_inference()
        assert made.temperature.tolist() == [0.7, 1.0]
    metadata.temperature.add_(1)
    assert not metadata.row_kinds.is_current()


def test_drafts_come_in_one_memory_too():
    drafts = Drafts.from_lists([[17, 4], [], [9]])
    assert drafts.draft_token_ids.tolist() == [17, 4, 9]
    assert drafts.cu_num_logits.tolist() == [0, 3, 4, 6]
    assert drafts.cu_num_logits.data_ptr() - drafts.draft_token_ids.data_ptr() == 32
