"""``tokendraw bench --op process_logits``: cells, requests, and a run of the command."""

from dataclasses import replace

import pytest
import torch

from command_line import call
from tokendraw_bench import make_inputs, operations
from tokendraw_bench.contenders import select_contenders
from tokendraw_bench.operations.process_logits import ProcessCell

CPU = torch.device("cpu")
BENCH = operations.get("process_logits")
CELL = ProcessCell(3, 200, "bfloat16", "all", 40)


@pytest.mark.parametrize(
    ("edits", "asked"), [("penalties", (True, False)), ("bitmask", (False, False)), ("all", (True, True))]
)
def test_requests_ask_for_the_edits_of_their_cell(edits, asked):
    arguments = BENCH.arguments(replace(CELL, edits=edits), CPU)
    slots = arguments.slots
    assert (slots.facts.any_penalty, slots.facts.any_bias) == asked
    assert slots.tables.num_distinct.tolist() == [40] * 3
    assert (slots.tables.num_tokens - slots.tables.num_prompt).tolist() == [16] * 3
    assert (arguments.bitmask is None) == (edits == "penalties")
    assert arguments.row_index.tolist() == [0, 1, 2]


def test_a_call_edits_the_buffer_in_turn_and_is_captured():
    (native,) = select_contenders(("native",), CPU, "process_logits")
    inputs = make_inputs(CELL, CPU, 2)
    assert inputs[0].nbytes == CELL.nbytes
    before = [logits.clone() for logits in inputs]
    (one,) = native.prepare(CELL, BENCH.arguments(CELL, CPU), inputs[0])
    assert one.graph_safe
    for logits, old in zip(inputs, before, strict=True):
        assert one.draw(logits) is logits
        forbidden = (logits == float("-inf")).float().mean()
        assert 0.4 < forbidden < 0.6
        assert not torch.equal(logits, old)


def test_a_run_of_the_command_has_a_row_a_cell(fixed):
    options = ("--batch", 2, "--vocab-size", 256, "--edits", "all", "--distinct", 9)
    result = call("bench", "--op", "process_logits", "--device", "cpu", "--sampler", "native", *options)
    assert (result.stderr, result.exit_code) == ("", 0)
    assert result.stdout.splitlines()[1:] == [
        "Edits logits in place, again and again. Medians of 15, in turns; a clock that stands. In brackets",
        "the ratio to the read; ± half the distance of the quartiles, where it is over 5 %.",
        "",
        "batch  vocabulary  dtype    edits  distinct  read us      native us",
        "    2         256  float32  all           9     10.0  100.0 (10.0x)",
        "",
        "The read is the fastest of several: torch.sum.",
        "A bitmask allows half of the ids, which lie anywhere, where no column says otherwise.",
    ]
