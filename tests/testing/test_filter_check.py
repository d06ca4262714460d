"""``check_filter``: shipped filters pass, and each planted bug of a filter or of a sampler turns its line red."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fake_dists import EVERYTHING, plugin
from tokendraw import InvalidParameterError, TokendrawError
from tokendraw_testing import Status, check_filter
from tokendraw_testing.filters.definitions import SHIPPED, read_definition
from tokendraw_testing.filters.run import line_names

LINE_OF_BODY = 12
STD = '"std", "count", "mean"'
ETA = '"entropy", "log_mass"'
TOP_N_SIGMA = SHIPPED["top_n_sigma"]
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


def install(dists, body, moments=STD, check=""):
    dists.add_filter(body, moments=moments, head=check)


def failures(name="acme", sampler="native", **options):
    report = check_filter(name, sampler, device="cpu", quick=True, **options)
    return {line.name: line.detail for line in report.failed}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in SHIPPED])
def test_a_shipped_filter_passes_every_line(name):
    report = check_filter(name, "native", device="cpu", quick=True)
    assert report.passed, str(report)
    assert [line.name for line in report.lines] == list(line_names(["native"]))
    assert {line.status for line in report.lines} == {Status.PASSED}
    assert sum(line.checks for line in report.lines) > 0
    assert (
        str(report) == f"{name} with native on cpu, quick, seed 0: 13 passed, 0 failed, 0 refused, 0 not run"
    )


def test_without_a_definition_one_line_says_what_it_needs(dists):
    install(dists, "return -value * moments.std")
    only = ("definition", "reach")
    report = check_filter("acme", device="cpu", quick=True, only=only)
    assert [(line.name, str(line.status)) for line in report.lines] == [
        ("definition", "not run"),
        ("reach", "passed"),
    ]
    assert report.lines[0].detail == (
        "needs a definition in float64, found none; give one by --definition FILE:FUNCTION"
    )
    assert not failures(only=only, definition=TOP_N_SIGMA)


AT_BODY = f"the floor of 'acme' (filter_acme_0.py:{LINE_OF_BODY})"
AT_METHOD = f"the floor of 'acme' (filter_acme_0.py:{LINE_OF_BODY - 1})"
BUGS = {
    "above the largest": (
        {"body": "return value * moments.std", "only": ("reach",)},
        "reach",
        f"{AT_METHOD} needs to keep several tokens and to drop others in some row, found all kept in ",
    ),
    "sample deviation": (
        {"body": "return -value * moments.std * (moments.count / (moments.count - 1)).sqrt()"},
        "definition",
        f"{AT_METHOD}: nine logits above -inf, float32, 33 tokens, temperature 0.7, value 0.7: a floor of -1.29848 ",
    ),
    "entropy in bits": (
        {
            "body": "return value.log().minimum(value.log() / 2 - moments.entropy / math.log(2)) + moments.log_mass",
            "moments": ETA,
            "check": "def check(self, value): self.check_range(value, 0.0, 1.0, 'a number in [0, 1]')",
            "definition": SHIPPED["eta_cutoff"],
        },
        "definition",
        f"{AT_METHOD}: ",
    ),
    "a column": (
        {"body": "return (-value * moments.std).unsqueeze(-1)"},
        "form of the floor",
        f"{AT_METHOD} needs to return shape [36], torch.float32 on cpu, found shape [36, 1], torch.float32 on cpu",
    ),
    "a number": (
        {"body": "return -1.0"},
        "form of the floor",
        f"{AT_METHOD} needs to return shape [36], torch.float32 on cpu, found the float -1.0",
    ),
    "float64": (
        {"body": "return -value.double() * moments.std"},
        "form of the floor",
        f"{AT_METHOD} needs to return shape [36], torch.float32 on cpu, found shape [36], torch.float64 on cpu",
    ),
    "an exception": (
        {"body": "raise ZeroDivisionError('by 0')"},
        "form of the floor",
        f"{AT_BODY} raised ZeroDivisionError: by 0",
    ),
    "a moment that is not named": (
        {"body": "return -value * moments.std", "moments": '"mean",'},
        "form of the floor",
        f"{AT_BODY} raised TypeError: unsupported operand type(s) for *: 'Tensor' and 'NoneType'",
    ),
    "changed moments": (
        {"body": "return moments.std.mul_(-value)"},
        "form of the floor",
        "'std' needs to stay as it is, found changed",
    ),
    "float of the host": (
        {"body": "return -value * moments.std * min(1.0, float(moments.std[:1].sum()) + 2)"},
        "no waiting",
        f"{AT_BODY} needs to wait for nothing, found that __float__ reads a value on the host",
    ),
    "a condition": (
        {"body": "return -value * moments.std if (value > -9e9).all() else value"},
        "no waiting",
        f"{AT_BODY} needs to wait for nothing, found that __bool__ reads a value on the host",
    ),
    "a mask of values": (
        {"body": "f = -value * moments.std; f[f > 9] = 0.0; return f"},
        "no waiting",
        f"{AT_BODY} needs to wait for nothing, found that __setitem__ reads a value on the host",
    ),
    "the mean of the batch": (
        {"body": "return -value * moments.std.clamp(max=9.0).mean()"},
        "rows apart",
        f"{AT_METHOD} needs ",
    ),
    "half precision": (
        {"body": "return (-value * moments.std).bfloat16().float()"},
        "definition",
        f"{AT_METHOD}: half of them -inf, float32, 1025 tokens, temperature 2.5, value 0.3: a floor of -0.574219 ",
    ),
    "cancellation": (
        {"body": "return -value * ((moments.std + 1e6) - 1e6)"},
        "floors in float64",
        f"{AT_METHOD} needs ",
    ),
    "a check that compares anything": (
        {
            "body": "return -value * moments.std",
            "check": "def check(self, value):\n        if value < 0: raise InvalidParameterError('acme: negative')",
        },
        "values",
        "'check' needs to refuse None by InvalidParameterError, found: The check of the filter 'acme' failed: it "
        "raised TypeError: '<' not supported between instances of 'NoneType' and 'int' (filter_acme_0.py:11). Report "
        "it to the author of the filter, or leave it out of SamplingParams.filters.",
    ),
    "a refusal without its name": (
        {
            "body": "return -value * moments.std",
            "check": "def check(self, value):\n        if value != 1.0: raise InvalidParameterError('bad')",
            "values": (1.0,),
        },
        "values",
        "the refusal of nan needs the filter's name, found: 'filters': bad",
    ),
}
OF_FLOOR = ("form of the floor", "values", "no waiting", "rows apart", "floors in float64", "definition")


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_of_a_filter_is_found_by_its_line(dists, bug):
    options, name, words = BUGS[bug]
    options = {"only": OF_FLOOR, "definition": TOP_N_SIGMA, "values": (0.3, 0.7, 1.0)} | options
    install(
        dists,
        *(options.pop(key) for key in ("body",)),
        **{k: options.pop(k) for k in ("moments", "check") if k in options},
    )
    found = failures(**options)
    assert found.get(name, "").startswith(words), found


def test_without_a_floor_of_the_right_form_nothing_else_is_looked_at(dists):
    install(dists, "return None")
    report = check_filter("acme", "native", device="cpu", quick=True)
    assert [line.name for line in report.failed] == ["form of the floor"]
    assert report.summary == (
        "1 passed, 1 failed, 0 refused, 11 not run (needs a floor of the right form, found none)"
    )


MODULES = {"row_moments": "moments", "floors": "filters"}
WRONG = {
    "sample deviation": (
        "top_n_sigma",
        "row_moments",
        "(f := plain(*arguments)) and replace(f, std=f.std * 1.01)",
    ),
    "entropy in bits": (
        "eta_cutoff",
        "row_moments",
        "(f := plain(*arguments)) and replace(f, entropy=f.entropy * 1.4427)",
    ),
    "floors without temperature": ("p_less", "floors", "plain(*arguments) * 0.9"),
    "no floors": ("p_less", "floors", "plain(*arguments).fill_(-float('inf'))"),
    "the largest is dropped": ("top_n_sigma", "floors", "-plain(*arguments)"),
}


@pytest.mark.parametrize("bug", WRONG)
def test_a_planted_bug_of_a_sampler_is_found_in_its_kept_sets(dists, bug):
    name, function, wrong = WRONG[bug]
    source = plugin("acme", capabilities=EVERYTHING, build="return Sampler(device, need)")
    dists.add_plugin(
        "acme", source + SAMPLER.format(module=MODULES[function], function=function, wrong=wrong)
    )
    found = failures(name, "acme", only=("kept sets", "distribution"))
    assert "kept sets, acme" in found, found


def test_every_sampler_with_the_moments_is_checked_beside_native(dists):
    source = plugin("acme", capabilities=EVERYTHING, build="return Sampler(device, need)")
    dists.add_plugin(
        "acme", source + SAMPLER.format(module="filters", function="floors", wrong="plain(*arguments)")
    )
    dists.add_plugin("beta", plugin("beta", capabilities="dtypes=('float32',)"))
    report = check_filter("p_less", device="cpu", quick=True, only=("seeded tokens",))
    assert report.passed, str(report)
    assert [(line.name, line.detail) for line in report.lines] == [
        ("seeded tokens, native", "12 tokens of the reference"),
        ("seeded tokens, acme", "12 tokens of the reference, 12 rows beside native"),
    ]
    assert (report.samplers, report.title) == (("native", "acme"), "p_less with native and acme")


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "words"),
    [
        (
            ("p_les",),
            {},
            TokendrawError,
            "'filter' needs an installed filter, found 'p_les', the nearest is 'p_less'. Correct it.",
        ),
        (
            ("p_less",),
            {"values": [0.5]},
            InvalidParameterError,
            "'filters': 'p_less' needs 0 (off) or 1 (on), found 0.5.",
        ),
        (
            ("p_less", "beta"),
            {},
            TokendrawError,
            "'beta' needs the moments log_mass and collision for the filter 'p_less', found nothing. Name another "
            "sampler.",
        ),
        (
            ("p_less", "gamma"),
            {},
            TokendrawError,
            "'gamma' needs to be an installed sampler that serves cpu, found native and beta. Name one of them.",
        ),
        (
            ("p_less",),
            {"only": ["reech"]},
            InvalidParameterError,
            "'only' needs the name of a line, found 'reech'. Name 'form of the floor', ",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused_in_words(dists, arguments, options, kind, words):
    dists.add_plugin("beta", plugin("beta", capabilities="dtypes=('float32',)"))
    with pytest.raises(kind) as caught:
        check_filter(*arguments, device="cpu", **options)
    assert str(caught.value).startswith(words)


class TestDefinitionsFromAFile:
    def test_a_function_is_found(self, tmp_path):
        path = tmp_path / "definition.py"
        path.write_text("def kept(y, value):\n    return y >= -value\n", encoding="utf-8")
        assert read_definition(f"{path}:kept")(np.array([0.0, -2.0]), 1.0).tolist() == [True, False]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (
                "nowhere.py:kept",
                "needs FILE:FUNCTION with a Python file, such as definition.py:kept, found 'nowhere.py:kept'.",
            ),
            (
                f"{__file__}:failuers",
                f"needs a function of {__file__!r}, found 'failuers', the nearest is 'failures'.",
            ),
        ],
    )
    def test_anything_else_is_refused(self, text, words):
        with pytest.raises(InvalidParameterError) as caught:
            read_definition(text)
        assert str(caught.value) == f"'--definition' {words}"
        sys.modules.pop(Path(__file__).stem, None)
