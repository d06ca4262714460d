"""Plugins that load, and plugins that break at import: each is listed with a reason, none raises."""

import pytest

import tokendraw
from fake_candidates import LAPTOP
from fake_dists import discovered, plugin, verdict
from tokendraw.plugin import Capabilities
from tokendraw.resolution import Candidate, State


def test_a_sound_plugin_is_available_with_all_its_facts(dists):
    dists.add("acme-kernels", "2.1.4")
    source = plugin("acme", upstream="tokendraw.plugin.Upstream('acme-kernels', '>=2,<3', ('2.1.4',))")
    dists.add_plugin("acme", source, version="1.2")
    found = discovered()
    assert found == Candidate(
        name="acme",
        state=State.AVAILABLE,
        distribution="acme-tokendraw",
        version="1.2",
        entry_point="fake_acme:plugin",
        info=found.info,
        upstream_version="2.1.4",
    )
    assert found.info is not None
    assert (found.info.name, found.priority) == ("acme", 50)
    assert found.capabilities("sample") == Capabilities(dtypes=("float32",))
    assert found.capabilities("verify") is None


def test_the_candidates_are_sorted_by_name(dists):
    for name in ("zeta", "acme", "beta"):
        dists.add_plugin(name, plugin(name))
    names = [c.name for c in tokendraw.discover(host=LAPTOP)]
    assert names == sorted(names)
    assert {"acme", "beta", "zeta"} <= set(names)


def test_a_whole_module_can_be_the_plugin(dists):
    source = """
        import tokendraw

        @tokendraw.plugin.hookimpl
        def tokendraw_describe():
            capabilities = tokendraw.plugin.Capabilities()
            return tokendraw.plugin.PluginInfo(
                name="acme", api_version=1, priority=5, operations={"sample": capabilities}
            )

        @tokendraw.plugin.hookimpl
        def tokendraw_build(device):
            return None
    """
    dists.add("acme-tokendraw", plugins={"acme": "fake_acme"}, modules={"fake_acme": source})
    assert verdict() == (State.AVAILABLE, None)


# What can go wrong at import


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('no libacme')", "ImportError: no libacme"),
        ("raise OSError('cannot open shared object')", "OSError: cannot open shared object"),
        ("raise RuntimeError", "RuntimeError"),
        ("assert 1 == 2, 'a\\nlong   story'", "AssertionError: a long story"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise RuntimeError('x' * 10_000)", f"RuntimeError: {'x' * 500} ..."),
        ("def plugin(:", "SyntaxError: invalid syntax (fake_acme.py, line 1)"),
        ("other = 1", "AttributeError: module 'fake_acme' has no attribute 'plugin'"),
        (
            "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\nraise Odd",
            "Odd: (its message cannot be printed)",
        ),
    ],
)
def test_an_import_that_raises_makes_a_plugin_broken(dists, source, reason):
    dists.add_plugin("acme", source)
    assert verdict() == (State.BROKEN, f"loading 'fake_acme:plugin' raised {reason}")


def test_remains_without_metadata_are_broken(dists):
    folder = dists.add("acme-tokendraw", plugins={"acme": "gone_acme:plugin"}, metadata=None)
    reason = f"needs the metadata of its distribution, found none in {str(folder)!r}; reinstall it"
    assert verdict() == (State.BROKEN, reason)


def test_remains_without_metadata_are_no_rival_of_the_reinstalled_plugin(dists):
    dists.add("acme-tokendraw", plugins={"acme": "gone_acme:plugin"}, metadata=None, where="remains")
    dists.add_plugin("acme", plugin("acme"))
    found = [c for c in tokendraw.discover(host=LAPTOP) if c.name == "acme"]
    assert [c.state for c in found] == [State.BROKEN, State.AVAILABLE]
    assert tokendraw.resolve(host=LAPTOP).chosen == "acme"


@pytest.mark.parametrize("value", ["gone_acme:plugin", "not a reference!"])
def test_an_entry_point_that_leads_nowhere_is_broken(dists, value):
    dists.add("acme-tokendraw", plugins={"acme": value})
    state, reason = verdict()
    assert state is State.BROKEN
    assert str(reason).startswith(f"loading {value!r} raised ")


def test_broken_plugins_and_unreadable_metadata_leave_the_other_plugins_alone(dists):
    dists.add_plugin("aaa", "import sys; sys.exit(1)")
    dists.add_plugin("zzz", "raise OSError")
    folder = dists.add("other-project", plugins={"other": "other:plugin"})
    (folder / "other_project-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe[tokendraw.plugins]")
    dists.add_plugin("acme", plugin("acme"))
    states = [verdict(name)[0] for name in ("aaa", "acme", "zzz")]
    assert states == [State.BROKEN, State.AVAILABLE, State.BROKEN]
