"""docs/ agrees with the code: output of commands, running Python, tables equal to the results."""

import dataclasses
import re
import shlex
import subprocess
import sys
import tomllib
from typing import ClassVar

import pytest
import torch

import pages
import tokendraw
from pages import OFFLINE, ROOT
from tokendraw.backends.discovery.validation import check_upstream
from tokendraw.plugin import Host, HostNeed, PluginInfo, VerifyCapabilities
from tokendraw.resolution import Candidate, Choice, State
from tokendraw_engine_ops.operations import Sm90W4Capabilities

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))),
]
OPERATORS = pages.text_of("docs/operators.md")
ENGINES = pages.text_of("docs/engine-authors.md")
PLUGINS = pages.text_of("docs/plugin-authors.md")
NUMBERS = pages.text_of("docs/numbers.md")

cpu_only = pytest.mark.skipif(torch.cuda.is_available(), reason="the pages show a machine without a GPU")


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md"])
def test_every_link_leads_to_a_file_and_a_heading(page):
    assert pages.broken_links(page) == []


def test_the_index_names_every_page():
    listed = set(re.findall(r"^\| \[(\S+)\]", pages.text_of("docs/README.md"), re.MULTILINE))
    assert {f"docs/{name}" for name in listed} | {"README.md", "CONTRIBUTING.md", "docs/README.md"} == set(
        PAGES
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_folder_to_install_exists_with_the_named_extra(page):
    for folder, extra in re.findall(
        r"(?<!\.)(\./(?:core|testing|bench|plugins|integrations)[\w/]*)(?:\[(\w+)\])?", pages.text_of(page)
    ):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
        assert not extra or extra in project["optional-dependencies"], folder


class TestThePageForOperators:
    SHOWN: ClassVar = dict(pages.commands(OPERATORS))

    @cpu_only
    def test_an_impossible_choice_is_refused_with_the_documented_message(self):
        (command,) = (line for line in self.SHOWN if line.startswith("TOKENDRAW_SAMPLER="))
        name = command.split()[0].partition("=")[2]
        result = subprocess.run(
            [sys.executable, "-m", "tokendraw", "resolve"],
            capture_output=True,
            encoding="utf-8",
            check=False,
            env=pages.environment(TOKENDRAW_SAMPLER=name),
        )
        assert (result.returncode, result.stdout, result.stderr) == (1, "", self.SHOWN[command])

    @pytest.mark.slow
    def test_the_pipe_prints_the_documented_output(self, tmp_path):
        (block,) = [block for block in pages.blocks(OPERATORS, "console") if "two.safetensors" in block]
        python = shlex.quote(sys.executable)
        script = "\n".join(line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ "))
        script = script.replace("python -c", f"{python} -c").replace("tokendraw ", f"{python} -m tokendraw ")
        result = subprocess.run(
            ["sh", "-ec", script],
            capture_output=True,
            encoding="utf-8",
            check=False,
            cwd=tmp_path,
            env=pages.environment(),
        )
        documented = "".join(f"{line}\n" for line in block.splitlines() if not line.startswith("$ "))
        assert (result.stdout, result.stderr) == (documented, "")

    def test_the_exit_codes_are_the_codes_of_the_command(self):
        from tokendraw.cli import command

        codes = {int(code) for code in re.findall(r"^\| (\d+) \|", OPERATORS, re.MULTILINE)}
        assert codes == {0, command.NOT_USABLE, command.USAGE, command.INTERRUPTED, command.PIPE_CLOSED}

    def test_the_page_names_every_command_and_every_variable(self):
        from tokendraw.backends.discovery.settings import ENGINE_SWITCHES, VARIABLES
        from tokendraw.cli.app import BUILT_IN, OWNERS

        named = set(re.findall(r"^\| `tokendraw (\w+)", OPERATORS, re.MULTILINE))
        assert named == {*BUILT_IN, *OWNERS}
        assert set(re.findall(r"^\| `(TOKENDRAW_\w+)=", OPERATORS, re.MULTILINE)) == {
            *VARIABLES,
            *ENGINE_SWITCHES,
        }


class TestThePageForEngineAuthors:
    def test_the_python_runs_in_page_order(self, capsys):
        names = {}
        for source in pages.blocks(ENGINES, "python"):
            exec(source, names)
        assert len(capsys.readouterr().out.splitlines()) == 2  # the drawn token and the best one
        assert names["sampler"].resolution.need.max_logprobs == 20
        assert names["chains"].token_ids.shape == (3, 3)
        assert names["metadata"].row_kinds is names["row_kinds"]

    def test_the_page_quotes_the_message_of_a_check(self):
        with pytest.raises(tokendraw.InvalidParameterError) as caught:
            tokendraw.SamplingParams(temperature=-1).check()
        assert f"`{caught.value}`" in ENGINES

    def test_the_page_names_every_error_of_a_caller(self):
        errors = [
            name
            for name in tokendraw.__all__
            if isinstance(kind := getattr(tokendraw, name), type) and issubclass(kind, Exception | Warning)
        ]
        assert [name for name in errors if f"`{name}`" not in ENGINES] == []

    def test_the_page_states_the_rule_of_split_batches(self):
        from tokendraw.calls.routing import MIN_SPLIT_ROWS

        assert f"at least {MIN_SPLIT_ROWS} rows stay" in ENGINES


def run_in(folder, line):
    """Run a line of the guide for plugin authors offline, with installations inside ``folder``."""
    words = shlex.split(line)
    site = folder / "site"
    variables = {"OMP_NUM_THREADS": "1"}
    if "check" in words or words[0] == "pytest":  # every line of it, in few rows
        variables["SMALLEST_KIT"] = "1"
    words += ["--jobs", "1"] if "check" in words else []
    while "=" in words[0]:
        name, _, variables[name] = words.pop(0).partition("=")
    if words[0] == "pip":
        words.remove("--editable")  # no link is followed in a folder of PYTHONPATH
        words += ["--quiet", *OFFLINE, "--target", str(site)]
    return pages.run_with(site, *words, folder=folder, **variables)


class TestThePageForTrainers:
    def test_the_ratio_at_step_0_is_1_with_the_mask_alone_and_the_model_learns(self, capsys):
        names = {}
        for source in pages.blocks(pages.text_of("docs/training.md"), "python"):
            exec(source, names)
        masked, unmasked = names["ratios"][0]
        assert torch.allclose(masked, torch.ones_like(masked), atol=1e-6)
        assert unmasked.max() < 0.9
        assert names["rewards"][-1] > 0.95 > names["rewards"][0]
        assert capsys.readouterr().out.startswith("ratios at step 0: 1.000000 to 1.000000 with the mask\n")


class TestThePageForPluginAuthors:
    UPSTREAM, CONFORMANCE, DISCOVERY = pages.blocks(PLUGINS, "python")
    TABLES = re.findall(r"tests it by \|\n(.*?)\n\n", PLUGINS, re.DOTALL)

    @pytest.mark.slow
    @cpu_only
    def test_the_commands_run_in_order_and_print_the_documented_output(self, tmp_path):
        for line, documented in pages.commands(PLUGINS):
            result = run_in(tmp_path, line)
            assert result.returncode == 0, (line, result.stdout, result.stderr)
            wanted, printed = (re.sub(" {2,}", "  ", text) for text in (documented, result.stdout))
            assert re.fullmatch(pages.pattern(wanted), printed), (line, result.stdout)
            stderr_lines = [
                t for t in result.stderr.splitlines() if not re.search(r"lines after \d+ s: |, \d+ s$", t)
            ]
            assert stderr_lines == [], line  # but for how far long work is

    def test_the_shown_tests_are_the_tests_of_the_kit(self):
        names = {}
        exec(self.CONFORMANCE, names)
        assert issubclass(names["TestAcme"], names["SamplerConformance"])

    def test_the_table_of_releases_gives_the_shown_reasons(self, dists):
        dists.add_engine_ops()
        names = {}
        exec(self.UPSTREAM, names)
        packer = Sm90W4Capabilities(formats=("fp4", "int4", "fp4_fp8"), layouts=("v1", "v2"), unpacks=True)
        reserve = PluginInfo(name="b", api_version=1, priority=0, operations={"pack_sm90_w4": packer})
        acme = dataclasses.replace(
            reserve, name="acme", priority=50, upstream=check_upstream(names["UPSTREAM"])
        )
        documented = [row for row in pages.rows(PLUGINS, 2) if "acme-kernels" in row[1]]
        assert len(documented) == 4
        for version, words in documented:
            candidates = [
                Candidate(name=info.name, state=State.LOADED, info=info, upstream_version=version)
                for info in (acme, reserve)
            ]
            made = tokendraw.resolve(
                candidates, Host(device_type="cpu"), HostNeed(), Choice(), operation="pack_sm90_w4"
            )
            assert {decision.name: decision.reason for decision in made.decisions}["acme"] == words

    def test_the_test_of_a_broken_installation_passes(self, tmp_path, monkeypatch):
        names = {}
        exec(self.DISCOVERY, names)
        names["test_a_broken_installation_is_listed_with_its_reason"](tmp_path, monkeypatch)

    def test_every_named_line_of_the_kit_exists(self):
        from tokendraw_testing import properties

        known = {prop.name for prop in properties()}
        named = {name for row in self.rows() for name in re.findall(r"`([^`]+)`", row[2])}
        assert named - {"--device"} <= known

    def test_every_capability_stands_in_the_tables(self):
        named = {word for row in self.rows() for word in re.findall(r"`(\w+)", row[0])}
        assert {field.name for field in dataclasses.fields(VerifyCapabilities)} <= named

    def rows(self):
        return [row for table in self.TABLES for row in pages.rows(table, 3)]


TABLES_OF_NUMBERS = {
    "H200": (
        *("h200_design", 10, 7, 10),
        lambda row: " x " in row[0] and row[0][0].isdigit(),
        lambda row: [f"{row[0]} x {row[1]} {row[2]}", *row[3:9]],
    ),
    "verifications": (
        *("h200_verify", 13, 6, 7),
        lambda row: row[1] in ("rejection", "coupled"),
        lambda row: [row[i] for i in (0, 4, 5, 8, 9, 11)],
    ),
    "page plans": (
        *("h200_paged_kv", 6, 4, 4),
        lambda row: re.fullmatch(r"\d+ x \d+", row[0]),
        lambda row: row[:4],
    ),
    "weight layouts": (
        *("h100_sm90_w4", 6, 5, 4),
        lambda row: row[0].startswith("pack weights"),
        lambda row: [*row[:4], row[5]],
    ),
    "edits": (
        *("h200_process_logits", 4, 4, 12),
        lambda row: row[0].startswith(("floor:", "triton-gumbel:", "torch:", "native:")),
        list,
    ),
    "CPU": ("cpu", 6, 6, 7, lambda row: row[0].startswith(("zipf", "flat")), list),
    "host time": (
        *("cpu_host_time", 2, 2, 4),
        lambda row: re.match(r"(sample|verify|from_params|with_positions),", row[0]),
        list,
    ),
}
"""File of results, columns there and in docs/numbers.md, number of shown rows, selection of rows, shown cells."""


class TestThePageOfNumbers:
    def test_every_file_of_results_stands_with_a_command(self):
        """Results of two devices may share a line, since a single script makes both."""
        lines = [line for line in NUMBERS.splitlines() if line.startswith("|")]
        table = {
            name: line
            for line in lines
            for name in re.findall(r"results/(?:cpu_|h100_|h200_)?(\w+\.md)", line)
        }
        for path in (ROOT / "benchmarks/results").glob("*.md"):
            command = path.read_text(encoding="utf-8").splitlines()[0].partition(" --output")[0].strip("`")
            tool, script, *_ = command.split()
            line = table[re.sub("^(cpu|h100|h200)_", "", path.name)]
            assert f"{tool} {script}" in line or "memcheck" in path.name, path.name

    def test_a_figure_stands_within_the_first_ten_lines(self):
        assert any(re.search(r"\d+\.\d \(\d+\.\d+x\)", line) for line in NUMBERS.splitlines()[:10])

    @pytest.mark.parametrize("table", TABLES_OF_NUMBERS)
    def test_a_table_holds_rows_of_the_results(self, table):
        file, measured_width, width, count, is_shown, cells = TABLES_OF_NUMBERS[table]
        rows = pages.rows(pages.text_of(f"benchmarks/results/{file}.md"), measured_width)
        measured = [cells(row) for row in rows]
        documented = [row for row in pages.rows(NUMBERS, width) if is_shown(row)]
        assert len(documented) == count
        assert [row for row in documented if row not in measured] == []

    def test_the_table_of_split_batches_equals_the_results(self):
        measured = {
            tuple(cell.partition(" (")[0] for cell in row[:3])
            for row in pages.rows(pages.text_of("benchmarks/results/h200_routing.md"), 4)
        }
        documented = [row for row in pages.rows(NUMBERS, 3) if row[0].isdigit()]
        assert len(documented) == 6
        for count, *times in documented:
            assert (f"{count} x 151936 bfloat16", *(time.replace(",", "") for time in times)) in measured

    def test_the_table_of_routing_on_a_cpu_equals_the_results(self):
        """Milliseconds, where the results have microseconds."""
        faster, slower = (
            {row[0]: row[1:3] for row in pages.rows(pages.text_of(f"benchmarks/results/{name}.md"), 4)}
            for name in ("cpu_routing", "cpu_routing_slower")
        )
        documented = [row for row in pages.rows(NUMBERS, 5) if row[0].isdigit()]
        assert [row[0] for row in documented] == ["2", "4", "8", "16", "64"]
        for rows, *shown_times in documented:
            batch = f"{rows} x 128256 float32"
            measured = [f"{int(time) / 1000:.1f}" for time in (*faster[batch], *slower[batch])]
            assert shown_times == measured, rows


class TestThePageOnParameters:
    PAGE = pages.text_of("docs/parameters.md")
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
    def test_the_page_names_the_parameters_of_the_stated_versions(self, names):
        assert set(names.split()) <= self.NAMED

    def test_the_page_names_every_parameter_of_transformers_for_tokens(self):
        from transformers import GenerationConfig

        known = {name for name in GenerationConfig().to_dict() if not name.startswith("_")}
        assert known - set(self.NOT_ABOUT_TOKENS.split()) <= self.NAMED

    def test_the_page_names_every_parameter_of_tokendraw(self):
        ours = {field.name for field in dataclasses.fields(tokendraw.SamplingParams)}
        assert ours <= {name.partition("=")[0] for name in re.findall(r"`([^`]+)`", self.PAGE)}

    def test_the_python_draws_the_documented_tokens(self, capsys):
        (source,) = pages.blocks(self.PAGE, "python")
        exec(source, {})
        assert capsys.readouterr().out == "[0, 3]\n"


class TestTheGuideForContributors:
    TEXT = pages.text_of("CONTRIBUTING.md")

    def test_the_map_has_the_enforced_layers(self):
        contracts = tomllib.loads(pages.text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
        (layers,) = [
            contract["layers"] for contract in contracts if contract.get("containers") == ["tokendraw"]
        ]
        rooms = [re.findall(r"`(\w+)`", row[0]) for row in pages.rows(self.TEXT, 2)]
        assert [row for row in rooms if row and row[0] in re.findall(r"\w+", " ".join(layers))] == [
            layer.split(" | ") for layer in layers
        ]

    def test_every_named_file_and_folder_exists(self):
        named = re.findall(
            r"`((?:core|testing|bench|plugins|tests|docs|benchmarks|examples|integrations)/[\w./]*)`",
            self.TEXT,
        )
        made = {"plugins/acme", "tests/plugins/test_acme.py"}
        assert [path for path in named if path not in made and not (ROOT / path).exists()] == []

    def test_every_named_target_of_make_exists(self):
        targets = set(re.findall(r"^([\w-]+):", pages.text_of("Makefile"), re.MULTILINE))
        assert set(re.findall(r"make ([\w-]+)", " ".join(re.findall(r"`([^`]+)`", self.TEXT)))) <= targets


@pytest.mark.parametrize("plugin", ["native", "flashinfer"])
def test_the_table_of_files_in_the_readme_of_a_plugin_is_complete(plugin):
    named = set(re.findall(r"^\| `(\w+\.py)` \|", pages.text_of(f"plugins/{plugin}/README.md"), re.MULTILINE))
    files = {path.name for path in (ROOT / f"plugins/{plugin}/src/tokendraw_{plugin}").glob("*.py")}
    assert named == files - {"__init__.py"}


@cpu_only
def test_the_python_of_the_core_s_readme_runs():
    (source,) = pages.blocks(pages.text_of("core/README.md"), "python")
    names = {"logits": torch.randn(1, 1000)}
    exec(source, names)
    assert names["token_ids"].shape == (1,)
