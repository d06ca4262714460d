"""The README of the adapter to SGLang agrees with the code."""

import re

import pages
from tokendraw_sglang._engine import TESTED

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
    from tokendraw_sglang._engine import (
        fallback_message,
        kept_message,
        own_logprobs_message,
        own_verification_message,
    )

    untested, failed = (
        "SGLang 0.6.1 is untested, tested are 0.5.23",
        "'triton-gumbel' raised RuntimeError: ...",
    )
    assert f"`{kept_message(untested, 'flashinfer')}`" in README
    assert f"`{fallback_message(failed, 'flashinfer')}`" in README
    own = "--speculative-algorithm DFLASH has a verification of its own"
    assert f"`{own_verification_message(own)}`" in README
    assert f"`{own_logprobs_message('RuntimeError: ...')}`" in README
