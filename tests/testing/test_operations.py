"""The kit's lines by operation, and plugins that offer a single one."""

import pytest

import tokendraw_testing
from fake_dists import ONE_OF_THE_OPERATIONS, deadly
from tokendraw import InvalidParameterError, SamplerUnavailableError, operations
from tokendraw_testing import Status, Subject, run


def test_lines_of_an_operation_are_listed_alone_and_all_in_the_order_of_operations():
    listed = [prop.name for name in operations.RECORDS for prop in tokendraw_testing.properties(name)]
    assert [prop.name for prop in tokendraw_testing.properties()] == listed
    assert {prop.operation for prop in tokendraw_testing.properties("score")} == {"score"}


def test_an_installed_plugin_of_a_single_operation_is_checked_by_its_lines(dists):
    dists.add_plugin("acme", deadly(operations=("process_logits",)))
    subject = Subject.installed("acme", device="cpu", quick=True)
    (line,) = run(subject, operation="process_logits", only="process crossing").lines
    assert line.status is Status.PASSED
    assert run(subject, operation="verify").lines == ()
    with pytest.raises(InvalidParameterError) as error:
        run(subject, operation="verify", only="process crossing")
    assert str(error.value).startswith("'only' needs the name of a property, found 'process crossing'.")


def test_an_operation_without_a_folder_has_no_lines(monkeypatch):
    monkeypatch.setitem(operations.RECORDS, "shift", operations.RECORDS["score"])
    assert tokendraw_testing.properties("shift") == ()


def test_an_unknown_operation_is_refused_with_the_known_operations():
    with pytest.raises(InvalidParameterError) as error:
        tokendraw_testing.properties("scale")
    assert str(error.value) == (
        f"'operation' needs {ONE_OF_THE_OPERATIONS}, found 'scale'. Pass one of these."
    )


def test_a_plugin_that_is_not_installed_cannot_be_checked():
    with pytest.raises(SamplerUnavailableError) as error:
        Subject.installed("scaler", device="cpu")
    assert str(error.value) == "'scaler' cannot be checked on cpu: no plugin of that name is installed."
