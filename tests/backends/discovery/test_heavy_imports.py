"""Heavy imports of a plugin's module are seen, and nothing leaks out of the plugin's process."""

import pytest

from fake_dists import fake_dists, plugin
from tokendraw import discover
from tokendraw.backends.discovery.heavy_imports import HEAVY_MODULES, heavy_imports, slow_start


@pytest.fixture
def dists(tmp_path, monkeypatch):
    with fake_dists(tmp_path, monkeypatch) as found:
        for name in HEAVY_MODULES:  # empty: the test looks at the import, not at how long it takes
            (tmp_path / f"{name}.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        yield found


def installed(dists, source):
    return f"{dists.add_plugin('acme', source)}:plugin"


def test_the_backends_that_ship_with_tokendraw_import_nothing_heavy(dists):
    shipped = {c.name: c.entry_point for c in discover() if c.first_party}
    assert {name: heavy_imports(value) for name, value in shipped.items()} == dict.fromkeys(shipped, ())


def test_an_import_in_a_method_is_not_seen(dists):
    assert heavy_imports(installed(dists, plugin("acme"))) == ()  # its sampler imports torch to draw


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import torch\n" + plugin("acme"), ("torch",)),
        ("import aiter, triton\n" + plugin("acme"), ("triton", "aiter")),
        (plugin("acme", describe="import flashinfer; raise OSError"), ("flashinfer",)),
        ("import torch\nraise SystemExit(3)", ("torch",)),
    ],
    ids=["at the top", "several", "in the description", "before the module raises"],
)
def test_heavy_imports_of_a_plugin_are_listed(dists, source, modules):
    assert heavy_imports(installed(dists, source)) == modules


def test_modules_that_python_imports_at_its_start_are_no_imports_of_the_plugin(dists, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = sys")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert heavy_imports(installed(dists, "import torch, triton\n" + plugin("acme"))) == ("triton",)


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import os\nos._exit(0)", ()),
        ("import os\nprint('3', flush=True)\nos._exit(3)", ()),
        (
            "import atexit, torch\natexit.register(print, 'bye')\nprint('hello', end='')\n" + plugin("acme"),
            ("torch",),
        ),
    ],
    ids=["none", "before the process ends", "at exit"],
)
def test_output_of_a_plugin_is_not_taken_for_the_list(dists, source, modules):
    assert heavy_imports(installed(dists, source)) == modules


def test_the_complaint_names_the_plugin_and_its_imports():
    assert slow_start("acme", ("torch", "triton")) == (
        "'acme' needs a module without heavy imports, found that it imports torch and triton, which delays every "
        "command of tokendraw. Import them in tokendraw_build."
    )
