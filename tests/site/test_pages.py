"""Every page of the site in Chromium: the console, the width of a phone, contrast and landmarks in both schemes."""

import pytest

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs the tools of `make test-site`"
)

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
