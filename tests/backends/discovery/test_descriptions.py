"""A plugin's description against the plugin API: every slip is a state with a reason."""

from dataclasses import fields

import pytest

import tokendraw
from fake_candidates import H100
from fake_dists import discovered, fake_dists, plugin, verdict
from tokendraw import operations
from tokendraw.backends.description.declared import rules_of
from tokendraw.backends.discovery import discover
from tokendraw.plugin import HostCapabilities, Release
from tokendraw.resolution import State


@pytest.fixture
def dists(tmp_path, monkeypatch):
    with fake_dists(tmp_path, monkeypatch) as found:
        yield found


HOOKIMPL = "found none; define it with @tokendraw.plugin.hookimpl"
HOME = "tokendraw.plugin"
SHORT = "a tuple of at least one short string or None"
DTYPES = "a tuple of at least one of 'float32', 'bfloat16' or 'float16'"
FROM_TO = "needs an integer from -1000000 to 1000000"


def info(operations="{}", api_version="1", priority="5", name="acme"):
    """Return the source of a description, each argument an expression but the name."""
    arguments = f"name={name!r}, api_version={api_version}, priority={priority}, operations={operations}"
    return f"return {HOME}.PluginInfo({arguments})"


# What can be wrong with the plugin object


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("plugin = None", f"needs the hook tokendraw_describe, {HOOKIMPL}"),
        ("plugin = 3", f"needs the hook tokendraw_describe, {HOOKIMPL}"),
        ("class Acme: pass\nplugin = Acme", "needs to be a plugin object, found the class Acme; add ()"),
        (
            plugin("acme").replace(
                "    @tokendraw.plugin.hookimpl\n    def tokendraw_build", "    def build"
            ),
            f"needs the hook tokendraw_build, {HOOKIMPL}",
        ),
    ],
)
def test_an_object_that_is_no_plugin_is_broken(dists, source, reason):
    dists.add_plugin("acme", source)
    assert verdict() == (State.BROKEN, f"'fake_acme:plugin' {reason}")


def test_a_hook_that_nobody_asks_for_is_a_misspelling(dists):
    source = plugin("acme").replace("def tokendraw_probe", "def tokendraw_prove")
    dists.add_plugin("acme", source)
    state, reason = verdict()
    assert state is State.BROKEN
    assert str(reason).startswith(
        "registering 'fake_acme:plugin' raised PluginValidationError: unknown hook 'tokendraw_prove'"
    )


def test_a_hook_with_an_argument_that_is_never_given_is_broken(dists):
    source = plugin("acme").replace("self, operation, host, need", "self, operation, gpu")
    dists.add_plugin("acme", source)
    state, reason = verdict()
    assert state is State.BROKEN
    assert "Argument(s) {'gpu'} are declared in the hookimpl but can not be found" in str(reason)


def test_a_hook_may_leave_out_arguments(dists):
    dists.add_plugin("acme", plugin("acme").replace("self, operation, host, need", "self"))
    assert verdict() == (State.AVAILABLE, None)


# What can be wrong with the description


@pytest.mark.parametrize(
    ("describe", "reason"),
    [
        ("return None", "tokendraw_describe needs to return a tokendraw.plugin.PluginInfo, found None"),
        ("return 3", "tokendraw_describe needs to return a tokendraw.plugin.PluginInfo, found int"),
        ("raise ValueError('no')", "tokendraw_describe raised ValueError: no"),
        ("import sys; sys.exit()", "tokendraw_describe raised SystemExit"),
        (info(name="acne"), "PluginInfo.name needs to be the entry point's name 'acme', found 'acne'"),
        (info(api_version="'2'"), f"PluginInfo.api_version {FROM_TO}, found '2'"),
        (info(api_version="True"), f"PluginInfo.api_version {FROM_TO}, found True"),
        (info(priority="'high'"), f"PluginInfo.priority {FROM_TO}, found 'high'"),
        (info(), "PluginInfo.operations needs 1 to 100 operations, found {}"),
        (info("{'sample': 3}"), "PluginInfo.operations needs Capabilities by name, found int"),
    ],
)
def test_an_unsound_description_makes_a_plugin_broken(dists, describe, reason):
    dists.add_plugin("acme", plugin("acme", describe=describe))
    assert verdict() == (State.BROKEN, reason)


