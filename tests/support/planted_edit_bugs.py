"""Processors with one bug each: native's, with something wrong before, in or after it."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import torch

from tokendraw.plugin import EditFacts
from tokendraw_native import logits_processing
from tokendraw_native.logits_processing import NativeProcessor

NOTHING = EditFacts(
    any_penalty=False, any_bias=False, any_allowed=False, any_bad_words=False, any_min_tokens=False
)


class Honest(NativeProcessor):
    """The native processor, on what a bug makes of its arguments."""

    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        with self.inside():
            seen = SimpleNamespace(tables=self.seen(slots.tables), facts=slots.facts)
            return super().process(logits, seen, *self.given(row_index, bitmask, drafts))

    def inside(self):
        return nullcontext()

    def seen(self, tables):
        return tables

    def given(self, row_index, bitmask, drafts):
        return row_index, bitmask, drafts


class _InSteps(Honest):
    """Edits step by step: what is asked for in each."""

    steps: tuple[dict[str, bool], ...]

    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        for wanted in self.steps:
            facts = replace(NOTHING, **{name: getattr(slots.facts, name) for name in wanted})
            tables = slots.tables
            if "any_bias" not in wanted:
                tables = replace(tables, counts=tables.counts & ~2)
            seen = SimpleNamespace(tables=tables, facts=facts)
            NativeProcessor.process(self, logits, seen, row_index, bitmask, drafts)
        return logits


OTHERS = ("any_allowed", "any_bad_words", "any_min_tokens")


class PenaltiesTwice(_InSteps):
    """Penalties are applied a second time."""

    steps = (("any_bias", "any_penalty", *OTHERS), ("any_penalty",))


class BiasBehindPenalties(_InSteps):
    """The bias is added to what the penalties leave."""

    steps = (("any_penalty", *OTHERS), ("any_bias",))


class RoundsBetween(_InSteps):
    """The bias is added and rounded to the dtype before penalties."""

    steps = (("any_bias", *OTHERS), ("any_penalty",))


class OutputForPrompt(Honest):
    """Tokens of the output count as tokens of the prompt."""

    def seen(self, tables):
        return replace(
            tables, counts=torch.where(tables.counts >= 16, (tables.counts & 14) | 1, tables.counts)
        )


class PromptForOutput(Honest):
    """Tokens of the prompt count as tokens of the output."""

    def seen(self, tables):
        return replace(tables, counts=tables.counts + ((tables.counts & 1) << 4))


class PresenceByTheTime(Honest):
    """Presence is subtracted as often as an id occurs."""

    def seen(self, tables):
        frequency = tables.frequency + tables.presence
        return replace(tables, frequency=frequency, presence=torch.zeros_like(frequency))


class DividesAll(Honest):
    """Logits below 0 are divided too."""

    def inside(self):
        return patch.object(torch, "where", _always_dividing)


_where = torch.where


def _always_dividing(condition, x, y):
    same = isinstance(y, torch.Tensor) and y.is_floating_point() and y.dtype is torch.float32
    return (
        _where(condition | True, x, y)
        if same and x.shape == y.shape == condition.shape
        else _where(condition, x, y)
    )


class BiasOfWhatOccurred(Honest):
    """Ids that did not occur get no bias."""

    def seen(self, tables):
        occurred = tables.counts.gather(1, tables.bias_ids.long().clamp(min=0)) & ~14
        return replace(tables, bias=tables.bias * (occurred > 0))


class AllowsNextToAllowed(Honest):
    """A word of allowed ids is taken whole where it is not 0."""

    def seen(self, tables):
        return replace(tables, allowed=torch.where(tables.allowed != 0, -1, 0).to(torch.int32))


class BadWordsInPrompts(Honest):
    """Bad words may begin in the prompt."""

    def seen(self, tables):
        return replace(
            tables, num_prompt=torch.zeros_like(tables.num_prompt), min_tokens=tables.min_tokens * 0
        )


class OneTokenLate(Honest):
    """Stop ids are held back for a token too long."""

    def seen(self, tables):
        return replace(tables, min_tokens=tables.min_tokens + (tables.min_tokens > 0))


class LastWord(Honest):
    """The last word of a bitmask is not looked at."""

    def given(self, row_index, bitmask, drafts):
        if bitmask is not None:
            bitmask = bitmask.clone()
            bitmask[:, -1] = -1
        return row_index, bitmask, drafts


class FewerIds(Honest):
    """The last id of a vocabulary is not edited."""

    def process(self, logits, *rest):
        last = logits[:, -1].clone()
        super().process(logits, *rest)
        logits[:, -1] = last
        return logits


class DenseRows(Honest):
    """Rows lie dense."""

    def process(self, logits, *rest):
        dense = logits.as_strided(logits.shape, (logits.shape[1], 1))
        super().process(dense, *rest)
        return logits


class TouchesAll(Honest):
    """Every logit goes through float32 and has 0 added."""

    def process(self, logits, *rest):
        super().process(logits, *rest)
        return logits.copy_(logits.float() + 0.0)


class NansAreOff(Honest):
    """NaN becomes -inf in ids that occurred."""

    def process(self, logits, slots, row_index, *rest):
        super().process(logits, slots, row_index, *rest)
        asked = slots.tables.counts[row_index] > 0
        return logits.masked_fill_(logits.isnan() & asked, float("-inf"))


class SortedSlots(Honest):
    """Rows are those of the slots in order."""

    def given(self, row_index, bitmask, drafts):
        return row_index.sort().values, bitmask, drafts


class StaleSlots(Honest):
    """What was in a slot when it was first seen is edited for ever."""

    def __init__(self):
        self.first = {}

    def seen(self, tables):
        if id(tables) not in self.first:
            copies = {name: tensor.clone() for name, tensor in vars(tables).items()}
            self.first[id(tables)] = tables, replace(tables, **copies)
        return self.first[id(tables)][1]


class ClampsSlots(Honest):
    """A slot that there is not stands for the next one that there is."""

    def given(self, row_index, bitmask, drafts):
        return row_index.clamp(1, 1), bitmask, drafts


class WritesToSlots(Honest):
    """The flags of the counts are cleared in passing."""

    def process(self, logits, slots, *rest):
        super().process(logits, slots, *rest)
        slots.tables.counts.bitwise_and_(~15)
        return logits


class Waits(Honest):
    """The number of tokens is read back."""

    def given(self, row_index, bitmask, drafts):
        row_index.max().item()
        return row_index, bitmask, drafts


class _Drafts(Honest):
    """Counts other drafts than those before the row."""

    early = 0

    def inside(self):
        rows_of = logits_processing._rows

        def rows(tables, row_index, drafts, count):
            found = rows_of(tables, row_index, drafts, count)
            return found if drafts is None else self.other(found)

        return patch.object(logits_processing, "_rows", rows)


class DraftsEarly(_Drafts):
    """A draft is counted in its own row already."""

    def other(self, rows):
        shifted = rows.drafted.roll(-1, 0)
        return rows._replace(
            step=rows.step + 1, drafted=torch.where(rows.step.roll(-1, 0) > 0, shifted, rows.drafted)
        )


class DraftsOnceEach(_Drafts):
    """An id that is drafted twice counts once."""

    def other(self, rows):
        drafted = rows.drafted.clone()
        for i in range(1, drafted.shape[1]):
            again = (drafted[:, :i] == drafted[:, i : i + 1]).any(1)
            drafted[again, i] = -1
        return rows._replace(drafted=drafted)


class PlaceholdersAreIds(_Drafts):
    """A placeholder among the drafts counts as id 0."""

    def other(self, rows):
        before = torch.arange(rows.drafted.shape[1]) < rows.step
        return rows._replace(drafted=torch.where(before, rows.drafted.clamp(min=0), rows.drafted))


class BehindTheLast(_Drafts):
    """Rows behind the last request belong to it."""

    def other(self, rows):
        return rows._replace(exists=torch.ones_like(rows.exists))
