"""The kit checks a third operation by its folder of properties alone."""

from pathlib import Path

import pytest

import tokendraw_testing
from fake_dists import ONE_OF_THE_OPERATIONS, add_scaler, fake_dists, third_operation
from tokendraw import InvalidParameterError, SamplerUnavailableError, operations
from tokendraw_testing import Status, Subject, run

FOLDER = Path(__file__).parents[1] / "fakes" / "scale_rooms" / "testing"
NAMES = ["scale products", "scale inputs unmodified", "scale sync-free"]


@pytest.fixture
def dists(tmp_path, monkeypatch):
    with third_operation(tmp_path, monkeypatch), fake_dists(tmp_path, monkeypatch) as result:
        monkeypatch.setattr(tokendraw_testing, "__path__", [*tokendraw_testing.__path__, str(FOLDER)])
        yield result


class Scaler:
    def scale(self, rows, factor):
        return rows * factor


class InPlace:
    def scale(self, rows, factor):
        return rows.mul_(factor)


def subject(scaler):
    offered = operations.find_operation("scale").capabilities()
    return Subject(
        "acme", capabilities={"scale": offered}, device="cpu", build=lambda operation, need: scaler
    )


def statuses(report):
    return [(line.name, line.status) for line in report.lines]


def test_new_properties_follow_the_known_properties_and_are_listed_alone(dists):
    assert [prop.name for prop in tokendraw_testing.properties("scale")] == NAMES
    assert [prop.name for prop in tokendraw_testing.properties()][-3:] == NAMES


def test_a_correct_provider_is_green_and_unadvertised_calls_are_refused_in_words(dists):
    report = run(subject(Scaler()))
    assert statuses(report) == [
        (NAMES[0], Status.PASSED),
        (NAMES[1], Status.PASSED),
        (NAMES[2], Status.REFUSED),
    ]
    assert report.lines[2].detail == (
        "'acme' cannot serve the operation 'scale' on cpu: the request needs sync-free calls, found no such promise. "
        "Nothing else is available here; run `pip install ./plugins/native` in tokendraw's checkout. Leave out "
        "sampler= to let tokendraw choose."
    )


def test_a_planted_bug_turns_a_single_line_red(dists):
    report = run(subject(InPlace()))
    (failed,) = report.failed
    assert (failed.name, failed.detail) == (NAMES[1], "rows need to stay as they are, found them changed")


def test_an_installed_plugin_that_offers_nothing_else_is_checked(dists):
    add_scaler(dists)
    report = run(Subject.installed("acme", device="cpu"))
    assert [line.name for line in report.lines] == NAMES
    assert report.passed


def test_properties_can_be_chosen_by_operation(dists):
    add_scaler(dists)
    result = Subject.installed("acme", device="cpu")
    assert statuses(run(result, operation="scale", only=NAMES[0])) == [(NAMES[0], Status.PASSED)]
    assert run(result, operation="verify").lines == ()
    with pytest.raises(InvalidParameterError) as error:
        run(result, operation="verify", only=NAMES[0])
    assert str(error.value).startswith("'only' needs the name of a property, found 'scale products'.")


def test_an_operation_without_a_folder_has_no_properties(dists, monkeypatch):
    monkeypatch.setitem(operations.FOLDERS, "shift", "scale_operation")
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
