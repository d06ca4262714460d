"""``tokendraw check --filter``: the complete output, keys, exit codes and refusals."""

import json
import re

import importlib_metadata
import pytest

import tokendraw
from command_line import call
from fake_dists import fake_dists
from tokendraw_testing.filter_check import line_names

HEADING = (
    f"native on cpu: tokendraw {tokendraw.__version__}, "
    f"tokendraw-native {importlib_metadata.version('tokendraw-native')}, "
    f"torch {importlib_metadata.version('torch')}\n\n"
)
FLAT = """
from tokendraw.filters import Filter

class Acme(Filter):
    '''Keep the largest.'''

    name = "acme"
    moments = ("std",)

    def floor(self, moments, value):
        return value * moments.std
"""


def check(*arguments):
    return call("check", "--filter", *arguments, "--device", "cpu", "--quick")


@pytest.fixture
def acme(tmp_path, monkeypatch):
    with fake_dists(tmp_path, monkeypatch) as dists:
        dists.add("acme-filters", filters={"acme": "acme_filters:Acme"}, modules={"acme_filters": FLAT})
        yield


def test_a_green_run_has_a_line_a_property():
    result = check("p_less", "native", "--only", "form of the floor", "--only", "no waiting")
    assert result.stdout.replace(" in 2.5 s", "") == "p_less with " + HEADING + (
        "property           status  draws  p-value  what was looked at\n"
        "form of the floor  passed                  12 rows, 1, 2 and none, on cpu\n"
        "no waiting         passed                  moments without values, and a call on cpu\n"
        "\n"
        "2 passed, 0 failed, 0 refused, 0 not run.\n"
        f"{re.findall('Quick run.*', result.stdout)[0]}\n"
    )
    assert (result.stderr, result.exit_code) == ("", 0)


@pytest.mark.usefixtures("acme")
def test_a_red_run_tells_the_line_of_the_filter_and_how_to_see_it_again():
    result = check("acme", "--value", "0.5", "--only", "no waiting", "--only", "reach", "--seed", "7")
    assert result.stdout.partition("\n\nreach\n")[2].partition("\n\n1 passed")[0] == (
        "  demanded  Some value keeps more than the largest token of a row and drops others.\n"
        "  found     the floor of 'acme' needs to keep several tokens and to drop others in some row, found all kept "
        "or the largest alone in 12 rows; name values by --value if these are not the filter's\n"
        "\n"
        "Again: tokendraw check --filter acme --device cpu --quick --value 0.5 --seed 7 --only reach"
    )
    assert result.exit_code == 1


def test_json_has_the_keys_of_a_sampler_s_report_and_those_of_the_filter():
    result = check("p_less", "--only", "reach", "--json")
    found = json.loads(result.stdout)
    (listed,) = [f for f in json.loads(call("list", "--json").stdout)["filters"] if f["name"] == "p_less"]
    (native,) = [c for c in json.loads(call("list", "--json").stdout)["candidates"] if c["name"] == "native"]
    assert (found.pop("filter"), found.pop("candidate")) == (listed, native)
    assert [line["name"] for line in found.pop("lines")] == ["reach"]
    assert {key: found.pop(key) for key in ("host", "elapsed", "seconds")}
    assert found == {
        "schema_version": 1,
        "error": None,
        "command": "tokendraw check --device cpu --filter p_less --quick --only reach --json",
        "sampler": "native",
        "samplers": ["native"],
        "values": [1.0],
        "device": "cpu",
        "tokendraw": tokendraw.__version__,
        "torch": importlib_metadata.version("torch"),
        "quick": True,
        "seed": 0,
        "only": ["reach"],
        "gumbel_dtype": None,
        "heavy_imports": [],
        "passed": True,
        "false_alarm": pytest.approx(1e-6),
        "jobs": 1,
        "missed": [],
    }
    assert (result.stderr, result.exit_code) == ("", 0)


def test_the_list_names_the_lines_of_a_sampler():
    names = line_names(["native"])
    width = max(map(len, names))
    result = check("p_less", "native", "--list")
    assert result.stdout.splitlines() == [f"{name:{width}}  {about}" for name, about in names.items()]
    assert json.loads(check("p_less", "native", "--list", "--json").stdout)["properties"][0] == {
        "name": "form of the floor",
        "about": "``floor`` returns [rows] float32 on the device of the moments, for any number of rows, and changes "
        "none.",
    }
