"""The README of the adapter to vLLM agrees with the code, and with the figures of the linked table."""

import re

import pages
from tokendraw_vllm import _log
from tokendraw_vllm._engine import TESTED
from tokendraw_vllm._log import _say, log_failed, log_kept, log_lost, log_replaced
from tokendraw_vllm._v2_rules import NOT_REPLACED

README = pages.text_of("integrations/vllm/README.md")
ENGINES = pages.text_of("docs/engines.md")
FOLDER = pages.ROOT / "integrations/vllm"
FIGURES = pages.text_of("benchmarks/results/vllm_cpu.md")


def test_links_and_the_table_of_files_are_complete():
    assert pages.broken_links("integrations/vllm/README.md") == []
    named = {name for row in re.findall(r"^\| (`_.*?) \|", README, re.MULTILINE) for name in row.split(", ")}
    assert named == {f"`{path.name}`" for path in FOLDER.glob("src/*/_*.py")} - {"`__init__.py`"}


def test_the_named_versions_are_the_tested_versions():
    assert f"vLLM {' or '.join(TESTED)}" in README
    assert f"| vLLM {', '.join(TESTED)} |" in ENGINES


def test_the_log_lines_in_the_readme_are_the_written_lines(caplog, monkeypatch):
    caplog.set_level("INFO", "vllm.tokendraw")
    _say.cache_clear()
    log_replaced("V2 sampler", f"triton-gumbel 0.1.0, vLLM {TESTED[-1]}")
    log_kept(f"vLLM 0.34.0 is untested, tested are {' and '.join(TESTED)}")
    log_kept("...", part="V2 sampler")
    log_failed("V2 sampler", "triton-gumbel", RuntimeError("..."))
    monkeypatch.setattr(_log, "_reasons_of_losses", set())
    log_lost(["top_n_sigma", "typical_p"], NOT_REPLACED)
    _say.cache_clear()
    for record in caplog.records:
        assert f"| `{record.getMessage()}` |" in README
    assert len(caplog.records) == 5


def test_the_figures_are_the_figures_of_the_table():
    rows = [line for line in FIGURES.splitlines() if line.startswith("|")]
    assert len(rows) > 5
    assert "\n".join(rows) in README
    times = {row.split("|")[1].strip(): float(row.split("|")[4]) for row in rows[2:]}
    prose = " ".join(ENGINES.split())
    log_lines = re.search(
        r"are (\d+) times as many with top-k and top-p, and (\d+) times with top-p alone", prose
    )
    assert log_lines is not None
    assert tuple(map(int, log_lines.groups())) == (int(times["k = 50, p = 0.9"]), int(times["p = 0.9"]))


def test_the_figures_of_a_start_are_the_figures_of_the_table():
    rows = [
        line
        for line in pages.text_of("benchmarks/results/h100_vllm_start.md").splitlines()
        if line[:1] == "|"
    ]
    assert len(rows) == 6
    assert "\n".join(rows) in README
