"""The fault drills in docs/engines.md are tests of the files that it names."""

import re

from checkout import ROOT

PAGE = (ROOT / "docs/engines.md").read_text().partition("## Fault drills\n")[2].partition("\n## ")[0]
FILES = dict(re.findall(r"\b(\w+) `(test_\w+\.py)`", PAGE))
DRILLS = [drill for drill in re.findall(r"\b(\w+) `(\w+)`", PAGE) if drill[0] in FILES]


def test_each_drill_of_the_table_is_a_test_of_its_file():
    sources = {key: (ROOT / "tests/engines" / name).read_text() for key, name in FILES.items()}
    missing = [(key, name) for key, name in DRILLS if f"def test_{name}(" not in sources[key]]
    assert missing == []
    assert {key for key, _ in DRILLS} == {*FILES}


def test_each_row_of_the_table_has_all_four_faults():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    assert [len([cell for cell in row.split("|") if cell.strip()]) for row in rows] == [5] * len(rows)
    assert len(rows) > 6
