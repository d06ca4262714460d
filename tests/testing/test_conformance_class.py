"""The conformance kit as a class of pytest tests: overriding, fixtures, and failure output."""

import re
import textwrap

import pytest

from tokendraw_testing import SamplerConformance, properties
from tokendraw_testing.conformance import test_name as name_of

pytest_plugins = ["pytester"]

VENDOR = '''
import pytest
import torch

from tokendraw import SamplerOutput
from tokendraw.plugin import Capabilities
from tokendraw_testing import SamplerConformance, Subject


class Tiny:
    """Draws rightly from float32 logits, and can do nothing else."""

    def sample(self, logits, metadata):
        noise = torch.empty_like(logits).exponential_()
        drawn = (logits.softmax(dim=-1) / noise).argmax(dim=-1)
        return SamplerOutput(token_ids=drawn, valid=torch.ones(len(logits), dtype=torch.bool))


class Wrong:
    """Returns ids of a dtype that the contract does not have."""

    def sample(self, logits, metadata):
        drawn = logits.argmax(dim=-1).int()
        return SamplerOutput(token_ids=drawn, valid=torch.ones(len(logits), dtype=torch.bool))


class Raising:
    def sample(self, logits, metadata):
        raise RuntimeError("no kernel for this")


def a_subject(sampler, expected_failures={}, **promises):
    return Subject(
        "tiny", capabilities={"sample": Capabilities(**promises)}, device="cpu", build=lambda *_: sampler, quick=True,
        expected_failures=expected_failures,
    )
'''


def conformance_class(sampler, *tests, expected_failures=None, **promises):
    """Source of a subclass with the fixture ``subject`` of a sampler, and further tests."""
    fixture = f"""
class TestAcme(SamplerConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls):
        return a_subject({sampler}(), {expected_failures or {}}, **{promises})
"""
    return "\n".join((fixture, *(textwrap.indent(textwrap.dedent(test), "    ") for test in tests)))


def overriding(mark="", name="test_limits"):
    """Define a subclass with a marked override of a standard test."""
    source = f"class TestAcme(SamplerConformance):\n    {mark}\n    def {name}(self, subject): ..."
    exec(source, {"pytest": pytest, "SamplerConformance": SamplerConformance})


@pytest.fixture
def outcome(pytester):
    """``outcome(source, *options)``: pytest on the tests of a plugin's author, where a warning is an error."""

    def run(source, *options, in_process=True):
        pytester.makepyfile(test_acme=VENDOR + textwrap.dedent(source))
        start = pytester.runpytest_inprocess if in_process else pytester.runpytest_subprocess
        return start("-p", "no:cacheprovider", "-W", "error", *options)

    return run


def test_every_property_has_a_test_in_the_order_of_a_report_with_its_words():
    tests = [name for name in vars(SamplerConformance) if name.startswith("test_")]
    assert tests == [name_of(prop) for prop in properties()]
    assert len(set(tests)) == len(tests)
    for name, prop in zip(tests, properties(), strict=True):
        assert re.fullmatch(r"test(_[a-z0-9]+)+", name), prop.name
        assert prop.about.endswith(".")
        assert getattr(SamplerConformance, name).__doc__ == prop.about


@pytest.mark.parametrize("mark", ["", "@pytest.mark.xfail(reason='acme issue 12')"])
def test_overriding_is_a_type_error_that_names_the_list_of_expected_failures(mark):
    overriding(name="test_something_else")
    with pytest.raises(TypeError) as error:
        overriding(mark)
    assert str(error.value) == (
        "TestAcme.test_limits overrides a standard test. If it is known to fail, say so in "
        "PluginInfo.expected_failures, or leave the test alone."
    )


def test_an_expected_failure_shows_with_its_reason(outcome):
    result = outcome(
        conformance_class("Wrong", expected_failures={"output": "32-bit ids, acme issue 12"}),
        "-k=test_output and not outlive",
        "-rx",
    )
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines(
        ["XFAIL test_acme.py::TestAcme::test_output - 32-bit ids, acme issue 12; found: *int64*"]
    )


FIXTURE = """
class TestAcme(SamplerConformance):
    @pytest.fixture
    def subject(self):
        return Tiny()
"""


@pytest.mark.parametrize(
    ("source", "ended", "told"),
    [
        (
            "class TestAcme(SamplerConformance): ...",
            "errors",
            "TestAcme needs a fixture 'subject' that returns a tokendraw_testing.Subject, found none. "
            "Define it in the class.",
        ),
        (
            FIXTURE,
            "failed",
            "E * TypeError: the fixture 'subject' needs to return a tokendraw_testing.Subject, found Tiny. "
            "Return Subject.installed(...).",
        ),
    ],
    ids=["none", "another result"],
)
def test_a_subclass_without_a_fixture_for_the_subject_is_refused(outcome, source, ended, told):
    result = outcome(source, "-k=test_output and not outlive")
    result.assert_outcomes(**{ended: 1})
    result.stdout.fnmatch_lines([told])


def test_unadvertised_lines_pass_by_a_refusal_and_lines_for_a_gpu_are_skipped(outcome):
    result = outcome(
        conformance_class("Tiny", graph_safe=True),
        "-k=(test_output and not outlive) or batch_invariance or sync_free or graph_capture or manual_seed",
        "-v",
        "-rs",
    )
    result.stdout.fnmatch_lines_random(
        [
            "*::TestAcme::test_output PASSED*",
            "*::TestAcme::test_batch_invariance PASSED*",
            "*::TestAcme::test_sync_free PASSED*",
            "*::TestAcme::test_graph_capture SKIPPED*",
            "*::TestAcme::test_torch_manual_seed SKIPPED*",
            "SKIPPED * needs a CUDA device, found cpu",
            "SKIPPED * tiny does not advertise it",
        ]
    )
    assert set(result.parseoutcomes()) == {"passed", "skipped", "deselected"}


def test_a_failure_reads_as_needed_and_found_without_the_frames_of_the_kit(outcome):
    result = outcome(conformance_class("Wrong"), "-k=test_output and not outlive")
    result.assert_outcomes(failed=1)
    documented = result.stdout.str()
    assert "\noutput: a call needs to return token_ids [" in documented
    assert "] torch.int64 on cpu, found [" in documented
    assert "\ndemanded: " in documented
    assert "_conformance.py" not in documented


def test_a_raising_sampler_is_shown_with_the_frames_of_the_sampler(outcome):
    result = outcome(conformance_class("Raising"), "-k=test_output and not outlive")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "output: a call raised RuntimeError: no kernel for this",
            "raised in:",
            '  File "*test_acme.py", line *, in sample',
            '    raise RuntimeError("no kernel for this")',
        ]
    )
    assert "_subject.py" not in result.stdout.str()
