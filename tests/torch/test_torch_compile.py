"""Programs under ``torch.compile``: a graph breaks at each of our calls, and tokens equal the eager program's."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import isolation
import tokendraw
from tokendraw import Drafts, Sampler, SamplerUnavailableError, SamplingMetadata, SamplingParams
from tokendraw._torch.untraced import REASON, untraced

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
        {"backend": "eager"},
        {"backend": "aot_eager"},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"mode": "reduce-overhead"}, marks=pytest.mark.slow),
    ],
    ids=["eager", "aot_eager", "inductor", "reduce-overhead"],
)
def test_a_compiled_program_draws_the_tokens_of_the_eager_one(
    sampler: Sampler, options: dict[str, Any]
) -> None:
    step = a_step(sampler)
    compiled = torch.compile(step, **options)
    batch = metadata_of(12, sampler.device)
    given = [hidden_states(12, sampler.device, seed) for seed in range(8)]
    drawn = [compiled(hidden, batch).tolist() for hidden in given]
    assert drawn == [step(hidden, batch).tolist() for hidden in given]


@pytest.mark.parametrize("dynamic", [None, True, False], ids=["automatic", "dynamic", "static"])
@pytest.mark.slow
def test_so_it_does_for_batch_sizes_that_nobody_drew_before(sampler: Sampler, dynamic: bool | None) -> None:
    step = a_step(sampler)
    compiled = torch.compile(step, backend="aot_eager", dynamic=dynamic)
    sizes = (2, 3, 5, 9, 1, 4, 2)
    given = [(hidden_states(n, sampler.device, n), metadata_of(n, sampler.device)) for n in sizes]
    drawn = [compiled(*each).tolist() for each in given]
    assert drawn == [step(*each).tolist() for each in given]


@pytest.mark.slow
def test_parameters_and_drafts_may_be_laid_out_in_it(sampler: Sampler) -> None:
    device = sampler.device

    def step(hidden: torch.Tensor) -> list[list[int]]:
        rows = hidden.shape[0]
        batch = SamplingMetadata.from_params(
            params(rows), device=device, positions=torch.arange(rows, device=device)
        )
        first = sampler.sample(model(hidden), batch).token_ids
        second = sampler.draft(model(hidden), batch.with_positions(first)).token_ids
        ready = SamplingMetadata(
            temperature=hidden[:, 0].abs(), seed=first, positions=second, top_k=second % 9 + 1
        )
        third = sampler.sample(model(hidden), ready).token_ids
        drafts = Drafts.from_lists([[5, 7], [11]], device=device)
        chains = sampler.verify(model(hidden), drafts, SamplingMetadata.from_params(params(2), device=device,
            positions=[3, 8]))  # fmt: skip
        return [first.tolist(), second.tolist(), third.tolist(), chains.token_ids.flatten().tolist()]

    given = [hidden_states(5, device, seed) for seed in range(3)]
    compiled = torch.compile(step, backend="eager")
    assert [compiled(hidden) for hidden in given] == [step(hidden) for hidden in given]


def test_unseeded_rows_draw_anew_at_each_call_and_manual_seed_repeats_them(sampler: Sampler) -> None:
    step = torch.compile(a_step(sampler), backend="eager")
    flat, plain = torch.zeros(64, V, device=sampler.device), SamplingMetadata()

    def run() -> list[list[int]]:
        torch.manual_seed(5)
        return [step(flat, plain).tolist() for _ in range(3)]

    drawn = run()
    assert len({tuple(tokens) for tokens in drawn}) == 3
    assert run() == drawn


@pytest.mark.slow
def test_the_graph_breaks_at_the_call_and_nowhere_else(sampler: Sampler) -> None:
    torch.compile(a_step(sampler), backend="eager")(
        hidden_states(3, sampler.device), metadata_of(3, sampler.device)
    )
    (reason,) = counters["graph_break"]
    assert REASON in reason


def test_a_call_in_a_program_that_is_compiled_costs_no_compilation_of_its_own(sampler: Sampler) -> None:
    step = torch.compile(a_step(sampler), backend="eager", dynamic=True)
    given = [(hidden_states(n, sampler.device), metadata_of(n, sampler.device)) for n in (4, 5, 6, 7)]
    step(*given[0])
    step(*given[1])
    frames = dict(counters["frames"])
    for each in given[2:]:
        step(*each)
    assert dict(counters["frames"]) == frames


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


def test_every_public_call_of_a_sampler_is_among_them() -> None:
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


@pytest.mark.slow
def test_a_program_that_compiles_nothing_does_not_load_the_compiler() -> None:
    code = """
import sys, torch, tokendraw
before = "torch._dynamo" in sys.modules
sampler = tokendraw.load_sampler("native", device="cpu")
metadata = tokendraw.SamplingMetadata.from_params([tokendraw.SamplingParams(seed=1, logprobs=2)], positions=[3])
sampler.sample(torch.zeros(1, 50), metadata)
sampler.verify(torch.zeros(2, 50), tokendraw.Drafts.from_lists([[1]]), metadata)
print(before, "torch._dynamo" in sys.modules)
"""
    assert isolation.run_forked(code).stdout == "False False\n"


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
