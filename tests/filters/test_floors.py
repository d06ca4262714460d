"""``combined_floor``: clamped floors, the highest of several, and faults of a filter by its name."""

import math

import pytest
import torch

from tokendraw.filters import FilterError, RowMoments, combined_floor

NAN, INF = math.nan, math.inf
MEAN = torch.tensor([-2.0, -3.0, NAN, -INF, 5.0])


@pytest.fixture
def acme(dists):
    """Install the filter ``acme`` with a body of its floor."""
    return lambda body: dists.add_filter(body, moments="'mean',", head="off = -1.0")


def floors(values, names=("acme",), **moments):
    return combined_floor(
        names, torch.tensor(values).view(-1, len(names)), RowMoments(mean=MEAN.clone(), **moments)
    )


def test_a_floor_is_clamped_to_what_keeps_the_largest_token_and_to_off(acme):
    acme("return moments.mean")
    assert floors([1.0] * 5).tolist() == [-2.0, -3.0, -INF, -INF, 0.0]


def test_rows_with_the_value_off_or_nan_do_not_ask(acme):
    acme("return moments.mean")
    assert floors([-1.0, NAN, 1.0, 1.0, -1.0]).tolist() == [-INF] * 5


def test_the_highest_of_several_floors_counts(acme):
    acme("return moments.mean")
    std = torch.tensor([1.0, 7.0, 4.0, 1.0, 1.0])
    values = [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [-1.0, 0.0]]
    found = floors(values, ("acme", "top_n_sigma"), std=std)
    assert found.tolist() == [-1.0, -3.0, -4.0, -INF, -INF]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ZeroDivisionError('by 0')", "its floor raised ZeroDivisionError: by 0 (filter_acme_0.py:12)"),
        ("raise SystemExit(3)", "its floor raised SystemExit: 3 (filter_acme_0.py:12)"),
        ("return moments.mean.mul_(-1)", "its floor changed 'mean' in place"),
        ("return value.neg_()", "its floor changed 'value' in place"),
        ("return None", "its floor needs to be a tensor, found None"),
        ("return 0.5", "its floor needs to be a tensor, found float"),
        (
            "return moments.mean[:1]",
            "its floor needs shape [5], torch.float32 on cpu, found [1], torch.float32 on cpu",
        ),
        (
            "return moments.mean.double()",
            "its floor needs shape [5], torch.float32 on cpu, found [5], torch.float64 on cpu",
        ),
        (
            "return moments.mean.to('meta')",
            "its floor needs shape [5], torch.float32 on cpu, found [5], torch.float32 on meta",
        ),
    ],
)
def test_a_fault_of_a_filter_is_told_with_its_name(acme, body, reason):
    acme(body)
    with pytest.raises(FilterError) as caught:
        floors([1.0] * 5)
    assert str(caught.value) == (
        f"The filter 'acme' failed, so nothing was drawn: {reason}. Report it to the author of the filter, or leave "
        "it out of SamplingParams.filters."
    )


def test_in_inference_mode_a_filter_that_changes_its_arguments_changes_copies(acme):
    """Such tensors count no changes."""
    acme("return value.neg_().mul_(moments.mean.abs_())")
    with torch.inference_mode():
        values, moments = torch.ones(5, 1), RowMoments(mean=MEAN.clone())
        found = combined_floor(("acme",), values, moments)
    assert found.tolist() == [-2.0, -3.0, -INF, -INF, -5.0]
    assert (values == 1).all()
    assert moments.mean.tolist()[:2] == [-2.0, -3.0]
