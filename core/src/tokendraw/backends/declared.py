"""Checks the fields of frozen dataclasses against their declared types when a record is made.

``Need(batch_invariant="no")`` is true for Python, and a misspelt word would never match. The declaration of a field is
all that is written: ``bool``, ``str``, ``int`` with :func:`at_least`, ``Literal``, tuples and unions of these.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
import operator
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tokendraw.errors import InvalidParameterError, format_value, nearest, one_of

_YES_OR_NO = {
    **dict.fromkeys(("yes", "true", "on", "1"), True),
    **dict.fromkeys(("no", "false", "off", "0"), False),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """The permitted values of a field. Within ``Annotated`` the rule replaces the check of the type."""

    needed: tuple[str, ...]
    """The alternatives in words."""
    fits: Callable[[Any], bool]
    words: tuple[str, ...] = ()
    """Words that the value may be, of which a message names the nearest."""


def at_least(least: int) -> Rule:
    def fits(value: Any) -> bool:
        is_integer = type(value) is int or (
            isinstance(value, numbers.Integral) and not isinstance(value, bool)
        )
        return is_integer and value >= least

    return Rule((f"an integer >= {least}",), fits)


def among(words: tuple[str, ...]) -> Rule:
    return Rule(tuple(map(repr, words)), lambda value: isinstance(value, str) and value in words, words)


def some_of(words: tuple[str, ...]) -> Rule:
    is_word = among(words).fits

    def fits(value: Any) -> bool:
        return isinstance(value, tuple) and len(value) > 0 and all(map(is_word, value))

    return Rule((f"a tuple of at least one of {one_of(map(repr, words))}",), fits, words)


def check_fields(record: Any) -> None:
    names, values_of, rules = _rules(type(record))  # type: ignore[arg-type]
    for name, value, rule in zip(names, values_of(record), rules, strict=True):
        if not rule.fits(value):
            raise _misfit(type(record), name, rule, value, f"Pass one, or leave out {name}=.")


def rules_of(record: type) -> dict[str, Rule]:
    names, _, rules = _rules(record)
    return dict(zip(names, rules, strict=True))


@functools.cache
def _rules(record: type) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[Rule, ...]]:
    """Return names, a function that reads all values at once (facts of every batch are checked), and rules."""
    hints = get_type_hints(record, include_extras=True)
    names = tuple(field.name for field in fields(record))
    return names, operator.attrgetter(*names), tuple(rule_of(hints[name]) for name in names)


def read_field(record: type, name: str, text: str) -> Any:
    """Read a field's value from text: ``8``, ``true``, ``none``, a word, or words separated by commas."""
    rule = rules_of(record).get(name)
    if rule is None:
        raise InvalidParameterError(
            f"'{name}' needs {one_of(rules_of(record))}, found no such field of {record.__name__}. Name one of these."
        )
    readings: list[Any] = [text]
    with contextlib.suppress(ValueError):
        readings.append(int(text))
    readings += [value for word, value in {**_YES_OR_NO, "none": None}.items() if word == text.lower()]
    for value in (*readings, tuple(text.split(","))):
        if rule.fits(value):
            return value
    raise _misfit(record, name, rule, text, "Give one.")


def _misfit(record: type, name: str, rule: Rule, value: object, mend: str) -> InvalidParameterError:
    needed, advice = one_of(rule.needed), _advice(rule, value) or mend
    return InvalidParameterError(
        f"'{name}' of {record.__name__} needs {needed}, found {format_value(value)}. {advice}"
    )


def rule_of(hint: Any) -> Rule:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next(rule for rule in arguments if isinstance(rule, Rule))
    if origin is Literal:
        return among(arguments)
    if origin in (Union, UnionType):
        return functools.reduce(_either, map(rule_of, arguments))
    if origin is tuple:
        return _tuple_of(arguments)
    # A plugin's own subclass may declare what it likes.
    return _PLAIN.get(hint, Rule(("anything",), lambda value: True))


def _either(one: Rule, other: Rule) -> Rule:
    needed, words = one.needed + other.needed, one.words + other.words
    return Rule(needed, lambda value: one.fits(value) or other.fits(value), words)


def _tuple_of(arguments: tuple[Any, ...]) -> Rule:
    if arguments[-1] is Ellipsis:
        rule = rule_of(arguments[0])
        return Rule(
            (f"a tuple of {one_of(rule.needed)}",),
            lambda value: isinstance(value, tuple) and all(map(rule.fits, value)),
            rule.words,
        )
    rules = [rule_of(argument) for argument in arguments]
    return Rule(
        (f"a tuple ({', '.join(one_of(rule.needed) for rule in rules)})",),
        lambda value: (
            isinstance(value, tuple)
            and len(value) == len(rules)
            and all(rule.fits(part) for rule, part in zip(rules, value, strict=True))
        ),
    )


_PLAIN: dict[type, Rule] = {
    bool: Rule(("True or False",), lambda value: isinstance(value, bool)),
    str: Rule(("a string",), lambda value: isinstance(value, str)),
    NoneType: Rule(("None",), lambda value: value is None),
}


def _advice(rule: Rule, value: object) -> str:
    if rule is _PLAIN[bool] and (near := _YES_OR_NO.get(str(value).lower())) is not None:
        return f"Pass {near}."
    if rule.needed[0].startswith("a tuple of") and isinstance(value, (str, list)):
        words = (value,) if isinstance(value, str) else tuple(value)
        if rule.fits(words):
            return f"Pass {words!r}."
    found = value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value
    if near_word := nearest(str(found).removeprefix("torch."), rule.words):
        return f"Pass {near_word!r}, the nearest."
    return "Pass one of these." if rule.words else ""
