"""The rule in float64, and the lines of ``tokendraw check --filter``, which compares the floors with the rule."""

from tokendraw_testing import check_filter


def kept(y, value):
    """Mark the kept tokens of y [n] float64: the finite logits of a row at its temperature, 0 the largest."""
    return y >= -value * y.std(ddof=min(1, len(y) - 1))


def test_the_filter_passes_its_check():
    report = check_filter("top_n_sigma_sample", device="cpu", quick=True, definition=kept)
    assert report.passed, str(report)
