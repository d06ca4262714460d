"""Who is chosen on every platform, with every upstream version, choice and logprobs mode, and every word about it."""

from pathlib import Path

import selection_table


def test_every_choice_and_every_message_is_as_written():
    written = (Path(__file__).parent / "selection_table.txt").read_text(encoding="utf-8")
    assert list(selection_table.lines()) == written.splitlines()
