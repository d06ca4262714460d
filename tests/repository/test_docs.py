"""docs/ is true: its commands run in the order in which they stand and print what it shows, and its Python runs."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tokendraw
from installing import NATIVE_ALONE, OFFLINE

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "writing-a-plugin.md").read_text(encoding="utf-8")
WRITTEN = re.findall(r"^\$ (.*)\n((?:(?!\$ |```).*\n)*)", GUIDE, re.MULTILINE)
"""Every command of the guide, with the lines that it shows below."""


def run(line, folder):
    """Run a line of the guide in ``folder``: offline, and with what it installs kept there."""
    words = shlex.split(line)
    site = folder / "site"
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    environ |= {"PYTHONPATH": f"{NATIVE_ALONE}{os.pathsep}{site}", "OMP_NUM_THREADS": "1"}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environ[name] = value
    if words[0] == "pip":
        words.remove("--editable")  # no link is followed in a folder of PYTHONPATH
        words += ["--quiet", *OFFLINE, "--target", str(site)]
    return subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=folder,
        env=environ,
        timeout=400,
    )


def pattern(shown):
    """What the guide shows, with ``...`` for whatever a machine or a version decides: rests of lines, or lines."""
    lines = [
        "(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
        for line in shown.splitlines()
    ]
    return "".join(lines)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the guide shows a machine without a GPU")
def test_the_commands_run_in_order_and_print_what_the_guide_shows(tmp_path):
    assert [line.split()[:2] for line, _ in WRITTEN[:3]] == [
        ["tokendraw", "new"],
        ["pip", "install"],
        ["tokendraw", "list"],
    ]
    for line, shown in WRITTEN:
        result = run(line, tmp_path)
        assert result.returncode == 0, (line, result.stdout, result.stderr)
        assert re.fullmatch(pattern(shown), result.stdout), (line, result.stdout)
        assert result.stderr == "", line


@pytest.mark.slow
def test_the_python_is_a_test_that_passes(tmp_path):
    (source,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "test_guide.py").write_text(source, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.stdout.splitlines()[-1].startswith("1 passed"), result.stdout


def test_every_line_of_the_kit_that_the_guide_names_exists():
    from tokendraw.testing import properties

    known = {prop.name for prop in properties()}
    (table,) = re.findall(r"tests it by \|\n(.*?)\n\n", GUIDE, re.DOTALL)
    named = {name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[3])}
    assert named - {"--device"} <= known


def test_every_capability_stands_in_the_table_of_the_guide():
    from dataclasses import fields

    from tokendraw.plugin import VerifyCapabilities

    (table,) = re.findall(r"tests it by \|\n(.*?)\n\n", GUIDE, re.DOTALL)
    named = {word for row in table.splitlines() for word in re.findall(r"`(\w+)", row.split("|")[1])}
    assert {field.name for field in fields(VerifyCapabilities)} <= named


def test_every_file_that_the_guide_links_to_is_there():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", GUIDE) if "://" not in link]
    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []


def test_the_python_of_the_page_on_routing_runs():
    page = (DOCS / "routing.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(source, names)
    assert names["metadata"].row_kinds is names["row_kinds"]


def test_the_page_on_routing_states_the_rule_and_the_figures_that_it_links_to():
    from tokendraw._serving.splitting import LEAST_ROWS

    page = (DOCS / "routing.md").read_text(encoding="utf-8")
    assert f"at least {LEAST_ROWS} rows stay" in page
    measured = (DOCS / "../benchmarks/results/h200_routing.md").read_text(encoding="utf-8")
    for rows, two, whole in re.findall(r"^\| (\d+) \| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE):
        line = (
            rf"\| {rows} x 151936 bfloat16 \| {two.replace(',', '')} \(\d+\) \| {whole.replace(',', '')} \("
        )
        assert re.search(line, measured), rows


PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_that_a_page_links_to_is_there(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (DOCS / link).exists()] == []


@pytest.mark.slow
def test_the_pipe_of_the_page_on_the_command_line_prints_what_it_shows(tmp_path):
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    python = shlex.quote(sys.executable)
    script = (
        "\n".join(commands)
        .replace("python -c", f"{python} -c")
        .replace("tokendraw ", f"{python} -m tokendraw ")
    )
    environ = os.environ | {"PYTHONPATH": str(NATIVE_ALONE)}
    result = subprocess.run(
        ["sh", "-ec", script], capture_output=True, encoding="utf-8", check=False, cwd=tmp_path, env=environ
    )
    shown = "".join(f"{line}\n" for line in block.splitlines() if not line.startswith("$ "))
    assert (result.stdout, result.stderr) == (shown, "")


def test_the_exit_codes_of_the_page_on_the_command_line_are_those_of_the_command():
    from tokendraw.cli import app
    from tokendraw.cli.terminal import process

    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert codes == {0, app.NOT_USABLE, app.USAGE, process.INTERRUPTED, process.PIPE_CLOSED}


class TestThePageOnParameters:
    PAGE = (DOCS / "parameters.md").read_text(encoding="utf-8")
    NAMED = frozenset(re.findall(r"`(\w+)`", PAGE))
    VLLM = (
        "n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop "
        "stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs prompt_logprob_token_ids "
        "prompt_logprob_start logprob_token_ids flat_logprobs detokenize skip_special_tokens "
        "spaces_between_special_tokens include_stop_str_in_output output_kind stream_interval "
        "structured_outputs logit_bias allowed_token_ids extra_args bad_words thinking_token_budget "
        "repetition_detection trace_decode_token_ids"
    )
    """Fields of ``SamplingParams`` in the version that the page names, less internal ones and those of caches."""
    OPENAI = (
        "best_of frequency_penalty logit_bias logprobs max_completion_tokens max_tokens n prediction presence_penalty "
        "reasoning_effort response_format seed stop temperature tool_choice tools top_logprobs top_p verbosity"
    )
    NOT_ABOUT_TOKENS = (
        "use_cache cache_implementation cache_config max_cache_len output_attentions output_hidden_states "
        "return_dict_in_generate pad_token_id bos_token_id decoder_start_token_id is_assistant max_matching_ngram_size "
        "assistant_lookbehind target_lookbehind compile_config disable_compile continuous_batching_config low_memory "
        "prefill_chunk_size transformers_version"
    )
    """Fields of transformers: of caches, outputs, padding, how drafts are made, speed."""

    @pytest.mark.parametrize("names", [VLLM, OPENAI], ids=["vLLM", "OpenAI"])
    def test_it_names_the_parameters_of_the_versions_that_it_was_read_from(self, names):
        assert set(names.split()) <= self.NAMED

    def test_it_names_every_parameter_of_transformers_that_bears_on_tokens(self):
        from transformers import GenerationConfig

        known = {name for name in GenerationConfig().to_dict() if not name.startswith("_")}
        assert known - set(self.NOT_ABOUT_TOKENS.split()) <= self.NAMED

    def test_it_names_every_parameter_of_ours(self):
        ours = {field.name for field in dataclasses.fields(tokendraw.SamplingParams)}
        assert ours <= {name.partition("=")[0] for name in re.findall(r"`([^`]+)`", self.PAGE)}

    def test_its_python_draws_what_it_says(self, capsys):
        (source,) = re.findall(r"```python\n(.*?)```", self.PAGE, re.DOTALL)
        exec(source, {})
        assert capsys.readouterr().out == "[0, 3]\n"


def test_the_python_of_the_page_on_requests_runs(capsys):
    page = (DOCS / "requests.md").read_text(encoding="utf-8")
    names = {}
    for source in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(source, names)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2  # the drawn token and the best one
    assert names["sampler"].resolution.need.max_logprobs == 20


def test_the_page_on_requests_quotes_what_a_check_says():
    page = (DOCS / "requests.md").read_text(encoding="utf-8")
    with pytest.raises(tokendraw.InvalidParameterError) as caught:
        tokendraw.SamplingParams(temperature=-1).check()
    assert f"`{caught.value}`" in page