def test_a_missing_api_version_makes_a_plugin_broken(dists):
    dists.add_plugin("acme", plugin("acme", describe=info().replace("api_version=1, ", "")))
    state, reason = verdict()
    assert state is State.BROKEN
    assert str(reason).startswith("tokendraw_describe raised TypeError: PluginInfo.__init__() missing 1")
    assert str(reason).endswith("'api_version'")


@pytest.mark.parametrize(
    ("api_version", "reason"),
    [
        ("99", "needs plugin API 99, found 1; upgrade tokendraw"),
        ("0", "needs plugin API 0, found 1; upgrade acme-tokendraw"),
    ],
)
def test_another_api_version_makes_a_plugin_incompatible(dists, api_version, reason):
    dists.add_plugin("acme", plugin("acme", api_version=api_version))
    assert verdict() == (State.INCOMPATIBLE, reason)


def test_what_a_plugin_of_another_api_version_says_of_itself_is_not_believed(dists):
    dists.add_plugin("acme", plugin("acme", describe=info("'all'", api_version="99")))
    (candidate,) = (c for c in tokendraw.discover() if c.name == "acme")
    assert (candidate.priority, dict(candidate.info.operations)) == (5, {})
    reasons = {d.name: d.reason for d in tokendraw.resolve(device="cpu").decisions}
    assert reasons["acme"] == "needs plugin API 99, found 1; upgrade tokendraw"


@pytest.mark.parametrize(
    ("capabilities", "reason"),
    [
        ("device_types=('cuda')", f"device_types needs {SHORT}, found 'cuda'"),
        ("rocm_archs=['gfx942']", f"rocm_archs needs {SHORT}, found ['gfx942']"),
        (
            "compute_capability=(8, 0)",
            "compute_capability needs ((major, minor), (major, minor) or None) or None, found (8, 0)",
        ),
        ("min_sm_count='17'", "min_sm_count needs an integer from 0 to 2**63 - 1, found '17'"),
        ("dtypes=('fp32',)", f"dtypes needs {DTYPES}, found ('fp32',)"),
        (
            "filters=('top_k',)",
            "filters needs a tuple of ('top_k', 'top_p' or 'min_p', 'per_row' or 'scalar'), found ('top_k',)",
        ),
        ("seeding='row'", "seeding needs 'none', 'launch' or 'counter', found 'row'"),
        ("greedy=1", "greedy needs True or False, found 1"),
        ("max_top_k=-1", "max_top_k needs an integer from 0 to 2**63 - 1 or None, found -1"),
    ],
)
def test_capabilities_that_would_never_match_make_a_plugin_broken(dists, capabilities, reason):
    dists.add_plugin("acme", plugin("acme", capabilities=capabilities))
    field, words = reason.split(" ", 1)
    assert verdict() == (State.BROKEN, f"Capabilities.{field} of the operation 'sample' {words}")


@pytest.mark.parametrize("name", operations.FOLDERS)
def test_every_field_of_the_capabilities_of_an_operation_is_validated(name):
    declared = operations.find_operation(name).capabilities
    rules = rules_of(declared)
    assert list(rules) == [field.name for field in fields(declared)]
    for field in fields(declared):
        assert rules[field.name].fits(field.default), field.name
        assert not rules[field.name].fits(object()), field.name


def test_capabilities_of_another_operation_make_a_plugin_broken(dists):
    describe = info("{'verify': tokendraw.plugin.Capabilities()}")
    dists.add_plugin("acme", plugin("acme", describe=describe))
    reason = "PluginInfo.operations needs VerifyCapabilities for the operation 'verify', found Capabilities"
    assert verdict() == (State.BROKEN, reason)


def test_of_an_operation_that_this_core_does_not_know_what_the_host_has_to_be_is_read(dists):
    describe = info("{'paint': tokendraw.plugin.Capabilities(graph_safe=True, dtypes=3)}")
    dists.add_plugin("acme", plugin("acme", describe=describe))
    assert verdict() == (State.UNAVAILABLE, "needs the operation sample, found paint")
    assert discovered().capabilities("paint") == HostCapabilities(graph_safe=True)


