"""Reads settings from outside the program: ``TOKENDRAW_*`` variables and a configuration file.

``docs/operators.md`` lists the variables. The file is TOML with the keys ``sampler`` (a string), ``priority`` and
``disable`` (lists of strings). A variable goes before the file, key by key; an empty one counts as unset.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokendraw.backends.discovery.entry_points import FILTER_GROUP, OPERATION_GROUP, declarations
from tokendraw.backends.resolution.candidate import FIRST_PARTY, Choice
from tokendraw.errors import SettingsError, format_line, format_value, nearest, one_of, printable

_PREFIX = "TOKENDRAW_"
VARIABLES = (
    "TOKENDRAW_CONFIG",
    "TOKENDRAW_DEBUG",
    "TOKENDRAW_DISABLE",
    "TOKENDRAW_NO_PLUGINS",
    "TOKENDRAW_PRIORITY",
    "TOKENDRAW_SAMPLER",
    "TOKENDRAW_STRICT",
)
WARMUP_RULES = "TOKENDRAW_WARMUP_RULES"
ENGINE_SWITCHES = ("TOKENDRAW_VLLM", WARMUP_RULES)
"""Variables that adapters to engines read; no sampler depends on them."""
_KNOWN = (*VARIABLES, *ENGINE_SWITCHES)
_FLAGS = {"first_party_only": "NO_PLUGINS", "strict": "STRICT", "debug": "DEBUG"}
_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}
_KEYS = {"sampler": "a string", "priority": "a list of strings", "disable": "a list of strings"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in force, each with its source: a variable, or the path of the configuration file.

    :ivar sampler: Name of the sampler that was chosen explicitly; None: the best available one.
    :ivar sampler_source: Variable or file that ``sampler`` comes from; "" where none is set.
    :ivar priority: Names of the plugins to prefer, the most preferred first.
    :ivar priority_source: Variable or file that ``priority`` comes from; "" where none is set.
    :ivar disabled: Names of the plugins that are switched off and never imported.
    :ivar disabled_source: Variable or file that ``disabled`` comes from; "" where none is set.
    :ivar first_party_only: Whether third-party plugins are left out: ``TOKENDRAW_NO_PLUGINS``.
    :ivar strict: Whether warnings are errors: ``TOKENDRAW_STRICT``.
    :ivar debug: Whether every call is checked in full, which waits for the device: ``TOKENDRAW_DEBUG``.
    :ivar config: Path of the configuration file that was read; None if there is none.
    :ivar warnings: Unknown ``TOKENDRAW_*`` variables, in words.
    """

    sampler: str | None = None
    sampler_source: str = ""
    priority: tuple[str, ...] = ()
    priority_source: str = ""
    disabled: tuple[str, ...] = ()
    disabled_source: str = ""
    first_party_only: bool = False
    strict: bool = False
    debug: bool = False
    config: Path | None = None
    warnings: tuple[str, ...] = ()

    def all_warnings(self, installed: Iterable[str], *, sampler: bool = False) -> tuple[str, ...]:
        """List warnings about unknown variables, and about unknown plugin names in ``priority`` and ``disabled``.

        :param installed: names of the plugins that are installed, in whatever state.
        :param sampler: whether to warn of an unknown ``sampler`` too, which is an error where one is chosen.
        """
        known = sorted({*installed, *FIRST_PARTY})  # one configuration may serve many machines
        extensions: set[str] = set()
        if {*self.disabled}.difference(known):  # filters from moments and operations may be disabled, too
            groups = (FILTER_GROUP, OPERATION_GROUP)
            extensions = {declaration.name for group in groups for declaration in declarations(group)}
        named = {
            _label("disable", self.disabled_source): self.disabled,
            _label("priority", self.priority_source): self.priority,
            _label("sampler", self.sampler_source): (self.sampler,) if sampler and self.sampler else (),
        }
        misnamed = [
            f"{label} names {format_value(name)}, found no such plugin, {_nearest(name, known)}. "
            "Correct it, or take it out."
            for label, names in named.items()
            for name in dict.fromkeys(names)
            if name not in known and name not in extensions
        ]
        return (*self.warnings, *misnamed)

    def choice(
        self,
        sampler: str | Mapping[str, Sequence[str]] | None = None,
        source: str = "the argument sampler=",
        *,
        binds: bool = True,
    ) -> Choice:
        """Collect the settings of a resolution; ``sampler`` is the caller's, by ``source``, and goes first.

        :param sampler: a name, or the names of each operation, as :attr:`Choice.names`.
        :param binds: whether the sampler of the settings counts: for the operations of the core alone.
        """
        is_default = sampler is None and binds
        return Choice(
            sampler=self.sampler if is_default else sampler if isinstance(sampler, str) else None,
            names=sampler if isinstance(sampler, Mapping) else None,
            source=self.sampler_source if is_default else source if sampler is not None else "",
            priority=self.priority,
            priority_source=self.priority_source or "TOKENDRAW_PRIORITY",
            disabled=self.disabled,
            disabled_source=self.disabled_source or "TOKENDRAW_DISABLE",
            first_party_only=self.first_party_only,
        )


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the variables and the configuration file.

    :param environ: the environment; None: this process's.
    :raises SettingsError: a value is malformed; names the variable, or the file and its key.
    """
    environ = os.environ if environ is None else environ
    ours = {name: text.strip() for name, text in environ.items() if name.startswith(_PREFIX)}
    variables = {name: text for name, text in ours.items() if text}
    path = _config_path(variables, environ)
    table = _read_config(path, named="TOKENDRAW_CONFIG" in variables) if path else None
    values: dict[str, Any] = {
        field: _boolean(f"{_PREFIX}{word}", variables.get(f"{_PREFIX}{word}", "0"))
        for field, word in _FLAGS.items()
    }
    for field, key in (("sampler", "sampler"), ("priority", "priority"), ("disabled", "disable")):
        text = variables.get(variable := f"{_PREFIX}{key.upper()}")
        if text is not None:
            names = tuple(printable(name.strip()) for name in text.split(",") if name.strip())
            values |= {field: printable(text) if key == "sampler" else names, f"{field}_source": variable}
        elif table and table.get(key):
            values |= {field: table[key], f"{field}_source": printable(str(path))}
    unknown = tuple(
        f"{format_value(name)} is no variable of tokendraw, {_nearest(name, _KNOWN)}. Correct it, or unset it."
        for name in sorted(variables)
        if name not in _KNOWN
    )
    return Settings(**values, config=None if table is None else path, warnings=unknown)


def is_debugging() -> bool:
    return _boolean("TOKENDRAW_DEBUG", os.environ.get("TOKENDRAW_DEBUG", "").strip() or "0")


def is_switched_off(variable: str) -> bool:
    """Whether a variable with default on, such as ``TOKENDRAW_VLLM``, is set to 0 or false."""
    return not _boolean(variable, os.environ.get(variable, "").strip() or "1")


def _boolean(variable: str, text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise SettingsError(
            f"{variable!r} needs {one_of(_BOOLEANS)}, found {format_value(text)}. Set one of these, or unset it."
        )
    return _BOOLEANS[text.lower()]


def _nearest(name: str, known: Iterable[str]) -> str:
    # The prefix alone would make any variable similar to any other.
    stems = {word.removeprefix(_PREFIX): word for word in known}
    near = nearest(name.removeprefix(_PREFIX), stems)
    return f"known are {', '.join(known)}" if near is None else f"the nearest known one is {stems[near]!r}"


def _label(key: str, source: str) -> str:
    return repr(source) if source.startswith("TOKENDRAW_") else f"{key!r} in {source!r}"


def _config_path(variables: Mapping[str, str], environ: Mapping[str, str]) -> Path | None:
    if "TOKENDRAW_CONFIG" in variables:
        return Path(variables["TOKENDRAW_CONFIG"]).expanduser()
    base = Path(environ.get("XDG_CONFIG_HOME", ""))
    try:  # the XDG base directory specification says to ignore a relative one
        base = base if base.is_absolute() else Path.home() / ".config"
    except RuntimeError:  # a container without a home directory has no configuration file either
        return None
    return base / "tokendraw" / "config.toml"


def _read_config(path: Path, *, named: bool) -> dict[str, Any] | None:
    """Read and check the file; None if the file is absent from its usual place. A named file has to exist."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if not named:
            return None
        raise SettingsError(
            f"'TOKENDRAW_CONFIG' names {format_value(str(path))}, found no such file. Correct it, or unset it."
        ) from None
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"{format_value(str(path))} cannot be read: {format_line(str(error))}. Mend it, or move it away."
        ) from error
    for key, value in table.items():
        if key not in _KEYS:
            raise SettingsError(
                f"{format_value(str(path))} holds the unknown key {format_value(key)}, {_nearest(key, _KEYS)}. "
                "Correct it, or take it out."
            )
        strings = [value] if key == "sampler" else value if isinstance(value, list) else [None]
        if not all(isinstance(item, str) for item in strings):
            raise SettingsError(
                f"{key!r} in {format_value(str(path))} needs {_KEYS[key]}, found {format_value(value)}. Correct it."
            )
    return {
        key: printable(value) if key == "sampler" else tuple(map(printable, value))
        for key, value in table.items()
    }
