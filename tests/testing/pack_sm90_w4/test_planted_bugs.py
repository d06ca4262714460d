"""The kit on packers with one bug each: the line that one would expect turns red, and none does on native."""

import pytest

import planted_packing_bugs as planted
import planted_races
from tokendraw.plugin import Sm90W4Capabilities
from tokendraw_testing import Subject, properties, run
from tokendraw_testing.kit.report import Status

EVERYTHING = Sm90W4Capabilities(formats=("fp4", "int4", "fp4_fp8"), layouts=("v1", "v2"), unpacks=True)
LINES = [prop.name for prop in properties("pack_sm90_w4")]
PLANTED = {
    planted.NibblesStay: "pack weights fp4 v1",
    planted.OneSignIsLost: "pack weights fp4 v2",
    planted.BytesForUnits: "pack weights int4",
    planted.SignsStay: "pack weights fp4_fp8",
    planted.ScalesByGroup: "pack scales v1",
    planted.ScalesByRow: "pack scales v2",
    planted.UnpacksByPacking: "pack round trips",
    planted.OneLayoutBack: "pack v1 to v2",
    planted.InPlace: "pack inputs unmodified",
    planted.AtLeastOneExpert: "pack empty",
    planted.OneBuffer: "pack new tensors",
    planted_races.OneScratchForWeights: "pack threads",
}


def subject(bug, capabilities=EVERYTHING):
    return Subject(
        bug.__name__,
        capabilities={"pack_sm90_w4": capabilities},
        device="cpu",
        build=lambda operation, need: bug(),
    )


def statuses(report):
    return {line.name: line.status for line in report.lines}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_turns_its_line_red(bug):
    (found,) = run(subject(bug), only=PLANTED[bug]).lines
    assert found.status is Status.FAILED, found
    assert "a call raised" not in found.detail  # red for its bug, not for a slip of this suite


def test_every_line_is_green_without_a_bug_and_has_one_that_turns_it_red():
    assert statuses(run(subject(planted.Honest))) == dict.fromkeys(LINES, Status.PASSED)
    assert set(PLANTED.values()) == set(LINES)


def test_a_red_line_names_the_first_byte_that_is_wrong():
    (found,) = run(subject(planted.OneSignIsLost), only="pack weights fp4 v2").lines
    assert found.detail == "fp4, v2, [1, 64, 64]: byte [0, 0, 1] needs to be 0xae, found 0x2e"


def test_what_is_not_advertised_is_refused_and_a_conversion_needs_both_layouts():
    found = run(subject(planted.Honest, Sm90W4Capabilities(formats=("fp4",), layouts=("v1",))))
    green = {
        "pack weights fp4 v1",
        "pack scales v1",
        "pack inputs unmodified",
        "pack empty",
        "pack new tensors",
        "pack threads",
    }
    assert statuses(found) == {
        name: Status.PASSED if name in green else Status.REFUSED for name in LINES if name != "pack v1 to v2"
    }
    reasons = {line.name: line.detail.partition(",")[0] for line in found.lines}
    assert reasons["pack weights fp4 v2"] == "'Honest' cannot serve the layout v2"
    assert reasons["pack round trips"] == "'Honest' cannot serve unpacking"
