"""``tokendraw.__all__``, the table of lazy imports and the block for type checkers say the same."""

import ast
from pathlib import Path

import pytest

import tokendraw


def type_checking_imports() -> dict[str, set[str]]:
    """Names by private module, as the ``if TYPE_CHECKING`` block of the package imports them."""
    tree = ast.parse(Path(tokendraw.__file__).read_text(encoding="utf-8"))
    (block,) = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    return {
        str(node.module).removeprefix("tokendraw."): {alias.name for alias in node.names} for node in imports
    }


def test_all_lists_the_lazy_names_and_the_version_in_order() -> None:
    assert sorted([*tokendraw._HOME_OF, "__version__"]) == sorted(tokendraw.__all__)
    assert len(tokendraw.__all__) == len(set(tokendraw.__all__))


def test_the_block_for_type_checkers_agrees_with_the_table() -> None:
    assert type_checking_imports() == {module: set(names) for module, names in tokendraw._HOMES.items()}


@pytest.mark.parametrize("name", tokendraw.__all__)
def test_every_exported_name_can_be_imported_and_is_documented(name: str) -> None:
    value = getattr(tokendraw, name)
    if isinstance(value, type):
        assert value.__doc__, name
        assert value.__module__.startswith("tokendraw."), name


def test_dir_shows_what_is_exported() -> None:
    assert dir(tokendraw) == sorted(tokendraw.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError) as error:
        tokendraw.load_smapler  # noqa: B018
    assert str(error.value) == "module 'tokendraw' has no attribute 'load_smapler'"


def test_errors_and_warnings_are_what_their_tree_says() -> None:
    errors = [
        tokendraw.SamplerUnavailableError,
        tokendraw.InvalidParameterError,
        tokendraw.InvalidInputError,
        tokendraw.SettingsError,
        tokendraw.PluginError,
        tokendraw.DuplicatePluginError,
    ]
    assert all(issubclass(error, tokendraw.TokendrawError) for error in errors)
    assert issubclass(tokendraw.DuplicatePluginError, tokendraw.PluginError)
    for error in (
        tokendraw.InvalidParameterError,
        tokendraw.InvalidInputError,
        tokendraw.SettingsError,
    ):
        assert issubclass(error, ValueError)
    for warning in (
        tokendraw.SamplerFallbackWarning,
        tokendraw.UntestedUpstreamWarning,
        tokendraw.SettingsWarning,
    ):
        assert issubclass(warning, tokendraw.TokendrawWarning)
        assert issubclass(warning, UserWarning)
