"""``check_filter``: shipped filters pass, and each planted bug of a filter or of a sampler turns its line red."""

import numpy as np
import pytest

from fake_dists import EVERYTHING, plugin
from tokendraw import InvalidParameterError
from tokendraw_testing import Status, check_filter
from tokendraw_testing.commands.check import read_definition
from tokendraw_testing.filter_check import line_names

SAMPLED = "filters from moments, native"
STD = "-value * moments.std"
SAMPLER = """
class Sampler:
    def __init__(self, device, need):
        from tokendraw_native import plugin
        self.native = plugin.tokendraw_build("sample", device, need)

    def sample(self, logits, metadata):
        from dataclasses import replace
        import tokendraw_native.{module} as module

        plain = module.{function}
        module.{function} = lambda *arguments: {wrong}
        try:
            return self.native.sample(logits, metadata)
        finally:
            module.{function} = plain
"""


def deviations(y, value):
    return y >= -value * y.std()


def failures(name="acme", sampler="native", **options):
    report = check_filter(name, sampler, device="cpu", quick=True, **options)
    return {line.name: line.detail for line in report.failed}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["top_n_sigma", "epsilon_cutoff", "eta_cutoff", "p_less"])
def test_a_shipped_filter_passes_every_line(name):
    report = check_filter(name, "native", device="cpu", quick=True)
    assert report.passed, str(report)
    assert [line.name for line in report.lines] == list(line_names(["native"]))
    assert {line.status for line in report.lines} == {Status.PASSED}


def test_without_a_definition_one_line_says_what_it_needs(dists):
    dists.add_filter(f"return {STD}", moments='"std",')
    only = ("definition", "filters from moments")
    report = check_filter("acme", device="cpu", quick=True, only=only)
    assert [(line.name, str(line.status)) for line in report.lines] == [
        ("definition", "not run"),
        ("filters from moments, native", "passed"),
    ]
    assert not failures(only=("definition",), definition=deviations)


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("return value * moments.std", "definition", "the floor of 'acme' needs to keep several tokens"),
        (
            f"return {STD} * (1 + 1 / moments.count)",
            "definition",
            "half of them -inf, 21 finite logits, value 0.3: a floor of -0.56084 keeps 5",
        ),
        (f"return ({STD}).unsqueeze(-1)", "definition", "its floor needs shape [1], torch.float"),
        ("raise ZeroDivisionError('by 0')", "definition", "ZeroDivisionError: by 0 (filter_acme_0.py:12)"),
        ("return moments.std.mul_(-value)", "definition", "its floor changed 'std' in place"),
        (f"return {STD} * min(1.0, float(value.sum()) + 99)", "no waiting", "no value on the host"),
        ("return -value * moments.std.clamp(max=9.0).mean()", SAMPLED, "needs "),
        ("return -value * ((moments.std + 1e6) - 1e6)", SAMPLED, "needs the threshold "),
        (f"return ({STD}).bfloat16().to(value.dtype)", "definition", "they differ in the token at y = "),
    ],
)
def test_a_planted_bug_of_a_filter_is_found_by_its_line(dists, body, line, words):
    dists.add_filter(body, moments='"std", "count"')
    found = failures(only=(line,), definition=deviations, values=(0.3, 0.7, 1.0))
    assert words in found.get(line, ""), found


@pytest.mark.parametrize(
    ("name", "module", "function", "wrong"),
    [
        (
            "top_n_sigma",
            "filters",
            "row_moments",
            "(f := plain(*arguments)) and replace(f, std=f.std * 1.01)",
        ),
        ("p_less", "filters", "floors", "plain(*arguments) * 0.9"),
        ("p_less", "filters", "floors", "plain(*arguments).fill_(-float('inf'))"),
    ],
)
def test_a_planted_bug_of_a_sampler_is_found_in_its_kept_sets(dists, name, module, function, wrong):
    source = plugin("acme", capabilities=EVERYTHING, build="return Sampler(device, need)")
    dists.add_plugin("acme", source + SAMPLER.format(module=module, function=function, wrong=wrong))
    assert "filters from moments, acme" in failures(name, "acme", only=("filters from moments",))


def test_a_definition_comes_from_a_file(tmp_path):
    path = tmp_path / "definition.py"
    path.write_text("def kept(y, value):\n    return y >= -value\n", encoding="utf-8")
    assert read_definition(f"{path}:kept")(np.array([0.0, -2.0]), 1.0).tolist() == [True, False]
    with pytest.raises(InvalidParameterError, match="the nearest is 'kept'"):
        read_definition(f"{path}:kpt")
