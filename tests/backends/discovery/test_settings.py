"""Variables and the configuration file: their order, and the messages about malformed settings."""

import pytest

from tokendraw import SettingsError
from tokendraw.backends.discovery.settings import ENGINE_SWITCHES, VARIABLES, Settings, read_settings
from tokendraw.cli.negotiation import settings_in_force
from tokendraw.resolution import Choice


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def config(home, text):
    path = home / ".config" / "tokendraw" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_with_nothing_set_everything_is_at_its_default(home):
    assert read_settings({}) == Settings()
    assert read_settings({}).choice() == Choice()


def test_every_variable_is_read(home):
    settings = read_settings(
        {
            "TOKENDRAW_SAMPLER": "native",
            "TOKENDRAW_PRIORITY": "b, a",
            "TOKENDRAW_DISABLE": "c,,d,",
            "TOKENDRAW_NO_PLUGINS": "1",
            "TOKENDRAW_STRICT": "true",
            "TOKENDRAW_DEBUG": "1",
        }
    )
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


def test_every_variable_that_is_in_force_is_shown(home):
    set_here = {name: "1" for name in VARIABLES if name != "TOKENDRAW_CONFIG"}
    assert dict(settings_in_force(read_settings(set_here))) == set_here


def test_variables_are_read_at_the_call_and_not_at_import(home, monkeypatch):
    assert read_settings().sampler is None
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    assert read_settings().sampler == "native"


@pytest.mark.parametrize("name", [*VARIABLES, *ENGINE_SWITCHES])
@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_variable_counts_as_unset(home, name, empty):
    assert read_settings({name: empty}) == Settings()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", False), ("1", True), ("true", True), ("TRUE", True), ("False", False), (" 1 ", True)],
)
def test_booleans_are_0_1_true_and_false_in_any_case(home, text, expected):
    assert read_settings({"TOKENDRAW_STRICT": text}).strict is expected
    assert read_settings({"TOKENDRAW_DEBUG": text}).debug is expected
    assert read_settings({"TOKENDRAW_NO_PLUGINS": text}).first_party_only is expected


@pytest.mark.parametrize("text", ["yes", "2", "on", "-1", "tru"])
@pytest.mark.parametrize("name", ["TOKENDRAW_STRICT", "TOKENDRAW_DEBUG", "TOKENDRAW_NO_PLUGINS"])
def test_any_other_boolean_is_an_error_that_names_the_variable(home, name, text):
    with pytest.raises(SettingsError) as error:
        read_settings({name: text})
    assert str(error.value) == (
        f"{name!r} needs 0, 1, false or true, found {text!r}. Set one of these, or unset it."
    )


def test_the_callers_own_choice_goes_before_every_setting(home):
    choice = read_settings({"TOKENDRAW_SAMPLER": "a"}).choice("b")
    assert (choice.sampler, choice.source) == ("b", "the argument sampler=")


# The configuration file


def test_the_configuration_file_is_read_from_its_usual_place(home):
    path = config(home, 'sampler = "native"\npriority = ["b", "a"]\ndisable = ["c"]\n')
    assert read_settings({}) == Settings(
        sampler="native",
        sampler_source=str(path),
        priority=("b", "a"),
        priority_source=str(path),
        disabled=("c",),
        disabled_source=str(path),
        config=path,
    )
    choice = read_settings({}).choice()
    assert (choice.priority_source, choice.disabled_source) == (str(path), str(path))


def test_a_variable_goes_before_the_file_key_by_key(home):
    path = config(home, 'sampler = "native"\ndisable = ["c"]\n')
    settings = read_settings({"TOKENDRAW_SAMPLER": "acme"})
    assert (settings.sampler, settings.sampler_source) == ("acme", "TOKENDRAW_SAMPLER")
    assert (settings.disabled, settings.disabled_source) == (("c",), str(path))


