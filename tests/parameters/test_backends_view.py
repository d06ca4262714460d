"""Parameters as backends read them: columns in range for kernels that search, or filters of probabilities."""

import pytest
import torch

import tokendraw
from special_rows import INF, NAN
from tokendraw import BatchFacts, SamplingMetadata, SamplingParams
from tokendraw.probabilities import OFF_TOP_P, Filters, drop_below, top_p_of_kept
from tokendraw.row_parameters import RowParameters, filter_columns, widest_float

CPU = torch.device("cpu")
LARGEST = torch.finfo(torch.float64).max
READY = {
    "temperature": torch.tensor([0.5, 0.0, -1.0, NAN, INF]),
    "top_k": torch.tensor([5, 0, -1, 7, 1 << 40]),
    "top_p": torch.tensor([0.9, NAN, 0.0, 1.0, 2.0]),
    "min_p": torch.tensor([0.1, NAN, 0.0, 1.0, -1.0]),
    "joint": torch.tensor([True, False, True, False, False]),
}


# Columns


def test_requests_become_columns_of_the_widest_float_and_chunks_hold_their_rows():
    requests = [SamplingParams(), SamplingParams(temperature=0.0)]
    requests.append(SamplingParams(temperature=0.5, top_k=50, top_p=0.9, min_p=0.1, filter_order="joint"))
    params = RowParameters.of(SamplingMetadata.from_params(requests), 3, CPU)
    expected = {
        "temperature": [[1.0], [1.0], [0.5]],
        "inverse_temperature": [[1.0], [1.0], [2.0]],
        "greedy": [[False], [True], [False]],
        "top_k": [[0], [0], [50]],
        "top_p": [[1.0], [1.0], [0.9]],
        "min_p": [[0.0], [0.0], [0.1]],
        "joint": [[False], [False], [True]],
    }
    assert {name: getattr(params, name).tolist() for name in expected} == expected
    assert (params.max_top_k, params.all_top_k, params.may_drop_tokens) == (50, False, True)
    assert {params.temperature.dtype, params.top_p.dtype, params.min_p.dtype} == {torch.float64}
    assert widest_float(torch.device("mps")) is torch.float32
    assert tokendraw.row_parameters.RowParameters is RowParameters
    for rows in (slice(1, 3), torch.tensor([1, 2])):
        chunk = params.chunk(rows)
        assert (chunk.temperature.tolist(), chunk.top_k.tolist(), chunk.max_top_k) == (
            [[1.0], [0.5]],
            [[0], [50]],
            50,
        )


def test_values_in_ready_tensors_are_clamped():
    params = RowParameters.of(SamplingMetadata(**READY), 5, CPU)
    assert params.temperature.flatten().tolist() == [0.5, 1.0, 1.0, 1.0, LARGEST]
    assert params.inverse_temperature.flatten().tolist() == [2.0, 1.0, 1.0, 1.0, 1 / LARGEST]
    assert params.greedy.flatten().tolist() == [False, True, True, True, False]
    assert (params.top_p[1].item(), params.max_top_k) == (1.0, None)
    least = SamplingMetadata(temperature=torch.tensor([5e-324], dtype=torch.float64))
    assert RowParameters.of(least, 1, CPU).inverse_temperature.item() == LARGEST
    rare = SamplingMetadata(xtc_probability=torch.tensor([0.5, 0.0]), typical_p=torch.tensor([NAN, 0.5]))
    params = RowParameters.of(rare, 2, CPU)
    assert params.xtc_threshold.tolist() == [[SamplingParams().xtc_threshold]] * 2
    assert (params.typical_p.tolist(), params.has_ceiling.tolist()) == ([[1.0], [0.5]], [[True], [True]])


