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
import os
import platform
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns

import torch

import tokendraw
from tokendraw import Drafts, SamplingMetadata, SamplingParams
from tokendraw_testing import fake_dist

ROUNDS, CALLS = 300, 20
ROWS, VOCAB_SIZE, REQUESTS, DRAFTS = 64, 4096, 16, 3
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


def microseconds(calls: list[Callable[[], object]], device: torch.device) -> float:
    """Measure the time until a call returns: the least mean of a round of all calls."""
    least = float("inf")
    for _ in range(ROUNDS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = perf_counter_ns()
        for call in calls:
            call()
        least = min(least, (perf_counter_ns() - start) / len(calls) / 1e3)
    return least


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
    """``Sampler.sample``, less the call of the backend."""
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


def verification(
    device: torch.device, sampler: tokendraw.Sampler, module: object
) -> Iterator[tuple[str, float]]:
    """``Sampler.verify``, less the call of the backend."""
    lists, rows = [list(range(DRAFTS))] * REQUESTS, REQUESTS * (DRAFTS + 1)
    logits = torch.zeros(rows, VOCAB_SIZE, device=device)
    tokens = torch.zeros(REQUESTS, DRAFTS + 1, dtype=torch.int64, device=device)
    module.ready = tokendraw.VerifyOutput(  # type: ignore[attr-defined]
        tokens,
        torch.zeros(REQUESTS, dtype=torch.int32, device=device),
        torch.ones(REQUESTS, dtype=torch.bool, device=device),
    )
    backend = module.Ready()  # type: ignore[attr-defined]
    drafts = Drafts.from_lists(lists, device=device)
    metadata = SamplingMetadata.from_params(requests(REQUESTS), device=device, positions=range(REQUESTS))
    own = microseconds(repeated(lambda: backend.verify(logits, drafts, metadata)), device)
    calls = repeated(lambda: sampler.verify(logits, drafts, metadata))
    yield "verify, metadata by request", microseconds(calls, device) - own
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


def table(device: torch.device) -> list[str]:
    """The lines of the result, in Markdown."""
    lines = ["| call | us |", "| --- | --: |"]
    with sampler_of(device) as (sampler, module):
        for source in (
            sampling(device, sampler, module),
            verification(device, sampler, module),
            metadata(device),
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
