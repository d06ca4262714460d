"""The built site: every page in Chromium, and the list of versions. Links are those of the pages: see test_pages.py."""

import json
from types import SimpleNamespace

import pytest

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs the tools of `make test-site`"
)
pytest.importorskip("playwright", reason="needs the tools of `make test-site`")
hooks = pytest.importorskip("hooks", reason="needs the tools of `make test-site`")

pytestmark = pytest.mark.browser


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
    """Return the findings of axe-core: rule and first elements."""
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
    assert menu.first.inner_text().strip() == address.rpartition("/")[2]


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
