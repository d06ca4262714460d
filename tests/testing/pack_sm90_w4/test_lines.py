"""The kit's lines on packers with one planted bug each, and on native."""

import pytest

from mutants import subject_of
from mutants.packers import EVERYTHING, PACKERS, PackerMutant
from tokendraw.plugin import Sm90W4Capabilities
from tokendraw_testing import Status, properties, run

LINES = [prop.name for prop in properties("pack_sm90_w4")]


def subject(bug=PackerMutant, capabilities=EVERYTHING):
    return subject_of("pack_sm90_w4", capabilities, bug)


def statuses(report):
    return {line.name: line.status for line in report.lines}


@pytest.mark.slow
def test_every_line_is_green_without_a_bug_and_red_with_a_bug():
    assert statuses(run(subject())) == dict.fromkeys(LINES, Status.PASSED)
    assert {line for mutant in PACKERS for line in mutant.lines} | {"pack threads"} == set(LINES)


def test_a_red_line_names_the_first_byte_that_is_wrong():
    (line,) = PACKERS[1].look()
    assert line.detail == "fp4, v2, [1, 64, 64]: byte [0, 0, 0] needs to be 0x88, found 0x08"


def test_unadvertised_formats_are_refused():
    result = run(subject(capabilities=Sm90W4Capabilities(formats=("fp4",), layouts=("v1",))))
    refused = {"pack round trips"}
    assert statuses(result) == {n: Status.REFUSED if n in refused else Status.PASSED for n in LINES}
    details = {line.name: line.detail.partition(", which")[0] for line in result.lines}
    assert (
        details["pack weights"] == "fp4 v1: 4 shapes; 4 refusals: 'PackerMutant' cannot serve the layout v2"
    )
    assert details["pack scales"] == "v1: 4 shapes; 1 refusals: 'PackerMutant' cannot serve the layout v2"
    assert details["pack round trips"] == "'PackerMutant' cannot serve unpacking"
