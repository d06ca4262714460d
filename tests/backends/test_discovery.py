"""Which plugins are imported, what is said of each, and that no text of theirs moves the cursor of a terminal.

What a description may hold is in ``test_descriptions.py``.
"""

import json
import logging
import sys
import warnings

import pytest

import tokendraw
from command_line import call
from fake_candidates import LAPTOP
from fake_dists import discovered, plugin, verdict
from tokendraw import SamplerUnavailableError
from tokendraw.backends.description import NAME_RULE
from tokendraw.backends.discovery import guard
from tokendraw.backends.discovery.guard import ProcessResult, call_in_new_process
from tokendraw.plugin import Capabilities
from tokendraw.resolution import Candidate, DuplicatePluginError, State

EVIL = r"\x1b[31mred\nforged line\u202e"
TAMED = r"\x1b[31mred forged line\u202e"
"""Source of a string literal that would move the cursor of a terminal, and what is shown of it in prose."""


def named(name):
    return [c for c in tokendraw.discover(host=LAPTOP) if c.name == name]


class TestSoundPlugins:
    def test_a_sound_plugin_is_available_with_all_its_facts_and_sees_no_other(self, dists):
        dists.add("acme-kernels", "2.1.4")
        source = plugin("acme", upstream="tokendraw.plugin.Upstream('acme-kernels', '>=2,<3', ('2.1.4',))")
        dists.add_plugin("acme", source, version="1.2")
        dists.add_plugin("beta", plugin("beta", priority=2))
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
        assert (found.info.name, found.priority, discovered("beta").priority) == ("acme", 50, 2)
        assert found.capabilities("sample") == Capabilities(dtypes=("float32",))
        assert found.capabilities("verify") is None
        names = [c.name for c in tokendraw.discover(host=LAPTOP)]
        assert (names, {"acme", "beta"} <= set(names)) == (sorted(names), True)


class TestBrokenPlugins:
    def test_remains_without_metadata_are_broken_and_no_rival_of_the_reinstalled_plugin(self, dists):
        folder = dists.add(
            "acme-tokendraw", plugins={"acme": "gone_acme:plugin"}, metadata=None, where="remains"
        )
        reason = f"needs the metadata of its distribution, found none in {str(folder)!r}; reinstall it"
        assert verdict() == (State.BROKEN, reason)
        dists.add_plugin("acme", plugin("acme"))
        assert [c.state for c in named("acme")] == [State.BROKEN, State.AVAILABLE]
        assert tokendraw.resolve(host=LAPTOP).chosen == "acme"

    def test_broken_plugins_and_unreadable_metadata_leave_the_other_plugins_alone(self, dists):
        dists.add_plugin("aaa", "import sys; sys.exit(1)")
        dists.add_plugin("zzz", "raise OSError")
        folder = dists.add("other-project", plugins={"other": "other:plugin"})
        (folder / "other_project-1.0.dist-info/entry_points.txt").write_bytes(b"\xff\xfe[tokendraw.plugins]")
        dists.add_plugin("acme", plugin("acme"))
        states = [verdict(name)[0] for name in ("aaa", "acme", "zzz")]
        assert states == [State.BROKEN, State.AVAILABLE, State.BROKEN]


