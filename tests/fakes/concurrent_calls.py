"""Loaded samplers and processors, each called by several Python threads at once: ``make test-threads``.

    python -m concurrent_calls [cpu|cuda] [--seconds 60] [--threads 2 8] [--only cpu native/verify ...]

with the sources of core, kit, plugins and tests/fakes on the path.
Every output has to have the bits of the same call made by one thread alone. On a GPU threads share a stream, then have
one each. aiter and FlashInfer are stand-ins on a CPU, with rows that keep one token: the noise of a launch is that of
torch's generator. triton-gumbel is called on a GPU alone, since Triton's interpreter runs one program a process.
Prints a line for each backend, operation and number of threads; ends with 1 if an output differs.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import importlib_metadata
import torch

import tokendraw
from tokendraw import Drafts, Need, RequestSlots, SamplingMetadata, SamplingParams
from tokendraw_testing import fake_dist

Calls = list[Callable[[], Any]]
SEEDED = [
    SamplingParams(seed=1, top_k=50, top_p=0.9),
    SamplingParams(seed=2),
    SamplingParams(seed=3, top_p=0.9, temperature=0.7),
    SamplingParams(seed=4, min_p=0.01),
    SamplingParams(temperature=0.0),
    SamplingParams(seed=5, top_p=0.99, filters={"top_n_sigma": 1.0}),
]
ONE_TOKEN = [SamplingParams(top_k=1)]
SHAPES = (64, 50_257, torch.float32), (8, 5003, torch.bfloat16), (4, 1000, torch.float16)


def logits_of(rows: int, size: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    noise = torch.randn(rows, size, generator=generator, dtype=torch.float32, device="cpu")
    noise[0::3, 7] = 6.0  # one largest value, without ties in 16 bits
    noise[1::3, 0] = noise[2::3, -1] = 6.0
    return (3 * noise).to(device, dtype)


def metadata_of(rows: int, params: list[SamplingParams], device: str, **more: Any) -> SamplingMetadata:
    requests = [replace(params[row % len(params)], **more) for row in range(rows)]
    return SamplingMetadata.from_params(requests, device=device, positions=range(rows))


def sample_calls(sampler: Any, device: str, params: list[SamplingParams]) -> Calls:
    return [
        partial(sampler.sample, logits_of(*shape, device), metadata_of(shape[0], params, device, **more))
        for shape in SHAPES
        for more in ({}, {"logprobs": 3})[: 1 if params is ONE_TOKEN else 2]
    ]


def verify_calls(sampler: Any, device: str, params: list[SamplingParams]) -> Calls:
    calls = []
    for rows, size, dtype in SHAPES:
        logits = logits_of(rows, size, dtype, device)
        draft_logits = logits.view(-1, 4, size)[:, :3].reshape(-1, size) + 0.5
        ids = draft_logits.argmax(-1)
        drafts = Drafts.from_counts(ids, [3] * (rows // 4), draft_logits=draft_logits)
        calls.append(partial(sampler.verify, logits, drafts, metadata_of(rows, params, device)))
    return calls


def score_calls(sampler: Any, device: str, params: list[SamplingParams]) -> Calls:
    return [
        partial(
            sampler.score,
            logits_of(*shape, device),
            torch.arange(shape[0], device=device),
            metadata_of(shape[0], params, device),
        )
        for shape in SHAPES
    ]


def process_calls(processor: Any, device: str) -> Calls:
    """Edit copies of logits, with slots of each thread's own: one thread uses an object of these."""
    own = threading.local()

    def process(number: int) -> torch.Tensor:
        if not hasattr(own, "slots"):
            own.slots = [_slots(rows, size, device) for rows, size, _ in SHAPES]
        rows = torch.arange(SHAPES[number][0], device=device)
        return processor.process(logits[number].clone(), own.slots[number], rows, masks[number])

    logits = [logits_of(*shape, device) for shape in SHAPES]
    masks = [
        torch.arange(rows * -(-size // 32), dtype=torch.int32, device=device).view(rows, -1).neg_()
        for rows, size, _ in SHAPES
    ]
    return [partial(process, number) for number in range(len(SHAPES))]


def _slots(rows: int, size: int, device: str) -> RequestSlots:
    slots = RequestSlots(rows, 64, size, device=device)
    for row in range(rows):
        params = SamplingParams(
            repetition_penalty=1.2,
            frequency_penalty=0.1,
            penalty_last_n=16 if row % 2 else -1,
            dry_multiplier=0.5 if row % 3 else 0.0,
            logit_bias={row: 2.0},
            bad_words=[[1, 2]],
        )
        slots.add(row, params, prompt_token_ids=[(row + i % 5) % size for i in range(50)])
    return slots


def generate_calls(device: str) -> Calls:
    """``model.generate`` of transformers with the sampler and the processor that the adapter keeps."""
    from transformers_models import draw, model_of, prompts

    model, settings = model_of("llama").to(device), {"top_k": 0, "top_p": 0.9, "repetition_penalty": 1.1}
    return [
        partial(draw, model, prompts(4).to(device), seeds=[seed, 1, 2, 3], max_new_tokens=40, **settings)
        for seed in range(4)
    ]


def stand_ins(folder: Path) -> Iterator[tuple[str, Callable[[], Calls]]]:
    """Yield the cases of plugins for GPUs on stand-ins of their libraries."""
    import aiter_stand_in
    import flashinfer_stand_in

    version, modules = list(flashinfer_stand_in.SOURCES.items())[-1]
    for name, number, files in (
        ("flashinfer-python", version, modules),
        ("amd-aiter", "0.1.13", aiter_stand_in.MODULES),
    ):
        sys.path.insert(1, str(fake_dist(folder, name, number, modules=files)))
    for noted in (flashinfer_stand_in, aiter_stand_in):  # which keep the arguments of every call
        noted.CALLS = deque(maxlen=1)
    from tokendraw_aiter.sampler import AiterSampler
    from tokendraw_flashinfer.verifier import FlashInferVerifier

    cpu = torch.device("cpu")
    yield "aiter/sample", lambda: sample_calls(AiterSampler(cpu, Need()), "cpu", ONE_TOKEN)
    yield "flashinfer/sample", lambda: sample_calls(FlashInferVerifier(cpu, Need()), "cpu", ONE_TOKEN)
    yield "flashinfer/verify", lambda: verify_calls(FlashInferVerifier(cpu, Need()), "cpu", ONE_TOKEN)


def install(folder: Path) -> None:
    """Name the plugins of this checkout as installed, as far as they are not."""
    installed = {point.name for point in importlib_metadata.entry_points(group="tokendraw.plugins")}
    for plugin in {"native", "cpu", "triton-gumbel", "flashinfer", "aiter"} - installed:
        module = f"tokendraw_{plugin.replace('-', '_')}:plugin"
        sys.path.insert(1, str(fake_dist(folder, f"tokendraw-{plugin}", plugins={plugin: module})))


def cases(device: str, folder: Path) -> Iterator[tuple[str, Callable[[], Calls]]]:
    """Yield each case by name, with what loads its backend and makes its calls."""
    makers = {"sample": sample_calls, "verify": verify_calls, "score": score_calls}
    load = partial(tokendraw.load_sampler, device=device)
    for name in ("native", "cpu" if device == "cpu" else "triton-gumbel"):
        for operation, make in makers.items():
            if (name, operation) == ("cpu", "score"):  # native's
                continue
            yield f"{name}/{operation}", lambda name=name, make=make: make(load(name), device, SEEDED)
        yield (
            f"{name}/process",
            lambda name=name: process_calls(tokendraw.load("process_logits", name, device=device), device),
        )
    yield "transformers/generate", lambda: generate_calls(device)
    if device == "cpu":
        yield from stand_ins(folder)
    else:
        for name in ("flashinfer", "aiter"):
            yield f"{name}/sample", lambda name=name: sample_calls(load(name), device, ONE_TOKEN)
            yield f"{name}/verify", lambda name=name: verify_calls(load(name), device, ONE_TOKEN)


def bits_of(output: Any) -> list[torch.Tensor | None]:
    """List the bytes of an output's tensors."""
    if is_dataclass(output):
        return [bits for field in fields(output) for bits in bits_of(getattr(output, field.name))]
    return [None if output is None else output.contiguous().view(torch.uint8)]


def are_alike(found: list[torch.Tensor | None], wanted: list[torch.Tensor | None]) -> bool:
    return len(found) == len(wanted) and all(
        one is other if one is None or other is None else torch.equal(one, other)
        for one, other in zip(found, wanted, strict=True)
    )


def count(calls: Calls, threads: int, seconds: float, stream: Callable[[], Any]) -> tuple[int, int]:
    """Make calls in several threads for a while; return how many there were, and how many had another output.

    :param stream: makes the context of each thread.
    """
    expected = [bits_of(call()) for call in calls]
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    end = time.monotonic() + seconds

    def work(first: int) -> tuple[int, int]:
        made = others = 0
        with stream():
            while time.monotonic() < end:
                number = (first + made) % len(calls)
                made += 1
                others += not are_alike(bits_of(calls[number]()), expected[number])
        return made, others

    with ThreadPoolExecutor(threads) as pool:
        made, others = zip(*pool.map(work, range(threads)), strict=True)
    return sum(made), sum(others)


def main() -> int:
    parser = argparse.ArgumentParser(prog="concurrent_calls")
    parser.add_argument("device", nargs="?", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each line")
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--only", nargs="+", default=[""], help="the beginnings of the cases to run")
    options = parser.parse_args()
    device, wrong = options.device, 0
    torch.set_num_threads(2)  # helpers of several calls at once
    streams = {"": contextlib.nullcontext}
    if device == "cuda":
        streams |= {", own streams": lambda: torch.cuda.stream(torch.cuda.Stream())}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder)
        for case, make in cases(device, folder):
            if not case.startswith(tuple(options.only)):
                continue
            try:
                calls = make()
            except (ImportError, tokendraw.TokendrawError) as error:
                print(f"{case}: left out, {type(error).__name__}: {error}", flush=True)
                continue
            for threads in options.threads:
                for label, stream in streams.items():
                    made, others = count(calls, threads, options.seconds, stream)
                    print(f"{case}, {threads} threads{label}: {made} calls, {others} others", flush=True)
                    wrong += others
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
