"""An operation is one folder and one line of the registry: the rest of the core does not know its name."""

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


def of(operation):
    """Return the folders of an operation."""
    return (f"operations/{operation}/", f"testing/{operation}/")


def test_few_files_outside_the_folders_of_verify_mention_verify():
    """The faces, the registry, the sampler and the bench."""
    mentioning = {name for name, text in FILES.items() if "verify" in text.lower()}
    assert len({name for name in mentioning if not name.startswith(of("verify"))}) <= 7


@pytest.mark.parametrize("operation", operations.FOLDERS)
@pytest.mark.fast_first
def test_nothing_branches_on_the_name_of_an_operation(operation):
    comparison = re.compile(rf"""([!=]=|\bin|\bcase)\s*\(?["']{operation}["']|["']{operation}["']\s*[!=]=""")
    assert [name for name, text in FILES.items() if comparison.search(text)] == []


@pytest.mark.parametrize("operation", operations.FOLDERS)
def test_the_record_of_an_operation_is_in_the_folder(operation):
    record = operations.find_operation(operation)
    assert record.name == operation
    assert operations.FOLDERS[operation] in ("tokendraw.edits", f"tokendraw.operations.{operation}")
    assert record in operations.each()
