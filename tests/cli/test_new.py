"""``tokendraw new``: the complete output, every file, every refusal."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from command_line import call

FILES = [
    ".gitignore",
    "README.md",
    "pyproject.toml",
    "src/acme_tokendraw/__init__.py",
    "src/acme_tokendraw/sampler.py",
    "tests/test_conformance.py",
]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def test_the_name_makes_the_distribution_the_package_and_the_classes():
    call("new", "four-bit", "out")
    project = tomllib.loads(Path("out/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "four-bit-tokendraw"
    assert project["entry-points"] == {"tokendraw.plugins": {"four-bit": "four_bit_tokendraw:plugin"}}
    assert project["dependencies"] == ["tokendraw[testing]", "torch>=2.6"]
    assert project["optional-dependencies"] == {"test": ["tokendraw[testing]"]}
    plugin = Path("out/src/four_bit_tokendraw/__init__.py").read_text(encoding="utf-8")
    assert "class FourBitPlugin:" in plugin
    assert "from four_bit_tokendraw.sampler import FourBitSampler  # imports torch\n" in plugin
    assert "class TestFourBit(SamplerConformance):" in Path("out/tests/test_conformance.py").read_text()
    assert [text for text in files_below("out") if "$" in Path("out", text).read_text(encoding="utf-8")] == []


def test_a_name_that_another_distribution_has_is_refused(dists):
    dists.add("other-kernels", "2.0", plugins={"acme": "boom:plugin"})
    result = call("new", "acme", "out")
    assert (result.stderr, result.exit_code) == (
        "'NAME' needs a name that no other distribution claims, found 'acme' in other-kernels 2.0. "
        "Choose another, or uninstall that.\n",
        1,
    )
    assert not Path("out").exists()


def test_where_the_plugin_itself_is_installed_it_says_so_and_goes_on(dists, monkeypatch):
    dists.add("Acme.Tokendraw", "0.9", plugins={"acme": "boom:plugin"})
    Path("out").mkdir()  # an empty folder will do
    result = call("new", "acme", "out")
    assert (result.stderr, result.exit_code) == (
        "Acme.Tokendraw 0.9 is installed already; installing this one replaces it.\n",
        0,
    )
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    strict = f"{result.stderr.strip()} TOKENDRAW_STRICT=1 makes this warning an error.\n"
    result = call("new", "acme", "strict")
    assert (result.stdout, result.stderr, result.exit_code) == ("", strict, 1)
    assert files_below("out") == FILES


def test_importing_the_plugin_loads_no_torch():
    call("new", "acme", "out")
    code = "import sys, acme_tokendraw; print('torch' in sys.modules, acme_tokendraw.plugin is not None)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="out/src"
    )
    assert run.stdout == "False True\n"


def test_what_it_writes_is_formatted_and_linted_as_the_core_is():
    call("new", "acme", "out")
    manifest = Path(__file__).parents[2] / "pyproject.toml"
    ruff = tomllib.loads(manifest.read_text(encoding="utf-8"))["tool"]["ruff"]
    lint = [f"--{key}={','.join(ruff['lint'][key])}" for key in ("select", "ignore")]
    prose = ruff["lint"]["pycodestyle"]["max-line-length"]
    for options in (
        ["format", "--check", f"--line-length={ruff['line-length']}"],
        ["check", *lint, f"--line-length={prose}"],
    ):
        # isolated: in a project of its own tokendraw is a library like any other, and imports sort accordingly
        run = subprocess.run(
            [sys.executable, "-m", "ruff", *options, "--isolated", "--no-cache"],
            capture_output=True,
            text=True,
            check=False,
            cwd="out",
        )
        assert run.returncode == 0, run.stdout + run.stderr
