"""Batches of every kind on a CUDA device, the memory of a call, and operations that wait."""

from itertools import accumulate

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tokendraw import SamplingParams
from tokendraw_testing.logits_families import FAMILIES

B, V = 64, 32_000


def cycle(*params):
    return [params[i % len(params)] for i in range(B)]


FILTERED = [
    SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    SamplingParams(top_p=0.95, min_p=0.01),
    SamplingParams(top_k=20, top_p=0.9, filter_order="joint"),
    SamplingParams(temperature=1.5, min_p=0.05),
    SamplingParams(),
    SamplingParams(temperature=0.0),
]


def logits_of(seed, rows=B, size=V, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    families = list(FAMILIES.values())
    values = np.stack([families[i % len(families)](rng, size) for i in range(rows)])
    return torch.from_numpy(values).to("cuda", dtype)


# The number of torch operations of a call.


def is_on(device_type, args):
    """Whether an argument of an operation is a tensor on a device of a type; None: any operation is meant."""
    tensors = (value for value in tree_leaves(args) if isinstance(value, torch.Tensor))
    return device_type is None or any(tensor.device.type == device_type for tensor in tensors)


# Weights, and the memory of a call.


WAYS = [("fp4", "v1"), ("fp4", "v2"), ("int4", "v1"), ("int4", "v2"), ("fp4_fp8", "v2")]


def random_bytes(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def extra_memory(call):
    """Return the peak of CPU bytes that a call allocates beyond the returned tensor."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as results:
        result = call()
    events = [event for event in results.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in events), initial=0)) - result.nbytes


# Operations of torch that wait for a CUDA device, seen on a CPU.


WAITING = frozenset(
    (
        "_local_scalar_dense",
        "bincount",
        "equal",
        "is_nonzero",
        "masked_select",
        "nonzero",
        "unique_consecutive",
        "unique_dim",
        "_unique",
        "_unique2",
    )
)
INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))


class NoWait(TorchDispatchMode):
    """Raises where torch would wait for a device inside a ``with`` statement.

    :param device_type: tensors of this type of device stand for tensors on a CUDA device; None: all tensors do.
    """

    def __init__(self, device_type=None):
        super().__init__()
        self._device_type = device_type
        self._literals = []
        """Tensors made of numbers in the code. A copy of one to a device blocks: ``x[0] = 0`` makes one."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if is_on(self._device_type, (args, kwargs)) and self._waits(name, args, kwargs or {}):
            raise AssertionError(f"{function} waits for the device")
        output = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ == "lift_fresh":
            self._literals.append(output)
        return output

    def _waits(self, name, args, kwargs):
        if name in INDEXING:
            return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        if name == "repeat_interleave":
            return kwargs.get("output_size") is None
        if name == "lift_fresh":
            return args[0].dim() > 0  # a list: ``torch.tensor``, or an index
        if name == "copy_":
            return any(args[1] is literal for literal in self._literals)
        return name in WAITING