class TestAdmission:
    @pytest.mark.parametrize(
        ("variable", "value", "reason"),
        [
            ("TOKENDRAW_DISABLE", "acme", "switched off by TOKENDRAW_DISABLE"),
            ("TOKENDRAW_NO_PLUGINS", "1", "not first-party, and TOKENDRAW_NO_PLUGINS=1 admits no others"),
        ],
    )
    def test_a_plugin_that_is_switched_off_is_not_imported(self, dists, monkeypatch, variable, value, reason):
        module = dists.add_plugin("acme", plugin("acme"), distribution="tokendraw-acme")
        monkeypatch.setenv(variable, value)
        assert verdict() == (State.DISABLED, reason)
        assert module not in sys.modules
        assert discovered("native").state is State.AVAILABLE

    def test_a_stranger_who_claims_a_reserved_name_is_not_imported(self, dists):
        module = dists.add_plugin("native", plugin("native"), distribution="evil-native")
        assert [(c.distribution, c.state, c.reason) for c in named("native")] == [
            (
                "evil-native",
                State.BROKEN,
                "the name 'native' is reserved for the distribution tokendraw-native, "
                "found it in evil-native 1.0; rename the entry point",
            ),
            ("tokendraw-native", State.AVAILABLE, None),
        ]
        assert module not in sys.modules
        resolution = tokendraw.resolve(host=LAPTOP)
        assert (resolution.chosen, resolution.warnings) == ("native", ())

    def test_two_distributions_of_one_name_are_not_imported_and_another_serves(self, dists, monkeypatch):
        for owner, version, module in (("acme-one", "1.0", "fake_one"), ("acme-two", "2.0", "fake_two")):
            dists.add(owner, version, plugins={"acme": f"{module}:plugin"}, modules={module: plugin("acme")})
        reason = "the name 'acme' is claimed by acme-one 1.0 and acme-two 2.0; uninstall one of them"
        assert [(c.distribution, c.state, c.reason) for c in named("acme")] == [
            ("acme-one", State.BROKEN, reason),
            ("acme-two", State.BROKEN, reason),
        ]
        with pytest.warns(tokendraw.SamplerFallbackWarning) as warned:
            assert tokendraw.load_sampler(device="cpu").name == "native"
        assert [str(warning.message) for warning in warned] == [
            f"'acme' was passed over: {reason}. Using 'native'. Set TOKENDRAW_DISABLE=acme to silence this."
        ]
        assert not {"fake_one", "fake_two"} & set(sys.modules)
        with pytest.raises(
            DuplicatePluginError, match=r"^'acme' is claimed by acme-one 1\.0 and acme-two 2\.0"
        ):
            tokendraw.load_sampler("acme", device="cpu")
        monkeypatch.setenv("TOKENDRAW_PRIORITY", "acme")
        with pytest.raises(DuplicatePluginError, match=r", or take 'acme' out of TOKENDRAW_PRIORITY\.$"):
            tokendraw.load_sampler(device="cpu")

    def test_one_distribution_that_is_seen_twice_is_one_candidate(self, dists):
        dists.add("acme_tokendraw", "1.0", plugins={"acme": "fake_acme:plugin"}, where="later")
        dists.add_plugin("acme", plugin("acme"), distribution="acme-tokendraw", version="1.1")
        assert (discovered().state, discovered().version) == (State.AVAILABLE, "1.1")

    @pytest.mark.parametrize(
        ("copies", "listed"),
        [
            ([("later", "2.0", True), ("first", "1.0", False)], "2.0"),  # the one that an import finds
            ([("later", "2.0", True), ("first", "1.0", True)], "1.0"),
            ([("both", "1.9", True), ("both", "1.10", True)], "1.10"),
            ([("both", "1.10", True), ("both", "1.9", True)], "1.10"),
            ([("both", "x", True), ("both", "1.10", True)], "1.10"),
        ],
    )
    def test_of_two_copies_of_a_distribution_one_is_listed(self, dists, copies, listed):
        for where, version, has_module in copies:
            modules = {"fake_acme": plugin("acme")} if has_module else {}
            plugins = {"acme": "fake_acme:plugin"}
            dists.add("acme-tokendraw", version, plugins=plugins, modules=modules, where=where)
        assert discovered().version == listed


def install_named(dists, name, value="fake_acme:plugin"):
    """Install a distribution with a single entry point, unlike any written by tools."""
    modules = {"fake_acme": plugin("acme")}
    write_entry_point(
        dists.add("acme-tokendraw", plugins={"x": "fake_acme:plugin"}, modules=modules), name, value
    )


def write_entry_point(folder, name, value):
    (info,) = folder.glob("*.dist-info")
    (info / "entry_points.txt").write_text(f"[tokendraw.plugins]\n{name} = {value}\n", encoding="utf-8")


