"""A missing or damaged torch: each command tells the two apart.

The torch of these tests is a folder or a file of that name before the real one, as on a machine where it is damaged.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = "import tokendraw; tokendraw.load_sampler(device='cpu')"
DAMAGES = {
    "raise ImportError('no libtorch')": "failing to import: ImportError: no libtorch",
    "raise OSError('libcudart.so.12:\\ncannot open shared object file')": (
        "failing to import: OSError: libcudart.so.12: cannot open shared object file"
    ),
    "import torch._C": "failing to import: ModuleNotFoundError: No module named 'torch._C'",
    "raise RuntimeError('numpy is \\x1b[31mtoo old')": r"failing to import: RuntimeError: numpy is \x1b[31mtoo old",
    "def f(:": "failing to import: SyntaxError: invalid syntax (__init__.py, line 1)",
    "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": "ending the process: exit status -11",
    "print('loading')\nraise SystemExit(3)": "ending the process: exit status 3",
}
"""Source of the damaged package, and what is said of it; an end of the process is seen by the doctor alone."""
NO_NATIVE = """
import importlib_metadata
discover = importlib_metadata.Distribution.discover
importlib_metadata.Distribution.discover = lambda **options: (
    d for d in discover(**options) if d.name != "tokendraw-native"
)
"""
ABSENT = "import sys; sys.modules['torch'] = None; "


def python(folder: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with ``folder`` before everything else, without the developer's settings."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    if folder is not None:
        environ["PYTHONPATH"] = str(folder)
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environ, timeout=100
    )


def damaged(tmp_path: Path, source: str) -> Path:
    """Make a folder with a damaged torch; return the package."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(source, encoding="utf-8")
    return package


@pytest.mark.parametrize("source", DAMAGES)
@pytest.mark.fast_first
def test_a_damaged_torch_is_told_of_with_its_error_and_its_place(tmp_path: Path, source: str) -> None:
    package = damaged(tmp_path, source)
    message = f"needs torch, found it in {str(package)!r} {DAMAGES[source]}. Mend that, or reinstall torch."
    if "ending" not in message:
        run = python(tmp_path, "-c", LOAD)
        last_line = run.stderr.strip().splitlines()[-1]
        assert last_line == f"tokendraw.SamplerUnavailableError: A sampler {message}"
    run = python(tmp_path, "-m", "tokendraw", "doctor", "--json")
    checkup = json.loads(run.stdout)
    assert {"problem": f"A sampler {message}", "mend": None} in checkup["findings"]
    assert (checkup["chosen"], run.stderr, run.returncode) == (None, "", 1)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (ABSENT, "it not installed; run `pip install torch`."),
        (NO_NATIVE + ABSENT, "it not installed; run `pip install ./plugins/native` in tokendraw's checkout."),
        ("", "something else of that name in {file!r}. Rename it, or run Python elsewhere."),
    ],
    ids=["torch", "native", "a file of that name"],
)
def test_an_absent_torch_comes_with_what_to_do(tmp_path: Path, code: str, found: str) -> None:
    file = tmp_path / "torch.py"
    file.write_text("", encoding="utf-8")
    run = python(None if code else tmp_path, "-c", code + LOAD)
    assert run.stderr.strip().splitlines()[-1] == (
        f"tokendraw.SamplerUnavailableError: A sampler needs torch, found {found.format(file=str(file))}"
    )


@pytest.mark.slow
def test_doctor_finds_nothing_wrong_with_a_sound_torch_and_does_not_import_it_here() -> None:
    code = (
        "import sys; from tokendraw.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    )
    run = python(None, "-c", code, "doctor", "--json")
    assert (run.stderr, run.returncode) == ("", 0)
    assert not [f for f in json.loads(run.stdout)["findings"] if "torch" in f["problem"]]
