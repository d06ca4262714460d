"""The lines for nano-vllm in docs/engines.md run in a stand-in of its runner, and draw like its sampler."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import pages
from special_rows import FALSE_ALARM
from tokendraw_testing.kit.statistical_tests import fit

(LINES,) = pages.blocks(pages.text_of("docs/engines.md"), "python")


class Sampler(nn.Module):
    """nano-vllm's sampler, by signature."""

    def forward(self, logits: torch.Tensor, temperatures: torch.Tensor):
        raise AssertionError("nano-vllm drew itself")


class ModelRunner:
    """Makes a sampler by the name in the module, under the model's torch defaults, and draws."""

    def __init__(self):
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            self.sampler = sys.modules["nanovllm.engine.model_runner"].Sampler()
        finally:
            torch.set_default_dtype(default)

    @torch.inference_mode()
    def run(self, logits, temperatures):
        temperatures = torch.tensor(temperatures, dtype=torch.float32)
        return self.sampler(logits, temperatures).tolist()


@pytest.fixture
def runner(monkeypatch):
    names = ("nanovllm", "nanovllm.engine", "nanovllm.engine.model_runner")
    package, engine, module = map(ModuleType, names)
    module.Sampler, module.ModelRunner = Sampler, ModelRunner
    engine.model_runner = module
    for name, fake in zip(names, (package, engine, module), strict=True):
        monkeypatch.setitem(sys.modules, name, fake)
    exec(compile(LINES, "engines.md", "exec"), {})
    return module.ModelRunner()


def test_the_lines_draw_by_the_temperature_of_each_row(runner):
    """A correct sampler is called wrong with a probability of 1e-7 in each half."""
    torch.manual_seed(4)
    logits, rows = torch.randn(50, generator=torch.Generator().manual_seed(1)) * 2, 10_000
    tokens = torch.tensor(runner.run(logits.expand(2 * rows, -1), [0.6] * rows + [1.5] * rows))
    for drawn, temperature in zip(tokens.view(2, rows), (0.6, 1.5), strict=True):
        probabilities = (logits.double() / temperature).softmax(-1).numpy()
        assert fit(drawn.numpy(), probabilities).p_value > FALSE_ALARM


def test_a_temperature_of_0_is_greedy(runner):
    logits = torch.randn(3, 50).bfloat16()
    assert runner.run(logits, [0.0] * 3) == logits.argmax(-1).tolist()
