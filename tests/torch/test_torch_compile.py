"""Programs under ``torch.compile``: a graph breaks at each of our calls, and tokens equal the eager program's."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import isolation
import tokendraw
from tokendraw import Drafts, Sampler, SamplerUnavailableError, SamplingMetadata, SamplingParams
from tokendraw._torch.importing import REASON, untraced

pytestmark = pytest.mark.filterwarnings("ignore:::torch[.]")  # what the compiler says of its own parts

V = 517
PARAMS = [
    SamplingParams(seed=1),
    SamplingParams(seed=2, top_k=20),
    SamplingParams(seed=3, top_p=0.8, temperature=0.7),
    SamplingParams(seed=4, min_p=0.02),
    SamplingParams(temperature=0.0),
    SamplingParams(seed=2**64 - 1, top_k=30, top_p=0.9),
]
ON_A_GPU = [pytest.param(("cuda", name), marks=pytest.mark.gpu) for name in ("native", "triton-gumbel")]


@pytest.fixture(params=[("cpu", "native"), *ON_A_GPU], ids="-".join)
def sampler(request: pytest.FixtureRequest) -> Sampler:
    """Fresh, so that a compiled program makes its first call."""
    device, name = request.param
    try:
        return tokendraw.load_sampler(name, device=device)
    except SamplerUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def model(hidden: torch.Tensor) -> torch.Tensor:
    """The traced part of a program, before the draw."""
    return torch.nn.functional.gelu(hidden) * 3 - 0.25


def hidden_states(rows: int, device: Any, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)).to(device)


def params(rows: int) -> list[SamplingParams]:
    return [PARAMS[i % len(PARAMS)] for i in range(rows)]


def a_step(sampler: Sampler) -> Callable[[torch.Tensor, SamplingMetadata], torch.Tensor]:
    def step(hidden: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
        output = sampler.sample(model(hidden), metadata)
        return output.token_ids * 2 + output.valid

    return step


def metadata_of(rows: int, device: torch.device) -> SamplingMetadata:
    return SamplingMetadata.from_params(params(rows), device=device, positions=list(range(rows)))


@pytest.mark.fast_first
@pytest.mark.parametrize(
    "options",
    [
        {"backend": "eager", "dynamic": True},
        {"backend": "aot_eager"},
        {},
        pytest.param({"mode": "reduce-overhead"}, marks=pytest.mark.gpu),  # inductor with CUDA graphs
    ],
    ids=["eager", "aot_eager", "inductor", "reduce-overhead"],
)
def test_a_compiled_program_draws_the_tokens_of_the_eager_one(
    sampler: Sampler, options: dict[str, Any]
) -> None:
    step = a_step(sampler)
    compiled = torch.compile(step, **options)
    for rows in (12, 3, 5, 1):
        batch, hidden = metadata_of(rows, sampler.device), hidden_states(rows, sampler.device, rows)
        assert compiled(hidden, batch).tolist() == step(hidden, batch).tolist()
    assert all(
        REASON in reason for reason in counters["graph_break"]
    )  # it breaks at the call and nowhere else
    if options.get("dynamic"):
        frames = dict(counters["frames"])
        compiled(hidden_states(7, sampler.device), metadata_of(7, sampler.device))
        assert dict(counters["frames"]) == frames  # a call costs no compilation of its own


def test_unseeded_rows_draw_anew_at_each_call_and_manual_seed_repeats_them(sampler: Sampler) -> None:
    step = torch.compile(a_step(sampler), backend="eager")
    flat, plain = torch.zeros(64, V, device=sampler.device), SamplingMetadata()

    def run() -> list[list[int]]:
        torch.manual_seed(5)
        return [step(flat, plain).tolist() for _ in range(3)]

    drawn = run()
    assert len({tuple(tokens) for tokens in drawn}) == 3
    assert run() == drawn


CALLS: dict[str, Callable[[Sampler, torch.Tensor], object]] = {
    "sample": lambda sampler, x: sampler.sample(x, SamplingMetadata()),
    "draft": lambda sampler, x: sampler.draft(x, SamplingMetadata()),
    "verify": lambda sampler, x: sampler.verify(x, Drafts.from_lists([[1]]), SamplingMetadata()),
    "warmup": lambda sampler, x: sampler.warmup(9, dtypes=[x.dtype]),
    "stats": lambda sampler, x: sampler.stats(),
    "verify_resolution": lambda sampler, x: sampler.verify_resolution,
    "from_params": lambda sampler, x: SamplingMetadata.from_params([SamplingParams()] * 2),
    "SamplingMetadata": lambda sampler, x: SamplingMetadata(temperature=x[:, 0]),
    "with_positions": lambda sampler, x: GREEDY.with_positions(x[:, 0].long()),
    "from_lists": lambda sampler, x: Drafts.from_lists([[1]]),
    "from_counts": lambda sampler, x: Drafts.from_counts(x[:, 0].long(), [1, 1]),
    "load_sampler": lambda sampler, x: tokendraw.load_sampler("native", device="cpu"),
    "discover": lambda sampler, x: tokendraw.discover(),
    "resolve": lambda sampler, x: tokendraw.resolve(device="cpu"),
}
GREEDY = SamplingMetadata(temperature=torch.zeros(2))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.fast_first
def test_one_graph_alone_cannot_hold_a_call_and_the_error_says_what_to_do(
    call: Callable[[Sampler, torch.Tensor], object],
) -> None:
    sampler = tokendraw.load_sampler("native", device="cpu")

    def program(x: torch.Tensor) -> object:
        return call(sampler, x * 2)

    with pytest.raises(torch._dynamo.exc.Unsupported) as refused:
        torch.compile(program, backend="eager", fullgraph=True)(torch.zeros(2, 9))
    assert REASON in str(refused.value)
    public = {name for name in vars(Sampler) if not name.startswith("_")}
    constant = {"name", "resolution"}  # of a sampler: dynamo may read them
    made = {"negotiated", "prepare"}  # and called by load_sampler alone
    assert public - constant - made <= CALLS.keys()


FIRST_CALL = """
import sys
import torch
import tokendraw

