"""Expected failures: a list of lines with reasons in a plugin's description."""

import pytest

from mutants.samplers import SamplerMutant, sampler_mutant
from tokendraw import InvalidParameterError
from tokendraw_testing import Status, Subject, fake_dist, run

REASON = "acme issue 12: 32-bit ids"
PLUGIN = """
import tokendraw_native
from dataclasses import replace
from tokendraw.plugin import hookimpl

class Plugin(type(tokendraw_native.plugin)):
    @hookimpl
    def tokendraw_describe(self):
        info = super().tokendraw_describe()
        return replace(info, name="acme", expected_failures={"last ids": "acme issue 12: 32-bit ids"})

plugin = Plugin()
"""


class ShortIds(SamplerMutant):
    """Returns ids in a dtype that the contract does not have."""

    def output(self, output, *rest):
        return type(output)(token_ids=output.token_ids.int(), valid=output.valid)


def one_line(made, **reasons):
    under_test = sampler_mutant(made).subject(
        expected_failures={name.replace("_", " "): reason for name, reason in reasons.items()}
    )
    report = run(under_test, only="last ids", operation="sample")
    (line,) = report.lines
    return line.status, line.detail, report


def test_a_failure_that_is_expected_leaves_the_run_green_with_its_reason():
    status, detail, report = one_line(ShortIds, last_ids=REASON)
    assert (status, report.passed) == (Status.EXPECTED, True)
    assert detail.startswith(f"{REASON}; found: ")
    assert report.summary == "0 passed, 0 failed, 0 refused, 0 not run, 1 expected to fail"


def test_another_failure_is_one():
    assert one_line(ShortIds, near_ties=REASON)[0] is Status.FAILED


def test_an_expected_failure_that_passes_is_an_error():
    status, detail, report = one_line(SamplerMutant, last_ids=REASON)
    assert (status, report.passed) == (Status.FAILED, False)
    assert detail == (
        f"needs to fail, as PluginInfo.expected_failures says ({REASON}), found it passed. Take it off that list"
    )


def test_a_name_that_no_property_has_is_refused():
    with pytest.raises(InvalidParameterError) as error:
        one_line(SamplerMutant, last_id=REASON)
    assert str(error.value) == (
        "'expected_failures' of 'SamplerMutant' needs names of properties, found 'last id'. "
        "See `tokendraw check --list`."
    )


def test_the_list_of_an_installed_plugin_counts(tmp_path, monkeypatch):
    folder = fake_dist(
        tmp_path, "acme-tokendraw", plugins={"acme": "acme_plugin:plugin"}, modules={"acme_plugin": PLUGIN}
    )
    monkeypatch.syspath_prepend(folder)
    assert Subject.installed("acme", device="cpu").expected_failures == {"last ids": REASON}
