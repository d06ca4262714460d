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
COMMANDS = {
    "sample": ("Drawing", ("sample", "x.npy")),
    "generate": ("Drawing", ("generate", "x")),
    "check": ("Checking", ("check", "native")),
    "bench": ("A sampler", ("bench",)),
}
DAMAGES = {
    "raise ImportError('libtorch_cpu.so: cannot open shared object file')": (
        "ImportError: libtorch_cpu.so: cannot open shared object file"
    ),
    "raise OSError('libcudart.so.12:\\ncannot open shared object file')": (
        "OSError: libcudart.so.12: cannot open shared object file"
    ),
    "import no_such_dependency": "ModuleNotFoundError: No module named 'no_such_dependency'",
    "import torch._C": "ModuleNotFoundError: No module named 'torch._C'",
    "raise RuntimeError('numpy is \\x1b[31mtoo old')": r"RuntimeError: numpy is \x1b[31mtoo old",
    "def f(:": "SyntaxError: invalid syntax (__init__.py, line 1)",
}
"""Source of the damaged package, and what is said of it."""


def python(folder: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with ``folder`` before everything else, without the developer's settings."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    if folder is not None:
        environ["PYTHONPATH"] = str(folder)
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environ, timeout=100
    )


def last_line(run: subprocess.CompletedProcess[str]) -> str:
    return run.stderr.strip().splitlines()[-1]


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
    assert last_line(python(tmp_path, "-c", LOAD)) == (
        f"tokendraw.SamplerUnavailableError: A sampler needs torch, found it in {str(package)!r} failing to "
        f"import: {DAMAGES[source]}. Mend that, or reinstall torch."
    )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.fast_first
def test_every_command_that_draws_says_so(tmp_path: Path, command: str) -> None:
    who, arguments = COMMANDS[command]
    package = damaged(tmp_path, "raise ImportError('no libtorch')")
    (tmp_path / "x.npy").touch()
    run = python(tmp_path, "-m", "tokendraw", *(str(tmp_path / a) if a == "x.npy" else a for a in arguments))
    assert (run.stdout, run.stderr, run.returncode) == (
        "",
        f"{who} needs torch, found it in {str(package)!r} failing to import: ImportError: no libtorch. "
        "Mend that, or reinstall torch.\n",
        1,
    )


NO_NATIVE = """
import importlib_metadata
discover = importlib_metadata.Distribution.discover
importlib_metadata.Distribution.discover = lambda **options: (
    d for d in discover(**options) if d.name != "tokendraw-native"
)
"""


@pytest.mark.parametrize(
    ("without", "command"),
    [("", "`pip install torch`"), (NO_NATIVE, "`pip install ./plugins/native` in tokendraw's checkout")],
)
def test_an_absent_torch_comes_with_the_command_for_what_is_not_installed(without: str, command: str) -> None:
    run = python(None, "-c", f"{without}\nimport sys; sys.modules['torch'] = None; {LOAD}")
    assert last_line(run) == (
        f"tokendraw.SamplerUnavailableError: A sampler needs torch, found it not installed; run {command}."
    )


def test_a_file_of_that_name_is_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("", encoding="utf-8")
    assert last_line(python(tmp_path, "-c", LOAD)) == (
        "tokendraw.SamplerUnavailableError: A sampler needs torch, found something else of that name in "
        f"{str(tmp_path / 'torch.py')!r}. Rename it, or run Python elsewhere."
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("raise ImportError('no libtorch')", "failing to import: ImportError: no libtorch"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ending the process: exit status -11"),
        ("print('loading')\nraise SystemExit(3)", "ending the process: exit status 3"),
    ],
)
@pytest.mark.fast_first
def test_doctor_sees_a_damaged_torch_and_exits_with_1(tmp_path: Path, source: str, found: str) -> None:
    package = damaged(tmp_path, source)
    run = python(tmp_path, "-m", "tokendraw", "doctor", "--json")
    checkup = json.loads(run.stdout)
    assert {
        "problem": f"A sampler needs torch, found it in {str(package)!r} {found}. Mend that, or reinstall torch.",
        "mend": None,
    } in checkup["findings"]
    assert (checkup["chosen"], run.stderr, run.returncode) == (None, "", 1)


@pytest.mark.slow
def test_doctor_finds_nothing_wrong_with_a_sound_torch_and_does_not_import_it_here() -> None:
    code = (
        "import sys; from tokendraw.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    )
    run = python(None, "-c", code, "doctor", "--json")
    assert (run.stderr, run.returncode) == ("", 0)
    assert not [f for f in json.loads(run.stdout)["findings"] if "torch" in f["problem"]]
