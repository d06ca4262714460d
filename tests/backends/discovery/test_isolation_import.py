"""Plugins break at import, each beside a host in a separate process, and the host survives."""

import signal

import pytest

from fake_dists import fake_dists, plugin
from isolation import RESOLVE, answer, resolved, run


@pytest.fixture
def dists(tmp_path, monkeypatch):
    with fake_dists(tmp_path, monkeypatch) as found:
        yield found


IMPORTS = {
    "a missing attribute": ("other = 1", "AttributeError: module 'fake_acme' has no attribute 'plugin'"),
    "bad syntax": ("plugin = (", "SyntaxError: '(' was never closed (fake_acme.py, line 1)"),
    "an ImportError": ("raise ImportError('no libacme')", "ImportError: no libacme"),
    "an OSError": ("raise OSError('libacme.so: cannot open')", "OSError: libacme.so: cannot open"),
    "a RuntimeError": ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
    "an AssertionError": ("assert 1 == 2, 'one is not two'", "AssertionError: one is not two"),
    "SystemExit(0)": ("raise SystemExit(0)", "SystemExit: 0"),
    "SystemExit(1)": ("raise SystemExit(1)", "SystemExit: 1"),
}


@pytest.mark.parametrize(("source", "reason"), IMPORTS.values(), ids=IMPORTS.keys())
@pytest.mark.fast_first
def test_a_host_survives_an_import_that_ends_in(dists, source, reason):
    dists.add_plugin("acme", source)
    assert resolved(dists) == ["native", {"acme": ["broken", f"loading 'fake_acme:plugin' raised {reason}"]}]


def test_a_host_survives_an_entry_point_to_a_missing_module(dists):
    dists.add("acme-tokendraw", plugins={"acme": "nowhere:plugin"}, modules={"fake_acme": plugin("acme")})
    reason = "loading 'nowhere:plugin' raised ModuleNotFoundError: No module named 'nowhere'"
    assert resolved(dists) == ["native", {"acme": ["broken", reason]}]


def test_a_host_survives_stale_metadata_whose_code_is_gone(dists):
    folder = dists.add("acme-tokendraw", plugins={"acme": "fake_acme:plugin"}, modules={"fake_acme": ""})
    (folder / "fake_acme.py").unlink()
    reason = "loading 'fake_acme:plugin' raised ModuleNotFoundError: No module named 'fake_acme'"
    assert resolved(dists) == ["native", {"acme": ["broken", reason]}]


def test_a_host_survives_a_circular_import(dists):
    folder = dists.add(
        "acme-tokendraw",
        plugins={"acme": "fake_acme:plugin"},
        modules={
            "fake_acme": "from fake_acme_sampler import sampler\nplugin = sampler",
            "fake_acme_sampler": "from fake_acme import plugin\nsampler = plugin",
        },
    )
    reason = (
        "loading 'fake_acme:plugin' raised ImportError: cannot import name 'plugin' from partially initialized "
        f"module 'fake_acme' (most likely due to a circular import) ({folder}/fake_acme.py)"
    )
    assert resolved(dists) == ["native", {"acme": ["broken", reason]}]


def test_a_plugin_that_discovers_while_it_is_discovered_is_fine(dists):
    source = "import tokendraw; SEEN = [(c.name, c.state) for c in tokendraw.discover()]\n"
    dists.add_plugin("acme", source + plugin("acme", priority=-1))
    assert resolved(dists) == ["native", {"acme": ["available", "available, priority -1"]}]


def test_an_interrupt_from_the_keyboard_ends_the_host_while_a_plugin_is_imported(dists):
    dists.add_plugin("acme", "raise KeyboardInterrupt")
    result = run(dists, "-c", RESOLVE)
    assert (result.returncode, result.stdout) == (-signal.SIGINT, "")
    assert result.stderr.endswith("\nKeyboardInterrupt\n")


def test_a_broken_plugin_hides_no_sound_one(dists):
    dists.add_plugin("aaa", "raise SystemExit(0)")
    dists.add_plugin("acme", plugin("acme"))
    assert resolved(dists) == [
        "acme",
        {
            "aaa": ["broken", "loading 'fake_aaa:plugin' raised SystemExit: 0"],
            "acme": ["available", "best available, priority 50"],
        },
    ]


