"""A step moves metadata to other positions and leaves everything else, including the memo of samplers."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch

from tokendraw import SamplingMetadata, SamplingParams

PARAMS = [SamplingParams(temperature=0.7, top_k=300, seed=3, logprobs=2), SamplingParams(top_p=0.4, seed=4)]


def metadata():
    return SamplingMetadata.from_params(PARAMS, positions=[1, 2])


@pytest.mark.parametrize("given", [[3, 4], torch.tensor([3, 4]), torch.tensor([3, 0, 4, 0])[::2]], ids=str)
def test_other_positions_leave_everything_else_as_it_is(given):
    first = metadata()
    moved = first.with_positions(given)
    assert (first.positions.tolist(), moved.positions.tolist()) == ([1, 2], [3, 4])
    assert (moved.num_rows, moved.device) == (2, torch.device("cpu"))
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
    first.top_k.add_(1)
    assert moved.top_k.tolist() == [301, 1]
    assert not moved.row_kinds.is_current()


def test_what_was_computed_once_is_shared_by_all_that_differ_in_positions_alone():
    first = metadata()
    moved = first.with_positions([3, 4]).with_positions(torch.tensor([5, 6]))
    moved.memo["launch"] = 7
    assert first.memo == {"launch": 7}
    assert first.with_positions([8, 9]).memo is first.memo


@pytest.mark.parametrize(
    "changed",
    [
        lambda first: replace(first, top_k=torch.tensor([3, 4])),
        lambda first: replace(first, positions=torch.tensor([3, 4])),
        lambda first: first.with_positions(torch.tensor([3, 4], dtype=torch.int32)),
        copy.copy,
        copy.deepcopy,
        lambda first: pickle.loads(pickle.dumps(first)),
    ],
    ids=["other parameters", "replaced positions", "another dtype", "copy", "deepcopy", "pickle"],
)
def test_other_metadata_begins_anew(changed):
    first = metadata()
    first.memo["launch"] = lambda: None  # it cannot be pickled, and need not be
    other = changed(first)
    assert other.memo == {}
    assert other.num_rows == 2
    assert other.facts == first.facts
    other.memo["launch"] = 8
    assert first.memo["launch"] != 8


def test_slots_are_given_to_rows_without_a_look_at_the_rows():
    first = metadata()
    first.memo["launch"], index = 7, torch.tensor([0, 0, 1])
    assert first.num_rows == 2
    spread = first.for_rows(index, torch.tensor([1, 2, 2]))
    assert spread.num_rows == 3
    assert (spread.row_index, spread.row_kinds, spread.memo) == (index, None, {})
    assert spread.per_row("top_k").tolist() == [300, 300, 0]
    assert spread.facts is first.facts
    spread.memo["launch"] = 8
    assert first.for_rows(index + 1, torch.tensor([1, 2, 2])).memo == {"launch": 8}
    assert first.for_rows(index.int(), torch.tensor([1, 2, 2])).memo == {}
    assert first.for_rows(torch.tensor([0, 1]), None).memo == {}
    assert first.memo["launch"] == 7


def test_metadata_stays_frozen_and_differs_by_identity():
    first = metadata()
    for name in ("positions", "memo", "num_rows"):
        with pytest.raises(AttributeError):
            setattr(first, name, None)
    assert first != first.with_positions(first.positions)
