"""The built site in Chromium: `make test-site` runs this in its own environment. Links are those of test_pages.py."""

import functools
import http.server
import json
import os
import threading
from types import SimpleNamespace

import pytest

from checkout import ROOT

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs the tools of `make test-site`"
)
sync_api = pytest.importorskip("playwright.sync_api", reason="needs the tools of `make test-site`")
hooks = pytest.importorskip("hooks", reason="needs the tools of `make test-site`")

pytestmark = pytest.mark.browser

SITE = ROOT / "build/site"
VERSIONS = SITE / "versions.json"
NEWEST = json.loads(VERSIONS.read_text(encoding="utf-8"))[0]["version"] if VERSIONS.exists() else ""
PAGES = sorted(path.relative_to(SITE / NEWEST).as_posix() for path in (SITE / NEWEST).rglob("*.html"))
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    "resultTypes": ["violations"],
}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}, "resultTypes": ["violations"]}
REPEATED = "tbody tr:nth-child(n+6), .doc-object ~ .doc-object ~ .doc-object"
"""Rows of a table behind the fifth, objects of the reference behind the second: axe-core takes minutes for thousands of
elements of one style, and is not shown these."""


@pytest.fixture(scope="module")
def address():
    """The loopback address of the site."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(SITE))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def context():
    """One context, and so one cache, for all pages."""
    with sync_api.sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser.new_context(color_scheme="light")
        browser.close()


def violations(page, options):
    """Return what axe-core found: its rule, and the first elements."""
    found = axe.Axe().run(page, options=options).response["violations"]
    return [f"{rule['id']}: {[node['html'][:160] for node in rule['nodes'][:3]]}" for rule in found]


@pytest.mark.parametrize("path", [f"{NEWEST}/{path}" for path in PAGES])
def test_a_page_has_no_error_no_horizontal_scroll_and_is_accessible(context, address, path):
    """Nothing is asked of any other host, and the browser complains of nothing."""
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url} {request.failure}"))
    page.on(
        "request",
        lambda request: (
            request.url.startswith((address, "data:", "blob:"))
            or complaints.append(f"another host: {request.url}")
        ),
    )
    page.set_viewport_size(PHONE)
    page.goto(f"{address}/{path}", wait_until="networkidle")
    width = page.evaluate("document.documentElement.scrollWidth")
    page.set_viewport_size(DESKTOP)
    page.add_style_tag(content="* {transition: none !important}")
    page.evaluate("which => document.querySelectorAll(which).forEach(part => part.remove())", REPEATED)
    found = violations(page, RULES)
    page.evaluate("document.body.setAttribute('data-md-color-scheme', 'slate')")
    found += [f"dark {words}" for words in violations(page, CONTRAST)]
    page.close()
    assert (complaints, found, width) == ([], [], PHONE["width"])


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
