"""The commands of ``benchmarks/triton_gumbel``, small and on a CPU."""

import importlib

import pytest
from click.testing import CliRunner

from checkout import ROOT


@pytest.fixture(scope="module")
def benchmarks():
    """Import a module of the folder by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks" / "triton_gumbel"))
        yield importlib.import_module


@pytest.fixture(scope="module")
def call(benchmarks):
    """Call a command with options; by default native is sampler and reference."""

    def run(*arguments, sampler="native"):
        main = benchmarks("commands").main
        given = [*map(str, arguments), "--small", "--device", "cpu", "--sampler", sampler]
        return CliRunner().invoke(main, given)

    return run
