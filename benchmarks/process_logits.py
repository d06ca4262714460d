"""Times edits of logits beside a read of them, the least that each can cost, and penalties over dense counts in torch.

    python benchmarks/process_logits.py               # 256 x 151936 bfloat16 on a CUDA device

In each request 512 distinct ids occur, anywhere in the vocabulary, half of them in the output. Bitmasks allow half of
the ids: each id by a coin of its own, runs of 256 ids, or the lower half; or one id of a hundred. Device and host are
timed by the bench's own timer: out of a cold cache, but for those lines that say something else.

The floors: memory is read and written by sectors of 32 bytes at least, so 512 scattered logits a row take 512 of them,
and a mask by coins changes a part of every sector, which is read and written.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import torch
from tables import head
from torch import Tensor

import tokendraw
from tokendraw import RequestSlots, SamplingParams
from tokendraw.plugin import EditFacts
from tokendraw_bench import Call, Failure, Timing, markdown_table, measure, timer_for

_PROVIDERS = ("triton-gumbel", "native")
_PENALTIES = SamplingParams(repetition_penalty=1.1, frequency_penalty=0.3, presence_penalty=0.2)
_AGAIN = 9
"""Calls in a row on the same logits, of which all but the first find them in the cache."""
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@click.command()
@click.option("--device", default="cuda", show_default=True, metavar="DEVICE")
@click.option("--rows", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--vocab-size", type=click.IntRange(min=1024), default=151_936, show_default=True)
@click.option("--distinct", type=click.IntRange(min=2), default=512, show_default=True, help="Ids a request.")
@click.option("--dtype", type=click.Choice(list(_DTYPES)), default="bfloat16", show_default=True)
@click.option(
    "--repeats", type=click.IntRange(min=3), default=9, show_default=True, help="Samples of a median."
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
def main(
    device: str, rows: int, vocab_size: int, distinct: int, dtype: str, repeats: int, output: Path | None
) -> None:
    """Time edits of B rows of V logits."""
    target = torch.empty(0, device=device).device
    generator = torch.Generator(target).manual_seed(1)
    ids = torch.stack(
        [
            torch.randperm(vocab_size, generator=generator, device=target)[: min(distinct, vocab_size)]
            for _ in range(rows)
        ]
    )
    order = torch.randperm(rows, generator=generator, device=target)
    penalised, plain = (_slots(ids, vocab_size, params) for params in (_PENALTIES, SamplingParams()))
    masks = _bitmasks(rows, vocab_size, generator)
    calls = _floors(ids, order, target)
    for name in _PROVIDERS:
        process = tokendraw.load("process_logits", name, device=target).process
        calls[f"{name}: penalties"] = _processed(process, penalised, order)
        calls[f"{name}: penalties, in a graph for any edit"] = _processed(
            process, penalised, order, edits=EditFacts()
        )
        calls |= {
            f"{name}: {mask}": _processed(process, plain, order, words) for mask, words in masks.items()
        }
        both = _processed(process, penalised, order, masks["bitmask, any ids"])
        calls[f"{name}: penalties and bitmask"] = both
    calls["torch: penalties from dense counts"] = _dense(penalised.tables.counts[order])
    timer = timer_for(target, repeats)
    buffers = [
        torch.randn(rows, vocab_size, generator=generator, device=target).to(_DTYPES[dtype])
        for _ in range(timer.buffers(rows * vocab_size * _DTYPES[dtype].itemsize))
    ]
    repeated = [
        name for name in calls if name.endswith(("that occur", "ids of each row", "gumbel: penalties"))
    ]
    for name in repeated:
        calls[f"{name}, {_AGAIN} times"] = _again(calls[name])
    found = measure({name: Call(draw=call) for name, call in calls.items()}, buffers, timer)
    lines = [["read", f"{found.read.us:.1f}", "1.00", ""]]
    for name in [name for name in calls if not name.endswith(" times")]:
        lines.append(_line(name, found.calls[name], found.read.us))
        if name in repeated:
            often = found.calls[f"{name}, {_AGAIN} times"]
            lines.append(
                _line(f"{name}, in the cache", _each_but_the_first(found.calls[name], often), found.read.us)
            )
    parts = [
        f"`{shlex.join(['python', 'benchmarks/process_logits.py', *sys.argv[1:]])}`",
        head(target, _PROVIDERS),
        f"{rows} x {vocab_size} {dtype}, {ids.shape[1]} distinct ids a request. Microseconds, medians of {repeats} in "
        f"turns, {timer.method}; the ratio to a read of the logits; microseconds until a call returns. In the cache: "
        f"by {_AGAIN} calls in a row on the same logits, without the first.",
        markdown_table(["edit", "us", "ratio", "host"], lines, in_words=["edit"]),
    ]
    text = "\n\n".join(parts) + "\n"
    click.echo(text)
    if output is not None:
        output.write_text(text, encoding="utf-8")


def _line(name: str, entry: Timing | Failure, read: float) -> list[str]:
    if isinstance(entry, Failure):
        return [name, entry.reason, "", ""]
    host = "" if entry.host_us is None else f"{entry.host_us:.0f}"
    return [name, f"{entry.us:.1f}", f"{entry.us / read:.2f}", host]


def _each_but_the_first(once: Timing | Failure, often: Timing | Failure) -> Timing | Failure:
    """Return what each call but the first takes of several in a row on the same logits."""
    if isinstance(once, Failure) or isinstance(often, Failure):
        return often
    return replace(often, us=(often.us - once.us) / (_AGAIN - 1), host_us=None)


def _again(call: Callable[[Tensor], object]) -> Callable[[Tensor], object]:
    return lambda logits: [call(logits) for _ in range(_AGAIN)]


def _floors(ids: Tensor, row_index: Tensor, device: torch.device) -> dict[str, Callable[[Tensor], object]]:
    """Return what does less than edits do."""
    floors: dict[str, Callable[[Tensor], object]] = {}
    if device.type == "cuda":
        from process_floors import empty, scatter

        listed = ids.to(torch.int32)
        floors["floor: a launch"] = lambda logits: empty(logits, listed)
        floors["floor: add 1 to the ids of each row"] = lambda logits: scatter(logits, row_index, listed)
    floors["floor: gather the ids that occur"] = lambda logits: logits.gather(1, ids)
    floors["floor: write all"] = lambda logits: logits.fill_(0.5)
    floors["floor: read and write all"] = lambda logits: logits.mul_(1)
    return floors


def _slots(ids: Tensor, vocab_size: int, params: SamplingParams) -> RequestSlots:
    """Fill a slot a row with a request that has half of its ids in the prompt and half in the output."""
    rows, distinct = ids.shape
    slots = RequestSlots(rows, 4096, vocab_size, device=ids.device)
    prompts, outputs = ids.split((distinct // 2, distinct - distinct // 2), 1)
    for slot, prompt in enumerate(prompts.tolist()):
        slots.add(slot, params, prompt_token_ids=prompt)
    row_index = torch.arange(rows, device=ids.device)
    for tokens in outputs.T.contiguous():
        slots.append(row_index, tokens)
    return slots


def _bitmasks(rows: int, vocab_size: int, generator: torch.Generator) -> dict[str, Tensor]:
    words, device = -(-vocab_size // 32), generator.device
    coins = torch.randint(-(2**31), 2**31, (rows, words), generator=generator, device=device)
    runs = torch.randint(2, (rows, -(-words // 8)), generator=generator, device=device)
    lower = torch.arange(words, device=device).expand(rows, -1) < words // 2
    return {
        "bitmask, any ids": coins.to(torch.int32),
        "bitmask, runs": -runs.repeat_interleave(8, 1)[:, :words].to(torch.int32).contiguous(),
        "bitmask, lower half": -lower.to(torch.int32),
        "bitmask, 1 % allowed": _ones_of_a_hundred(rows, words, generator),
        "bitmask, all allowed": torch.full((rows, words), -1, dtype=torch.int32, device=device),
    }


def _ones_of_a_hundred(rows: int, words: int, generator: torch.Generator) -> Tensor:
    bits = torch.rand(rows, words, 32, generator=generator, device=generator.device) < 0.01
    found = (bits.int() << torch.arange(32, device=generator.device, dtype=torch.int32)).sum(2)
    return found.to(torch.int32)


def _processed(
    process: Callable[..., object],
    slots: RequestSlots,
    row_index: Tensor,
    bitmask: Tensor | None = None,
    edits: EditFacts | None = None,
) -> Callable[[Tensor], object]:
    """Return the call.

    :param edits: what its graph serves; None: what the requests in the slots ask for.
    """
    edits = edits or slots.facts

    def call(logits: Tensor) -> object:
        slots.captured_edits = edits
        return process(logits, slots, row_index, bitmask)

    return call


def _dense(counts: Tensor) -> Callable[[Tensor], object]:
    """Apply the penalties to all V ids of a row, by counts [rows, V] of its request."""
    repetition, frequency, presence = (
        _PENALTIES.repetition_penalty,
        _PENALTIES.frequency_penalty,
        _PENALTIES.presence_penalty,
    )

    def apply(logits: Tensor) -> object:
        x, times = logits.float(), counts >> 4
        x = torch.where(counts > 0, torch.where(x > 0, x / repetition, x * repetition), x)
        return logits.copy_(x - frequency * times - presence * (times > 0))

    return apply


if __name__ == "__main__":
    main()
