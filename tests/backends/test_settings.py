"""Variables and the configuration file: their order, and the messages about malformed settings."""

from pathlib import Path

import pytest

from call_tables import pairs
from tokendraw import SettingsError
from tokendraw.backends.discovery.settings import ENGINE_SWITCHES, VARIABLES, Settings, read_settings
from tokendraw.cli.negotiation import settings_in_force
from tokendraw.resolution import Choice


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def config(home, text, folder=".config"):
    path = home / folder / "tokendraw" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


class TestVariables:
    def test_with_nothing_set_everything_is_at_its_default(self, home):
        assert read_settings({}) == Settings()
        assert read_settings({}).choice() == Choice()

    def test_every_variable_is_read_at_the_call_and_those_in_force_are_shown(self, home, monkeypatch):
        variables = {
            "TOKENDRAW_SAMPLER": "native",
            "TOKENDRAW_PRIORITY": "b, a",
            "TOKENDRAW_DISABLE": "c,,d,",
            "TOKENDRAW_NO_PLUGINS": "1",
            "TOKENDRAW_STRICT": "true",
            "TOKENDRAW_DEBUG": "1",
        }
        assert read_settings() == Settings()
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        settings = read_settings()
        assert settings == Settings(
            sampler="native",
            sampler_source="TOKENDRAW_SAMPLER",
            priority=("b", "a"),
            priority_source="TOKENDRAW_PRIORITY",
            disabled=("c", "d"),
            disabled_source="TOKENDRAW_DISABLE",
            first_party_only=True,
            strict=True,
            debug=True,
        )
        assert settings.choice() == Choice(
            sampler="native",
            source="TOKENDRAW_SAMPLER",
            priority=("b", "a"),
            disabled=("c", "d"),
            first_party_only=True,
        )
        assert (settings.choice("b").sampler, settings.choice("b").source) == ("b", "the argument sampler=")
        set_here = {name: "1" for name in VARIABLES if name != "TOKENDRAW_CONFIG"}
        assert dict(settings_in_force(read_settings(set_here))) == set_here

    @pytest.mark.parametrize("name", [*VARIABLES, *ENGINE_SWITCHES])
    def test_an_empty_variable_or_key_of_the_file_counts_as_unset(self, home, name):
        assert read_settings({name: ""}) == read_settings({name: "  "}) == Settings()
        path = config(home, 'sampler = ""\npriority = []\n')
        assert read_settings({}) == Settings(config=path)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("0", False), ("1", True), ("true", True), ("TRUE", True), ("False", False), (" 1 ", True)],
    )
    def test_booleans_are_0_1_true_and_false_in_any_case(self, home, text, expected):
        names = ("TOKENDRAW_STRICT", "TOKENDRAW_DEBUG", "TOKENDRAW_NO_PLUGINS")
        settings = read_settings(dict.fromkeys(names, text))
        assert (settings.strict, settings.debug, settings.first_party_only) == (expected,) * 3


class TestFiles:
    def test_the_configuration_file_is_read_from_its_place_and_a_variable_precedes_it(self, home):
        path = config(home, 'sampler = "native"\npriority = ["b", "a"]\ndisable = ["c"]\n')
        settings = read_settings({})
        assert settings == Settings(
            sampler="native",
            sampler_source=str(path),
            priority=("b", "a"),
            priority_source=str(path),
            disabled=("c",),
            disabled_source=str(path),
            config=path,
        )
        assert (settings.choice().priority_source, settings.choice().disabled_source) == (str(path),) * 2
        settings = read_settings({"TOKENDRAW_SAMPLER": "acme"})
        assert (settings.sampler, settings.sampler_source) == ("acme", "TOKENDRAW_SAMPLER")
        assert (settings.disabled, settings.disabled_source) == (("c",), str(path))

    def test_variables_move_the_file(self, home):
        usual = config(home, 'sampler = "a"')
        moved = config(home, 'sampler = "b"', "elsewhere")
        for variables, path in (
            ({"XDG_CONFIG_HOME": str(home / "elsewhere")}, moved),
            ({"XDG_CONFIG_HOME": ".config"}, usual),  # a relative one is ignored, as its specification says
            ({"TOKENDRAW_CONFIG": str(moved)}, moved),
            ({"TOKENDRAW_CONFIG": "~/elsewhere/tokendraw/config.toml"}, moved),
        ):
            assert read_settings(variables).config == path


def told_of(home):
    """Return what says what is said of settings; HOME in them and in the words is the home directory."""

    def told(file=b"", **variables):
        path = home / ".config/tokendraw/config.toml"
        if file:
            path.parent.mkdir(parents=True)
            path.write_bytes(file)
        variables = {name: text.replace("HOME", str(home)) for name, text in variables.items()}
        try:
            warnings = read_settings(variables).all_warnings(("acme", "native"))
        except SettingsError as error:
            warnings = (str(error),)
        return " | ".join(warnings).replace(str(home), "HOME") or "nothing"

    return told


@pytest.mark.parametrize(("call", "said"), pairs(Path(__file__).with_name("settings.txt")))
def test_what_is_malformed_or_unknown_is_told_of(home, call, said):
    assert eval(call, {"told": told_of(home)}) == said


def test_values_that_would_move_the_cursor_are_put_on_printable_lines(home, tmp_path):
    path = tmp_path / "mine\x1b[31m\nforged.toml"
    path.write_text("", encoding="utf-8")
    variables = {"TOKENDRAW_SAMPLER": "\x1b[31ma\nb", "TOKENDRAW_DISABLE": "\x1b[31mc, ,d"}
    settings = read_settings(variables | {"TOKENDRAW_CONFIG": str(path)})
    assert (settings.sampler, settings.disabled) == (r"\x1b[31ma\nb", (r"\x1b[31mc", "d"))
    assert settings.config == path
    path.write_text('sampler = "\\u001b[31m"\ndisable = ["a\\nb"]\n', encoding="utf-8")
    from_file = read_settings({"TOKENDRAW_CONFIG": str(path)})
    assert (from_file.sampler, from_file.disabled) == (r"\x1b[31m", (r"a\nb",))
    assert from_file.sampler_source == str(tmp_path / r"mine\x1b[31m\nforged.toml")
