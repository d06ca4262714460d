"""The distributions of the workspace: one version, requirements on each other, metadata, wheels, the last release."""

import json
import os
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import budgets
import distributions
import pages
import tokendraw
from pages import ROOT
from tokendraw import errors
from tokendraw.tools import FIRST_PARTY

PROJECTS = distributions.projects()
MANIFESTS = {manifest["name"]: manifest for manifest in map(distributions.manifest, PROJECTS)}
VERSION = distributions.version()
PYTHONS = [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)]

needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the files that git has")
by_name = pytest.mark.parametrize("name", sorted(MANIFESTS))


def all_requirements(manifest):
    """All requirements of a distribution, those of extras included."""
    lists = [manifest["dependencies"], *manifest.get("optional-dependencies", {}).values()]
    return [line for lines in lists for line in lines]


def test_the_lists_of_distributions_agree():
    workspace = tomllib.loads(pages.text_of("pyproject.toml"))["tool"]["uv"]
    assert set(workspace["sources"]) == set(MANIFESTS)
    folders = {distributions.manifest(path)["name"]: f"./{path.relative_to(ROOT)}" for path in PROJECTS}
    assert folders == errors._FOLDERS
    assert all(
        "html" in MANIFESTS[f"tokendraw-{name}"]["optional-dependencies"] for name in ("testing", "bench")
    )


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_the_version_of_each_distribution_is_the_core_s(project):
    assert tokendraw.__version__ == VERSION
    table = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))
    if "version" in table["project"].get("dynamic", ()):
        path = project / table["tool"]["hatch"]["version"]["path"]
        assert path.resolve() == ROOT / distributions.VERSION_FILE
    else:
        assert table["project"]["version"] == VERSION


@by_name
def test_requirements_among_distributions_are_of_this_version_or_later(name):
    own = [line for line in all_requirements(MANIFESTS[name]) if line.startswith("tokendraw")]
    for requirement in map(Requirement, own):
        assert str(requirement.specifier) == f">={VERSION}"
        assert requirement.extras <= set(MANIFESTS[requirement.name].get("optional-dependencies", {}))


def test_ci_runs_every_python_with_the_oldest_and_the_newest_upstream():
    """The oldest versions come from the manifests, the newest from the Makefile."""
    workflow = pages.text_of(".github/workflows/ci.yml")
    pythons = re.findall(r'"3\.(\d+)"', re.search(r"python: \[(.*)\]", workflow)[1])
    assert [f"Programming Language :: Python :: 3.{minor}" for minor in pythons] == PYTHONS
    oldest, pinned, newest = re.findall(r"^ +- (torch\S* triton\S* transformers\S*)", workflow, re.MULTILINE)
    lines = [line for manifest in MANIFESTS.values() for line in all_requirements(manifest)]
    for requirement, version in zip(oldest.split(), pinned.split(), strict=True):
        name, lowest = requirement.removesuffix(".*").split("==")
        assert any(line.startswith(f"{name}>={lowest}") for line in lines)
        constraint = re.search(rf"^{name}(==|>=).*", pages.text_of("constraints.txt"), re.MULTILINE)[0]
        assert version.removesuffix(".*").partition("==")[2] in constraint
    assert newest.split() == ["torch", "triton", "transformers"]


# Built files: of `make dist` where DIST names its folder, else of native alone.


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder of sdists and wheels."""
    if "DIST" in os.environ:
        return Path(os.environ["DIST"])
    folder = tmp_path_factory.mktemp("distributions")
    tree = distributions.export(distributions.tracked_files(), folder / "tree")
    native = tree / "plugins/native"
    distributions.point_to_repository(native, tree)
    assert distributions.build([native], folder / "dist") == {}
    return folder / "dist"


@pytest.mark.slow
@needs_git
class TestBuiltFiles:
    """Every assertion is of every wheel."""

    @pytest.fixture
    def wheels(self, dist):
        """Content of each wheel by the name of the distribution: text or bytes by path."""
        found = {}
        for path in sorted(dist.glob("*.whl")):
            with zipfile.ZipFile(path) as archive:
                found[path.name.split("-")[0].replace("_", "-")] = {
                    name: archive.read(name) for name in archive.namelist()
                }
        return found

    def test_every_distribution_is_there_as_sdist_and_as_wheel(self, dist, wheels):
        names = set(MANIFESTS) if "DIST" in os.environ else {"tokendraw-native"}
        assert set(wheels) == names
        sdists = {
            path.name.removesuffix(f"-{VERSION}.tar.gz").replace("_", "-") for path in dist.glob("*.gz")
        }
        assert sdists == names

    def test_a_wheel_holds_its_package_and_nothing_else(self, wheels):
        """Of compiled code the wheel has libraries too."""
        for name, files in wheels.items():
            package = name.replace("-", "_")
            source = (
                ROOT / next(path for path in PROJECTS if distributions.manifest(path)["name"] == name) / "src"
            )
            tracked = distributions.git("ls-files", str(source)).splitlines()
            expected = {str((ROOT / path).relative_to(source)) for path in tracked}
            info = f"{package}-{VERSION}.dist-info/"
            found = {path for path in files if not path.startswith(info)}
            assert expected <= found
            assert all(path.endswith((".so", ".pyd", ".dylib")) for path in found - expected)
            assert f"{package}/py.typed" in found
            assert {f"{info}METADATA", f"{info}WHEEL", f"{info}RECORD", f"{info}licenses/LICENSE"} <= set(
                files
            )
            assert files[f"{info}licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()

    def test_an_sdist_holds_what_its_project_has(self, dist):
        for path in dist.glob("*.tar.gz"):
            with tarfile.open(path) as archive:
                tops = {name.split("/")[1] for name in archive.getnames()}
            assert {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "src"} <= tops
            assert not tops & {"tests", "dist", "build", ".venv"}


@pytest.mark.slow
@needs_git
def test_plugins_of_the_last_release_draw_with_this_core(tmp_path):
    """Before the first release: today's plugins, built under another version. `make dist` compiles the one for CPUs."""
    tree = distributions.export_last_release(tmp_path / "tree")
    plugins = [path for path in distributions.projects(tree) if path.parent.name == "plugins"]
    plugins = [path for path in plugins if path.name != "cpu"]
    failures = distributions.build(plugins, tmp_path / "wheels", "--wheel")
    for wheel in (tmp_path / "wheels").iterdir():
        zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    site, version = tmp_path / "site", distributions.version(tree)
    built = {distributions.manifest(path)["name"] for path in plugins} - set(failures)
    assert version != VERSION

    listed = json.loads(pages.run_with(site, "tokendraw", "list", "--json").stdout)["candidates"]
    assert {row["distribution"] for row in listed} == built
    assert {row["version"] for row in listed} == {version}
    assert {row["state"] for row in listed} <= {"available", "unavailable"}

    command = ("tokendraw", "check", "native", "--quick", "--only", "seeds at the edges", "--jobs", "1")
    checked = pages.run_with(site, *command, SMALLEST_KIT="1")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert f"tokendraw {VERSION}, tokendraw-native {version}, torch" in checked.stdout


