"""An operation is a record and a line of the registry: the rest of the core does not know its name."""

import re
from pathlib import Path

import pytest

import tokendraw
from tokendraw import operations

CORE = Path(str(tokendraw.__file__)).parent
FILES = {
    path.relative_to(CORE).as_posix(): path.read_text(encoding="utf-8")
    for path in CORE.rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}


def test_few_files_outside_of_the_operations_mention_verify():
    """The faces and the loaded objects."""
    mentioning = {name for name, text in FILES.items() if "verify" in text.lower()}
    assert len({name for name in mentioning if not name.startswith("operations/")}) <= 6


@pytest.mark.parametrize("operation", operations.RECORDS)
@pytest.mark.fast_first
def test_nothing_branches_on_the_name_of_an_operation(operation):
    comparison = re.compile(rf"""([!=]=|\bin|\bcase)\s*\(?["']{operation}["']|["']{operation}["']\s*[!=]=""")
    assert [name for name, text in FILES.items() if comparison.search(text)] == []


@pytest.mark.parametrize("operation", operations.RECORDS)
def test_the_registry_names_the_record_of_an_operation(operation):
    record = operations.find_operation(operation)
    assert record.name == operation
    assert record in operations.each()
