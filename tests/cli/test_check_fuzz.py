"""``tokendraw check --fuzz``: the complete output, and the command that repeats a finding."""

import json
import re
import shlex

import importlib_metadata
import pytest

import tokendraw
from command_line import call, screen
from fake_dists import deadly, fake_dists
from tokendraw_testing.commands import matrix_lines
from tokendraw_testing.commands.matrix_lines import print_matrix
from tokendraw_testing.kit import fuzz
from tokendraw_testing.kit.fuzz_report import FuzzFinding, FuzzReport, first_of_each_sort
from tokendraw_testing.kit.matrix import Place, places

HEADING = (
    f"native on cpu: tokendraw {tokendraw.__version__}, "
    f"tokendraw-native {importlib_metadata.version('tokendraw-native')}, "
    f"torch {importlib_metadata.version('torch')}\n\n"
)
SMALL = Place("sample", "float32", 1 << 10, "seeded")
WIDE = SMALL._replace(up_to=None)
WRONG = FuzzFinding(operation="sample", number=17, detail="token 5 needs a draw, found token 6", times=3)
RAISED = FuzzFinding(
    operation="verify",
    number=40,
    detail="a call raised RuntimeError: no kernel",
    traceback='  File "/acme/sampler.py", line 31, in sample\n    return draw(logits)\n',
)


@pytest.fixture
def reports(monkeypatch):
    """``reports(*findings)``: random cases report the findings; returns the calls."""
    calls = []

    def find(*findings, checks=0):
        def run(subject, seconds, *, operation=None, jobs=1, progress=None):
            calls.append((subject, seconds, operation, jobs))
            return FuzzReport(
                sampler=subject.name,
                device=str(subject.device),
                quick=subject.effort.quick,
                seed=subject.seed,
                cases={"sample": 1200, "verify": 34},
                left_out=("another_thing",),
                checks=checks,
                findings=findings,
                looked=((SMALL, 5000),),
                places=(SMALL, WIDE),
                jobs=jobs,
                elapsed=60.25,
            )

        monkeypatch.setattr(fuzz, "fuzz", run)
        return calls

    return find


def check(*arguments):
    return call("check", *arguments, "--device", "cpu")


CASES = (
    "operation      cases  findings\n"
    "sample         1,200  {}\n"
    "verify         34     {}\n"
    "another_thing         not looked at: the kit has no random cases of it\n"
    "\n"
    "sample: rows looked at in 1 of 2 places (s seeded)\n"
    "                              float32\n"
    "ids in the vocabulary, up to  1K  more\n"
    "random cases                  s   .\n"
)


def test_a_finding_stands_with_the_command_that_repeats_it(reports):
    reports(WRONG, RAISED)
    result = check("native", "--fuzz", "60", "--jobs", "1", "--gumbel-dtype", "fp64")
    assert result.stdout == screen("a finding stands with the command that repeats it")
    assert result.exit_code == 1


def test_of_many_findings_some_are_printed(reports):
    reports(*(FuzzFinding(operation="sample", number=n, detail="w" * n) for n in range(23)))
    result = check("native", "--fuzz", "9", "--jobs", "1")
    assert "sample, case 19\n" in result.stdout
    assert "sample, case 20\n" not in result.stdout
    assert "\n3 more findings are in the output of --json.\n23 findings in 1,234 cases.\n" in result.stdout


def test_findings_that_differ_in_numbers_alone_are_one():
    details = ["id 5 needs 1.5e-05, found -2", "id 71 needs 3, found -inf", "id 6 needs -1, found 7.25"]
    found = [FuzzFinding(operation="sample", number=9 - n, detail=detail) for n, detail in enumerate(details)]
    bfloat16, float16 = (
        FuzzFinding(operation="sample", number=1, detail=f"{d} is wrong") for d in ("bfloat16", "float16")
    )
    kept = first_of_each_sort([*found, bfloat16, float16])
    assert [(finding.number, finding.detail, finding.times) for finding in kept] == [
        (1, "bfloat16 is wrong", 1),
        (1, "float16 is wrong", 1),
        (7, details[2], 2),
        (8, details[1], 1),
    ]