class TestHostileTexts:
    def test_what_a_build_raises_is_put_on_one_printable_line(self, dists, caplog):
        dists.add_plugin("acme", plugin("acme", build=f"raise tokendraw.PluginError('{EVIL}')"))
        with pytest.raises(SamplerUnavailableError) as error:
            tokendraw.load_sampler("acme", device="cpu")
        assert f"cannot serve the operation 'sample' on cpu: {TAMED}. " in str(error.value)
        assert str(error.value.__cause__) == TAMED  # which the traceback shows as well
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tokendraw.load_sampler(device="cpu")
        (warning,) = caught
        logged = [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]
        assert all(text.isprintable() for text in (str(warning.message), *logged))

    @pytest.mark.parametrize(
        ("name", "listed"),
        [
            *((name, name) for name in ("a,b", "a b", "Acme", "a_b", "-a", "é", "a" * 65)),
            ("", "''"),
            ("\x1b[31mred", r"\x1b[31mred"),
            ("\u202enative", r"\u202enative"),
        ],
        ids=ascii,
    )
    def test_a_name_that_nobody_can_select_is_broken_and_disturbs_no_choice(
        self, dists, name, listed, monkeypatch
    ):
        install_named(dists, name)
        (found,) = [c for c in tokendraw.discover(host=LAPTOP) if c.distribution == "acme-tokendraw"]
        reason = f"its name needs {NAME_RULE}, found {name!r}; rename the entry point"
        assert (found.name, found.state, found.reason) == (listed, State.BROKEN, reason)
        assert "fake_acme" not in sys.modules
        monkeypatch.setenv("TOKENDRAW_STRICT", "1")
        assert tokendraw.load_sampler(device="cpu").name == "native"
        for choice in (name, listed):
            with pytest.raises(SamplerUnavailableError):
                tokendraw.load_sampler(choice, device="cpu")
        dists.add("other-tokendraw", plugins={name: "other:plugin"} if name else {})  # is no rival
        assert tokendraw.resolve(device="cpu").chosen == "native"

    def test_no_command_prints_what_a_plugin_wants_the_terminal_to_do(self, dists, monkeypatch):
        """Stdout and stderr hold printable lines alone, whatever is installed."""
        dists.add_plugin("loud", f"raise OSError('{EVIL}')")
        dists.add_plugin("probing", plugin("probing", probe=f"'needs {EVIL}'"))
        upstream = "tokendraw.plugin.Upstream('evil-upstream', '>=1', ('1.0',))"
        dists.add_plugin("upstreamed", plugin("upstreamed", upstream=upstream))
        write_entry_point(dists.add("named", plugins={"placeholder": "x"}), "\x1b[31mx,y", "gone:plugin")
        evil = "Name: {name}\nVersion: 1.0\x1b[31m\nSummary: \x1b[31m\n"
        dists.add("evil-upstream", metadata=evil)
        dists.add("evil-version", plugins={"versioned": "gone:plugin"}, metadata=evil)
        monkeypatch.setenv("TOKENDRAW_DISABLE", "\x1b[31mnope")
        monkeypatch.setenv("TOKENDRAW_\x1b[31mX", "\x1b[31m")
        for command in (
            "list",
            "list --json",
            "resolve --explain",
            "show loud",
            "show versioned",
            "doctor --no-build",
        ):
            result = call(*command.split())
            assert result.exit_code == 0, result.stderr
            for line in (result.stdout + result.stderr).split("\n"):
                assert line.isprintable(), (command, line)
        states = {c["name"]: c["state"] for c in json.loads(call("list", "--json").stdout)["candidates"]}
        assert states[r"\x1b[31mx,y"] == "broken"


FUNCTIONS = """
import json, os, sys, time

def echo(*arguments):
    print("a banner")
    print(json.dumps([*arguments, "tokendraw" in sys.modules]))

def end(status):
    os._exit(int(status))

def hang():
    time.sleep(60)
"""


def test_a_function_in_a_new_process_has_a_value_an_exit_status_or_neither(tmp_path, monkeypatch):
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "fake_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path / "functions")
    monkeypatch.chdir(tmp_path)
    for name in ("importlib", "json"):  # modules in the working folder are not imported
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    assert call_in_new_process("fake_functions:echo", "a b", "") == (["a b", "", False], 0)
    assert call_in_new_process("fake_functions:end", "7") == ProcessResult(None, 7)
    monkeypatch.setattr(guard, "TIMEOUT_SECONDS", 0.5)
    assert call_in_new_process("fake_functions:hang") == ProcessResult(None, None)