def test_xdg_config_home_moves_the_usual_place(home, tmp_path):
    path = tmp_path / "elsewhere" / "tokendraw" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text('sampler = "native"', encoding="utf-8")
    assert read_settings({"XDG_CONFIG_HOME": str(tmp_path / "elsewhere")}).config == path


def test_a_relative_xdg_config_home_is_ignored_as_its_specification_says(home):
    path = config(home, 'sampler = "native"')
    assert read_settings({"XDG_CONFIG_HOME": ".config"}).config == path


def test_tokendraw_config_names_the_file(home, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('sampler = "native"', encoding="utf-8")
    assert read_settings({"TOKENDRAW_CONFIG": str(path)}).config == path
    assert read_settings({"TOKENDRAW_CONFIG": "~/mine.toml"}).config == path


def test_a_file_that_was_named_has_to_be_there(home, tmp_path):
    path = str(tmp_path / "absent.toml")
    with pytest.raises(SettingsError) as error:
        read_settings({"TOKENDRAW_CONFIG": path})
    assert str(error.value) == (
        f"'TOKENDRAW_CONFIG' names {path!r}, found no such file. Correct it, or unset it."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "samplr = 'native'",
            "{path!r} holds the unknown key 'samplr', the nearest known one is 'sampler'. "
            "Correct it, or take it out.",
        ),
        (
            "x = 1",
            "{path!r} holds the unknown key 'x', known are sampler, priority, disable. "
            "Correct it, or take it out.",
        ),
        ("sampler = 3", "'sampler' in {path!r} needs a string, found 3. Correct it."),
        ("priority = 'a'", "'priority' in {path!r} needs a list of strings, found 'a'. Correct it."),
        ("disable = ['a', 1]", "'disable' in {path!r} needs a list of strings, found ['a', 1]. Correct it."),
        (
            "sampler = ",
            "{path!r} cannot be read: Invalid value (at end of document). Mend it, or move it away.",
        ),
    ],
)
def test_a_malformed_file_is_an_error_that_names_the_file_and_the_key(home, text, message):
    path = str(config(home, text))
    with pytest.raises(SettingsError) as error:
        read_settings({})
    assert str(error.value) == message.format(path=path)


def test_a_file_that_is_not_text_or_not_a_file_is_an_error(home, tmp_path):
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"cannot be read: 'utf-8' codec"):
        read_settings({"TOKENDRAW_CONFIG": str(binary)})
    with pytest.raises(SettingsError, match=r"cannot be read: .*Is a directory"):
        read_settings({"TOKENDRAW_CONFIG": str(tmp_path)})


def test_an_empty_string_or_list_in_the_file_counts_as_unset(home):
    path = config(home, 'sampler = ""\npriority = []\n')
    assert read_settings({}) == Settings(config=path)


# Unknown variables


def test_an_unknown_variable_is_told_of_with_the_nearest_name(home):
    assert read_settings({"TOKENDRAW_SAMPELR": "native", "TOKENDRAW_DISABLED": "a"}).warnings == (
        "'TOKENDRAW_DISABLED' is no variable of tokendraw, the nearest known one is 'TOKENDRAW_DISABLE'. "
        "Correct it, or unset it.",
        "'TOKENDRAW_SAMPELR' is no variable of tokendraw, the nearest known one is 'TOKENDRAW_SAMPLER'. "
        "Correct it, or unset it.",
    )


def test_an_unknown_variable_that_resembles_none_is_told_of_with_all_that_there_are(home):
    assert read_settings({"TOKENDRAW_CACHE_DIR": "/tmp"}).warnings == (
        f"'TOKENDRAW_CACHE_DIR' is no variable of tokendraw, known are {', '.join((*VARIABLES, *ENGINE_SWITCHES))}. "
        "Correct it, or unset it.",
    )


# Names that no plugin has