def test_filters_that_are_missing_or_ruled_out_by_the_host_are_none():
    facts = BatchFacts(any_greedy=False, max_top_k=0, any_top_p=False, any_min_p=False, any_joint=False)
    metadata = SamplingMetadata(**READY, facts=facts)
    params = RowParameters.of(metadata, 5, CPU)
    assert (params.greedy, params.top_k, params.top_p, params.min_p, params.joint) == (None,) * 5
    assert not params.may_drop_tokens
    assert not any(column is not None for column in filter_columns(metadata).values())
    params = RowParameters.of(SamplingMetadata(), 2, CPU)
    assert params.temperature.tolist() == [[1.0], [1.0]]
    names = (
        "top_k",
        "top_p",
        "min_p",
        "joint",
        "typical_p",
        "xtc_probability",
        "xtc_threshold",
        "temperature_last",
    )
    assert [getattr(params, name) for name in (*names, "has_ceiling")] == [None] * 9
    plain = SamplingMetadata.from_params([SamplingParams(top_p=0.5)])
    assert [getattr(plain, name) for name in names[4:]] == [None] * 4


# Probabilities


def test_parameters_are_brought_into_range_and_what_no_row_asks_for_is_none():
    metadata = SamplingMetadata(
        temperature=torch.tensor([0.0, -1.0, NAN, 1e-300, 1e300, 0.5], dtype=torch.float64),
        top_k=torch.tensor([0, -1, 2**40, 7, 8, 9]),
        top_p=torch.tensor([NAN, 1.0, -0.5, 0.0, 0.25, 3.0], dtype=torch.float64),
        min_p=torch.tensor([NAN, -1.0, 2.0, 0.0, 0.25, 1.0], dtype=torch.float64),
    )
    found = Filters.of(metadata, 8)
    assert found.temperature.reciprocal().isfinite().all()
    assert found.temperature.tolist()[5] == 0.5
    assert (found.top_k.tolist(), found.top_k.dtype) == ([8, 8, 8, 7, 8, 8], torch.int32)
    least = pytest.approx(1e-30)
    assert found.top_p.tolist() == [OFF_TOP_P, OFF_TOP_P, least, least, 0.25, OFF_TOP_P]
    assert found.min_p.tolist() == [0.0, 0.0, 1.0, 0.0, 0.25, 1.0]
    small = SamplingMetadata(top_k=torch.tensor([0, 5, 127], dtype=torch.int8))
    assert Filters.of(small, 151_936).top_k.tolist() == [151_936, 5, 127]
    plain = Filters.of(SamplingMetadata.from_params([SamplingParams()] * 2), 8)
    assert (plain.top_k, plain.top_p, plain.min_p, plain.joint, plain.any_top_k_first) == (None,) * 4 + (
        False,
    )
    assert Filters.of(SamplingMetadata(), 8).temperature is None
    slots = [SamplingParams(top_k=2), SamplingParams(top_k=5, filter_order="joint")]
    spread = Filters.of(SamplingMetadata.from_params(slots, row_index=[1, 0, 1]), 8)
    assert (spread.top_k.tolist(), spread.chunk(slice(1, 3)).joint.tolist()) == ([5, 2, 5], [False, True])


def test_min_p_drops_and_renormalises_in_place_and_no_share_exceeds_1():
    known = torch.tensor([[0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03]] * 3)
    probs = known.clone()
    assert drop_below(probs, torch.tensor([0.5, 0.0, 1.0])).tolist() == pytest.approx([0.80, 1.0, 0.35])
    assert probs[0].tolist() == pytest.approx([0.35 / 0.8, 0.25 / 0.8, 0.2 / 0.8, 0, 0, 0, 0, 0, 0])
    assert probs[1].tolist() == pytest.approx(known[1].tolist())
    assert probs[2].tolist() == pytest.approx([1.0] + [0.0] * 8)
    # A larger share would raise the log of a kept mass above 0, and lower the p of joint rows.
    assert drop_below(torch.tensor([[0.5, 0.5, 2.0**-22]]), torch.zeros(1)).tolist() == [1.0]
    assert top_p_of_kept(torch.tensor([0.5]), None, torch.tensor([1 + 2.0**-22])).tolist() == [0.5]


def test_the_top_p_of_joint_rows_grows_as_the_others_shrink():
    top_p, mass = torch.tensor([0.82, 0.82, 0.9, OFF_TOP_P]), torch.full((4,), 0.85)
    found = top_p_of_kept(top_p, torch.tensor([True, False, True, True]), mass)
    assert found.tolist() == pytest.approx([0.82 / 0.85, 0.82, OFF_TOP_P, OFF_TOP_P])
