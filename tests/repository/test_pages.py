"""Pages are true: links lead somewhere, Python runs, commands print what is shown, tables equal what they come from."""

import dataclasses
import importlib
import os
import re
import subprocess
import sys
import tomllib

import pytest
import torch

import markdown_pages
import pages
import tokendraw
import tour
from command_line import call
from pages import OFFLINE, ROOT
from tokendraw.backends.discovery.discover import check_upstream
from tokendraw.plugin import Host, HostNeed, PluginInfo
from tokendraw.resolution import Candidate, Choice, State
from tokendraw_engine_ops.operations import Sm90W4Capabilities
from tokendraw_testing import fake_dist

PAGES = markdown_pages.find(markdown_pages.PAGE_PATTERNS)
README, PLUGINS, NUMBERS, FILTER, TOUR = (
    pages.text_of(f"{page}.md")
    for page in ("README", "docs/plugin-authors", "docs/numbers", "docs/add-a-filter", "docs/tour")
)
EXAMPLE = ROOT / "examples" / "top_n_sigma"

cpu_only = pytest.mark.skipif(torch.cuda.is_available(), reason="the pages show a machine without a GPU")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_every_folder_to_install_is_there(page):
    assert pages.broken_links(page) == []
    for folder, extra in re.findall(
        r"(?<!\.)(\./(?:core|testing|bench|plugins|integrations)[\w/]*)(?:\[(\w+)\])?", pages.text_of(page)
    ):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
        assert not extra or extra in project["optional-dependencies"], folder


PYTHON = {
    "README.md": (
        {},
        r"sample on cpu: native\n(.*\n)*",
        lambda names: (names["out"].token_ids.shape, names["out"].logprobs.logprobs.shape) == ((3,), (3, 6)),
    ),
    "core/README.md": (
        {"logits": torch.zeros(1, 1000)},
        "(.*\n)*",
        lambda names: names["token_ids"].shape == (1,),
    ),
    "docs/engine-authors.md": (
        {},
        r"(.*\n){2}",  # the drawn token and the best one
        lambda names: (
            names["sampler"].resolution.need.max_logprobs == 20
            and names["chains"].token_ids.shape == (3, 3)
            and names["metadata"].row_kinds is names["row_kinds"]
        ),
    ),
    "docs/parameters.md": ({}, r"\[0, 3\]\n", bool),
    "docs/training.md": (
        {},
        r"ratios at step 0: 1.000000 to 1.000000 with the mask\n(.*\n)*",
        lambda names: (
            torch.allclose(names["ratios"][0][0], torch.ones(()), atol=1e-6)
            and names["ratios"][0][1].max() < 0.9
            and names["rewards"][-1] > 0.95 > names["rewards"][0]
        ),
    ),
}
"""Of a page: names that its Python is given, what it prints, and what holds of its names afterwards."""


@cpu_only
@pytest.mark.parametrize("page", PYTHON)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, capsys):
    given, printed, holds = PYTHON[page]
    names = dict(given)
    for number, source in enumerate(pages.blocks(pages.text_of(page), "python")):
        exec(compile(source, f"{page}, block {number}", "exec"), names)
    assert re.fullmatch(printed, capsys.readouterr().out)
    assert holds(names)


PROGRAMS = {
    "python": 'exec "{python}" "$@"',
    "tokendraw": 'case "$*" in check*) export SMALLEST_KIT=1 ;; esac; '
    'case "$*" in check*--filter*) ;; check*) jobs="--jobs 1" ;; esac; '
    'exec "{python}" -m tokendraw "$@" $jobs',
    "pytest": 'case "$*" in *acme*) export SMALLEST_KIT=1 ;; esac; exec "{python}" -m pytest -p no:cacheprovider "$@"',
    # A link is not followed in a folder of PYTHONPATH.
    "pip": 'shift; for word; do shift; test "$word" = --editable || set -- "$@" "$word"; done; '
    'exec "{python}" -m pip install --quiet {offline} --target "{site}" "$@"',
}
"""What the programs of a page are: those of this interpreter, and installations into a folder, without a network."""


