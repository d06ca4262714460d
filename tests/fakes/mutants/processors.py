"""Processors of logits with a bug in every call: native with a change of tables, arguments or logits."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import torch

from mutants import table
from tokendraw.plugin import EDITS, INPUT_DTYPES, EditFacts, ProcessCapabilities
from tokendraw_native import logits_processing
from tokendraw_native.logits_processing import NativeProcessor
from tokendraw_testing import Effort

EVERYTHING = ProcessCapabilities(
    device_types=None, dtypes=INPUT_DTYPES, drafts=True, edits=EDITS, graph_safe=True, sync_free=True
)
NO_FACTS = EditFacts.of(())


class ProcessorMutant(NativeProcessor):
    """The native processor, with hooks for tables, arguments and logits."""

    def __init__(self, need=None, device="cpu"):
        self.first_tables = {}

    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        with self.patch():
            changed = SimpleNamespace(tables=self.tables(slots.tables), facts=slots.facts)
            super().process(logits, changed, *self.arguments(row_index, bitmask, drafts))
        return self.after(logits, slots, row_index)

    def patch(self):
        return nullcontext()

    def tables(self, tables):
        return tables

    def arguments(self, row_index, bitmask, drafts):
        return row_index, bitmask, drafts

    def after(self, logits, slots, row_index):
        return logits


PENALTIES = ("any_penalty", "any_penalty_last_n", "any_dry")
MASKS = ("any_allowed", "any_bad_words", "any_min_tokens", "any_thinking_budget")


def in_steps(*steps):
    """Edit in several passes, each for some facts."""

    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        for names in steps:
            facts = replace(NO_FACTS, **{name: getattr(slots.facts, name) for name in names})
            tables = slots.tables
            if "any_bias" not in names:
                tables = replace(tables, counts=tables.counts & ~2)
            step = SimpleNamespace(tables=tables, facts=facts)
            NativeProcessor.process(self, logits, step, row_index, bitmask, drafts)
        return logits

    return process


def tables(**changes):
    """Replace fields of the tables: ``change(tables)`` for each."""
    return {
        "tables": lambda self, tables: replace(
            tables, **{name: change(tables) for name, change in changes.items()}
        )
    }


def rows(change):
    """Change native's reading of the drafts before a row."""

    def patched(self):
        native = logits_processing._rows

        def rows(tables, row_index, drafts, count):
            result = native(tables, row_index, drafts, count)
            return result if drafts is None else result._replace(**change(result))

        return patch.object(logits_processing, "_rows", rows)

    return {"patch": patched}


_where = torch.where


def divide_all(condition, x, y):
    """Divide logits below 0 too, as ``torch.where`` in native."""
    is_quotient = (
        isinstance(y, torch.Tensor) and y.dtype is torch.float32 and x.shape == y.shape == condition.shape
    )
    return _where(condition | True, x, y) if is_quotient else _where(condition, x, y)


def last_word_ignored(self, row_index, bitmask, drafts):
    if bitmask is not None:
        bitmask = bitmask.clone()
        bitmask[:, -1] = -1
    return row_index, bitmask, drafts


def bitmask_last(self, logits, slots, row_index, bitmask=None, drafts=None):
    ProcessorMutant.process(self, logits, slots, row_index, bitmask, drafts)
    if bitmask is not None:
        logits.masked_fill_(~logits_processing._bits(bitmask, logits.shape[1]), float("-inf"))
    return logits


def last_id_unedited(self, logits, *rest):
    last = logits[:, -1].clone()
    ProcessorMutant.process(self, logits, *rest)
    logits[:, -1] = last
    return logits


def dense_rows(self, logits, *rest):
    ProcessorMutant.process(self, logits.as_strided(logits.shape, (logits.shape[1], 1)), *rest)
    return logits


def first_tables(self, tables):
    """Return a copy of the tables from the first call with these slots, as long as no table gets another shape.

    The originals are kept beside the copy: no other table can take the address of their counts.
    """
    originals = dict(vars(tables))
    key = tables.counts.data_ptr(), tuple(tensor.shape for tensor in originals.values())
    if key not in self.first_tables:
        copies = {name: tensor.clone() for name, tensor in originals.items()}
        self.first_tables[key] = originals, replace(tables, **copies)
    return self.first_tables[key][1]


def clear_flags(self, logits, slots, row_index):
    slots.tables.counts.bitwise_and_(~15)
    return logits


def wait(self, row_index, bitmask, drafts):
    row_index.max().item()
    return row_index, bitmask, drafts


def draft_early(result):
    shifted = result.drafted.roll(-1, 0)
    is_before = result.step.roll(-1, 0) > 0
    return {"step": result.step + 1, "drafted": torch.where(is_before, shifted, result.drafted)}


def without_recent_drafts(self):
    native = logits_processing.recent_tokens
    return patch.object(
        logits_processing,
        "recent_tokens",
        lambda tables, slot, step, drafted: native(tables, slot, step * 0, drafted[:, :0]),
    )


# fmt: off
PROCESSORS = table("process_logits", EVERYTHING, ProcessorMutant, (
    ("penalties applied twice", ("process edits", "process crossing"),
     {"process": in_steps(("any_bias", *PENALTIES, *MASKS), PENALTIES)}),
    ("logits below 0 divided", "process edits",
     {"patch": lambda self: patch.object(torch, "where", divide_all)}),
    ("tokens of the output counted as prompt", ("process edits", "process crossing"),
     tables(counts=lambda t: torch.where(t.counts >= 16, (t.counts & 14) | 1, t.counts))),
    ("stop ids held back for a token too long", "process edits",
     tables(min_tokens=lambda t: t.min_tokens + (t.min_tokens > 0))),
    ("a bitmask that holds where a budget is spent", "process crossing", {"process": bitmask_last}),
    ("breakers inside matches of DRY", "process edits",
     tables(dry_breakers=lambda t: torch.full_like(t.dry_breakers, -1))),
    ("drafts left out of the window of penalties", "process crossing", {"patch": without_recent_drafts}),
    ("last word of a bitmask ignored", "process edits", {"arguments": last_word_ignored}),
    ("last id unedited", ("process crossing", "process edits"), {"process": last_id_unedited}),
    ("rows read as if they lay dense", "process strides", {"process": dense_rows}),
    ("slots as they were first seen", "process crossing", {"tables": first_tables}),
    ("a slot that does not exist read as the next", "process crossing",
     {"arguments": lambda self, row_index, bitmask, drafts: (row_index.clamp(1, 1), bitmask, drafts)}),
    ("flags of counts cleared in the slots", "process inputs unmodified", {"after": clear_flags}),
    ("a draft counted in its own row", "process crossing", rows(draft_early)),
    ("rows behind the last request given to it", "process crossing",
     rows(lambda result: {"exists": torch.ones_like(result.exists)})),
), options={"effort": Effort.tiny()})
CUDA_PROCESSORS = table("process_logits", EVERYTHING, ProcessorMutant, (
    ("the number of tokens read back", "process sync-free", {"arguments": wait}),
    ("slots as they were first seen, in replays", "process graph replay", {"tables": first_tables}),
), options={"effort": Effort.tiny()}, device="cuda:0")
# fmt: on
MUTANTS = {"Processors of logits": PROCESSORS, "Processors of logits on a CUDA device": CUDA_PROCESSORS}
