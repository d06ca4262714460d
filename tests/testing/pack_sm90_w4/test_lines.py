"""The kit on packers with one bug each: the line that one would expect turns red, and none does on native."""

from mutants.packers import EVERYTHING, PACKERS, PackerMutant
from tokendraw.plugin import Sm90W4Capabilities
from tokendraw_testing import Status, Subject, properties, run

LINES = [prop.name for prop in properties("pack_sm90_w4")]


def subject(bug=PackerMutant, capabilities=EVERYTHING):
    return Subject(
        bug.__name__,
        capabilities={"pack_sm90_w4": capabilities},
        device="cpu",
        build=lambda operation, need: bug(),
    )


def statuses(report):
    return {line.name: line.status for line in report.lines}


def test_every_line_is_green_without_a_bug_and_has_one_that_turns_it_red():
    assert statuses(run(subject())) == dict.fromkeys(LINES, Status.PASSED)
    assert {line for mutant in PACKERS for line in mutant.lines} | {"pack threads"} == set(LINES)


def test_a_red_line_names_the_first_byte_that_is_wrong():
    (found,) = PACKERS[1].look()
    assert found.detail == "fp4, v2, [1, 64, 64]: byte [0, 0, 1] needs to be 0xae, found 0x2e"


def test_what_is_not_advertised_is_refused_and_a_conversion_needs_both_layouts():
    found = run(subject(capabilities=Sm90W4Capabilities(formats=("fp4",), layouts=("v1",))))
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
    assert reasons["pack weights fp4 v2"] == "'PackerMutant' cannot serve the layout v2"
    assert reasons["pack round trips"] == "'PackerMutant' cannot serve unpacking"
