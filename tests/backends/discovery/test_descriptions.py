"""A plugin's description against the plugin API: every slip is a state with a reason on one printable line.

Whatever a plugin or its metadata hold, such as endless numbers or escape codes, discovery ends, and native draws.
"""

import re
import warnings
from dataclasses import fields

import pytest

import tokendraw
from fake_candidates import H100
from fake_dists import discovered, plugin, verdict
from tokendraw import operations
from tokendraw.backends.description.declared import rules_of
from tokendraw.backends.discovery import discover
from tokendraw.plugin import HostCapabilities, Release
from tokendraw.resolution import State

HOME = "tokendraw.plugin"
HOOKIMPL = "found none; define it with @tokendraw.plugin.hookimpl"
SHORT = "a tuple of at least one short string or None"
DTYPES = "a tuple of at least one of 'float32', 'bfloat16' or 'float16'"
FROM_TO = "needs an integer from -1000000 to 1000000"
ONE_LINE = "needs one printable line of at most 500 characters"
EVIL = r"\x1b[31mred\nforged line\u202e"
"""Source of a string literal: a colour, a line break and a change of the writing direction."""
TAMED = r"\x1b[31mred forged line\u202e"
"""What is shown of it in prose: the line break is a space, the rest its escapes. A name shows escapes alone."""


def described(**given):
    """Return the source of a plugin called acme with these fields in its description, each an expression."""
    given = {
        "name": "'acme'",
        "api_version": "1",
        "priority": "50",
        "operations": "{'sample': tokendraw.plugin.Capabilities()}",
    } | given
    arguments = ", ".join(f"{field}={value}" for field, value in given.items() if value)
    return plugin("acme", describe=f"return {HOME}.PluginInfo({arguments})")


def offering(operation, capabilities):
    return described(operations=f"{{{operation!r}: {HOME}.{capabilities}}}")


