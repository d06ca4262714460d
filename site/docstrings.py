"""Docstrings of the sources, in reST, as Markdown for the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?([^`]+)`")
_RULE = re.compile(r"=+(?: +=+)+")
_CODE = re.compile(r"(`+[^`]+`+)")


class Docstrings(griffe.Extension):
    """Rewrites each docstring once the sources are loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the docstring of a distribution's package."""
        self.on_object(obj=pkg)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = in_markdown(obj.docstring.value, obj)


def in_markdown(text: str, obj: griffe.Object) -> str:
    """Return a docstring in Markdown: roles as links, tables with their rules, literal blocks as code.

    Fields such as ``:param x:`` stay as they are, for griffe.
    """
    out: list[str] = []
    lines = iter(text.splitlines())
    literal = None  # indent of the paragraph that announced a literal block
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if literal is not None and (not line.strip() or indent > literal):
            out.append(line)
            continue
        literal = indent if line.rstrip().endswith("::") else None
        if _RULE.fullmatch(line.strip()):
            out += _table(line, lines, obj)
        else:
            words = re.sub(r"::$", ":", line.rstrip())
            out.append("" if words.strip() == ":" else _inline(words, obj))
    return "\n".join(out)


def _table(rule: str, lines: Any, obj: griffe.Object) -> list[str]:
    start = rule.rindex(" ") + 1
    rows = []
    for line in lines:
        if _RULE.fullmatch(line.strip()):
            break
        rows.append((line[:start].strip(), line[start:].strip()))
    return ["", *(f"* {_inline(left, obj)}: {_inline(right, obj)}" for left, right in rows), ""]


def _inline(line: str, obj: griffe.Object) -> str:
    """Turn roles into links, and keep signs outside of code from being taken for Markdown or HTML."""
    line = _ROLE.sub(lambda role: f"`{_link(role[1], obj)}`", line)
    parts = _CODE.split(line)
    for i, part in enumerate(parts):
        if part.startswith("`\0"):
            target, _, words = part.strip("`\0").partition("\0")
            parts[i] = f'<autoref identifier="{target}" optional><code>{words}</code></autoref>'
        elif page := re.fullmatch(r"``docs/([\w-]+)\.md``", part):
            parts[i] = f'<a href="../docs/{page[1]}.html">docs/{page[1]}</a>'
        elif not part.startswith("`"):
            parts[i] = re.sub(r"(?<=\w)\*\*(?=\w)", r"\*\*", part).replace("<", "&lt;")
    return "".join(parts)


def _link(name: str, obj: griffe.Object) -> str:
    first, dot, rest = name.partition(".")
    scope: griffe.Object | None = None if first.startswith("tokendraw") else obj
    while scope is not None:
        member = scope if scope.name == first else scope.members.get(first)
        if member is None and isinstance(scope, griffe.Class):
            member = scope.inherited_members.get(first)
        if member is not None:
            home = member.target_path if isinstance(member, griffe.Alias) else member.path
            return f"\0{home}{dot}{rest}\0{name}"
        scope = scope.parent
    return f"\0{name}\0{name}"