device, name, mode = sys.argv[1:]
sampler = tokendraw.load_sampler(name, device=device)
params = [tokendraw.SamplingParams(seed=i, top_k=50) for i in range(7)]
metadata = tokendraw.SamplingMetadata.from_params(params, device=device, positions=range(7))
logits = torch.randn(7, 3000, generator=torch.Generator().manual_seed(1)).to(device)

def step(logits):
    return sampler.sample(logits * 1.5, metadata).token_ids + 1

assert "torch._dynamo" not in sys.modules  # a program that compiles nothing does not load the compiler
options = {"backend": "eager"} if mode == "eager" else {"mode": mode}
drawn = torch.compile(step, **options)(logits).tolist()
assert drawn == step(logits).tolist(), drawn
print("ok")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["eager", *(pytest.param(mode, marks=pytest.mark.gpu) for mode in ("default", "reduce-overhead"))]
)
def test_the_first_call_of_a_process_may_be_made_in_a_compiled_program(sampler: Sampler, mode: str) -> None:
    arguments = f"import sys\nsys.argv[1:] = {[sampler.device.type, sampler.name, mode]}"
    result = isolation.run_forked(f"{arguments}\n{FIRST_CALL}", seconds=300)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


def test_where_torch_has_no_switch_that_we_know_its_own_decorator_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch._C._dynamo.eval_frame, "set_eval_frame")
    seen = []

    @untraced
    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append(type(x) is torch.Tensor and not torch.compiler.is_compiling())
        return x.sum()

    step = torch.compile(lambda x: call(x * 2) + 1, backend="eager")
    assert [float(step(torch.ones(n))) for n in (2, 3)] == [5.0, 7.0]
    assert seen == [True, True]
