"""Times the core on the host, with a sampler that returns existing tensors, and prints a table.

    python benchmarks/host_time.py
    python benchmarks/host_time.py --output benchmarks/results/cpu_host_time.md
    python benchmarks/host_time.py --device cuda --output benchmarks/results/h200_host_time.md
    PYTHONPATH=<another checkout>/core/src python benchmarks/host_time.py      # the core as it was there

The sampler is a plugin that is made for the occasion and chosen by default, so that a call of it could be taken over by
another one, as with the samplers that ship. Of a call the time of calling the sampler itself is taken off; building
metadata, drafts and positions calls nobody.

Each figure is the least mean of many short rounds: what other programs take only adds to it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import platform
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import torch

import tokendraw
from tokendraw import Drafts, SamplingMetadata, SamplingParams, speculative
from tokendraw_testing import fake_dist

ROUNDS, CALLS, NEW = 300, 20, 200
ROWS, VOCAB_SIZE, REQUESTS, DRAFTS = 64, 4096, 16, 3
SLOTS, SLOT_TOKENS, SLOT_VOCAB_SIZE = 256, 16_384, 151_936
PLUGIN = """
    import torch
    import tokendraw
    from tokendraw import plugin as face

    ready = None  # what a call returns once the plugin has been accepted

    common = dict(
        device_types=None, dtypes=("float32",), logprobs_modes=("raw_logprobs",), seeding="counter", greedy=True,
        filters=(("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row")),
        filter_orders=("top_k_first", "joint"), valid_flag=True, graph_safe=True, sync_free=True,
    )
    verifies = dict(
        verify_modes=("rejection", "coupled"), draft_kinds=("probs", "logits", "chosen"), ragged_drafts=True,
        placeholder_drafts=True,
    )

    class Ready:
        def sample(self, logits, metadata, **options):
            return ready or tokendraw.SamplerOutput(
                logits.argmax(-1), torch.ones(len(logits), dtype=torch.bool, device=logits.device)
            )

        draft = sample

        def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
            if ready:
                return ready
            best = target_logits.argmax(-1).view(-1, drafts.max_drafts + 1)
            accepted = (best[:, 0] == drafts.draft_token_ids).int()
            tokens = torch.where(torch.arange(2, device=best.device) <= accepted[:, None], best, -1)
            return tokendraw.VerifyOutput(tokens, accepted, torch.ones_like(accepted, dtype=torch.bool))

    class Plugin:
        @face.hookimpl
        def tokendraw_describe(self):
            verify = face.VerifyCapabilities(**common, **verifies)
            operations = {"sample": face.Capabilities(**common), "verify": verify}
            return face.PluginInfo(name="ready", api_version=1, priority=1000, operations=operations)

        @face.hookimpl
        def tokendraw_probe(self, operation, host, need):
            return None

        @face.hookimpl
        def tokendraw_build(self, operation, device, need):
            return Ready()

    plugin = Plugin()
"""


@contextlib.contextmanager
def sampler_of(device: torch.device) -> Iterator[tuple[tokendraw.Sampler, object]]:
    """Load a sampler whose backend answers at once; return it and the module with the answer."""
    with tempfile.TemporaryDirectory() as folder:
        source = {"ready_tokendraw": textwrap.dedent(PLUGIN)}
        plugins = {"ready": "ready_tokendraw:plugin"}
        sys.path.insert(0, str(fake_dist(Path(folder), "ready-tokendraw", plugins=plugins, modules=source)))
        os.environ["TOKENDRAW_DISABLE"] = "flashinfer,aiter,triton-gumbel"
        sampler = tokendraw.load_sampler(device=device)
        del os.environ["TOKENDRAW_DISABLE"]
        assert (sampler.name, sampler.verify_resolution.chosen) == ("ready", "ready")
        yield sampler, sys.modules["ready_tokendraw"]


def microseconds(
    calls: list[Callable[[], object]],
    device: torch.device,
    *,
    rounds: int = ROUNDS,
    before: Callable[[], object] = lambda: None,
) -> float:
    """Measure the time until a call returns: the least mean of a round of all calls.

    :param before: called before each round, outside of the time.
    """
    least = float("inf")
    for _ in range(rounds):
        before()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = perf_counter_ns()
        for call in calls:
            call()
        least = min(least, (perf_counter_ns() - start) / len(calls) / 1e3)
    return least


def microseconds_once(calls: list[Callable[[], object]], device: torch.device) -> float:
    """Measure the median time of single calls, each made once."""
    return median(microseconds([call], device, rounds=1) for call in calls)


def repeated(call: Callable[[], object]) -> list[Callable[[], object]]:
    return [call] * CALLS


def requests(number: int, logprobs: int | None = None) -> list[SamplingParams]:
    """Make requests as different as a server's, half of them with a seed."""
    return [
        SamplingParams(
            temperature=0.5 + i % 8 / 10,
            top_k=20 + i % 40,
            top_p=0.9,
            seed=i if i % 2 else None,
            logprobs=logprobs,
        )
        for i in range(number)
    ]


