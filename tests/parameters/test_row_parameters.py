"""The parameters of rows: values in range, filters that the host rules out, and the form of each reader."""

from dataclasses import fields

import pytest
import torch

import tokendraw
from tokendraw import BatchFacts, SamplingMetadata, SamplingParams
from tokendraw.row_parameters import MetadataParameters, RowParameters, filter_columns, widest_float

CPU = torch.device("cpu")
INF, NAN = float("inf"), float("nan")
LARGEST = torch.finfo(torch.float64).max
REQUESTS = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.5, top_k=50, top_p=0.9, min_p=0.1, filter_order="joint"),
]
READY = {
    "temperature": torch.tensor([0.5, 0.0, -1.0, NAN, INF]),
    "top_k": torch.tensor([5, 0, -1, 7, 1 << 40]),
    "top_p": torch.tensor([0.9, NAN, 0.0, 1.0, 2.0]),
    "min_p": torch.tensor([0.1, NAN, 0.0, 1.0, -1.0]),
    "joint": torch.tensor([True, False, True, False, False]),
}


def test_requests_become_columns_of_the_widest_float():
    params = RowParameters.of(SamplingMetadata.from_params(REQUESTS, device="cpu"), 3, CPU)
    assert params.temperature.tolist() == [[1.0], [1.0], [0.5]]
    assert params.inverse_temperature.tolist() == [[1.0], [1.0], [2.0]]
    assert params.greedy.tolist() == [[False], [True], [False]]
    assert params.top_k.tolist() == [[0], [0], [50]]
    assert params.top_p.tolist() == [[1.0], [1.0], [0.9]]
    assert params.min_p.tolist() == [[0.0], [0.0], [0.1]]
    assert params.joint.tolist() == [[False], [False], [True]]
    assert (params.max_top_k, params.all_top_k, params.may_drop_tokens) == (50, False, True)
    assert {params.temperature.dtype, params.top_p.dtype, params.min_p.dtype} == {torch.float64}


def test_values_in_ready_tensors_are_clamped():
    params = RowParameters.of(SamplingMetadata(**READY), 5, CPU)
    assert params.temperature.flatten().tolist() == [0.5, 1.0, 1.0, 1.0, LARGEST]
    assert params.inverse_temperature.flatten().tolist() == [2.0, 1.0, 1.0, 1.0, 1 / LARGEST]
    assert params.greedy.flatten().tolist() == [False, True, True, True, False]
    assert params.top_p[1].item() == 1.0
    assert params.top_k.flatten().tolist() == READY["top_k"].tolist()
    assert params.max_top_k is None


def test_the_reciprocal_of_the_least_temperature_is_finite():
    metadata = SamplingMetadata(temperature=torch.tensor([5e-324], dtype=torch.float64))
    params = RowParameters.of(metadata, 1, CPU)
    assert params.inverse_temperature.item() == LARGEST


def test_filters_ruled_out_by_the_host_are_none():
    facts = BatchFacts(any_greedy=False, max_top_k=0, any_top_p=False, any_min_p=False, any_joint=False)
    metadata = SamplingMetadata(**READY, facts=facts)
    params = RowParameters.of(metadata, 5, CPU)
    assert (params.greedy, params.top_k, params.top_p, params.min_p, params.joint) == (None,) * 5
    assert not params.may_drop_tokens
    assert not any(column is not None for column in filter_columns(metadata).values())


def test_missing_parameters_are_off():
    params = RowParameters.of(SamplingMetadata(), 2, CPU)
    assert params.temperature.tolist() == [[1.0], [1.0]]
    assert (params.top_k, params.top_p, params.min_p, params.joint) == (None,) * 4
    assert (params.typical_p, params.xtc_probability, params.xtc_threshold) == (None,) * 3
    assert params.temperature_last is params.has_ceiling is None


def test_without_a_threshold_xtc_has_that_of_requests():
    metadata = SamplingMetadata(
        xtc_probability=torch.tensor([0.5, 0.0]), typical_p=torch.tensor([torch.nan, 0.5])
    )
    params = RowParameters.of(metadata, 2, CPU)
    assert params.xtc_threshold.tolist() == [[SamplingParams().xtc_threshold]] * 2
    assert params.typical_p.tolist() == [[1.0], [0.5]]
    assert params.has_ceiling.tolist() == [[True], [True]]


@pytest.mark.parametrize("row_index", [None, torch.tensor([4, 4, 0, 1, 2])])
def test_parameters_read_on_first_use_equal_the_record(row_index):
    metadata = SamplingMetadata(**READY, row_index=row_index)
    params, lazy = RowParameters.of(metadata, 5, CPU), MetadataParameters(metadata, 5, CPU)
    for field in fields(params):
        value, expected = getattr(lazy, field.name), getattr(params, field.name)
        if isinstance(expected, torch.Tensor):
            assert value.shape == (5, 1)
            torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)
        else:
            assert value == expected, field.name


def test_a_chunk_holds_the_parameters_of_its_rows():
    params = RowParameters.of(SamplingMetadata.from_params(REQUESTS, device="cpu"), 3, CPU)
    for rows in (slice(1, 3), torch.tensor([1, 2])):
        chunk = params.chunk(rows)
        assert chunk.temperature.tolist() == [[1.0], [0.5]]
        assert (chunk.top_k.tolist(), chunk.max_top_k) == ([[0], [50]], 50)


def test_the_widest_float_of_mps_is_float32():
    assert widest_float(torch.device("mps")) is torch.float32


def test_the_module_is_an_attribute_of_the_package():
    assert tokendraw.row_parameters.RowParameters is RowParameters
