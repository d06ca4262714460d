"""Links of the built site: each leads to a page, an anchor, or a file of the checkout."""

import functools
import posixpath
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

import markdown_pages
from built_site import ROOT, SITE, newest, page_paths

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
