"""``tokendraw check --fuzz``: the complete output, and the command that repeats a finding."""

import json
import re
import shlex

import importlib_metadata
import pytest

import tokendraw
from command_line import call
from fake_dists import deadly, fake_dists
from tokendraw_testing.kit import fuzz
from tokendraw_testing.kit.fuzz_report import FuzzFinding, FuzzReport, first_of_each_sort
from tokendraw_testing.kit.matrix import Place

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


def test_without_findings_it_says_how_much_it_looked_at(reports):
    calls = reports(checks=2000)
    result = check("native", "--fuzz", "60", "--quick", "--jobs", "2", "--operation", "sample", "--seed", "7")
    assert result.stdout == HEADING + CASES.format(0, 0) + (
        "\n"
        "No findings in 1,234 cases.\n"
        "Quick sizes, seed 7, 60.2 s in 2 processes.\n"
        "By chance, the 2,000 statistics of a correct sampler give a finding in at most one such run in 500,000.\n"
    )
    assert (result.stderr, result.exit_code) == ("", 0)
    ((subject, *given),) = calls
    assert given == [60.0, "sample", 2]
    assert (subject.seed, subject.effort.quick) == (7, True)


def test_a_finding_stands_with_the_command_that_repeats_it(reports):
    reports(WRONG, RAISED)
    result = check("native", "--fuzz", "60", "--jobs", "1", "--gumbel-dtype", "fp64")
    assert result.stdout == HEADING.replace(" on cpu:", " on cpu, fp64 noise:") + CASES.format(1, 1) + (
        "\n"
        "sample, case 17\n"
        "  found  token 5 needs a draw, found token 6\n"
        "  times  3, which differ in numbers alone\n"
        "  Again: tokendraw check native --device cpu --gumbel-dtype fp64 --operation sample --fuzz-case 0:17\n"
        "\n"
        "verify, case 40\n"
        "  found      a call raised RuntimeError: no kernel\n"
        '  raised in    File "/acme/sampler.py", line 31, in sample\n'
        "                 return draw(logits)\n"
        "  Again: tokendraw check native --device cpu --gumbel-dtype fp64 --operation verify --fuzz-case 0:40\n"
        "\n"
        "2 findings in 1,234 cases.\n"
        "Full sizes, seed 0, 60.2 s.\n"
    )
    assert result.exit_code == 1


def test_json_is_complete(reports):
    reports(WRONG)
    result = check("native", "--fuzz", "9", "--jobs", "1", "--json")
    found = json.loads(result.stdout)
    assert {"candidate", "host"} <= found.keys()
    assert {key: value for key, value in found.items() if key not in ("candidate", "host")} == {
        "schema_version": 1,
        "error": "1 finding in 1,234 cases.",
        "command": "tokendraw check native --device cpu --jobs 1 --fuzz 9.0 --json",
        "sampler": "native",
        "device": "cpu",
        "tokendraw": tokendraw.__version__,
        "torch": importlib_metadata.version("torch"),
        "quick": False,
        "seed": 0,
        "gumbel_dtype": None,
        "heavy_imports": [],
        "passed": False,
        "false_alarm": 0.0,
        "jobs": 1,
        "elapsed": 60.25,
        "cases": {"sample": 1200, "verify": 34},
        "left_out": ["another_thing"],
        "checks": 0,
        "looked": [{**SMALL._asdict(), "rows": 5000}],
        "missed": [WIDE._asdict()],
        "findings": [
            {
                "operation": "sample",
                "number": 17,
                "detail": WRONG.detail,
                "traceback": "",
                "times": 3,
                "again": "tokendraw check native --device cpu --operation sample --fuzz-case 0:17",
            }
        ],
    }
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

    @pytest.mark.slow
    def test_a_case_that_is_right_is_no_finding(self):
        right = next(n for n in range(20) if check("acme", "--quick", "--fuzz-case", f"3:{n}").exit_code == 0)
        result = check("acme", "--quick", "--fuzz-case", f"3:{right}")
        assert re.search(r"No findings in \d+ cases?\.\nQuick sizes, seed 3, ", result.stdout)


def test_kept_sets_are_counted_by_operation_and_way():
    result = call("check", "native", "--device", "cpu", "--kept-sets", "--fuzz-case", "0:1")
    assert result.exit_code == 0
    assert result.stdout.startswith(HEADING + "way ")
    assert re.search(r"^verify: p +\d+ +0 +\d+ +1 *$", result.stdout, re.MULTILINE)
    assert re.search(r"^0 of \d+ rows wrong, in 1 batches\.$", result.stdout, re.MULTILINE)
