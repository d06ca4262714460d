"""The kernels of triton-gumbel compiled to machine code for every target, on a machine that has none of them."""

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from tokendraw_triton_gumbel import draw, tiles  # noqa: E402
from tokendraw_triton_gumbel.few import FEW  # noqa: E402
from tokendraw_triton_gumbel.search import CAPACITY  # noqa: E402

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "sm_120": ("cuda", 120, 32),
    "gfx90a": ("hip", "gfx90a", 64),
    "gfx942": ("hip", "gfx942", 64),
    "gfx950": ("hip", "gfx950", 64),
    "gfx1201": ("hip", "gfx1201", 32),
}
TYPES = {
    "row_stride": "i64",
    "temperature": "*fp64",
    "row_index": "*i64",
    "maxima": "*fp32",
    "sums": "*fp32",
    "seeds": "*i64",
    "seeded": "*i1",
    "fresh": "*i64",
    "positions": "*i64",
    "top_k": "*i64",
    "top_p": "*fp64",
    "min_p": "*fp64",
    "joint": "*i1",
    "listed": "*i32",
    "values": "*fp32",
    "ids": "*i32",
    "token_ids": "*i64",
    "valid": "*i1",
}
EVERYTHING = {name: True for name in draw.draw_token.arg_names if name.startswith("HAS_")}


def machine_code(kernel, dtype, constants, target):
    """The names of what the compiler made for ``target``."""
    types = {**TYPES, "logits": f"*{dtype}"}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget(*TARGETS[target])).asm


def has_machine_code(asm):
    return len(asm.get("cubin") or asm.get("hsaco") or b"") > 1000


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "vector"), [("fp32", 4), ("bf16", 8), ("fp16", 8)])
def test_the_pass_over_the_tiles_compiles(target, dtype, vector):
    constants = {"HAS_TEMPERATURE": True, "HAS_INDEX": True, "WARPS": 1, "VECTOR": vector}
    assert has_machine_code(machine_code(tiles.tile_statistics, dtype, constants, target))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("variant", ["filters", "fp64 noise without filters"])
def test_the_draw_compiles(target, variant):
    filtered = variant == "filters"
    constants = EVERYTHING | {
        "FILTERED": filtered,
        "FP64": not filtered,
        "TILES": 256,
        "CAPACITY": CAPACITY,
        "FEW": FEW,
    }
    assert has_machine_code(machine_code(draw.draw_token, "bf16", constants, target))
