"""Hooks of MkDocs: pages from the checkout, links, the reference, the list of versions."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from packaging.version import Version

import markdown_pages as pages
from markdown_pages import ROOT

ADDRESS = f"{pages.repository_url()}/blob/{os.environ.get('SITE_REF', 'main')}"
"""Where links to source files lead: a branch or tag of the repository."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set addresses and navigation from the checkout."""
    config.repo_url = pages.repository_url()
    config.repo_name = "Source"
    config.edit_uri_template = f"{ADDRESS}/{{path}}"
    # Its links are absolute, and a version has no such place.
    config.theme.static_templates.discard("404.html")
    try:
        index = (ROOT / pages.INDEX).read_text(encoding="utf-8")
        config.nav = pages.navigation(pages.find(pages.PAGE_PATTERNS), index, list(pages.reference()))
    except ValueError as error:
        raise PluginError(str(error)) from error
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and images of the checkout under their own paths, and the reference."""
    for path in pages.find((*pages.PAGE_PATTERNS, *pages.IMAGE_PATTERNS)):
        files.append(File(path, "", config.site_dir, config.use_directory_urls))
    for path, text in pages.reference().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Point links to files that are no pages at the repository; leave measurements out of the search."""
    path = page.file.src_uri
    if path.startswith("benchmarks/"):
        page.meta["search"] = {"exclude": True}
    if path == "README.md":
        page.meta["hide"] = ["navigation"]
    try:
        return pages.with_links_of_the_site(markdown, path, files.src_uris, ADDRESS)
    except ValueError as error:
        raise PluginError(str(error)) from error


def on_page_content(html: str, **_: Any) -> str:
    """Make empty heads of tables plain cells, since a head without words names nothing."""
    return re.sub(r"<th( [^>]*)?></th>", r"<td\1></td>", html)


def on_post_page(output: str, **_: Any) -> str:
    """Name the dialog of the search, which the theme leaves nameless, and keep the theme off other hosts.

    Where the repository lies on GitHub, the theme would ask GitHub in every page for its release and its stars.
    """
    output = output.replace('role="dialog">', 'role="dialog" aria-label="Search">')
    return output.replace(' data-md-component="source"', "")


def on_post_build(config: MkDocsConfig) -> None:
    """List the versions beside this one for the menu, newest first, and lead the front to the newest."""
    folder = Path(config.site_dir).parent
    found = [path.parent.name for path in folder.glob("*/index.html")]
    newest = sorted(found, key=Version, reverse=True)
    entries = [{"version": name, "title": name, "aliases": []} for name in newest]
    entries[0]["aliases"] = ["latest"]
    (folder / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    front = (Path(__file__).parent / "front.html").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="{name}/index.html">{name}</a></li>' for name in newest)
    html = front.replace("{newest}", newest[0]).replace("{versions}", links)
    (folder / "index.html").write_text(html, encoding="utf-8")
