"""Runs vLLM's own tests of its samplers on a CPU, with the adapter unless it is off: ``pytest -p vllm_own_tests``.

Their kernels run in Triton's interpreter, without pinned memory, as in vLLM's worker for CPUs. A line of the output
says what reached the adapter.
"""

import collections
import functools
import inspect
from types import SimpleNamespace

import tokendraw
import triton_on_cpu

_counts: collections.Counter[str] = collections.Counter()


def pytest_configure():
    import vllm.v1.worker.cpu.shm  # noqa: F401 - takes the place of pinned memory and streams

    from tokendraw_vllm import _v1, register, v2

    triton_on_cpu.filter_in_torch()
    _v1.MIN_CPU_VOCABULARY = _v1.MIN_REFERENCE_VOCABULARY = 0  # the tests' are small
    register()
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    Sampler.__init__ = taken_over(Sampler.__init__)
    for owner, name in ((v2.slots.Slots, "add_request"), (tokendraw.Sampler, "sample")):
        setattr(owner, name, counted(getattr(owner, name)))


def taken_over(original):
    """The runner's next step after the construction."""
    from vllm.v1.worker.gpu.model_states.interface import ModelState

    @functools.wraps(original)
    def start(self, *given, **named):
        original(self, *given, **named)
        values = inspect.signature(original).bind(self, *given, **named).arguments
        state = SimpleNamespace(vllm_config=values["vllm_config"], device=values["device"])
        ModelState.custom_sampler(state, self)

    return start


def counted(method):
    @functools.wraps(method)
    def count(*arguments, **keywords):
        _counts[method.__name__] += 1
        return method(*arguments, **keywords)

    return count


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(
        f"tokendraw: {_counts['add_request']} requests added, {_counts['sample']} batches drawn"
    )