def test_the_extra_all_brings_every_plugin():
    extras = MANIFESTS["tokendraw"]["optional-dependencies"]
    named = " ".join(extras["all"])
    brings = {name: "engine-ops" if name.startswith("ops-") else name for name in FIRST_PARTY}
    assert [name for name, extra in brings.items() if extra not in named] == []


@needs_git
def test_the_changelog_names_every_release_newest_first_and_what_is_next():
    text, released = (
        pages.text_of("CHANGELOG.md"),
        {tag.removeprefix("v") for tag in distributions.release_tags()},
    )
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    dated = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", heading) for heading in headings[1:]]
    assert (headings[0], None in dated) == ("[Unreleased]", False)
    sections = [match[1] for match in dated if match]
    assert sections == sorted(sections, key=Version, reverse=True)
    assert released <= {*sections} <= released | {VERSION} or not released
    assert VERSION in released or all(Version(VERSION) > Version(each) for each in released)
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## [")[0]
    assert VERSION in sections or "\n- " in unreleased
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds
    assert {"Unreleased", *sections} <= set(re.findall(r"^\[(.+)\]: https://", text, re.MULTILINE))


def test_a_room_above_its_budget_and_a_file_in_no_room_are_named(tmp_path, capsys):
    path = tmp_path / "budgets.toml"
    path.write_text('[rooms]\nrest = { folders = ["release"], lines = 10, files = 2 }\n')
    assert budgets.main(path) == 1
    lines, files = (f"'rest' may have {budget}, found " for budget in ("10 lines", "2 files"))
    said = capsys.readouterr().err.splitlines()
    assert (said[0].startswith(lines), said[1].startswith(files)) == (True, True)
    assert "'core/src/tokendraw/__init__.py' is in no room of budgets.toml. Move it." in said


def test_a_command_to_install_names_the_checkout_until_there_is_an_index(monkeypatch):
    pip_install, how_to_install = errors.pip_install, errors.how_to_install
    upgrade = pip_install("tokendraw", options="--upgrade")
    assert (upgrade, errors.where("tokendraw")) == (
        "pip install --upgrade ./core",
        " in tokendraw's checkout",
    )
    assert how_to_install("tokendraw", "files") == "`pip install './core[files]'` in tokendraw's checkout"
    assert how_to_install("tokendraw-native") == "`pip install ./plugins/native` in tokendraw's checkout"
    assert how_to_install("acme-tokendraw") == "`pip install acme-tokendraw`"
    monkeypatch.setattr(errors, "_ON_AN_INDEX", True)
    assert pip_install("tokendraw", options="--upgrade") == "pip install --upgrade tokendraw"
    assert how_to_install("tokendraw", "files") == "`pip install 'tokendraw[files]'`"
    assert how_to_install("tokendraw-native") == "`pip install tokendraw-native`"


def test_no_other_text_tells_users_to_install_tokendraw_by_name():
    told = {
        str(path.relative_to(ROOT)): line
        for part in ("core/src", "testing", "bench", "plugins", "integrations", "docs", "README.md")
        for path in ([ROOT / part] if "." in part else (ROOT / part).rglob("*"))
        if path.suffix in (".py", ".md", ".template")
        for line in re.findall(r"pip install (?:-\S+ )*['\"]?tokendraw.*", path.read_text(encoding="utf-8"))
    }
    assert told == {}
