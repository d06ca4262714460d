"""Install wheels as a user does, draw and check with them, upgrade to them and remove them, without an index.

``python release/proof.py WHEELS DEPENDENCIES LAST_RELEASE``, folders of wheels of tokendraw, of others and of
tokendraw's last release, works in a new environment outside of the checkout and writes ``sbom.cdx.json``, the software
bill of materials of all distributions, beside the wheels.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

PACKAGES = "tokendraw[native,triton-gumbel]"
GENERATE = (
    'tokendraw generate "The import statement" --temperature 0.7 --top-k 40 --top-p 0.9 --seed 42 '
    "--tokens 24 --quiet"
)


class Environment:
    """A virtual environment with a pip that knows wheels in folders alone; the folder is the home of all commands."""

    def __init__(self, folder: Path, dependencies: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._dependencies = dependencies
        venv.create(folder, with_pip=True)
        own = ("PIP_", "PYTHON", "TOKENDRAW_")
        self._variables = {name: text for name, text in os.environ.items() if not name.startswith(own)} | {
            "HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_CACHE_DIR": "1",
        }

    def run(self, line: str, prefix: str = "") -> str:
        """Print and run a command; print and return the lines of its stdout that begin with ``prefix``."""
        print(f"\n$ {line}", flush=True)
        start = time.monotonic()
        command = shlex.split(line)
        result = subprocess.run(
            command, cwd=self.folder, env=self._variables, stdout=subprocess.PIPE, text=True, check=False
        )
        lines = [line for line in result.stdout.splitlines(keepends=True) if line.startswith(prefix)]
        print(*lines, sep="", end="")
        print(f"[exit code {result.returncode}, {time.monotonic() - start:.1f} s]", flush=True)
        if result.returncode:
            sys.exit(1)
        return "".join(lines)

    def install(self, wheels: Path, packages: str) -> None:
        """Install or upgrade packages from two folders of wheels."""
        links = f"--no-index --find-links {wheels} --find-links {self._dependencies}"
        self.run(f"pip install --quiet --upgrade {links} {packages}")

    def remove(self) -> None:
        """Uninstall tokendraw's distributions, and fail where a path of the environment still names tokendraw."""
        self.run(f"pip uninstall --quiet --yes {' '.join(self._installed())}")
        left = [str(path) for path in self.folder.rglob("*") if "tokendraw" in path.name]
        print("left of tokendraw:", *(left or ["nothing"]))
        if left:
            sys.exit(1)

    def require(self, version: str) -> None:
        """Fail unless all installed distributions of tokendraw have the version ``version``."""
        installed = self._installed()
        if set(installed.values()) != {version}:
            sys.exit(f"needs tokendraw's distributions in version {version} alone, found {installed}")

    def _installed(self) -> dict[str, str]:
        lines = self.run("pip list --format freeze", prefix="tokendraw").splitlines()
        return dict(line.split("==") for line in lines)


def main() -> None:
    """Run all steps; exit with 1 at the first that fails."""
    wheels, dependencies, last_release = (Path(folder).resolve() for folder in sys.argv[1:])
    version = next(wheels.glob("tokendraw-*.whl")).name.split("-")[1]
    with tempfile.TemporaryDirectory(prefix="proof-") as folder:
        environment = Environment(Path(folder, "environment"), dependencies)
        environment.install(wheels, PACKAGES)
        environment.run("tokendraw list")
        environment.run(GENERATE)
        environment.install(wheels, "tokendraw[testing]")
        environment.run("tokendraw check native --quick --only 'seeds at the edges' --only 'near ties'")

        names = {path.name.partition("-")[0].replace("_", "-") for path in wheels.glob("*.whl")}
        environment.install(wheels, " ".join(sorted(names)))
        environment.run("pip check")
        environment.require(version)
        bill = wheels / "sbom.cdx.json"
        options = f"--output-reproducible --mc-type library --output-file {bill}"
        environment.run(f"{sys.executable} -m cyclonedx_py environment {options} {environment.python}")
        environment.remove()

        environment.install(last_release, PACKAGES)
        environment.run("tokendraw --version")
        environment.install(wheels, PACKAGES)
        environment.require(version)
        environment.run("tokendraw list")
        environment.remove()


if __name__ == "__main__":
    main()
