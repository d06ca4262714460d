"""SGLang for tests on a CPU: its own modules where it is installed, else a stand-in with the signatures of 0.5.23.

With its own modules, packages that only CUDA builds need are mocked, and its configuration is published as its server
does it. The tests are the same.
"""

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import tokendraw_sglang

STAND_IN = Path(__file__).parent / "sglang_stand_in"
MOCKED = ("compressed_tensors", "partial_json_parser", "torchvision")
"""Packages that SGLang's sampler imports on its way, and that nothing of it calls here."""
IS_REAL = importlib.util.find_spec("sglang") is not None


class _Mocks(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MOCKED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return MagicMock(name=spec.name, __path__=[], __name__=spec.name, __spec__=spec)

    def exec_module(self, module):
        """Do nothing: every name exists already."""


@contextlib.contextmanager
def sglang_at_hand() -> Iterator[None]:
    """Have SGLang imported, the adapter registered and applied, and the sampling backend set to ``tokendraw``."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        if IS_REAL:
            _publish(stack)
        else:
            patch.syspath_prepend(STAND_IN)
            tokendraw_sglang.register()
            importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry.apply_hooks()
        stack.enter_context(backend("tokendraw"))
        yield
    if not IS_REAL:
        _forget()


def _forget() -> None:
    """Remove the stand-in and its importers from the process."""
    from tokendraw_sglang import _verification

    tokendraw_sglang._register_once.cache_clear()
    _verification._hook.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]
    if sys.modules.pop("tokendraw_sglang._sampler", None) is not None:
        del tokendraw_sglang._sampler


def _publish(stack: contextlib.ExitStack) -> None:
    """Load plugins, parse a command line and publish it, as `sglang serve` does."""
    from transformers.utils import import_utils

    import_utils.is_torchvision_available()  # before there is a mock that it would find
    if not any(isinstance(finder, _Mocks) for finder in sys.meta_path):
        sys.meta_path.append(_Mocks())
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import get_context, get_parallel
    from sglang.srt.server_args import ServerArgs

    load_plugins()
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    line = ["--model-path", "none", "--sampling-backend", "tokendraw"]
    get_context().set_server_args(ServerArgs.from_cli_args(parser.parse_args(line)))
    stack.enter_context(get_parallel().override(tp_group=SimpleNamespace(device_group=None, world_size=1)))


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Run with a ``--sampling-backend``, and drop permanent overrides of the backend afterwards."""
    from sglang.srt.runtime_context import get_exec

    with get_exec().kernel.override(sampling_backend=name):
        yield


class Request:
    """A request as SGLang's scheduler keeps it."""

    def __init__(self, *, mask: bool = False, **params: Any) -> None:
        from sglang.srt.sampling.sampling_params import SamplingParams

        self.sampling_params = SamplingParams(**params)
        self.sampling_params.normalize(None)
        self.custom_logit_processor = None
        self.return_sampling_mask = mask
        self.sampling_logprobs_mode = None


class Batch(SimpleNamespace):
    """A batch as SGLang's scheduler keeps it, and its penalties by a weak reference."""


def info_of(*reqs: Request, vocab_size: int = 1000, device: str = "cpu") -> Any:
    """Make SGLang's ``SamplingBatchInfo`` of requests, by its own function with the adapter's hooks."""
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    batch = Batch(reqs=list(reqs), device=device)
    info = SamplingBatchInfo.from_schedule_batch(batch, vocab_size)
    info.kept_alive = batch
    return info


def made_sampler() -> Any:
    """Have SGLang make the sampler of its backend."""
    from sglang.srt.layers.sampler import create_sampler

    return create_sampler()


def keep(info: Any, rows: list[int]) -> None:
    """Let the other rows of a batch go, as SGLang does when their requests end."""
    info.filter_batch(rows, torch.tensor(rows, device=info.temperatures.device))


def draw(
    sampler: Any, logits: torch.Tensor, info: Any, positions: Any = None, *, copy: bool = True, **wanted: Any
) -> Any:
    """Call a sampler as SGLang's model runner does.

    :param positions: list of B integers; None: all are 9.
    :param copy: keep the logits as they are; a sampler may overwrite them.
    :param wanted: ``top`` and ``ids``: best tokens and tokens by id that each row wants log-probabilities of.
    :returns: the tokens [B], and the ``LogitsProcessorOutput`` that holds what else was asked for.
    """
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput

    output = LogitsProcessorOutput(next_token_logits=logits.clone() if copy else logits)
    rows = len(logits)
    tokens = sampler(
        output,
        info,
        bool(wanted),
        wanted.pop("top", [0] * rows),
        wanted.pop("ids", [None] * rows),
        torch.tensor([9] * rows if positions is None else positions, device=logits.device),
        **wanted,
    )
    return tokens, output
