"""Build every distribution of the workspace from the files that git has, twice, and compare the two builds.

``python release/distributions.py dist`` writes sdists, wheels and ``SHA256SUMS`` into ``dist``, and
``python release/distributions.py --last-release FOLDER`` wheels of the last release into ``FOLDER``.
"""

import argparse
import hashlib
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = "core/src/tokendraw/_version.py"


def projects(tree: Path = ROOT) -> list[Path]:
    """Return the folders of all distributions: the members of the workspace in ``pyproject.toml``, sorted."""
    workspace = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["tool"]["uv"]["workspace"]
    return sorted(
        path.parent for member in workspace["members"] for path in tree.glob(f"{member}/pyproject.toml")
    )


def manifest(project: Path) -> dict[str, Any]:
    """Return the table ``project`` of a distribution's ``pyproject.toml``."""
    table: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def build_requirements() -> list[str]:
    """Return what the builds of all distributions need."""
    manifests = [tomllib.loads((path / "pyproject.toml").read_text("utf-8")) for path in projects()]
    return sorted({need for one in manifests for need in one["build-system"]["requires"]})


def dependencies() -> list[str]:
    """Return what all distributions depend on without extras, themselves left out."""
    needs = {need for project in projects() for need in manifest(project)["dependencies"]}
    return sorted(need for need in needs if not need.startswith("tokendraw"))


def version(tree: Path = ROOT) -> str:
    """Return the one version of all distributions."""
    return (tree / VERSION_FILE).read_text("utf-8").split('"')[1]


def git(*arguments: str) -> str:
    """Run git in the checkout; return stdout without white space at its ends."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout.strip()


def release_tags() -> list[str]:
    """Return the tags of releases, ``v`` and a version, newest first."""
    return git("tag", "--list", "v[0-9]*", "--sort=-version:refname").split()


def last_release() -> str | None:
    """Return the tag of the newest release but today's version; None before the first."""
    return next((tag for tag in release_tags() if tag != f"v{version()}"), None)


def tracked_files() -> str:
    """Return a commit of the files that git tracks as they are now, edits that are not committed included."""
    return git("stash", "create") or "HEAD"


def export(commit: str, tree: Path) -> Path:
    """Write the files of a commit into the folder ``tree``; return ``tree``."""
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=archive, check=True)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as files:
            files.extractall(tree, filter="data")
    return tree


def export_last_release(tree: Path) -> Path:
    """Write the files of the last release into ``tree``. Before the first release: today's commit as version 0.0.0."""
    tag = last_release()
    export(tag or tracked_files(), tree)
    if tag is None:
        old = version(tree)
        for path in [tree / VERSION_FILE, *(project / "pyproject.toml" for project in projects(tree))]:
            path.write_text(path.read_text("utf-8").replace(old, "0.0.0"), "utf-8")
    return tree


def point_to_repository(project: Path, tree: Path) -> None:
    """Make relative links of a README lead to the tagged files of the repository: an index shows the README alone."""
    page = project / "README.md"
    files = f"{manifest(project)['urls']['Repository']}/blob/v{version(tree)}"
    folder = project.relative_to(tree).as_posix()

    def absolute(link: re.Match[str]) -> str:
        path, hash_sign, heading = link[1].partition("#")
        return f"]({files}/{posixpath.normpath(f'{folder}/{path}')}{hash_sign}{heading})"

    page.write_text(re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", absolute, page.read_text("utf-8")), "utf-8")


def build(
    folders: Iterable[Path], output: Path, *options: str, umask: int = 0o022, **variables: str
) -> dict[str, str]:
    """Build the distributions in ``folders`` into ``output``; return the last lines printed by each that fails.

    A distribution that fails, as one with compiled code does without a compiler, leaves the others alone.
    """
    epoch = git("log", "-1", "--format=%ct")
    failures = {}
    for project in folders:
        print("building", manifest(project)["name"], flush=True)
        # -P: modules of this folder stay out of the builds.
        command = [sys.executable, "-P", "-m", "build", "--no-isolation", *options]
        result = subprocess.run(
            [*command, "--outdir", str(output), str(project)],
            env={"SOURCE_DATE_EPOCH": epoch} | os.environ | variables,
            umask=umask,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        if result.returncode:
            failures[manifest(project)["name"]] = (
                " ".join(result.stdout.split("\n")[-4:]).strip() or "no output"
            )
    return failures


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each sdist and wheel in ``folder``, by the file's name."""
    files = sorted(path for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz")))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def build_twice(output: Path) -> int:
    """Build into ``output`` and into a second folder, compare, write ``SHA256SUMS``; return an exit status."""
    commit = tracked_files()
    with tempfile.TemporaryDirectory() as folder:
        trees = [export(commit, Path(folder, name)) for name in ("first", "elsewhere/second")]
        for tree in trees:
            for project in projects(tree):
                point_to_repository(project, tree)
        failures = build(projects(trees[0]), output)
        # Another path, umask, time zone and order of sets.
        again = Path(folder, "again")
        build(projects(trees[1]), again, umask=0o077, TZ="Asia/Kathmandu", PYTHONHASHSEED="1")
        first, second = hashes(output), hashes(again)
    (output / "SHA256SUMS").write_text("".join(f"{first[name]}  {name}\n" for name in first), "utf-8")
    different = [name for name in first if second.get(name) != first[name]]
    for name in different:
        print(f"not reproducible: {name}: {first[name]}, {second.get(name)}")
    for name, line in failures.items():
        print(f"not built: {name}: {line}")
    print(f"{len(first)} files in {output}, {len(first) - len(different)} equal in two builds")
    return 1 if different else 0


def main() -> int:
    """Run the command that the arguments name; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--last-release", action="store_true", help="build wheels of the last release alone")
    parser.add_argument("--requirements", action="store_true", help="print what the builds need, and stop")
    parser.add_argument(
        "--dependencies", action="store_true", help="print what the wheels need of others, and stop"
    )
    parser.add_argument("output", type=Path, nargs="?", default=ROOT / "dist")
    arguments = parser.parse_args()
    if arguments.requirements:
        print(*build_requirements(), sep="\n")
        return 0
    if arguments.dependencies:
        print(*dependencies(), sep="\n")
        return 0
    shutil.rmtree(arguments.output, ignore_errors=True)
    if not arguments.last_release:
        return build_twice(arguments.output)
    with tempfile.TemporaryDirectory() as folder:
        tree = export_last_release(Path(folder))
        failures = build(projects(tree), arguments.output, "--wheel")
    for name, line in failures.items():
        print(f"not built: {name}: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