BROKEN = {
    # The plugin object and its hooks
    "plugin = None": f"'fake_acme:plugin' needs the hook tokendraw_describe, {HOOKIMPL}",
    "plugin = 3": f"'fake_acme:plugin' needs the hook tokendraw_describe, {HOOKIMPL}",
    f"plugin = type('{EVIL}', (), {{}})": (
        f"'fake_acme:plugin' needs to be a plugin object, found the class {EVIL}; add ()"
    ),
    plugin("acme").replace("    @tokendraw.plugin.hookimpl\n    def tokendraw_build", "    def build"): (
        f"'fake_acme:plugin' needs the hook tokendraw_build, {HOOKIMPL}"
    ),
    plugin("acme").replace("def tokendraw_probe", "def tokendraw_prove"): (
        "registering 'fake_acme:plugin' raised PluginValidationError: unknown hook 'tokendraw_prove' ..."
    ),
    plugin("acme").replace("self, operation, host, need", "self, operation, gpu"): (
        "... Argument(s) {'gpu'} are declared in the hookimpl but can not be found ..."
    ),
    # What loading and describing raise
    f"raise OSError('{EVIL}')": f"loading 'fake_acme:plugin' raised OSError: {TAMED}",
    f"raise type('{EVIL}', (OSError,), {{}})('gone')": f"loading 'fake_acme:plugin' raised {EVIL}: gone",
    f"import tokendraw\nraise tokendraw.PluginError('{EVIL}')": TAMED,
    plugin("acme", describe="raise ValueError('no')"): "tokendraw_describe raised ValueError: no",
    plugin("acme", describe="import sys; sys.exit()"): "tokendraw_describe raised SystemExit",
    described(api_version=""): (
        "tokendraw_describe raised TypeError: PluginInfo.__init__() missing 1 ... 'api_version'"
    ),
    # The description
    plugin("acme", describe="return None"): (
        "tokendraw_describe needs to return a tokendraw.plugin.PluginInfo, found None"
    ),
    plugin("acme", describe=f"return type('{EVIL}', (), {{}})()"): (
        f"tokendraw_describe needs to return a tokendraw.plugin.PluginInfo, found {EVIL}"
    ),
    described(name=f"'{EVIL}'"): f"PluginInfo.name needs to be the entry point's name 'acme', found '{EVIL}'",
    described(name="'other'"): "PluginInfo.name needs to be the entry point's name 'acme', found 'other'",
    described(api_version="'2'"): f"PluginInfo.api_version {FROM_TO}, found '2'",
    described(api_version="True"): f"PluginInfo.api_version {FROM_TO}, found True",
    described(priority="1000001"): f"PluginInfo.priority {FROM_TO}, found 1000001",
    described(priority="float('nan')"): f"PluginInfo.priority {FROM_TO}, found nan",
    described(summary=f"'{EVIL}'"): f"PluginInfo.summary {ONE_LINE}, found '{EVIL}'",
    described(summary="'x' * 501"): f"PluginInfo.summary {ONE_LINE}, found '{'x' * 199} ...",
    described(verified="'a\\tb'"): rf"PluginInfo.verified {ONE_LINE}, found 'a\tb'",
    described(kernels="None"): f"PluginInfo.kernels {ONE_LINE}, found None",
    # Operations and capabilities
    described(operations="{}"): "PluginInfo.operations needs at least one operation, found {}",
    described(operations="{'sample': 3}"): "PluginInfo.operations needs Capabilities by name, found int",
    described(operations=f"{{'{EVIL}': {HOME}.Capabilities()}}"): (
        f"PluginInfo.operations needs Capabilities by name, found '{EVIL}'"
    ),
    offering("verify", "Capabilities()"): (
        "PluginInfo.operations needs VerifyCapabilities for the operation 'verify', found Capabilities"
    ),
    offering("paint", "HostCapabilities(device_types='cuda')"): (
        f"HostCapabilities.device_types of the operation 'paint' needs {SHORT}, found 'cuda'"
    ),
    # The upstream
    described(upstream="'acme'"): (
        "PluginInfo.upstream needs a tokendraw.plugin.Upstream or None, found str"
    ),
    described(upstream=f"{HOME}.Upstream('', '>=1')"): (
        "Upstream.distribution needs a distribution's name, found ''"
    ),
    described(upstream=f"{HOME}.Upstream('no such; name', '>=1')"): (
        "Upstream.distribution needs a distribution's name, found 'no such; name'"
    ),
    described(upstream=f"{HOME}.Upstream('a', 'new')"): (
        "Upstream.versions needs a PEP 440 range, found 'new'"
    ),
    described(upstream=f"{HOME}.Upstream('a', '>=1\\n')"): (
        r"Upstream.versions needs a PEP 440 range, found '>=1\n'"
    ),
    described(upstream=f"{HOME}.Upstream('a', None)"): "Upstream.versions needs a PEP 440 range, found None",
    described(upstream=f"{HOME}.Upstream('a', '>=1', ('x.y',))"): (
        "Upstream.tested needs a tuple of PEP 440 versions or ranges, found ('x.y',)"
    ),
    described(upstream=f"{HOME}.Upstream('a', '>=1', '1.0')"): (
        "Upstream.tested needs a tuple of PEP 440 versions or ranges, found '1.0'"
    ),
}
"""Reason by source; three dots stand for any text."""
CAPABILITIES = {
    "device_types=('cuda')": f"device_types needs {SHORT}, found 'cuda'",
    "rocm_archs=['gfx942']": f"rocm_archs needs {SHORT}, found ['gfx942']",
    f"rocm_archs=('{EVIL}',)": f"rocm_archs needs {SHORT}, found ('{EVIL}',)",
    "compute_capability=(8, 0)": (
        "compute_capability needs ((major, minor), (major, minor) or None) or None, found (8, 0)"
    ),
    "min_sm_count='17'": "min_sm_count needs an integer from 0 to 2**63 - 1, found '17'",
    "dtypes=('fp32',)": f"dtypes needs {DTYPES}, found ('fp32',)",
    "dtypes=()": f"dtypes needs {DTYPES}, found ()",
    "filters=('top_k',)": (
        "filters needs a tuple of ('top_k', 'top_p', 'min_p', 'typical_p' or 'xtc', 'per_row' or 'scalar'), "
        "found ('top_k',)"
    ),
    "seeding='row'": "seeding needs 'none', 'launch' or 'counter', found 'row'",
    "greedy=1": "greedy needs True or False, found 1",
    "max_top_k=-1": "max_top_k needs an integer from 0 to 2**63 - 1 or None, found -1",
}
BROKEN |= {
    offering("sample", f"Capabilities({fields})"): "Capabilities.{} of the operation 'sample' {}".format(
        *reason.split(" ", 1)
    )
    for fields, reason in CAPABILITIES.items()
}


