"""Races: rows that threads copy through one scratch buffer, and a buffer that all objects share."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch

import planted_bugs
import planted_edit_bugs
import planted_verify_bugs
from tokendraw_native.paged_kv import NativePlanner
from tokendraw_native.sm90_w4.packer import NativePacker


def through_one_scratch(rows):
    """Copy rows in as many threads as torch computes with, by way of one row of scratch that all of them write to."""
    scratch, copied = torch.empty_like(rows[:1]), torch.empty_like(rows)

    def copy(part):
        together.wait()
        for i in part:
            scratch[0].copy_(rows[i])
            time.sleep(0)  # another thread has its turn
            copied[i].copy_(scratch[0])

    count = torch.get_num_threads()
    together = threading.Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(copy, [range(i, len(rows), count) for i in range(count)]))
    return copied


@contextmanager
def of_all_objects(buffers, rows):
    """Rows in the one buffer of their shape, which the next call of any object overwrites."""
    buffer = buffers.setdefault((rows.shape, rows.dtype), torch.empty_like(rows))
    buffer.copy_(rows.roll(1, 0))
    time.sleep(0)  # another thread has its turn
    buffer.copy_(rows)
    yield buffer


class OneScratch(planted_bugs.Honest):
    """A sampler whose threads share one scratch buffer."""

    def change(self, logits, metadata):
        return through_one_scratch(logits) if len(logits) else logits, metadata


class OneBuffer(planted_bugs.Honest):
    """A sampler whose objects share one buffer."""

    buffers: ClassVar[dict[Any, torch.Tensor]] = {}

    def change(self, logits, metadata):
        with of_all_objects(self.buffers, logits) as rows:
            return rows, metadata


class OneScratchForLogprobs(planted_bugs.Honest):
    """A sampler whose threads share one scratch buffer for the values of logprobs alone."""

    def shown(self, output):
        if output.logprobs is None:
            return output
        values = through_one_scratch(output.logprobs.logprobs)
        return replace(output, logprobs=replace(output.logprobs, logprobs=values))


class OneScratchInVerify(planted_verify_bugs.Honest):
    """A verifier whose threads share one scratch buffer."""

    def change(self, target_logits, drafts, metadata):
        return through_one_scratch(target_logits), drafts, metadata


class OneScratchForEdits(planted_edit_bugs.Honest):
    """A processor whose threads share one scratch buffer."""

    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        logits.copy_(through_one_scratch(logits))
        return super().process(logits, slots, row_index, bitmask, drafts)


class OneScratchForPlans(NativePlanner):
    """A planner whose threads share one scratch buffer."""

    def plan(self, seq_lens, block_table, page_size, page_indices, pad, out):
        return super().plan(seq_lens, through_one_scratch(block_table), page_size, page_indices, pad, out)


class OneScratchForWeights(NativePacker):
    """A packer whose threads share one scratch buffer."""

    def __init__(self):
        super().__init__(torch.device("cpu"))

    def pack_weights(self, weights, **way):
        rows = weights.flatten(0, 1)
        return super().pack_weights(through_one_scratch(rows).view_as(weights), **way)
