"""Public modules: their names, the fields of their classes, and what an import of them loads."""

import ast
import compileall
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import isolation
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
from tokendraw import operations

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
    assert sorted(name for _, name, _ in read) == face.__all__
    for module, name, exported in read:
        assert exported == name
        if face is not tokendraw_transformers:  # whose names need a supported transformers
            assert getattr(face, name) is getattr(importlib.import_module(module), name)


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


@pytest.mark.slow
@pytest.mark.parametrize("optimize", ["2", "0"])
def test_a_program_without_sources_gets_every_name_and_draws(tmp_path, optimize):
    root = Path(__file__).parents[2]
    for package in ("core", "engine_ops", "testing", "bench", "plugins/native", "integrations/transformers"):
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
        if inspect.isfunction(value):
            assert value.__doc__, name
        if isinstance(value, type):
            assert value.__doc__, name
            for each, method in vars(value).items():
                if inspect.isfunction(method) and method.__name__ == each and not each.startswith("_"):
                    assert inspect.getdoc(getattr(value, each)), (name, each)
            owners = face.__name__.partition(".")[0], "tokendraw_engine_ops"
            assert value.__module__.partition(".")[0] in owners, name
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


def test_what_is_not_installed_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokendraw_bench", None)
    with pytest.raises(ImportError, match="distribution tokendraw-bench, which is not installed; run `pip "):
        dir(tokendraw.bench)
    code = "import sys\nsys.modules['torch'] = None\n"
    without = f"{code}try:\n    from tokendraw import Drafts\nexcept ImportError as error:\n    print(error)"
    assert python(without) == "'Drafts' needs torch, found it not installed; run `pip install torch`.\n"


# What an import loads, in a fresh interpreter.

HEAVY = ("torch", "numpy", "triton", "flashinfer", "aiter", "transformers", "safetensors", "vllm", "sglang")


def python(code):
    """Return the output of a fresh interpreter without the developer's settings."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ
    )
    return run.stdout


REPORT = "import json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"


def loaded_after(code):
    """Top-level names in sys.modules after ``code``."""
    return set(json.loads(python(f"{code}\n{REPORT}").splitlines()[-1]))


LIGHT = """
import tokendraw
from tokendraw import Need, SamplingParams, SamplerOutput
from tokendraw.plugin import Call, Capabilities, Operation, PluginInfo, Requirement
from tokendraw.resolution import Candidate
tokendraw.discover()
tokendraw.resolve(device="cpu").explain()
tokendraw.SamplingParams(seed=1).check(100)
import tokendraw_native
import tokendraw_testing.commands.check, tokendraw_testing.commands.new, tokendraw_bench.command
import tokendraw_sglang, tokendraw_transformers, tokendraw_vllm
import tokendraw_engine_ops as ops
for plugin in (ops.ops_torch, ops.ops_triton, ops.ops_flashinfer):
    plugin.tokendraw_describe()
"""


def test_neither_torch_nor_a_backend_is_loaded_before_a_sampler_is():
    assert loaded_after(LIGHT).isdisjoint(HEAVY)


def test_importing_tokendraw_loads_its_own_package_and_the_standard_library_alone():
    foreign = {
        name
        for name in loaded_after("import tokendraw") - loaded_after("pass")
        if name not in sys.stdlib_module_names
    }
    assert foreign == {"tokendraw"}


def test_importing_tokendraw_reads_no_setting():
    code = """
import os

class Watched(type(os.environ)):
    def __getitem__(self, key):
        assert not str(key).startswith("TOKENDRAW_"), key
        return super().__getitem__(key)

    def __iter__(self):
        raise AssertionError("read the whole environment")

os.environ.__class__ = Watched
import tokendraw, tokendraw.providers
"""
    python(code)


@pytest.mark.parametrize("operation", operations.RECORDS)
def test_nothing_in_the_core_branches_on_the_name_of_an_operation(operation):
    comparison = re.compile(rf"""([!=]=|\bin|\bcase)\s*\(?["']{operation}["']|["']{operation}["']\s*[!=]=""")
    sources = Path(str(tokendraw.__file__)).parent.rglob("*.py")
    assert [path for path in sources if comparison.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
def test_draws_of_large_batches_load_no_symbolic_algebra():
    """``torch.broadcast_shapes`` loads sympy: half a second, three without cached bytecode."""
    code = """
import torch, tokendraw

sampler = tokendraw.load_sampler("native", device="cpu")
every = {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "logprobs": 3}
params = [tokendraw.SamplingParams(**given) for given in ({}, {"seed": 7}, every, every | {"seed": 7})]
metadata = tokendraw.SamplingMetadata.from_params(params * 16, positions=range(64))
logits = torch.randn(64, 5000)
sampler.sample(logits, metadata)
drafts = tokendraw.Drafts.from_lists([[1, 2, 3]] * 16, device="cpu")
for mode in ("rejection", "coupled", "block"):
    sampler.verify(logits, drafts, metadata, mode=mode)
"""
    run = isolation.run_forked(f"{code}\n{REPORT}")
    assert run.returncode == 0, run.stderr
    assert "sympy" not in set(json.loads(run.stdout.splitlines()[-1])) - loaded_after("import torch")
