"""Weights and scales for tests of ``pack_sm90_w4``, every way to pack them, and the memory that a call takes."""

from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile

LAYOUTS = ["v1", "v2"]
WAYS = [("fp4", "v1"), ("fp4", "v2"), ("int4", "v1"), ("int4", "v2"), ("fp4_fp8", "v2")]


def random_bytes(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def extra_memory(call):
    """Bytes on the CPU that a call had allocated at once, beyond those of the tensor that it returns."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        result = call()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in events), initial=0)) - result.nbytes
