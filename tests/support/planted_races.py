"""Races: rows that threads copy through one scratch buffer, and a buffer that all objects share."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
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


def through_a_buffer(buffers, rows):
    """Copy rows by way of the one buffer of their shape, which the next call of any object overwrites."""
    buffer = buffers.setdefault((rows.shape, rows.dtype), torch.empty_like(rows))
    buffer.copy_(rows)
    time.sleep(0)  # another thread has its turn
    return buffer.clone()


class OneScratch(planted_bugs.Honest):
    """A sampler whose threads share one scratch buffer."""

    def change(self, logits, metadata):
        return through_one_scratch(logits) if len(logits) else logits, metadata


class OneBuffer(planted_bugs.Honest):
    """A sampler whose objects share one buffer."""

    buffers: ClassVar[dict[Any, torch.Tensor]] = {}

    def change(self, logits, metadata):
        return through_a_buffer(self.buffers, logits), metadata


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


class OneBufferInVerify(planted_verify_bugs.Honest):
    """A verifier whose objects share one buffer."""

    buffers: ClassVar[dict[Any, torch.Tensor]] = {}

    def change(self, target_logits, drafts, metadata):
        return through_a_buffer(self.buffers, target_logits), drafts, metadata


class OneBufferForEdits(planted_edit_bugs.Honest):
    """A processor whose objects share one buffer."""

    buffers: ClassVar[dict[Any, torch.Tensor]] = {}

    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        logits.copy_(through_a_buffer(self.buffers, logits))
        return super().process(logits, slots, row_index, bitmask, drafts)


class OneBufferForPlans(NativePlanner):
    """A planner whose objects share one buffer."""

    buffers: ClassVar[dict[Any, torch.Tensor]] = {}

    def plan(self, seq_lens, block_table, page_size, page_indices, pad, out):
        table = through_a_buffer(self.buffers, block_table)
        return super().plan(seq_lens, table, page_size, page_indices, pad, out)


class OneBufferForWeights(NativePacker):
    """A packer whose objects share one buffer."""

    buffers: ClassVar[dict[Any, torch.Tensor]] = {}

    def __init__(self):
        super().__init__(torch.device("cpu"))

    def pack_weights(self, weights, **way):
        return super().pack_weights(through_a_buffer(self.buffers, weights), **way)
