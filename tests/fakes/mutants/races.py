"""Races: threads that copy rows through a shared scratch row, and objects that share a buffer."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from mutants import table
from mutants.processors import ProcessorMutant
from mutants.samplers import SamplerMutant
from mutants.verifiers import VerifierMutant
from tokendraw_native import plugin

NATIVE = plugin.tokendraw_describe().operations
CAPABILITIES = {
    "sample": replace(NATIVE["sample"], dtypes=("float32",), logprobs_modes=("raw_logprobs",)),
    "verify": replace(NATIVE["verify"], dtypes=("float32",)),
    "process_logits": NATIVE["process_logits"],
}


def through_one_scratch(rows):
    """Copy rows in torch's number of threads, through a shared row of scratch."""
    if not len(rows):
        return rows
    scratch, copied = torch.empty_like(rows[:1]), torch.empty_like(rows)
    count = torch.get_num_threads()
    turn = 1e-4 if count > 1 else 0  # seconds for another thread, on a busy machine too

    def copy(part):
        together.wait()
        for i in part:
            scratch[0].copy_(rows[i])
            time.sleep(turn)
            copied[i].copy_(scratch[0])

    together = threading.Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(copy, [range(i, len(rows), count) for i in range(count)]))
    return copied


def through_one_buffer():
    """Return a function that copies rows through a shared buffer of the shape.

    A thread beside the main one reads what another one wrote, where one writes within a tenth of a second: that the
    race happens is not left to a busy machine.
    """
    buffers, writes = {}, threading.Condition()
    written = 0

    def copied(rows):
        nonlocal written
        buffer = buffers.setdefault((rows.shape, rows.dtype), torch.empty_like(rows))
        with writes:
            buffer.copy_(rows)
            written += 1
            mine = written
            writes.notify_all()
            if threading.current_thread() is not threading.main_thread():
                writes.wait_for(lambda: written > mine, timeout=0.1)
        return buffer.clone()

    return copied


def first_argument(method, base, copied):
    """Copy the first argument of a method."""

    def changed(self, rows, *rest, **options):
        return getattr(base, method)(self, copied(rows), *rest, **options)

    return {method: changed}


def in_one_buffer(self, output, *rest):
    """Copy tokens through a buffer of the object."""
    copied = vars(self).setdefault("copied", through_one_buffer())
    return replace(output, token_ids=copied(output.token_ids))


def logits_in_place(copied):
    def process(self, logits, *rest):
        logits.copy_(copied(logits))
        return ProcessorMutant.process(self, logits, *rest)

    return {"process": process}


def races(operation, base, line, *rows):
    return table(
        operation,
        CAPABILITIES[operation],
        base,
        tuple((name, line, methods) for name, methods in rows),
        options={"quick": True},
    )


# fmt: off
RACES = (
    *races("sample", SamplerMutant, "threads",
           ("one scratch buffer for all threads of a sampler",
            first_argument("sample", SamplerMutant, through_one_scratch)),
           ("one buffer for the tokens of a sampler", {"output": in_one_buffer}),
           ("one buffer for all samplers", first_argument("sample", SamplerMutant, through_one_buffer()))),
    *races("verify", VerifierMutant, "verify threads",
           ("one scratch buffer of a verifier", first_argument("verify", VerifierMutant, through_one_scratch)),
           ("one buffer for the tokens of a verifier", {"output": in_one_buffer}),
           ("one buffer for all verifiers", first_argument("verify", VerifierMutant, through_one_buffer()))),
    *races("process_logits", ProcessorMutant, "process threads",
           ("one scratch buffer of a processor", logits_in_place(through_one_scratch)),
           ("one buffer for all processors", logits_in_place(through_one_buffer()))),
)
# fmt: on
MUTANTS = {"Races of threads": RACES}
