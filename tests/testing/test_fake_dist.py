"""``tokendraw_testing.fake_dist`` writes the files of an installer and refuses wrong arguments."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import importlib_metadata
import pytest

from tokendraw_testing import fake_dist


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_distribution_is_metadata_entry_points_and_dedented_modules(tmp_path: Path) -> None:
    source = """
        import os

        plugin = os
    """
    folder = fake_dist(
        tmp_path, "acme-tokendraw", "2.1", plugins={"acme": "fake:plugin"}, modules={"fake": source}
    )
    assert folder == tmp_path / "acme-tokendraw-2.1"
    assert files(folder) == {
        "acme_tokendraw-2.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-tokendraw\nVersion: 2.1\n",
        "acme_tokendraw-2.1.dist-info/entry_points.txt": "[tokendraw.plugins]\nacme = fake:plugin\n",
        "fake.py": "\nimport os\n\nplugin = os\n",
    }


def test_the_written_files_are_an_installed_distribution(tmp_path: Path) -> None:
    folder = fake_dist(tmp_path, "acme-tokendraw", plugins={"acme": "fake:plugin"})
    (result,) = importlib_metadata.distributions(path=[str(folder)])
    assert (result.name, result.version) == ("acme-tokendraw", "1.0")
    (entry_point,) = result.entry_points.select(group="tokendraw.plugins")
    assert (entry_point.name, entry_point.value) == ("acme", "fake:plugin")


def test_modules_in_packages_get_their_packages(tmp_path: Path) -> None:
    modules = {"acme.deep.kernels": "X = 1", "acme": "Y = 2", "other": "Z = 3"}
    folder = fake_dist(tmp_path, "acme-tokendraw", modules=modules)
    sources = {name: text for name, text in files(folder).items() if name.endswith(".py")}
    assert sources == {
        "acme/__init__.py": "Y = 2",
        "acme/deep/__init__.py": "",
        "acme/deep/kernels.py": "X = 1",
        "other.py": "Z = 3",
    }


def test_metadata_can_be_given_and_left_out(tmp_path: Path) -> None:
    given = fake_dist(tmp_path, "acme", metadata="Name: {name}\nSummary: {braces} {version}\n", where="given")
    assert files(given) == {"acme-1.0.dist-info/METADATA": "Name: acme\nSummary: {braces} 1.0\n"}
    assert files(fake_dist(tmp_path, "acme", metadata=None, where="left out")) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"name": "../acme"},
            "'name' needs a distribution's name, found '../acme'. Use letters, digits and dots.",
        ),
        ({"version": "1/2"}, "'version' needs a version, found '1/2'. Use letters, digits and dots."),
        (
            {"plugins": {"a=b": "fake:plugin"}},
            "'plugins' needs names of entry points, found 'a=b'. Use letters and dashes.",
        ),
        (
            {"plugins": {"acme": ""}},
            "'acme' in 'plugins' needs one line of text, found ''. Write module:object.",
        ),
        (
            {"plugins": {"acme": 3}},
            "'acme' in 'plugins' needs one line of text, found 3. Write module:object.",
        ),
        (
            {"modules": {"fake.py/": ""}},
            "'modules' needs names that can be imported, found 'fake.py/'. Use an identifier.",
        ),
        (
            {"modules": {"class": ""}},
            "'modules' needs names that can be imported, found 'class'. Use an identifier.",
        ),
    ],
)
def test_a_slip_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="needs") as error:
        fake_dist(tmp_path, **{"name": "acme"} | options)
    assert str(error.value) == message
    assert list(tmp_path.iterdir()) == []


def test_the_same_distribution_twice_needs_another_folder(tmp_path: Path) -> None:
    folder = fake_dist(tmp_path, "acme")
    with pytest.raises(FileExistsError) as error:
        fake_dist(tmp_path, "acme")
    info = str(folder / "acme-1.0.dist-info")
    assert str(error.value) == f"'acme' 1.0 needs a new folder, found {info!r}. Pass where=."
    fake_dist(tmp_path, "acme", where="again")


def test_it_needs_the_standard_library_alone() -> None:
    code = "import sys, tokendraw_testing.fake_distributions\nprint({'torch', 'numpy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
