"""The built site over a loopback address, and Chromium: `make test-site` runs these tests in its own environment."""

import functools
import http.server
import json
import os
import threading
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "build/site"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def newest() -> str:
    """Return the folder of the version that the site's front leads to."""
    return json.loads((SITE / "versions.json").read_text(encoding="utf-8"))[0]["version"]


def pytest_generate_tests(metafunc):
    """Look at each page of the newest version; at none where nothing is built."""
    if "path" in metafunc.fixturenames:
        folder = SITE / newest() if (SITE / "versions.json").exists() else SITE
        paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
        metafunc.parametrize("path", paths)


@pytest.fixture(scope="session")
def address():
    """The address of the newest version."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(SITE))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{newest()}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser):
    """A context, and so a cache, for all pages of a module."""
    context = browser.new_context(color_scheme="light")
    yield context
    context.close()


@pytest.fixture
def page(context, address):
    """An open page; afterwards whatever the browser complained of fails the test, and so does any other host."""
    page = context.new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url} {request.failure}"))
    page.on(
        "request",
        lambda request: (
            request.url.startswith((address.rpartition("/")[0], "data:", "blob:"))
            or complaints.append(f"another host: {request.url}")
        ),
    )
    yield page
    page.close()
    assert complaints == []
