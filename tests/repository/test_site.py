"""The site's pages, navigation and links, as its hooks make them; `make test-site` looks at the built site."""

import importlib

import pytest

import markdown_pages
import pages

PAGES = markdown_pages.find(markdown_pages.PAGE_PATTERNS)
INDEX = pages.text_of("docs/README.md")
ADDRESS = "https://example.org/tokendraw/blob/main"


def links(text, page="docs/operators.md"):
    return markdown_pages.with_links_of_the_site(text, page, dict.fromkeys(PAGES), ADDRESS)


def leaves(entries):
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from leaves(value) if isinstance(value, list) else [value]


def test_the_navigation_has_every_page_of_the_checkout_once():
    navigation = markdown_pages.navigation(PAGES, INDEX, ["reference/index.md"])
    assert sorted(leaves(navigation)) == sorted([*PAGES, "reference/index.md"])


def test_a_page_of_docs_without_a_row_in_the_index_is_refused():
    with pytest.raises(
        ValueError,
        match=r"'docs/README.md' needs a row for each page of docs/, found none for \['docs/new.md'\]. Add it.$",
    ):
        markdown_pages.navigation([*PAGES, "docs/new.md"], INDEX, [])


LINKS = {
    "../core/src/tokendraw/philox.py": f"{ADDRESS}/core/src/tokendraw/philox.py",
    "../tests/fakes": "https://example.org/tokendraw/tree/main/tests/fakes",
    "../plugins/native": "../plugins/native/README.md",
    "../plugins/native#files": "../plugins/native/README.md#files",
    **{same: same for same in ("contract.md#drafts", "#install", "https://example.org/x")},
}


@pytest.mark.parametrize("link", LINKS)
def test_a_link_leads_to_a_page_or_to_the_repository(link):
    assert links(f"See [this]({link}).") == f"See [this]({LINKS[link]})."


def test_a_link_to_nothing_is_refused():
    words = "link 'lost.md' of 'docs/operators.md' needs a file in the checkout, found none. Mend the link."
    with pytest.raises(ValueError, match=f"^{words}$"):
        links("[a](lost.md)")


@pytest.mark.parametrize("module", markdown_pages.public_modules())
def test_the_reference_has_every_public_name_of_a_module(module):
    source = markdown_pages.source_of(module).read_text(encoding="utf-8")
    found = markdown_pages.public_names(source, module)
    loaded = importlib.import_module(module)
    own = {name for name, value in vars(loaded).items() if getattr(value, "__module__", "") == module}
    names = getattr(loaded, "__all__", None) or {name for name in own if not name.startswith("_")}
    assert set(names) <= set(found)
    assert set(found) == set(names) or not hasattr(loaded, "__all__")
    page = markdown_pages.reference()[f"reference/{module}.md"]
    assert [name for name in found if f".{name}" not in page and name != "__version__"] == []