CORRECT = "Correct it, or take it out."
INSTALLED = ("acme", "native")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"TOKENDRAW_DISABLE": "nativ"},
            ("'TOKENDRAW_DISABLE' names 'nativ', found no such plugin, the nearest known one is 'native'.",),
        ),
        (
            {"TOKENDRAW_PRIORITY": "nope,acme,nope"},
            (
                "'TOKENDRAW_PRIORITY' names 'nope', found no such plugin, known are acme, aiter, cpu, flashinfer, "
                "native, ops-flashinfer, ops-torch, ops-triton, triton-gumbel.",
            ),
        ),
        (
            {"TOKENDRAW_DISABLE": "acme,acne", "TOKENDRAW_PRIORITY": "flashinfr"},
            (
                "'TOKENDRAW_DISABLE' names 'acne', found no such plugin, the nearest known one is 'acme'.",
                "'TOKENDRAW_PRIORITY' names 'flashinfr', found no such plugin, the nearest known one is "
                "'flashinfer'.",
            ),
        ),
        # One configuration for many machines names plugins of tokendraw that are not on each of them.
        ({"TOKENDRAW_DISABLE": "flashinfer,aiter", "TOKENDRAW_PRIORITY": "triton-gumbel"}, ()),
        ({"TOKENDRAW_DISABLE": "acme", "TOKENDRAW_PRIORITY": "native,acme"}, ()),
        ({}, ()),
    ],
)
def test_a_name_that_no_plugin_has_is_told_of_with_the_nearest(home, variables, expected):
    assert read_settings(variables).all_warnings(INSTALLED) == tuple(f"{text} {CORRECT}" for text in expected)


def test_a_name_in_the_file_is_told_of_by_key_and_file(home):
    path = str(config(home, 'disable = ["nativ"]\npriority = ["acne"]\n'))
    assert read_settings({}).all_warnings(INSTALLED) == (
        f"'disable' in {path!r} names 'nativ', found no such plugin, the nearest known one is 'native'. {CORRECT}",
        f"'priority' in {path!r} names 'acne', found no such plugin, the nearest known one is 'acme'. {CORRECT}",
    )


def test_unknown_variables_go_before_unknown_names(home):
    settings = read_settings({"TOKENDRAW_SAMPELR": "native", "TOKENDRAW_DISABLE": "nativ"})
    first, second = settings.all_warnings(INSTALLED)
    assert (first,) == settings.warnings
    assert second.startswith("'TOKENDRAW_DISABLE' names 'nativ'")


# Values that would move the cursor


def test_values_are_put_on_printable_lines(home, tmp_path):
    path = tmp_path / "mine\x1b[31m\nforged.toml"
    path.write_text("", encoding="utf-8")
    settings = read_settings(
        {
            "TOKENDRAW_SAMPLER": "\x1b[31ma\nb",
            "TOKENDRAW_DISABLE": "\x1b[31mc, ,d",
            "TOKENDRAW_\nX": "1",
            "TOKENDRAW_CONFIG": str(path),
        }
    )
    assert settings.sampler == r"\x1b[31ma\nb"
    assert settings.disabled == (r"\x1b[31mc", "d")
    assert settings.config == path
    assert settings.warnings[0].startswith(r"'TOKENDRAW_\nX' is no variable of tokendraw")
    path.write_text('sampler = "\\u001b[31m"\ndisable = ["a\\nb"]\n', encoding="utf-8")
    from_file = read_settings({"TOKENDRAW_CONFIG": str(path)})
    assert (from_file.sampler, from_file.disabled) == (r"\x1b[31m", (r"a\nb",))
    assert from_file.sampler_source == str(tmp_path / r"mine\x1b[31m\nforged.toml")
    with pytest.raises(SettingsError) as error:
        read_settings({"TOKENDRAW_STRICT": "\x1b" + "x" * 1000})
    assert str(error.value) == (
        rf"'TOKENDRAW_STRICT' needs 0, 1, false or true, found '\x1b{'x' * 195} .... "
        "Set one of these, or unset it."
    )