@pytest.mark.parametrize(("source", "reason"), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_slip_makes_a_plugin_broken_and_native_draws(dists, source, reason):
    dists.add_plugin("acme", source)
    state, found = verdict()
    assert state is State.BROKEN
    assert found == reason or re.fullmatch(".*".join(map(re.escape, reason.split("..."))), found)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert tokendraw.load_sampler(device="cpu").name == "native"


def test_a_hook_may_leave_out_arguments(dists):
    dists.add_plugin("acme", plugin("acme").replace("self, operation, host, need", "self"))
    assert verdict() == (State.AVAILABLE, None)


@pytest.mark.parametrize(
    ("api_version", "reason"),
    [
        ("99", "needs plugin API 99, found 1; upgrade tokendraw"),
        ("0", "needs plugin API 0, found 1; upgrade acme-tokendraw"),
    ],
)
def test_another_api_version_makes_a_plugin_incompatible_and_its_operations_are_not_believed(
    dists, api_version, reason
):
    dists.add_plugin("acme", described(api_version=api_version, operations="'all'"))
    assert verdict() == (State.INCOMPATIBLE, reason)
    assert (discovered().priority, dict(discovered().info.operations)) == (50, {})
    assert {d.name: d.reason for d in tokendraw.resolve(device="cpu").decisions}["acme"] == reason


@pytest.mark.parametrize(
    ("oldest", "found"),
    [
        (1, (State.AVAILABLE, None)),
        (2, (State.INCOMPATIBLE, "needs plugin API 1, found 2; upgrade acme-tokendraw")),
    ],
)
def test_a_plugin_of_an_older_api_version_is_taken_until_the_core_drops_that_version(
    dists, monkeypatch, oldest, found
):
    monkeypatch.setattr(discover, "API_VERSION", 2)
    monkeypatch.setattr(discover, "OLDEST_API_VERSION", oldest)
    dists.add_plugin("acme", plugin("acme"))
    assert verdict() == found


@pytest.mark.parametrize("name", operations.RECORDS)
def test_every_field_of_the_capabilities_of_an_operation_is_validated(name):
    declared = operations.find_operation(name).capabilities
    rules = rules_of(declared)
    assert list(rules) == [field.name for field in fields(declared)]
    for field in fields(declared):
        assert rules[field.name].fits(field.default), field.name
        assert not rules[field.name].fits(object()), field.name
    promises = {"dtypes", "filter_orders", "gumbel_dtypes", "device_types", "rocm_archs"}
    assert [field for field in promises & {*rules} if rules[field].fits(())] == []


def test_of_an_unknown_operation_what_the_host_has_to_be_is_read(dists):
    dists.add_plugin("acme", offering("paint", "Capabilities(graph_safe=True, dtypes=3)"))
    assert verdict() == (State.UNAVAILABLE, "needs the operation sample, found paint")
    assert discovered().capabilities("paint") == HostCapabilities(graph_safe=True)


# The table of an upstream's releases


def rows(*table):
    """Return the source of an upstream of 2.x with this table of releases."""
    return f"tokendraw.plugin.Upstream('a', '>=2,<3', (), ({' '.join(f'{row},' for row in table)}))"


def row(arguments):
    return f"tokendraw.plugin.Release({arguments})"


OLD = row("'0', 'lacks it', refused=True")


@pytest.mark.parametrize(
    ("upstream", "reason"),
    [
        (
            "tokendraw.plugin.Upstream('a', '>=2', (), [])",
            "Upstream.releases needs a tuple of Release, found []",
        ),
        (rows("'2.0'"), "Upstream.releases needs a tuple of Release, found '2.0' in it"),
        (rows(row("'new', 'w'")), "Release.since needs a final or post release, found 'new'"),
        (rows(row("'2.1rc1', 'w'")), "Release.since needs a final or post release, found '2.1rc1'"),
        (rows(row("'2.1+cu128', 'w'")), "Release.since needs a final or post release, found '2.1+cu128'"),
        (rows(row("2.1, 'w'")), "Release.since needs a final or post release, found 2.1"),
        (rows(row("'2.1', ''")), "Release.says of 2.1 needs one printable line, found ''"),
        (rows(row("'2.1', 'a\\nb'")), "Release.says of 2.1 needs one printable line, found 'a\\nb'"),
        (rows(row("'2.1', 'w', ''")), "Release.operation of 2.1 needs a name or None, found ''"),
        (rows(row("'2.1', 'w', refused='no'")), "Release.refused of 2.1 needs True or False, found 'no'"),
        (rows(row("'2.1', 'w', change=3")), "Release.change of 2.1 needs one printable line, found 3"),
        (
            rows(row("'2', 'works'")),
            "Upstream.releases about all operations needs to begin with the release '0', found '2'",
        ),
        (
            rows(OLD, row("'2', 'works'"), row("'2.1', 'draws', 'sample'")),
            "Upstream.releases about sample needs to begin with the release '0', found '2.1'",
        ),
        (
            rows(OLD, row("'2.1', 'works'"), row("'2.1.0', 'fails', refused=True")),
            "Upstream.releases about all operations needs ascending releases, found '2.1.0' behind '2.1'",
        ),
        (
            rows(OLD, row("'2.1', 'works'"), row("'2.0.post1', 'fails', refused=True")),
            "Upstream.releases about all operations needs ascending releases, found '2.0.post1' behind '2.1'",
        ),
        (rows(OLD), "Upstream.releases about all operations needs a row that is used, found none"),
        (
            rows(OLD, row("'1.9', 'works'")),
            "Upstream.releases about all operations needs used releases within '>=2,<3', found '1.9'",
        ),
        (
            rows(OLD, row("'2', 'works'"), row("'3', 'works'")),
            "Upstream.releases about all operations needs used releases within '>=2,<3', found '3'",
        ),
        (
            rows(
                OLD,
                row("'2.1', 'works'"),
                row("'0', 'draws not', 'sample', refused=True"),
                row("'2', 'draws', 'sample'"),
            ),
            "Upstream.releases about sample uses '2', which the row '0' refuses for all operations",
        ),
        (
            "tokendraw.plugin.Upstream('a', found={'sample': ''}, versions='')",
            "Upstream.found needs words by operation, found {'sample': ''}",
        ),
        (
            "tokendraw.plugin.Upstream('a', found=('sample',), versions='')",
            "Upstream.found needs words by operation, found ('sample',)",
        ),
        (
            "tokendraw.plugin.Upstream('a', found={'samlpe': 'w'}, versions='')",
            "Upstream.found needs operations that Upstream.releases has rows about, found 'samlpe'",
        ),
    ],
)
def test_a_table_of_releases_that_says_two_things_or_none_makes_a_plugin_broken(dists, upstream, reason):
    dists.add_plugin("acme", plugin("acme", upstream=upstream))
    assert verdict() == (State.BROKEN, reason)


def test_a_sound_table_is_kept_as_it_is(dists):
    table = [OLD, row("'2', 'works'"), row("'2.5.post1', 'works too', change='nothing'")]
    dists.add_plugin("acme", plugin("acme", upstream=rows(*table)))
    upstream = discovered().info.upstream
    assert upstream.releases == (
        Release("0", "lacks it", refused=True),
        Release("2", "works"),
        Release("2.5.post1", "works too", change="nothing"),
    )
    assert upstream.found == {}


# Upstream, by the metadata of real distributions
UPSTREAM = "tokendraw.plugin.Upstream('acme-kernels', '>=2,<3', ('2.1.4',))"


def test_an_upstream_is_found_by_its_metadata_and_not_by_a_module_of_its_name(dists):
    dists.add("unrelated", modules={"acme_kernels": "raise OSError"})
    dists.add_plugin("acme", plugin("acme", upstream=UPSTREAM))
    assert discovered().upstream_version is None
    assert verdict() == (
        State.UNAVAILABLE,
        "needs acme-kernels >=2,<3, found it not installed; run `pip install 'acme-kernels>=2,<3'`",
    )


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("Version: 3.0\n", "found 3.0"),
        ("Version: trunk\n", "found the version 'trunk', which is no PEP 440 version; reinstall it"),
        (
            "Version: 2.1\x1b[31m\n",
            r"found the version '2.1\\x1b[31m', which is no PEP 440 version; reinstall it",
        ),
        (
            f"Version: {'9' * 5000}\n",
            f"found the version '{'9' * 500} ...', which is no PEP 440 version; reinstall it",
        ),
        ("", "found the version '', which is no PEP 440 version; reinstall it"),
    ],
    ids=["outside", "unreadable", "escape codes", "endless", "none"],
)
def test_an_upstream_of_a_wrong_or_unreadable_version_makes_a_plugin_unavailable(dists, version, reason):
    dists.add("acme-kernels", "3.0", metadata=f"Name: acme-kernels\n{version}")
    dists.add_plugin("acme", plugin("acme", upstream=UPSTREAM))
    assert verdict() == (State.UNAVAILABLE, f"needs acme-kernels >=2,<3, {reason}")
    assert discovered().upstream_version.isprintable()


