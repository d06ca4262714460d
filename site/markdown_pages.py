"""The pages of the site: Markdown files of the checkout, their groups, and links to files that are no pages.

Plain Python, so that the tests of the repository need none of the site's tools.
"""

from __future__ import annotations

import os
import posixpath
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
INDEX = "docs/README.md"
PAGE_PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "testing/README.md",
    "bench/README.md",
    "engine_ops/README.md",
    "ranks/README.md",
    "plugins/*/*.md",
    "integrations/*/README.md",
    "examples/*/README.md",
    "benchmarks/results/*.md",
)
IMAGE_PATTERNS = ("docs/**/*.svg", "docs/**/*.png")
NO_REPOSITORY = "https://example.invalid/tokendraw"
"""The address of the repository where ``core/pyproject.toml`` has none."""

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_CODE = re.compile(r"^ *(```|~~~).*?^ *\1 *$|`+[^`\n]+`+", re.MULTILINE | re.DOTALL)


def find(root: Path, patterns: tuple[str, ...]) -> list[str]:
    """List the files of a checkout that match any of the patterns, by their path in the checkout."""
    return [path.relative_to(root).as_posix() for pattern in patterns for path in sorted(root.glob(pattern))]


def repository_url(root: Path) -> str:
    """Return the web address of the repository from the project's URLs, without a slash at its end."""
    project = tomllib.loads((root / "core/pyproject.toml").read_text(encoding="utf-8"))["project"]
    urls = {name.lower(): url for name, url in project.get("urls", {}).items()}
    names = ("repository", "source", "source code", "homepage")
    return next((urls[name] for name in names if name in urls), NO_REPOSITORY).rstrip("/")


def version(root: Path) -> str:
    """Return the version of the core."""
    source = (root / "core/src/tokendraw/_version.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)[0]


def groups(index: str) -> dict[str, list[str]]:
    """Read the groups of pages from the index of the documentation: a heading, then a table of linked pages.

    :param index: the text of ``docs/README.md``.
    :returns: paths in the checkout by heading.
    :raises ValueError: a page stands above the first heading.
    """
    found: dict[str, list[str]] = {}
    for line in index.splitlines():
        if heading := re.fullmatch(r"## (.+)", line):
            group = found.setdefault(heading[1], [])
        elif page := re.match(r"\| \[[^\]]+\]\(([^)#]+\.md)\)", line):
            if not found:
                raise ValueError(f"{page[1]!r} in {INDEX!r} needs a heading above its table. Add one.")
            group.append(posixpath.normpath(posixpath.join(posixpath.dirname(INDEX), page[1])))
    return {heading: group for heading, group in found.items() if group}


def navigation(pages: list[str], index: str, reference: list[dict[str, str] | str]) -> list[object]:
    """Arrange every page: the front page, the groups of the documentation, packages, reference, results.

    :param pages: all pages, by path in the checkout.
    :param index: the text of ``docs/README.md``.
    :param reference: the entries of the reference.
    :raises ValueError: a page of ``docs/`` has no row in the index.
    """
    grouped = groups(index)
    listed = [page for group in grouped.values() for page in group]
    if missing := [page for page in pages if page.startswith("docs/") and page not in (INDEX, *listed)]:
        raise ValueError(f"{INDEX!r} needs a row for each page of docs/, found none for {missing}. Add it.")
    packages = [page for page in pages if page.startswith(("plugins/", "integrations/", "examples/"))]
    packages += [
        page
        for page in pages
        if page in ("testing/README.md", "bench/README.md", "engine_ops/README.md", "ranks/README.md")
    ]
    results = [page for page in pages if page.startswith("benchmarks/")]
    project = [page for page in pages if "/" not in page and page != "README.md"]
    return [
        {"Home": ["README.md", {"All pages": INDEX}]},
        *({heading: group} for heading, group in grouped.items()),
        {"Packages": packages},
        {"API": reference},
        {"Results": [{Path(page).stem: page} for page in results]},
        {"Project": project},
    ]


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change a text in Markdown apart from its code."""
    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [change(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, change(text[end:])])


def with_links_of_the_site(text: str, page: str, pages: Mapping[str, object], files: Path, url: str) -> str:
    """Return a page whose links to folders and files that are no pages lead to the repository's web address.

    :param text: the page in Markdown.
    :param page: its path in the checkout.
    :param pages: what the site has, by path in the checkout.
    :param files: the checkout.
    :param url: address of the repository's files, ``.../blob/main``. Folders are at ``tree`` in place of ``blob``.
    :raises ValueError: a link leads to nothing in the checkout.
    """

    def of_the_site(link: re.Match[str]) -> str:
        path, hash_, anchor = link[2].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if target in pages:
            return link[0]
        place = files / target
        if not place.exists():
            raise ValueError(
                f"link {link[2]!r} of {page!r} needs a file in the checkout, found none. Mend the link."
            )
        readme = posixpath.join(target, "README.md")
        if readme in pages:
            return f"]({os.path.relpath(readme, posixpath.dirname(page) or '.')}{hash_}{anchor})"
        address = url.replace("/blob/", "/tree/") if place.is_dir() else url
        return f"]({address}/{target}{hash_}{anchor})"

    return outside_code(text, lambda part: _LINK.sub(of_the_site, part))