@pytest.mark.parametrize(
    ("operation", "field", "needed"),
    [
        ("sample", "dtypes", DTYPES),
        ("sample", "filter_orders", "a tuple of at least one of 'top_k_first' or 'joint'"),
        ("sample", "gumbel_dtypes", "a tuple of at least one of 'fp32' or 'fp64'"),
        ("sample", "device_types", SHORT),
        ("sample", "rocm_archs", SHORT),
        ("verify", "dtypes", DTYPES),
        ("process_logits", "dtypes", DTYPES),
        ("plan_paged_kv", "device_types", SHORT),
        ("pack_sm90_w4", "device_types", SHORT),
    ],
)
def test_a_tuple_that_promises_something_may_not_be_empty(dists, operation, field, needed):
    declared = operations.find_operation(operation).capabilities.__name__
    describe = info(f"{{'{operation}': {HOME}.{declared}({field}=())}}")
    dists.add_plugin("acme", plugin("acme", describe=describe))
    reason = f"{declared}.{field} of the operation '{operation}' needs {needed}, found ()"
    assert verdict() == (State.BROKEN, reason)


def test_what_the_host_has_to_be_is_validated_whatever_the_operation(dists):
    describe = info("{'paint': tokendraw.plugin.HostCapabilities(device_types='cuda')}")
    dists.add_plugin("acme", plugin("acme", describe=describe))
    reason = f"HostCapabilities.device_types of the operation 'paint' needs {SHORT}, found 'cuda'"
    assert verdict() == (State.BROKEN, reason)


@pytest.mark.parametrize(
    ("upstream", "reason"),
    [
        ("'acme'", "PluginInfo.upstream needs a tokendraw.plugin.Upstream or None, found str"),
        (
            "tokendraw.plugin.Upstream('', '>=1')",
            "Upstream.distribution needs a distribution's name, found ''",
        ),
        ("tokendraw.plugin.Upstream('a', 'new')", "Upstream.versions needs a PEP 440 range, found 'new'"),
        ("tokendraw.plugin.Upstream('a', None)", "Upstream.versions needs a PEP 440 range, found None"),
        (
            "tokendraw.plugin.Upstream('a', '>=1', ('x.y',))",
            "Upstream.tested needs a tuple of PEP 440 versions, found ('x.y',)",
        ),
        (
            "tokendraw.plugin.Upstream('a', '>=1', '1.0')",
            "Upstream.tested needs a tuple of PEP 440 versions, found '1.0'",
        ),
    ],
)
def test_an_unsound_upstream_makes_a_plugin_broken(dists, upstream, reason):
    dists.add_plugin("acme", plugin("acme", upstream=upstream))
    assert verdict() == (State.BROKEN, reason)


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
            "Upstream.releases needs a tuple of at most 100 Release, found []",
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


def test_a_table_of_too_many_releases_makes_a_plugin_broken(dists):
    dists.add_plugin("acme", plugin("acme", upstream=rows(*[OLD] * 101)))
    state, reason = verdict()
    assert state is State.BROKEN
    assert str(reason).startswith("Upstream.releases needs a tuple of at most 100 Release, found (Release(")
    assert str(reason).endswith(" ...")


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
    ("metadata", "found"),
    [
        ("Name: acme-kernels\nVersion: 3.0\n", "found 3.0"),
        (
            "Name: acme-kernels\nVersion: trunk\n",
            "found the version 'trunk', which is no PEP 440 version; reinstall it",
        ),
        ("Name: acme-kernels\n", "found the version '', which is no PEP 440 version; reinstall it"),
    ],
)
def test_an_upstream_of_a_wrong_or_unreadable_version_makes_a_plugin_unavailable(dists, metadata, found):
    dists.add("acme-kernels", "3.0", metadata=metadata)
    dists.add_plugin("acme", plugin("acme", upstream=UPSTREAM))
    assert verdict() == (State.UNAVAILABLE, f"needs acme-kernels >=2,<3, {found}")


# The probe


def test_what_the_probe_says_is_the_reason(dists):
    dists.add_plugin("acme", plugin("acme", probe="f'needs a compiler, found none on {host.device_type}'"))
    assert verdict() == (State.UNAVAILABLE, "needs a compiler, found none on cpu")
    assert discovered().probe_reason == "needs a compiler, found none on cpu"


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        ("True", "tokendraw_probe needs to return a sentence or None, found True"),
        ("False", "tokendraw_probe needs to return a sentence or None, found False"),
        ("''", "tokendraw_probe needs to return a sentence or None, found ''"),
        ("1 / 0", "tokendraw_probe raised ZeroDivisionError: division by zero"),
        ("__import__('sys').exit(0)", "tokendraw_probe raised SystemExit: 0"),
    ],
)
def test_a_probe_that_answers_without_words_makes_a_plugin_broken(dists, probe, reason):
    dists.add_plugin("acme", plugin("acme", probe=probe))
    assert verdict() == (State.BROKEN, reason)


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
