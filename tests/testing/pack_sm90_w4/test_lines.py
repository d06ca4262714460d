"""The kit's lines on packers with one planted bug each, and on native."""

from mutants import subject_of
from mutants.packers import EVERYTHING, PACKERS, PackerMutant
from tokendraw.plugin import Sm90W4Capabilities
from tokendraw_testing import Status, properties, run

LINES = [prop.name for prop in properties("pack_sm90_w4")]


def subject(bug=PackerMutant, capabilities=EVERYTHING):
    return subject_of("pack_sm90_w4", capabilities, bug)


def statuses(report):
    return {line.name: line.status for line in report.lines}


def test_every_line_is_green_without_a_bug_and_red_with_a_bug():
    assert statuses(run(subject())) == dict.fromkeys(LINES, Status.PASSED)
    assert {line for mutant in PACKERS for line in mutant.lines} | {"pack threads"} == set(LINES)


def test_a_red_line_names_the_first_byte_that_is_wrong():
    (line,) = PACKERS[1].look()
    assert line.detail == "fp4, v2, [1, 64, 64]: byte [0, 0, 1] needs to be 0xae, found 0x2e"


def test_unadvertised_formats_are_refused():
    result = run(subject(capabilities=Sm90W4Capabilities(formats=("fp4",), layouts=("v1",))))
    green = {
        "pack weights fp4 v1",
        "pack scales v1",
        "pack inputs unmodified",
        "pack empty",
        "pack new tensors",
        "pack threads",
    }
    assert statuses(result) == {name: Status.PASSED if name in green else Status.REFUSED for name in LINES}
    reasons = {line.name: line.detail.partition(",")[0] for line in result.lines}
    assert reasons["pack weights fp4 v2"] == "'PackerMutant' cannot serve the layout v2"
    assert reasons["pack round trips"] == "'PackerMutant' cannot serve unpacking"
