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
    def test_an_empty_variable_counts_as_unset(self, home, name):
        assert read_settings({name: ""}) == read_settings({name: "  "}) == Settings()

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("0", False), ("1", True), ("true", True), ("TRUE", True), ("False", False), (" 1 ", True)],
    )
    def test_booleans_are_0_1_true_and_false_in_any_case(self, home, text, expected):
        names = ("TOKENDRAW_STRICT", "TOKENDRAW_DEBUG", "TOKENDRAW_NO_PLUGINS")
        settings = read_settings(dict.fromkeys(names, text))
        assert (settings.strict, settings.debug, settings.first_party_only) == (expected,) * 3


class TestFiles:
    def test_the_configuration_file_is_read_from_its_usual_place_and_a_variable_goes_before_it(self, home):
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

    def test_an_empty_string_or_list_in_the_file_counts_as_unset(self, home):
        path = config(home, 'sampler = ""\npriority = []\n')
        assert read_settings({}) == Settings(config=path)

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
            ("disable = [1]", "'disable' in {path!r} needs a list of strings, found [1]. Correct it."),
            (
                "sampler = ",
                "{path!r} cannot be read: Invalid value (at end of document). Mend it, or move it away.",
            ),
        ],
    )
    def test_a_malformed_file_is_an_error_that_names_the_file_and_the_key(self, home, text, message):
        path = str(config(home, text))
        with pytest.raises(SettingsError) as error:
            read_settings({})
        assert str(error.value) == message.format(path=path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            (
                name,
                text,
                f"'{name}' needs 0, 1, false or true, found '{text}'. Set one of these, or unset it.",
            )
            for name in ("TOKENDRAW_STRICT", "TOKENDRAW_DEBUG", "TOKENDRAW_NO_PLUGINS")
            for text in ("yes", "2", "tru")
        ),
        (
            "TOKENDRAW_STRICT",
            "\x1b" + "x" * 1000,
            rf"'TOKENDRAW_STRICT' needs 0, 1, false or true, found '\x1b{'x' * 195} .... "
            "Set one of these, or unset it.",
        ),
        (
            "TOKENDRAW_CONFIG",
            "/no/file",
            "'TOKENDRAW_CONFIG' names '/no/file', found no such file. Correct it, or unset it.",
        ),
        (
            "TOKENDRAW_CONFIG",
            "/",
            "'/' cannot be read: [Errno 21] Is a directory: '/'. Mend it, or move it away.",
        ),
        (
            "TOKENDRAW_CONFIG",
            "~/binary.toml",
            "'{home}/binary.toml' cannot be read: 'utf-8' codec can't decode byte 0xff in position 0: invalid start "
            "byte. Mend it, or move it away.",
        ),
    ],
)
def test_a_malformed_variable_is_an_error_that_names_it(home, name, value, message):
    (home / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError) as error:
        read_settings({name: value})
    assert str(error.value) == message.format(home=home)


KNOWN = ", ".join((*VARIABLES, *ENGINE_SWITCHES))
PLUGINS = "acme, aiter, cpu, flashinfer, native, ops-flashinfer, ops-torch, ops-triton, triton-gumbel"
TOLD_OF = [
    # Unknown variables go before unknown names.
    (
        {"TOKENDRAW_SAMPELR": "native", "TOKENDRAW_DISABLED": "a", "TOKENDRAW_DISABLE": "nativ"},
        "'TOKENDRAW_DISABLED' is no variable of tokendraw, the nearest known one is 'TOKENDRAW_DISABLE'. or unset it.",
        "'TOKENDRAW_SAMPELR' is no variable of tokendraw, the nearest known one is 'TOKENDRAW_SAMPLER'. or unset it.",
        "'TOKENDRAW_DISABLE' names 'nativ', found no such plugin, the nearest known one is 'native'. or take it out.",
    ),
    (
        {"TOKENDRAW_CACHE_DIR": "/tmp"},
        f"'TOKENDRAW_CACHE_DIR' is no variable of tokendraw, known are {KNOWN}. or unset it.",
    ),
    (
        {"TOKENDRAW_PRIORITY": "nope,acme,nope"},
        f"'TOKENDRAW_PRIORITY' names 'nope', found no such plugin, known are {PLUGINS}. or take it out.",
    ),
    (
        {"TOKENDRAW_DISABLE": "acme,acne", "TOKENDRAW_PRIORITY": "flashinfr"},
        "'TOKENDRAW_DISABLE' names 'acne', found no such plugin, the nearest known one is 'acme'. or take it out.",
        "'TOKENDRAW_PRIORITY' names 'flashinfr', found no such plugin, the nearest known one is 'flashinfer'. "
        "or take it out.",
    ),
    # One configuration for many machines names plugins of tokendraw that are not on each of them.
    ({"TOKENDRAW_DISABLE": "flashinfer,aiter", "TOKENDRAW_PRIORITY": "triton-gumbel,native,acme"},),
    ({},),
]


@pytest.mark.parametrize(("variables", "messages"), [(variables, texts) for variables, *texts in TOLD_OF])
def test_an_unknown_variable_and_a_name_that_no_plugin_has_are_told_of_with_the_nearest(
    home, variables, messages
):
    found = read_settings(variables).all_warnings(("acme", "native"))
    assert [text.replace(" Correct it,", "") for text in found] == messages


def test_a_name_in_the_file_is_told_of_by_key_and_file(home):
    path = str(config(home, 'disable = ["nativ"]\npriority = ["acne"]\n'))
    names = "names '{}', found no such plugin, the nearest known one is '{}'. Correct it, or take it out."
    assert read_settings({}).all_warnings(("acme", "native")) == (
        f"'disable' in {path!r} {names.format('nativ', 'native')}",
        f"'priority' in {path!r} {names.format('acne', 'acme')}",
    )


def test_values_that_would_move_the_cursor_are_put_on_printable_lines(home, tmp_path):
    path = tmp_path / "mine\x1b[31m\nforged.toml"
    path.write_text("", encoding="utf-8")
    variables = {
        "TOKENDRAW_SAMPLER": "\x1b[31ma\nb",
        "TOKENDRAW_DISABLE": "\x1b[31mc, ,d",
        "TOKENDRAW_\nX": "1",
        "TOKENDRAW_CONFIG": str(path),
    }
    settings = read_settings(variables)
    assert (settings.sampler, settings.disabled) == (r"\x1b[31ma\nb", (r"\x1b[31mc", "d"))
    assert settings.config == path
    assert settings.warnings[0].startswith(r"'TOKENDRAW_\nX' is no variable of tokendraw")
    path.write_text('sampler = "\\u001b[31m"\ndisable = ["a\\nb"]\n', encoding="utf-8")
    from_file = read_settings({"TOKENDRAW_CONFIG": str(path)})
    assert (from_file.sampler, from_file.disabled) == (r"\x1b[31m", (r"a\nb",))
    assert from_file.sampler_source == str(tmp_path / r"mine\x1b[31m\nforged.toml")
