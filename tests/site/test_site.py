"""The built site: links, every page in Chromium, what a reader does with it, and the list of versions."""

import functools
import json
import posixpath
from html.parser import HTMLParser
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest

import markdown_pages
from built_site import ROOT, SITE, newest, page_paths

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs the tools of `make test-site`"
)
pytest.importorskip("playwright", reason="needs the tools of `make test-site`")
hooks = pytest.importorskip("hooks", reason="needs the tools of `make test-site`")

pytestmark = pytest.mark.browser


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed((SITE / newest() / path).read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.links += [given[name] for name in ("href", "src") if given.get(name)]


read = functools.cache(Page)


def is_broken(path, link):
    """Whether a link of a page leads nowhere."""
    parts = urlsplit(link)
    if parts.scheme:
        return parts.scheme != "https" or is_lost_in_the_repository(link)
    target = (
        posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(parts.path)))
        if parts.path
        else path
    )
    if target.endswith(".html") and (SITE / newest() / target).exists():
        return bool(parts.fragment) and unquote(parts.fragment) not in read(target).anchors
    return not (SITE / newest() / target).exists()


def is_lost_in_the_repository(link):
    """Whether a link to the repository names a file that the checkout has not."""
    repository = markdown_pages.repository_url()
    kind, _, rest = link.removeprefix(f"{repository}/").partition("/")
    if not link.startswith(f"{repository}/") or kind not in ("blob", "tree"):
        return False
    path = ROOT / urlsplit(rest.partition("/")[2]).path
    return not (path.is_dir() if kind == "tree" else path.is_file())


def test_every_link_of_a_page_leads_to_a_page_an_anchor_or_a_file(path):
    assert [link for link in read(path).links if is_broken(path, link)] == []


def test_every_page_of_the_checkout_is_in_the_site():
    wanted = markdown_pages.find(markdown_pages.PAGE_PATTERNS)
    made = set(page_paths())
    names = [page.replace("README.md", "index.html").replace(".md", ".html") for page in wanted]
    assert len(names) > 80
    assert [name for name in names if name not in made] == []


def test_every_page_is_reached_from_the_front():
    reached, ahead = set(), ["index.html"]
    while ahead:
        path = ahead.pop()
        if path not in reached and (SITE / newest() / path).is_file() and path.endswith(".html"):
            reached.add(path)
            folder = posixpath.dirname(path)
            targets = [urlsplit(link).path for link in read(path).links if not urlsplit(link).scheme]
            ahead += [
                posixpath.normpath(posixpath.join(folder, unquote(target))) for target in targets if target
            ]
    assert set(page_paths()) == reached


DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    "resultTypes": ["violations"],
}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}, "resultTypes": ["violations"]}
REPEATED = "tbody tr:nth-child(n+6), .doc-object ~ .doc-object ~ .doc-object"
"""Rows of a table behind the fifth, objects of the reference behind the second: axe-core takes minutes for thousands of
elements of one style, and is not shown these."""


def violations(page, options):
    """Return what axe-core found: its rule, and the first elements."""
    found = axe.Axe().run(page, options=options).response["violations"]
    return [f"{rule['id']}: {[node['html'][:160] for node in rule['nodes'][:3]]}" for rule in found]


def test_a_page_has_no_error_no_horizontal_scroll_and_no_violation_of_accessibility(page, address, path):
    page.set_viewport_size(PHONE)
    page.goto(f"{address}/{path}", wait_until="networkidle")
    width = page.evaluate("document.documentElement.scrollWidth")
    page.set_viewport_size(DESKTOP)
    page.add_style_tag(content="* {transition: none !important}")
    page.evaluate("which => document.querySelectorAll(which).forEach(part => part.remove())", REPEATED)
    found = violations(page, RULES)
    page.evaluate("document.body.setAttribute('data-md-color-scheme', 'slate')")
    found += [f"dark {words}" for words in violations(page, CONTRAST)]
    assert (found, width) == ([], PHONE["width"])


def test_the_front_leads_to_the_newest_version_and_the_menu_names_it(page, address):
    page.goto(f"{address.rpartition('/')[0]}/index.html", wait_until="networkidle")
    page.wait_for_url(f"{address}/index.html")
    menu = page.locator(".md-version__link")
    menu.first.wait_for(state="attached")
    assert menu.first.inner_text().strip() == newest()


def test_the_newest_version_comes_first_and_a_release_before_its_candidates(tmp_path):
    for name in ("0.9.0", "0.10.0rc1", "0.10.0", "0.2.1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    hooks.on_post_build(SimpleNamespace(site_dir=tmp_path / "0.9.0"))
    entries = json.loads((tmp_path / "versions.json").read_text(encoding="utf-8"))
    assert [entry["version"] for entry in entries] == ["0.10.0", "0.10.0rc1", "0.9.0", "0.2.1"]
    assert [entry["aliases"] for entry in entries] == [["latest"], [], [], []]
    front = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'content="0; url=0.10.0/index.html"' in front
    assert all(f'href="{entry["version"]}/index.html"' in front for entry in entries)