@pytest.fixture
def shell(tmp_path):
    """``shell(line, folder)``: run a line of a page; of what stderr says how far long work is, nothing remains."""
    for name, script in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        words = script.format(python=sys.executable, offline=" ".join(OFFLINE), site=tmp_path / "site")
        program.write_text(f"#!/bin/sh\n{words}\n")
        program.chmod(0o755)
    environ = pages.environment(tmp_path / "site", OMP_NUM_THREADS="1")
    environ["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{environ['PATH']}"

    def run(line, folder=tmp_path):
        options = {"capture_output": True, "encoding": "utf-8", "timeout": 400}
        result = subprocess.run(["sh", "-c", line], check=False, cwd=folder, env=environ, **options)
        said = [
            t for t in result.stderr.splitlines(True) if not re.search(r"lines after \d+ s: |, \d+ s$", t)
        ]
        return "".join([result.stdout, *said])

    return run


def shown_and_printed(page, shell, folder, only=""):
    """The commands of a page whose output is another than the page shows, widths of columns aside."""
    differing = []
    for line, shown in pages.commands(pages.text_of(page)):
        if only in line:
            printed = shell(line, folder)
            wanted, found = (re.sub(" {2,}", "  ", text) for text in (shown, printed))
            differing += [] if re.fullmatch(pages.pattern(wanted), found) else [(line, printed)]
    return differing


@cpu_only
@pytest.mark.parametrize(
    ("page", "only"), [("README.md", "resolve"), ("docs/operators.md", "TOKENDRAW_SAMPLER=")]
)
def test_a_quick_command_prints_what_the_page_shows(page, only, shell, tmp_path):
    assert shown_and_printed(page, shell, tmp_path, only) == []


@pytest.mark.slow
@cpu_only
@pytest.mark.parametrize("page", ["docs/operators.md", "docs/plugin-authors.md"])
def test_all_commands_of_a_page_print_what_it_shows(page, shell, tmp_path):
    assert shown_and_printed(page, shell, tmp_path) == []


@pytest.mark.slow
@cpu_only
def test_the_example_does_what_its_pages_say(shell, tmp_path):
    """Commands, Python and tests of docs/add-a-filter.md and of the example's README."""
    assert shown_and_printed("docs/add-a-filter.md", shell, ROOT) == []
    listed = shell("tokendraw list").partition("\nfilter ")[2]
    assert re.search(r"^top_n_sigma_sample +available ", listed, re.MULTILINE)
    draw = pages.blocks(FILTER, "python")[1]
    (printed,) = re.findall(r"print\(.*\)  # (.*)", draw)
    (readme,) = pages.blocks((EXAMPLE / "README.md").read_text(encoding="utf-8"), "python")
    loads = "import sys, top_n_sigma_filter; print('torch' in sys.modules)"
    for source, output in (
        (loads, "False"),
        (draw, printed),
        (f"{readme}\nprint(*out.token_ids.shape)", "2"),
    ):
        (tmp_path / "page.py").write_text(source, encoding="utf-8")
        assert shell("python page.py") == f"{output}\n"
    assert " passed" in (told := shell(f"pytest -q {EXAMPLE}")), told
    assert "failed" not in told


@pytest.mark.slow
def test_installed_distributions_run_the_readme_python(shell, tmp_path):
    for line in pages.blocks(README, "")[1].splitlines():
        assert shell(line.partition("  #")[0], ROOT) == ""
    source = "\n".join(pages.blocks(README, "python"))
    (tmp_path / "example.py").write_text(f"{source}\nprint(tokendraw.__file__)\n", encoding="utf-8")
    printed = shell("python example.py")
    assert printed.startswith("sample on cpu: native")
    assert printed.endswith(f"{tmp_path}/site/tokendraw/__init__.py\n")


class TestThePageForPluginAuthors:
    UPSTREAM, CONFORMANCE, DISCOVERY = pages.blocks(PLUGINS, "python")

    def test_the_shown_tests_are_the_tests_of_the_kit(self):
        names = {}
        exec(self.CONFORMANCE, names)
        assert issubclass(names["TestAcme"], names["SamplerConformance"])

    def test_the_table_of_releases_gives_the_shown_reasons(self, dists):
        dists.add_engine_ops()
        names = {}
        exec(self.UPSTREAM, names)
        packer = Sm90W4Capabilities(formats=("fp4",), layouts=("v1", "v2"))
        reserve = PluginInfo(name="b", api_version=1, priority=0, operations={"pack_sm90_w4": packer})
        upstream = check_upstream(names["UPSTREAM"])
        acme = dataclasses.replace(reserve, name="acme", priority=50, upstream=upstream)
        documented = [row for row in pages.rows(PLUGINS, 2) if "acme-kernels" in row[1]]
        assert len(documented) == 4
        for version, words in documented:
            found = [
                Candidate(name=info.name, state=State.LOADED, info=info, upstream_version=version)
                for info in (acme, reserve)
            ]
            facts = Host(device_type="cpu"), HostNeed(), Choice()
            made = tokendraw.resolve(found, *facts, operation="pack_sm90_w4")
            assert {decision.name: decision.reason for decision in made.decisions}["acme"] == words

    def test_the_test_of_a_broken_installation_passes(self, tmp_path, monkeypatch):
        names = {}
        exec(self.DISCOVERY, names)
        names["test_a_broken_installation_is_listed_with_its_reason"](tmp_path, monkeypatch)


class TestThePageOfNumbers:
    def test_rows_of_its_tables_are_rows_of_the_results(self):
        """Rows of ranges, of rounded times and of medians over several runs have no single row there."""

        def rows(text):
            lines = (line for line in text.splitlines() if line.startswith("|"))
            return [set(re.findall(r"\d+(?:\.\d+)?", line.replace(",", ""))) for line in lines]

        results = (ROOT / "benchmarks/results").glob("*.md")
        measured = [row for path in results for row in rows(path.read_text(encoding="utf-8"))]
        documented = [row for row in rows(NUMBERS) if len(row) + sum("." in number for number in row) > 3]
        assert sum(any(row <= other for other in measured) for row in documented) == 50


def test_the_code_of_the_page_is_the_example():
    shown, draw, test = pages.blocks(FILTER, "python")
    module = (EXAMPLE / "top_n_sigma_filter.py").read_text(encoding="utf-8")
    assert module.partition('"""\n\n')[2] == shown
    assert len(shown.splitlines()) <= 12
    (entry_point,) = pages.blocks(FILTER, "toml")
    assert entry_point in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    assert "top_n_sigma_sample" in draw
    assert test in (EXAMPLE / "tests" / "test_filter.py").read_text(encoding="utf-8")


def test_the_table_of_backends_is_made_of_their_descriptions(tmp_path, monkeypatch):
    for name in ("aiter", "cpu", "flashinfer", "triton-gumbel"):
        (tmp_path / name).mkdir()
        package = f"tokendraw_{name.replace('-', '_')}"
        distribution = fake_dist(tmp_path / name, f"tokendraw-{name}", plugins={name: f"{package}:plugin"})
        monkeypatch.syspath_prepend(distribution)
        monkeypatch.syspath_prepend(ROOT / "plugins" / name.replace("-", "_") / "src")
    result = call("check", "--table")
    assert result.exit_code == 0, result.stderr
    assert result.stdout in README


def test_the_figures_equal_the_tables():
    """Of each backend the cell of float32 logits with top-k and top-p."""

    def measured(name, columns, *cells):
        table = pages.rows(pages.text_of(f"benchmarks/results/{name}.md"), columns)
        return [row for row in table if {*cells} <= {*row}]

    (native,) = re.findall(r"sort-based pipeline ([\d.]+) ms and native ([\d.]+),", README)
    assert [row[2:4] for row in measured("cpu", 6, "zipf 1.0", "k = 50, p = 0.9")] == [[*native]]
    ((gumbel, times),) = re.findall(r"triton-gumbel ([\d.]+), ([\d.]+) times a read", README)
    design = {row[2]: row[7:9] for row in measured("h200_peers", 11, "1024", "151936", "both", "gaussian")}
    assert design["float32"][0] == f"{gumbel} ({times}x)"
    first_screen = [row[1:] for row in pages.rows(README, 3) if row[1].endswith(" us")]
    both = zip(design["float32"], design["bfloat16"], strict=True)
    assert first_screen == [[f"{cell.partition(' ')[0]} us" for cell in row] for row in both]
    ((exact, cut),) = re.findall(r"flashinfer \[([\d,]+) us, or ([\d,]+) where ties may be cut\]", README)
    ways = {row[0]: row[7].partition(" ")[0] for row in measured("h200_flashinfer", 9)}
    assert ways["top_k_first: top_k_renorm_probs, top_p_sampling_from_probs"] == exact.replace(",", "")
    assert ways["top_k_first: cake_sampling.top_k_top_p_sampling_from_probs"] == cut


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
ONE_PIXEL = 1.0
"""Of pictures some 350 wide: logits are summed in another order on another CPU."""


def test_the_page_shows_every_picture_with_words_for_it():
    shown = re.findall(r"^!\[(.+)\]\(images/(.+)\)$", TOUR, re.MULTILINE)
    assert sorted(name for _, name in shown) == sorted(path.name for path in (ROOT / "docs/images").iterdir())
    assert all(len(words) > 40 for words, _ in shown)


@pytest.mark.slow
def test_the_code_draws_the_committed_pictures_and_what_the_page_says_of_them_is_so(tmp_path):
    """The page runs once for all pictures and words. A share beyond five deviations: one of 100,000 seeds."""
    names = tour.draw(tmp_path)
    drawn, committed = (
        {path.name: path.read_text(encoding="utf-8") for path in (place / "images").iterdir()}
        for place in (tmp_path, ROOT / "docs")
    )
    assert drawn.keys() == committed.keys()
    assert {name for name in drawn if is_other(drawn[name], committed[name])} == set(), "run `make tour`"

    def kept(**fields):
        rows = names["A_CUP_OF"], names["STRONG_BLACK"]
        return [int((names["distribution"](row, **fields) > 0).sum()) for row in rows]

    assert kept(top_k=4) == [4, 4]
    assert kept(top_p=0.9) == [7, 2]
    assert kept(min_p=0.1) == [8, 2]
    assert names["same"].tolist() == [True, True, True, False]
    for shares, probs, count in (
        (names["shares"], names["probs"], 2000),
        (names["emitted"], names["p"], 4000),
    ):
        errors = (shares - probs).abs() / (probs * (1 - probs) / count).sqrt().clamp(min=1e-9)
        assert errors.max() < 5
    assert abs(names["accepted"] - 0.58) < 0.04


def is_other(drawn, committed):
    """Whether two pictures differ in more than numbers of a pixel."""
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (drawn, committed)]
    words = [NUMBER.sub("", text) for text in (drawn, committed)]
    return words[0] != words[1] or any(abs(a - b) > ONE_PIXEL for a, b in zip(*numbers, strict=True))


# Navigation, links and reference of the site, as its hooks make them; `make test-site` looks at the built site.

INDEX = pages.text_of("docs/README.md")
ADDRESS = "https://example.org/tokendraw/blob/main"


def links(text, page="docs/operators.md"):
    return markdown_pages.with_links_of_the_site(text, page, dict.fromkeys(PAGES), ADDRESS)


def test_the_navigation_has_every_page_of_the_checkout_once():
    navigation = str(markdown_pages.navigation(PAGES, INDEX, ["reference/index.md"]))
    assert sorted(re.findall(r"[\w/.-]+\.md", navigation)) == sorted([*PAGES, "reference/index.md"])


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
