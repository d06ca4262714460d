"""Build every distribution of the workspace from the files that git has, twice, and compare the two builds.

``python release/distributions.py build FOLDER`` writes sdists, wheels and ``SHA256SUMS``, ``last-release FOLDER``
wheels of the last release; ``requirements`` prints what the builds need, ``dependencies`` what the wheels need of
others, and ``version`` the one version of all.
"""

import hashlib
import io
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


def settings(project: Path) -> dict[str, Any]:
    """Return the content of a folder's ``pyproject.toml``."""
    return tomllib.loads((project / "pyproject.toml").read_text("utf-8"))


def projects(tree: Path = ROOT) -> list[Path]:
    """Return the folders of all distributions: the members of the workspace in ``pyproject.toml``, sorted."""
    members = settings(tree)["tool"]["uv"]["workspace"]["members"]
    return sorted(path.parent for member in members for path in tree.glob(f"{member}/pyproject.toml"))


def manifest(project: Path) -> Any:
    """Return the table ``project`` of a distribution's ``pyproject.toml``."""
    return settings(project)["project"]


def version(tree: Path = ROOT) -> str:
    """Return the one version of all distributions."""
    return (tree / VERSION_FILE).read_text("utf-8").split('"')[1]


def git(*arguments: str) -> str:
    """Run git in the checkout; return stdout without white space at its ends."""
    return subprocess.check_output(["git", *arguments], cwd=ROOT, encoding="utf-8").strip()


def release_tags() -> list[str]:
    """Return the tags of releases, ``v`` and a version, newest first."""
    return git("tag", "--list", "v[0-9]*", "--sort=-version:refname").split()


def tracked_files() -> str:
    """Return a commit of the tracked files as they are now, with edits since the last commit."""
    return git("stash", "create") or "HEAD"


def export(commit: str, tree: Path) -> Path:
    """Write the files of a commit into the folder ``tree``; return ``tree``."""
    archive = subprocess.check_output(["git", "archive", commit], cwd=ROOT)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tree, filter="data")
    return tree


def export_last_release(tree: Path) -> Path:
    """Write the files of the last release into ``tree``. Before the first release: today's commit as version 0.0.0."""
    tag = next((tag for tag in release_tags() if tag != f"v{version()}"), None)
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
    """Build the distributions in ``folders`` into ``output``; print and return the last lines of each that fails.

    A distribution that fails, as one with compiled code does without a compiler, leaves the others alone.
    """
    environment = {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")} | os.environ | variables
    failures = {}
    for project in folders:
        name = manifest(project)["name"]
        print("building", name, flush=True)
        # -P: modules of this folder stay out of the builds.
        command = [sys.executable, "-P", "-m", "build", "--no-isolation", *options, "--outdir", str(output)]
        result = subprocess.run(
            [*command, str(project)],
            env=environment,
            umask=umask,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        if result.returncode:
            failures[name] = " ".join(result.stdout.split("\n")[-4:]).strip() or "no output"
    for name, lines in failures.items():
        print(f"not built: {name}: {lines}")
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
        build(projects(trees[0]), output)
        # Another path, umask, time zone and order of sets.
        again = Path(folder, "again")
        build(projects(trees[1]), again, umask=0o077, TZ="Asia/Kathmandu", PYTHONHASHSEED="1")
        first, second = hashes(output), hashes(again)
    (output / "SHA256SUMS").write_text("".join(f"{first[name]}  {name}\n" for name in first), "utf-8")
    different = [name for name in first if second.get(name) != first[name]]
    for name in different:
        print(f"not reproducible: {name}: {first[name]}, {second.get(name)}")
    print(f"{len(first)} files in {output}, {len(first) - len(different)} equal in two builds")
    return 1 if different else 0


def main(command: str, folder: str = "") -> int:
    """Run a command; return its exit status."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    if command == "build":
        return build_twice(Path(folder))
    if command == "last-release":
        with tempfile.TemporaryDirectory() as tree:
            build(projects(export_last_release(Path(tree))), Path(folder), "--wheel")
        return 0
    lists = {
        "requirements": [settings(path)["build-system"]["requires"] for path in projects()],
        "dependencies": [manifest(path)["dependencies"] for path in projects()],
        "version": [[version()]],
    }[command]
    print(*sorted({need for needs in lists for need in needs if not need.startswith("tokendraw")}), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
