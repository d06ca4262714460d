"""The README of the adapter to SGLang agrees with the code."""

import re

import pages
from tokendraw_sglang._engine import FELL_BACK, KEPT_WITH_BACKEND, OWN_LOGPROBS, OWN_VERIFICATION, TESTED

README = pages.text_of("integrations/sglang/README.md")
FOLDER = pages.ROOT / "integrations/sglang"


def test_links_and_the_table_of_files_are_complete():
    assert pages.broken_links("integrations/sglang/README.md") == []
    named = set(re.findall(r"^\| `(_\w+\.py)`", README, re.MULTILINE))
    assert named == {path.name for path in FOLDER.glob("src/*/_*.py")} - {"__init__.py"}


def test_the_named_version_is_the_tested_version():
    (tested,) = TESTED
    assert set(re.findall(r"[Ss][Gg][Ll]ang (?:other than )?(0\.5\.\d+)", README)) == {tested}
    pages_of_engines = pages.text_of("docs/engines.md")
    assert set(re.findall(r"SGLang (0\.5\.\d+)", pages_of_engines)) == {tested}
    assert f"sglang=={tested}" in pages.text_of("Makefile")


def test_the_log_lines_in_the_readme_are_the_written_lines():
    lines = [
        KEPT_WITH_BACKEND % ("SGLang 0.6.1 is untested, tested are 0.5.23", "flashinfer"),
        FELL_BACK % ("triton-gumbel", "RuntimeError: ...", "flashinfer"),
        OWN_VERIFICATION % "--speculative-algorithm DFLASH has a verification of its own",
        OWN_LOGPROBS % "RuntimeError: ...",
    ]
    assert [line for line in lines if f"`{line}`" not in README] == []