def sampling(device: torch.device, sampler: tokendraw.Sampler, module: object) -> Iterator[tuple[str, float]]:
    """``Sampler.sample`` and ``Sampler.draft``, less the call of the backend."""
    logits = torch.zeros(ROWS, VOCAB_SIZE, device=device)
    tokens, valid = logits.argmax(-1), torch.ones(ROWS, dtype=torch.bool, device=device)
    for title, asked in (("", None), (", logprobs=5", 5)):
        metadata = SamplingMetadata.from_params(requests(ROWS, asked), device=device, positions=range(ROWS))
        values = torch.zeros(ROWS, 6, device=device)
        best = tokendraw.LogprobsTensors(values.long(), values, tokens + 1)
        module.ready = tokendraw.SamplerOutput(  # type: ignore[attr-defined]
            tokens, valid, None if asked is None else best, None if asked is None else values[:, 0]
        )
        backend = module.Ready()  # type: ignore[attr-defined]
        own = microseconds(repeated(lambda b=backend, m=metadata: b.sample(logits, m)), device)
        same = microseconds(repeated(lambda m=metadata: sampler.sample(logits, m)), device)
        yield f"sample, the same metadata{title}", same - own
        if asked is None:
            steps = [metadata.with_positions(torch.arange(ROWS, device=device) + i) for i in range(CALLS)]
            calls = [lambda m=m: sampler.sample(logits, m) for m in steps]
            yield "sample, metadata made by with_positions", microseconds(calls, device) - own
            new = [
                SamplingMetadata.from_params(requests(ROWS), device=device, positions=range(ROWS))
                for _ in range(NEW)
            ]
            calls = [lambda m=m: sampler.sample(logits, m) for m in new]
            yield "sample, metadata met for the first time", microseconds_once(calls, device) - own
            yield (
                "draft, the same metadata",
                microseconds(repeated(lambda m=metadata: sampler.draft(logits, m)), device) - own,
            )


def verification(
    device: torch.device, sampler: tokendraw.Sampler, module: object
) -> Iterator[tuple[str, float]]:
    """``Sampler.verify``, less the call of the backend."""
    counts = [DRAFTS] * REQUESTS
    rows = sum(counts) + REQUESTS
    logits = torch.zeros(rows, VOCAB_SIZE, device=device)
    tokens = torch.zeros(REQUESTS, DRAFTS + 1, dtype=torch.int64, device=device)
    module.ready = tokendraw.VerifyOutput(  # type: ignore[attr-defined]
        tokens,
        torch.zeros(REQUESTS, dtype=torch.int32, device=device),
        torch.ones(REQUESTS, dtype=torch.bool, device=device),
    )
    backend = module.Ready()  # type: ignore[attr-defined]
    told = Drafts.from_lists([list(range(n)) for n in counts], device=device)
    untold = Drafts(draft_token_ids=told.draft_token_ids, cu_num_logits=told.cu_num_logits, max_drafts=DRAFTS)
    by_request = SamplingMetadata.from_params(requests(REQUESTS), device=device, positions=range(REQUESTS))
    by_row = SamplingMetadata.from_params(
        requests(REQUESTS),
        device=device,
        positions=speculative.row_positions(told.cu_num_logits, by_request.positions, rows),
        row_index=speculative.row_index(told.cu_num_logits, rows),
    )
    for title, drafts, metadata in (
        ("verify, metadata by row", told, by_row),
        ("verify, metadata by request", told, by_request),
        ("verify, metadata by request, counts only on the device", untold, by_request),
    ):
        own = microseconds(repeated(lambda m=metadata, d=drafts: backend.verify(logits, d, m)), device)
        calls = repeated(lambda m=metadata, d=drafts: sampler.verify(logits, d, m))
        yield title, microseconds(calls, device) - own
    lists = [list(range(n)) for n in counts]
    many = [Drafts.from_lists(lists, device=device) for _ in range(NEW)]
    own = microseconds(repeated(lambda: backend.verify(logits, told, by_request)), device)
    calls = [lambda d=drafts: sampler.verify(logits, d, by_request) for drafts in many]
    yield "verify, metadata by request, drafts met for the first time", microseconds_once(calls, device) - own
    calls = repeated(lambda: Drafts.from_lists(lists, device=device))
    yield f"Drafts.from_lists, {REQUESTS} requests of {DRAFTS} drafts", microseconds(calls, device)


