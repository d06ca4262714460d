"""Candidates with the capabilities of the real backends, and hosts of other machines, as plain facts."""

from dataclasses import replace

from tokendraw.plugin import (
    FILTER_ORDERS,
    MOMENTS,
    Capabilities,
    Host,
    PluginInfo,
    Upstream,
    VerifyCapabilities,
)
from tokendraw.resolution import Candidate, State

PER_ROW = (("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row"))
ALL_FILTERS = ("top_k", "top_p", "min_p", "typical_p", "xtc")
ALL_DTYPES = ("float32", "bfloat16", "float16")
ALL_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs")

EVERYTHING = Capabilities(
    device_types=None,
    dtypes=ALL_DTYPES,
    logprobs_modes=ALL_MODES,
    logprob_token_ids=True,
    filters=tuple((name, "per_row") for name in ALL_FILTERS),
    row_moments=MOMENTS,
    filter_orders=FILTER_ORDERS,
    seeding="counter",
    greedy=True,
    gumbel_dtypes=("fp32", "fp64"),
    valid_flag=True,
    threshold=True,
    graph_safe=True,
    sync_free=True,
    batch_invariant=True,
)

VERIFYING = VerifyCapabilities.of(
    EVERYTHING,
    verify_modes=("rejection", "coupled"),
    draft_kinds=("probs", "logits", "chosen"),
    ragged_drafts=True,
    placeholder_drafts=True,
)


def candidate(
    name: str,
    priority: int,
    capabilities: Capabilities,
    upstream: Upstream | None = None,
    installed: str = "",
) -> Candidate:
    """Make the candidate of a loaded plugin; ``installed`` is the version of the upstream, or empty."""
    info = PluginInfo(
        name=name, api_version=1, priority=priority, operations={"sample": capabilities}, upstream=upstream
    )
    return Candidate(
        name=name,
        state=State.LOADED,
        distribution=f"tokendraw-{name}",
        version="0.1.0",
        entry_point=f"tokendraw_{name.replace('-', '_')}:plugin",
        first_party=name in ("native", "flashinfer", "aiter", "triton-gumbel"),
        info=info,
        upstream_version=installed or None,
    )


NATIVE = candidate("native", 0, EVERYTHING)
TRITON_GUMBEL = candidate(
    "triton-gumbel",
    60,
    replace(
        EVERYTHING,
        device_types=("cuda", "rocm"),
        compute_capability=((8, 0), None),
        rocm_archs=("gfx90a", "gfx942", "gfx950", "gfx1201"),
    ),
)
FLASHINFER = candidate(
    "flashinfer",
    80,
    Capabilities(
        device_types=("cuda",),
        compute_capability=((7, 5), (12, 1)),
        min_sm_count=17,
        dtypes=ALL_DTYPES,
        filters=PER_ROW,
        filter_orders=("top_k_first", "joint"),
        seeding="launch",
        valid_flag=True,
        graph_safe=True,
        sync_free=True,
    ),
    Upstream("flashinfer-python", ">=0.6.7,<0.8", ("0.6.11.post2", "0.7.2.post1")),
    "0.7.2.post1",
)
AITER = candidate(
    "aiter",
    70,
    Capabilities(
        device_types=("rocm",),
        rocm_archs=("gfx90a", "gfx942", "gfx950"),
        dtypes=("float32",),
        filters=PER_ROW[:2],
        filter_orders=("joint",),
        seeding="launch",
        sync_free=True,
    ),
    Upstream("amd-aiter", ">=0.1.13", ("0.1.13",)),
    "0.1.13",
)
ALL = (NATIVE, TRITON_GUMBEL, FLASHINFER, AITER)


def nvidia(major: int, minor: int, name: str, sm_count: int) -> Host:
    """An NVIDIA device."""
    return Host(
        device_type="cuda",
        name=name,
        compute_capability=(major, minor),
        sm_count=sm_count,
        cuda_version=(12, 9),
    )


LAPTOP = Host(device_type="cpu")
T4 = nvidia(7, 5, "T4", 40)
A100 = nvidia(8, 0, "A100", 108)
H100 = nvidia(9, 0, "H100", 132)
B200 = nvidia(10, 0, "B200", 148)
RTX5090 = nvidia(12, 0, "RTX 5090", 170)
ORIN_NANO = nvidia(8, 7, "Orin", 10)
V100 = nvidia(7, 0, "V100", 80)
MI300X = Host(device_type="rocm", name="MI300X", rocm_arch="gfx942")
GFX1250 = Host(device_type="rocm", rocm_arch="gfx1250")


# Batches of a warmup.


SEEDS = [(False, False, False), (False, False, True), (True, False, True), (True, True, True)]
"""Any, all, positions."""
FILTERS = [(False, False, False), (True, False, False), (True, True, False), (False, False, True)]
"""Any, joint, all greedy."""
