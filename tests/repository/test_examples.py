"""examples/: each is a distribution that installs, is found, says what it can do, and passes its own tests."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from command_line import call
from pages import install, run_with

EXAMPLE = Path(__file__).parents[2] / "examples" / "top_n_sigma"


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder on which the example is installed, beside the plain environment."""
    folder = tmp_path_factory.mktemp("site")
    install(EXAMPLE, folder)
    return folder


@pytest.mark.slow
def test_it_is_listed_below_native(site):
    result = run_with(site, "tokendraw", "list")
    assert result.stdout == (
        "name         state      priority  version  what it does, or why it cannot\n"
        "native       available  0         0.1.0    the reference in plain PyTorch: every device, every request\n"
        "top-n-sigma  available  -10       0.1.0    plain PyTorch, with the top-n-sigma filter for each row\n"
        "\n"
        "name         operations\n"
        "native       sample, verify, plan_paged_kv, pack_sm90_w4, process_logits\n"
        "top-n-sigma  sample\n"
    )
    assert (result.stderr, result.returncode) == ("", 0)


@pytest.mark.slow
def test_show_tells_everything_about_it(site):
    result = run_with(site, "tokendraw", "show", "top-n-sigma")
    assert result.stdout == (
        "top-n-sigma\n"
        "  summary       plain PyTorch, with the top-n-sigma filter for each row\n"
        "  state         available\n"
        "  distribution  top-n-sigma-tokendraw 0.1.0, third-party\n"
        "  entry point   top_n_sigma_tokendraw:plugin\n"
        "  plugin API    1, this core speaks 1\n"
        "  priority      -10\n"
        "  upstream      none\n"
        "  verified on   CPU (x86-64, torch 2.13.0)\n"
        "\n"
        "operation sample\n"
        "  device types        cpu, cuda\n"
        "  compute capability  any\n"
        "  ROCm architectures  any\n"
        "  least SMs           0\n"
        "  dtypes of logits    float32, bfloat16, float16\n"
        "  logprobs modes      raw_logprobs, raw_logits, processed_logprobs, processed_logits, "
        "temperature_logprobs\n"
        "  filters             top_k per row, top_p per row, min_p per row\n"
        "  filter orders       top_k_first, joint\n"
        "  tie rule            value\n"
        "  seeding             counter\n"
        "  greedy              yes\n"
        "  gumbel dtypes       fp32, fp64\n"
        "  valid flag          yes\n"
        "  graph safe          no\n"
        "  sync free           no\n"
        "  batch invariant     yes\n"
        "  largest top-k       no limit\n"
        "  largest vocabulary  no limit\n"
        "  vocab parallel      no\n"
        "  metadata classes    top_n_sigma_tokendraw.metadata.TopNSigmaMetadata\n"
        "  compiles on demand  no\n"
    )
    assert (result.stderr, result.returncode) == ("", 0)


def test_nobody_s_default_choice_moves_to_it(site):
    assert run_with(site, "tokendraw", "resolve", "--device", "cpu").stdout == "native\n"


@pytest.mark.slow
def test_it_passes_the_conformance_kit(site, monkeypatch):
    monkeypatch.setenv("SMALLEST_KIT", "1")
    result = run_with(site, "tokendraw", "check", "top-n-sigma", "--device", "cpu", "--quick")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(
        r"^\d+ passed, 0 failed, 3 refused \(not advertised\), 0 not run\.$", result.stdout, re.MULTILINE
    )


@pytest.mark.slow
def test_its_own_tests_pass(site):
    """All but those of the kit, which run above."""
    result = run_with(
        site,
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(EXAMPLE),
        f"--ignore={EXAMPLE}/tests/test_conformance.py",
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_its_conformance_test_is_the_template_s(tmp_path):
    """So what passes above is what its own suite runs."""
    assert call("new", "top-n-sigma", tmp_path / "new").exit_code == 0
    written = (tmp_path / "new" / "tests" / "test_conformance.py").read_text(encoding="utf-8")
    own = (EXAMPLE / "tests" / "test_conformance.py").read_text(encoding="utf-8")
    assert written.split() == own.split()


def test_its_sampler_is_the_template_s_but_for_the_filter(tmp_path):
    """What is mended in one is mended in the other."""
    call("new", "top-n-sigma", tmp_path / "new")
    path = "src/top_n_sigma_tokendraw/sampler.py"
    written, own = (
        Counter(
            filter(None, (folder / path).read_text(encoding="utf-8").partition('"""\n\nfrom')[2].splitlines())
        )
        for folder in (tmp_path / "new", EXAMPLE)
    )
    assert [line.strip() for line in written - own] == [
        "if facts.max_top_k == 0 and not facts.any_top_p and not facts.any_min_p:",
        "count = (below >= temperature * min_p.log()).sum(-1, keepdim=True)",
    ]
    assert [line.strip() for line in own - written] == [
        "from top_n_sigma_tokendraw.metadata import TopNSigmaMetadata",
        "from top_n_sigma_tokendraw.n_sigma import kept_count",
        "any_n_sigma = isinstance(metadata, TopNSigmaMetadata) and metadata.n_sigma is not None",
        "if facts.max_top_k == 0 and not facts.any_top_p and not facts.any_min_p and not any_n_sigma:",
        "count = torch.full_like(top, vocab_size, dtype=torch.int64)",
        "if any_n_sigma:",
        'count = kept_count(order, self._column(metadata, "n_sigma", 0.0, top))',
        "count = count.minimum((below >= temperature * min_p.log()).sum(-1, keepdim=True))",
    ]


@pytest.mark.slow
def test_the_python_of_its_readme_runs(site):
    (code,) = re.findall(
        r"```python\n(.*?)```", (EXAMPLE / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(list(out.token_ids.shape))"],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={"PYTHONPATH": str(site)},
    )
    assert (result.stdout, result.stderr) == ("[2]\n", "")


def test_importing_it_loads_no_torch(site):
    code = "import sys, top_n_sigma_tokendraw; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(site)},
    )
    assert result.stdout == "False\n"


def test_every_file_that_its_readme_names_is_there():
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    named = [*re.findall(r"\| `([^`]+)` \|", readme), *re.findall(r"\]\((\.[^)#]+)\)", readme)]
    assert len(named) == 6
    assert [path for path in named if not (EXAMPLE / path).exists()] == []
