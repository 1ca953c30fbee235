"""Check an sdist and a wheel: their contents, and the wheel in a clean environment outside of the repository.

The environment has only what `pip install dspp` installs, so that a library that is needed but not declared is missed
here. Then the extras for reports and searches are added.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
TORCH = "torch==2.13.0"  # its CPU build is found by plain pip
NEEDED = ("py.typed", "gp/moments.cpp", "report/page.html", "report/page.css")  # read when the package runs
METADATA = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
BESIDE = ("CHANGELOG.md", "CITATION.cff", "LICENSE", "NOTATION.md", "README.md", "constraints.txt", "pyproject.toml")
GENERATED = (".gitignore", "PKG-INFO")  # in every sdist of hatchling
NO_REPORT = "run pip install 'dspp[report]'"


def main(folder: Path) -> None:
    """Check the only wheel and the only sdist of a folder."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_contents(wheel, sdist)
    with tempfile.TemporaryDirectory(prefix="dspp-release-") as place:
        try_out(wheel.resolve(), Path(place))


def check_contents(wheel: Path, sdist: Path) -> None:
    """Check that both have every file of the package and nothing else, such as tests, results or data."""
    sources = ROOT / "src" / "dspp"
    package = {p.relative_to(sources).as_posix() for p in sources.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert package >= set(NEEDED), set(NEEDED) - package
    name, version = wheel.name.split("-")[:2]
    with zipfile.ZipFile(wheel) as file:
        expected = {f"dspp/{p}" for p in package} | {f"{name}-{version}.dist-info/{p}" for p in METADATA}
        compare(wheel, {info.filename for info in file.infolist() if not info.is_dir()}, expected)
    with tarfile.open(sdist) as file:
        expected = {f"src/dspp/{p}" for p in package} | {*BESIDE, *GENERATED}
        found = {member.name.removeprefix(f"{name}-{version}/") for member in file.getmembers() if member.isfile()}
        compare(sdist, found, expected)


def compare(archive: Path, found: set[str], expected: set[str]) -> None:
    """Raise if an archive lacks a file or has one too many."""
    if found != expected:
        lacking, further = sorted(expected - found), sorted(found - expected)
        sys.exit(f"{archive.name}: expected the files of the package, lacks {lacking}, has {further} too")
    print(f"{archive.name}: {len(found)} files, {archive.stat().st_size / 1e3:,.0f} kB")


def try_out(wheel: Path, place: Path) -> None:
    """Install the wheel into a new environment and use it there, far from the repository."""
    begin = time.monotonic()
    venv.create(place / "venv", with_pip=True)
    python, dspp = (str(place / "venv" / "bin" / name) for name in ("python", "dspp"))

    def run(*command: str, quiet: bool = False) -> str:
        print(f"$ {' '.join(command)}".replace(f"{place}/", "").replace(f"{ROOT}/", ""), flush=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}exit code {done.returncode}")
        print("" if quiet else done.stdout, end="", flush=True)
        return done.stdout

    install = (python, "-m", "pip", "install", "--disable-pip-version-check", "-c", str(CONSTRAINTS))
    run(*install, TORCH, str(wheel), quiet=True)
    for library in ("matplotlib", "optuna", "pandas", "polars"):  # or the environment is not as small as it should be
        run(python, "-c", f"from importlib.util import find_spec; assert find_spec({library!r}) is None")
    print(f"installed after {time.monotonic() - begin:.0f} s")
    demo = run(dspp, "demo", "--folder", "demo")
    assert NO_REPORT in demo, "the demo should say that it left out the report"
    run(python, "-I", str(ROOT / "release" / "smoke.py"))
    run(*install, f"{wheel}[report,tune]", quiet=True)
    run(dspp, "evaluate", "demo/model.dspp", "demo/test.csv", "--report", "report.html")
    assert "<svg" in (place / "report.html").read_text(encoding="utf-8")
    search = ("--trials", "2", "--epochs", "2", "--inducing", "8")
    run(dspp, "tune", "small.csv", "--target", "price", "--out", "tuned.dspp", *search)
    print(f"{wheel.name} works in a clean environment ({time.monotonic() - begin:.0f} s)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
