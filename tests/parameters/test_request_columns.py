"""A batch is checked by column, with the same messages as a check of each request."""

import math

import numpy as np
import pytest
import torch

from calling import refused
from fake_candidates import BAD_VALUES
from tokendraw import BatchFacts, InvalidParameterError, RowKinds, SamplingMetadata, SamplingParams
from tokendraw._torch import tensors

MIX = [
    SamplingParams(
        temperature=(0.0, 0.5, 1, 1.5)[i % 4],
        top_k=(0, -1, 50, 7, 2**70)[i % 5],
        top_p=(1.0, 0.9, 1)[i % 3],
        min_p=(0.0, 0.1)[i % 2],
        seed=(None, i, 2**64 - 1 - i)[i % 3],
        logprobs=(None, -1, 3)[i % 3] if i % 8 == 0 else None,
        filter_order=("top_k_first", "joint")[i % 7 == 0],
    )
    for i in range(64)
]


@pytest.mark.parametrize(("field", "bad", "needed"), BAD_VALUES)
@pytest.mark.parametrize("row", [0, 1, 63])
def test_a_bad_value_is_found_wherever_it_stands(field, bad, needed, row):
    params = [*MIX[:row], SamplingParams(**{field: bad}), *MIX[row + 1 :]]
    message = f"'{field}' of row {row} needs {needed}, found {bad!r}."
    refused(message, InvalidParameterError, lambda: SamplingMetadata.from_params(params, positions=range(64)))
    refused(message, InvalidParameterError, lambda: RowKinds.of(params))


def test_of_several_mistakes_the_first_row_is_named_and_its_first_field():
    params = [SamplingParams(), SamplingParams(min_p=7, logprobs="x"), SamplingParams(temperature=-1), None]
    message = "'min_p' of row 1 needs a number in [0, 1] (0: off), found 7."
    refused(message, InvalidParameterError, lambda: SamplingMetadata.from_params(params))


def test_one_value_of_another_type_changes_nothing_for_the_others():
    """A column of plain numbers is checked as a whole, any other value by value."""
    plain = SamplingMetadata.from_params(MIX, positions=range(64))
    for field, same in (("temperature", np.float32(0.5)), ("top_k", np.int64(-1)), ("seed", np.int8(1))):
        values = {name: getattr(MIX[1], name) for name in SamplingParams.__slots__}
        params = [MIX[0], SamplingParams(**(values | {field: same})), *MIX[2:]]
        found = SamplingMetadata.from_params(params, positions=range(64))
        for name in ("temperature", "top_k", "top_p", "min_p", "seed", "seeded", "joint", "logprobs"):
            assert torch.equal(getattr(found, name), getattr(plain, name)), name
        assert found.facts == plain.facts
        assert (found.row_kinds.of_slot, found.row_kinds.kinds) == (
            plain.row_kinds.of_slot,
            plain.row_kinds.kinds,
        )


def test_columns_hold_what_tensors_need():
    params = [
        SamplingParams(temperature=-0.0, top_k=2**70, seed=2**64 - 1, logprobs=2**40),
        SamplingParams(temperature=1e308, top_k=-1, seed=-5),
        SamplingParams(temperature=1e308),
    ]
    metadata = SamplingMetadata.from_params(params, positions=[0, 1, 2])
    assert [math.copysign(1, metadata.temperature[0]), *metadata.temperature.tolist()] == [1, 0, 1e308, 1e308]
    assert metadata.top_k.tolist() == [2**62, 0, 0]
    assert metadata.seed.tolist() == [-1, -5, 0]
    assert metadata.facts.max_logprobs == 2**31 - 1


NOTHING = {
    "any_greedy": False,
    "any_seeded": False,
    "max_top_k": 0,
    "any_top_p": False,
    "any_min_p": False,
    "any_typical_p": False,
    "any_xtc": False,
    "any_joint": False,
    "any_temperature_last": False,
    "any_top_k_first": False,
    "max_logprob_token_id": -1,
    "filters": (),
}
KNOWN = [
    ({}, {}),
    ({"temperature": 0}, {"any_greedy": True, "all_greedy": True, "all_top_k": True}),
    ({"seed": 0}, {"any_seeded": True, "all_seeded": True}),
    ({"top_k": 7}, {"max_top_k": 7, "all_top_k": True}),
    ({"top_p": 0.5}, {"any_top_p": True}),
    ({"min_p": 0.1}, {"any_min_p": True}),
    ({"top_p": 0.5, "min_p": 0.1}, {"any_top_p": True, "any_min_p": True, "any_top_k_first": True}),
    (
        {"top_p": 0.5, "top_k": 7},
        {"any_top_p": True, "max_top_k": 7, "all_top_k": True, "any_top_k_first": True},
    ),
    (
        {"top_p": 0.5, "min_p": 0.1, "filter_order": "joint"},
        {"any_top_p": True, "any_min_p": True, "any_joint": True},
    ),
    ({"logprobs": 3}, {"max_logprobs": 3}),
    ({"typical_p": 0.5, "xtc_threshold": 0.2}, {"any_typical_p": True}),
    ({"xtc_probability": 0.5, "temperature": 0.5}, {"any_xtc": True}),
    ({"filter_order": "temperature_last", "temperature": 0.5}, {}),
    (
        {"filter_order": "temperature_last", "filters": {"p_less": 1}},
        {"any_temperature_last": True, "filters": ("p_less",)},
    ),
]


@pytest.mark.parametrize(("asked", "known"), KNOWN, ids=str)
def test_what_is_known_of_a_request_follows_from_its_parameters(asked, known):
    kinds = RowKinds.of([SamplingParams(**asked)])
    assert kinds.kinds == (kinds.facts,) == (BatchFacts(**(NOTHING | known)),)


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 64])
def test_a_batch_holds_what_its_rows_hold(rows):
    kinds = RowKinds.of(MIX[:rows])
    assert kinds.facts == BatchFacts.merged(RowKinds.of([one]).facts for one in MIX[:rows])
    assert kinds.facts == BatchFacts.merged(kinds.kinds)
    assert [kinds.kinds[kind] for kind in kinds.of_slot] == [RowKinds.of([one]).facts for one in MIX[:rows]]


def test_everything_comes_to_the_device_in_one_copy(monkeypatch):
    copies = []
    copied = tensors._copy
    monkeypatch.setattr(tensors, "_copy", lambda host, device: copies.append(device) or copied(host, device))
    metadata = SamplingMetadata.from_params(MIX, device="meta", positions=range(64), row_index=range(64))
    assert [device.type for device in copies] == ["meta"]
    metadata.with_positions(range(64))
    assert len(copies) == 2