# The probe


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        ("f'needs a compiler, found none on {host.device_type}'", "needs a compiler, found none on cpu"),
        (f"'needs {EVIL}'", f"needs {TAMED}"),
    ],
)
def test_what_the_probe_says_is_the_reason(dists, probe, reason):
    dists.add_plugin("acme", plugin("acme", probe=probe))
    assert verdict() == (State.UNAVAILABLE, reason)
    assert discovered().probe_reason == reason


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        ("True", "needs to return a sentence or None, found True"),
        ("''", "needs to return a sentence or None, found ''"),
        ("' \\n'", r"needs to return a sentence or None, found ' \n'"),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
        ("__import__('sys').exit(0)", "raised SystemExit: 0"),
    ],
)
def test_a_probe_that_answers_without_words_makes_a_plugin_broken(dists, probe, reason):
    dists.add_plugin("acme", plugin("acme", probe=probe))
    assert verdict() == (State.BROKEN, f"tokendraw_probe {reason}")


def test_a_plugin_that_cannot_fit_anyway_is_not_probed(dists):
    source = plugin("acme", capabilities="device_types=('cuda',)", probe="1 / 0")
    dists.add_plugin("acme", source)
    assert verdict() == (State.UNAVAILABLE, "needs a cuda device, found cpu")
    (on_gpu,) = [c for c in tokendraw.discover(host=H100) if c.name == "acme"]
    assert on_gpu.state is State.BROKEN


@pytest.mark.parametrize(
    ("name", "distribution", "whom"),
    [("acme", "acme-tokendraw", "its author"), ("aiter", "tokendraw-aiter", "tokendraw's maintainers")],
)
def test_a_slow_probe_is_reported_to_whoever_can_mend_it(
    dists, monkeypatch, caplog, name, distribution, whom
):
    dists.add_plugin(name, plugin(name, probe="__import__('time').sleep(0.01)"), distribution=distribution)
    monkeypatch.setattr(discover, "_SLOW_PROBE_SECONDS", 0.005)
    assert discovered(name).state is State.AVAILABLE
    assert [record.getMessage() for record in caplog.records if f"'{name}'" in record.getMessage()] == [
        f"tokendraw_probe of '{name}' took 0.0 s, needs less than 0.005 s. Report it to {whom}."
    ]
