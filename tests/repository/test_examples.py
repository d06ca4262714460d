"""examples/ are distributions: installable, discovered, described, with passing tests."""

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
    """A folder with the installed example, beside the plain environment."""
    folder = tmp_path_factory.mktemp("site")
    install(EXAMPLE, folder)
    return folder


@pytest.mark.slow
def test_the_example_is_listed_below_native(site):
    result = run_with(site, "tokendraw", "list")
    assert result.stdout == (
        "name         state      priority  version  what it does, or why it cannot\n"
        "native       available  0         0.1.0    the reference in plain PyTorch: every device, every request\n"
        "top-n-sigma  available  -10       0.1.0    plain PyTorch, with the top-n-sigma filter for each row\n"
        "\n"
        "name         operations\n"
        "native       sample, verify, score, plan_paged_kv, pack_sm90_w4, process_logits\n"
        "top-n-sigma  sample\n"
    )
    assert (result.stderr, result.returncode) == ("", 0)


def test_the_default_choice_stays(site):
    assert run_with(site, "tokendraw", "resolve", "--device", "cpu").stdout == "native\n"


@pytest.mark.slow
def test_the_conformance_kit_passes(site, monkeypatch):
    monkeypatch.setenv("SMALLEST_KIT", "1")
    result = run_with(site, "tokendraw", "check", "top-n-sigma", "--device", "cpu", "--quick")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(
        r"^\d+ passed, 0 failed, 5 refused \(not advertised\), 0 not run\.$", result.stdout, re.MULTILINE
    )


@pytest.mark.slow
def test_the_tests_of_the_project_pass(site):
    """The tests of the kit run above."""
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


def test_the_conformance_test_is_the_template_s(tmp_path):
    """The example's suite runs the kit as above."""
    assert call("new", "top-n-sigma", tmp_path / "new").exit_code == 0
    written = (tmp_path / "new" / "tests" / "test_conformance.py").read_text(encoding="utf-8")
    own = (EXAMPLE / "tests" / "test_conformance.py").read_text(encoding="utf-8")
    assert written.split() == own.split()


def test_the_sampler_is_the_template_s_except_for_the_filter(tmp_path):
    """A fix of the template has to reach the example, and the other way round."""
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
def test_the_python_of_the_example_s_readme_runs(site):
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


def test_an_import_of_the_example_loads_no_torch(site):
    code = "import sys, top_n_sigma_tokendraw; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(site)},
    )
    assert result.stdout == "False\n"


def test_every_file_named_in_the_readme_exists():
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    named = [*re.findall(r"\| `([^`]+)` \|", readme), *re.findall(r"\]\((\.[^)#]+)\)", readme)]
    assert len(named) == 6
    assert [path for path in named if not (EXAMPLE / path).exists()] == []