class TestAFinding:
    """A plugin that edits nothing at all at vocabularies of 300 ids, and cases without anything made up."""

    @pytest.fixture(autouse=True)
    def acme(self, tmp_path, monkeypatch):
        with fake_dists(tmp_path, monkeypatch) as dists:
            dists.add_plugin("acme", deadly(in_process="logits.shape[1] == 300", death="return logits"))
            yield

    @pytest.mark.slow
    def test_it_is_repeated_by_its_command(self):
        result = check("acme", "--fuzz", "2", "--jobs", "1", "--json", "--quick")
        assert result.exit_code == 1
        finding = json.loads(result.stdout)["findings"][0]
        program, *arguments = shlex.split(finding["again"])
        assert program == "tokendraw"
        again = call(*arguments, "--json")
        assert again.exit_code == 1
        (same,) = json.loads(again.stdout)["findings"]
        assert {**same, "times": 0} == {**finding, "times": 0}


def test_kept_sets_are_counted_by_operation_and_way():
    result = call("check", "native", "--device", "cpu", "--kept-sets", "--fuzz-case", "0:1")
    assert result.exit_code == 0
    assert result.stdout.startswith(HEADING + "way ")
    assert re.search(r"^verify: p +\d+ +0 +\d+ +1 *$", result.stdout, re.MULTILINE)
    assert re.search(r"^0 of \d+ rows wrong, in 1 batches\.$", result.stdout, re.MULTILINE)


def test_without_findings_it_says_how_much_it_looked_at(reports):
    calls = reports(checks=2000)
    result = check("native", "--fuzz", "60", "--quick", "--jobs", "2", "--operation", "sample", "--seed", "7")
    assert result.stdout == HEADING + CASES.format(0, 0) + (
        "\nNo findings in 1,234 cases.\nQuick sizes, seed 7, 60.2 s in 2 processes.\n"
        "By chance, the 2,000 statistics of a correct sampler give a finding in at most one such run in 500,000.\n"
    )
    assert (result.stderr, result.exit_code) == ("", 0)
    ((subject, *given),) = calls
    assert (given, subject.seed, subject.effort.quick) == ([60.0, "sample", 2], 7, True)


# Places without a look.


DTYPES = ("float32", "bfloat16", "float16")
SAMPLE = places(["sample"], DTYPES, None, ("greedy", "seeded", "unseeded"))


def place(dtype, up_to, kind, call="sample"):
    return Place(call, dtype, up_to, kind)


LINES = [
    ("greedy rows", ((place("float32", 1024, "greedy"), 5), (place("bfloat16", 131072, "greedy"), 1))),
    ("output", ((place("float32", 1024, "unseeded"), 9), (place("float16", None, "seeded"), 2))),
    ("sync-free", ()),
]


def test_a_line_has_a_letter_where_it_looked_and_dots_where_it_did_not(capsys):
    print_matrix(LINES, SAMPLE)
    assert capsys.readouterr().out == (
        screen("a line has a letter where it looked and dots where it did not")
    )


def test_a_narrow_terminal_gets_the_dtypes_below_each_other(capsys, monkeypatch):
    monkeypatch.setattr(matrix_lines, "console_width", lambda: 60)
    print_matrix(LINES[:1], SAMPLE)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[2:])) <= 60
    assert [line.strip() for line in lines[2::3]] == list(DTYPES)


def test_calls_are_counted_apart_and_one_that_nobody_made_says_so(capsys):
    both = places(["verify rejection", "verify coupled"], ["float16"], 1000, ["greedy", "unseeded"])
    print_matrix([("verify output", ((place("float16", 1024, "greedy", "verify rejection"), 3),))], both)
    assert capsys.readouterr().out == (screen("calls are counted apart and one that nobody made says so"))