# Names


def test_a_host_survives_two_distributions_of_one_name_and_is_told_both(dists):
    for owner, version, module in (("acme-one", "1.0", "fake_one"), ("acme-two", "2.0", "fake_two")):
        dists.add(owner, version, plugins={"acme": f"{module}:plugin"}, modules={module: plugin("acme")})
    code = """
import json, sys, tokendraw
from tokendraw.resolution import Choice
told = []
for choice in (Choice(), Choice(sampler="acme"), Choice(priority=("acme",)), Choice(sampler="native")):
    try:
        told.append(tokendraw.resolve(device="cpu", choice=choice).chosen)
    except tokendraw.resolution.DuplicatePluginError as error:
        told.append(str(error))
reasons = [[c.state, c.reason] for c in tokendraw.discover() if c.name == "acme"]
print(json.dumps([told, reasons, sorted({"fake_one", "fake_two"} & set(sys.modules))]))
"""
    claimed = "'acme' is claimed by acme-one 1.0 and acme-two 2.0. Uninstall all but one of them"
    reason = "the name 'acme' is claimed by acme-one 1.0 and acme-two 2.0; uninstall one of them"
    assert answer(dists, code) == [
        ["native", f"{claimed}.", f"{claimed}, or take 'acme' out of TOKENDRAW_PRIORITY.", "native"],
        [["broken", reason], ["broken", reason]],
        [],
    ]
    assert resolved(dists, TOKENDRAW_DISABLE="acme")[0] == "native"


def test_one_distribution_that_is_visible_twice_counts_once(dists):
    for where in ("behind", "in front"):
        source = plugin("acme")
        dists.add(
            "acme-tokendraw", plugins={"acme": "fake_acme:plugin"}, modules={"fake_acme": source}, where=where
        )
    assert resolved(dists) == ["acme", {"acme": ["available", "best available, priority 50"]}]
    listed = run(dists, "-m", "tokendraw", "list")
    states, _, offers = listed.stdout.partition("\n\n")
    for table in (states, offers):
        assert [line.split()[0] for line in table.splitlines()] == ["name", "acme", "native"]


def test_a_claim_to_a_first_party_name_is_refused_and_its_owner_serves(dists):
    dists.add_plugin("native", "raise SystemExit('imported all the same')", distribution="evil-native")
    code = """
import json, sys, tokendraw
found = [[c.distribution, c.state, c.reason] for c in tokendraw.discover() if c.name == "native"]
print(json.dumps([tokendraw.resolve(device="cpu").chosen, found, "fake_native" in sys.modules]))
"""
    reason = (
        "the name 'native' is reserved for the distribution tokendraw-native, found it in evil-native 1.0; "
        "rename the entry point"
    )
    found = [["evil-native", "broken", reason], ["tokendraw-native", "available", None]]
    assert answer(dists, code) == ["native", found, False]


# Versions of the plugin API, as `tokendraw list` shows them

VERSIONS = {
    "missing": (
        "",
        "broken",
        "",
        "tokendraw_describe raised TypeError: PluginInfo.__init__() missing 1 required keyword-only argument: "
        "'api_version'",
    ),
    "a string": (
        "api_version='2', ",
        "broken",
        "",
        "PluginInfo.api_version needs an integer from -1000000 to 1000000, found '2'",
    ),
    "99": ("api_version=99, ", "incompatible", "5", "needs plugin API 99, found 1; upgrade tokendraw"),
}


@pytest.mark.parametrize(("given", "state", "priority", "reason"), VERSIONS.values(), ids=VERSIONS.keys())
@pytest.mark.fast_first
def test_the_list_shows_a_plugin_whose_api_version_is(dists, given, state, priority, reason):
    describe = f"return tokendraw.plugin.PluginInfo(name='acme', {given}priority=5, operations={{}})"
    dists.add_plugin("acme", plugin("acme", describe=describe))
    result = run(dists, "-m", "tokendraw", "list")
    assert (result.returncode, result.stderr) == (0, "")
    _, native, *acme = result.stdout.partition("\n\n")[0].splitlines()  # a long reason takes several lines
    assert native.split()[:2] == ["native", "available"]
    assert " ".join(acme).split() == ["acme", state, *priority.split(), "1.0", *reason.split()]