def metadata(device: torch.device) -> Iterator[tuple[str, float]]:
    """Time the metadata of an engine from step to step."""
    for number in (1, 256):
        params, positions = requests(number), list(range(number))
        calls = [lambda p=params, at=positions: SamplingMetadata.from_params(p, device=device, positions=at)]
        yield f"from_params, {number} request{'s' * (number > 1)}", microseconds(calls, device)
    made = SamplingMetadata.from_params(requests(256), device=device, positions=range(256))
    at = torch.arange(256, device=device)
    yield "with_positions, a tensor", microseconds(repeated(lambda: made.with_positions(at)), device)


def slots(device: torch.device) -> Iterator[tuple[str, float]]:
    """Time a step of an engine with requests in slots, and the arrival and end of a request."""
    kept = tokendraw.RequestSlots(SLOTS, SLOT_TOKENS, SLOT_VOCAB_SIZE, device=device)
    for slot, params in enumerate(requests(SLOTS)):
        kept.add(slot, params, range(512))
    rows = torch.arange(SLOTS, device=device)
    tokens = torch.zeros_like(rows)
    title = f"RequestSlots, {SLOTS} rows"
    yield f"{title}: metadata", microseconds(repeated(lambda: kept.metadata(rows, rows)), device)
    yield f"{title}: append by torch", microseconds([lambda: kept.append(rows, tokens)], device)
    processor = tokendraw.load("process_logits", device=device)
    processor.process(torch.zeros(SLOTS, SLOT_VOCAB_SIZE, device=device), kept, rows)
    name = processor.resolution.chosen
    yield f"{title}: append by {name}", microseconds([lambda: kept.append(rows, tokens)], device)
    plain = SamplingParams(temperature=0.8, top_p=0.9)
    ids, allowed = torch.randperm(SLOT_VOCAB_SIZE), torch.randperm(SLOT_VOCAB_SIZE)[:50_000]
    for title, params, prompt in (
        ("no prompt", plain, ()),
        *((f"a prompt of {number}, a list", plain, ids[:number].tolist()) for number in (512, 4096, 15_000)),
        *((f"a prompt of {number}, a tensor", plain, ids[:number]) for number in (512, 4096, 15_000)),
        ("50000 allowed_token_ids, a list", SamplingParams(allowed_token_ids=allowed.tolist()), ()),
        ("50000 allowed_token_ids, an array", SamplingParams(allowed_token_ids=allowed.numpy()), ()),
    ):
        calls = [functools.partial(kept.add, 7, params, prompt)]
        us = microseconds(calls, device, rounds=ROUNDS // 3, before=lambda: kept.remove(7))
        yield f"RequestSlots.add, {title}", us
    repeating = SamplingParams(repetition_penalty=1.1)
    calls = [lambda: kept.remove(7), lambda: kept.add(7, repeating, range(512))]
    yield "RequestSlots: remove and add, a prompt of 512", 2 * microseconds(calls, device)


def table(device: torch.device) -> list[str]:
    """The lines of the result, in Markdown."""
    lines = ["| call | us |", "| --- | --: |"]
    with sampler_of(device) as (sampler, module):
        for source in (
            sampling(device, sampler, module),
            verification(device, sampler, module),
            metadata(device),
            slots(device),
        ):
            for name, us in source:
                lines.append(f"| {name} | {us:.1f} |")
                print(lines[-1], file=sys.stderr)
    return lines


def main() -> None:
    """Print the table, and write it to ``--output``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    device = torch.empty(0, device=options.device).device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    text = "\n".join(
        [
            f"{where}: tokendraw {tokendraw.__version__}, torch {torch.__version__}, "
            f"Python {platform.python_version()}; [{ROWS}, {VOCAB_SIZE}] float32, microseconds of the core.",
            "",
            *table(device),
        ]
    )
    print(text)
    if options.output:
        chosen = "" if options.device == "cpu" else f"--device {options.device} "
        options.output.write_text(
            f"`python benchmarks/host_time.py {chosen}--output {options.output}`\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
