"""Exported names of the public modules."""

import ast
import compileall
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tokendraw
import tokendraw.bench
import tokendraw.commands
import tokendraw.engines
import tokendraw.filters
import tokendraw.plugin
import tokendraw.resolution
import tokendraw.testing
import tokendraw.tools
import tokendraw_bench
import tokendraw_testing
import tokendraw_transformers

FACES = [
    tokendraw,
    tokendraw.plugin,
    tokendraw.filters,
    tokendraw.resolution,
    tokendraw.tools,
    tokendraw_bench,
    tokendraw_testing,
]
MODULES = [tokendraw.row_parameters, tokendraw.commands, tokendraw.engines]
"""Public modules beside the faces."""
NAMES = (Path(__file__).parent / "public_names.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", [*FACES, *MODULES], ids=lambda module: module.__name__)
def test_a_public_module_exports_these_names(module):
    (names,) = re.findall(rf"^\[{module.__name__}\]\n(.*?)(?:\n\n|\Z)", NAMES, re.MULTILINE | re.DOTALL)
    assert sorted(module.__all__) == names.split()


LAZY = [*FACES, tokendraw.commands, tokendraw_transformers]
"""Modules that import their names at first use."""


@pytest.mark.parametrize("face", LAZY, ids=lambda face: face.__name__)
def test_a_type_checker_reads_the_names_that_a_program_gets(face):
    """A name imported ``as`` itself is exported."""
    tree = ast.parse(Path(str(face.__file__)).read_text(encoding="utf-8"))
    (block,) = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    read = [(node.module, name.name, name.asname) for node in block.body for name in node.names]
    assert sorted(read) == sorted(
        (module, name, name) for module, names in face._NAMES.items() for name in names.split()
    )


WITHOUT_SOURCES = """
import importlib, sys
from pathlib import Path

for face, names in {names}.items():
    module = importlib.import_module(face)
    assert module.__file__.endswith(".pyc"), module.__file__
    assert [*map(type, (getattr(module, name) for name in names))], face
import torch
from tokendraw import *

out = load_sampler("native", device="cpu").sample(
    torch.zeros(1, 9), SamplingMetadata.from_params([SamplingParams(temperature=0, filters={{"top_n_sigma": 1.0}})])
)
print(out.token_ids.tolist())
from tokendraw.cli import main
sys.argv = ["tokendraw", "list"]
main()
"""


@pytest.mark.fast_first
@pytest.mark.parametrize("optimize", ["2", "0"])
def test_a_program_without_sources_gets_every_name_and_draws(tmp_path, optimize):
    root = Path(__file__).parents[2]
    for package in ("core", "testing", "bench", "plugins/native", "integrations/transformers"):
        shutil.copytree(
            root / package / "src", tmp_path, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
    compileall.compile_dir(tmp_path, quiet=2, legacy=True, optimize=int(optimize))
    for source in tmp_path.rglob("*.py"):
        source.unlink()
    names = {face.__name__: list(face.__all__) for face in LAZY if face is not tokendraw_transformers}
    environ = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONOPTIMIZE": optimize}
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_SOURCES.format(names=names)],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        cwd=tmp_path,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("[0]\nname ")


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_every_exported_name_is_shown_by_dir_can_be_imported_and_is_documented(face):
    assert dir(face) == sorted(face.__all__)
    for name in face.__all__:
        value = getattr(face, name)
        if isinstance(value, type):
            assert value.__doc__, name
            assert value.__module__.partition(".")[0] == face.__name__.partition(".")[0], name
    with pytest.raises(AttributeError) as error:
        face.load_smapler  # noqa: B018
    assert str(error.value) == f"module {face.__name__!r} has no attribute 'load_smapler'"


@pytest.mark.parametrize(
    ("face", "package"), [(tokendraw.testing, tokendraw_testing), (tokendraw.bench, tokendraw_bench)]
)
def test_a_distribution_of_its_own_has_a_face_in_the_core(face, package):
    assert (face.__all__, dir(face)) == (package.__all__, sorted(package.__all__))
    assert all(getattr(face, name) is getattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError) as error:
        face.kit  # noqa: B018
    assert str(error.value) == f"module {face.__name__!r} has no attribute 'kit'"


@pytest.mark.parametrize("part", ["testing", "bench"])
def test_a_face_without_the_distribution_names_the_command_to_install(part, monkeypatch):
    face = importlib.import_module(f"tokendraw.{part}")
    monkeypatch.setitem(sys.modules, f"tokendraw_{part}", None)
    with pytest.raises(ImportError) as error:
        dir(face)
    assert str(error.value) == (
        f"'tokendraw_{part}' needs the distribution tokendraw-{part}, which is not installed; run "
        f"`pip install ./{part}` in tokendraw's checkout."
    )


def test_errors_and_warnings_have_the_documented_bases():
    bases = {
        tokendraw.TokendrawError: "SamplerUnavailableError InvalidInputError PluginError",
        ValueError: "InvalidParameterError InvalidInputError SettingsError",
        tokendraw.TokendrawWarning: "SamplerFallbackWarning UntestedUpstreamWarning SettingsWarning",
        UserWarning: "SamplerFallbackWarning UntestedUpstreamWarning SettingsWarning",
    }
    for base, names in bases.items():
        assert all(issubclass(getattr(tokendraw, name), base) for name in names.split())
    assert issubclass(tokendraw.resolution.DuplicatePluginError, tokendraw.PluginError)
