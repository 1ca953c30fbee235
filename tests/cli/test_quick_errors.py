"""Mistakes in paths, options and column names are answered before torch is imported, which takes seconds."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from dspp.errors import InputError
from dspp.gp.kernels import KERNELS
from dspp.table.messages import closest

RUN = """
import contextlib, io, json, sys
import dspp.cli

answers = []
for line in sys.stdin:
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        try:
            dspp.cli.app(json.loads(line))
        except SystemExit as done:
            code = done.code
    answers.append([code, text.getvalue(), "torch" in sys.modules])
print(json.dumps(answers))
"""
FIT = "--target price --out m.dspp"
MISTAKES = {
    f"fit none.csv {FIT}": "none.csv: the file does not exist; check the path",
    f"fit t.txt {FIT}": "t.txt: expected a file name ending in one of .csv",
    f"fit empty.csv {FIT}": "empty.csv: expected a table, got an empty file",
    "fit t.csv --target price --out no/m.dspp": "no/m.dspp: the folder no does not exist; create it first",
    "fit t.csv --target price --out t.csv": "t.csv is both an input and --out",
    f"fit t.csv {FIT} --report no/r.html": "the folder no does not exist",
    f"fit t.csv {FIT} --report r.pdf": "r.pdf: expected a file name ending in .html or .htm, as a report is a web page",
    f"tune t.csv {FIT} --report report": "report: expected a file name ending in .html or .htm",
    "fit t.csv --target Price --out m.dspp": "expected a column 'Price' (--target); did you mean 'price'?",
    "fit t.csv --target prise --out m.dspp": "expected a column 'prise' (--target); did you mean 'price'?",
    "fit t.csv --target Y --out m.dspp": "expected a column 'Y' (--target); did you mean 'y'?",
    "fit t.csv --target zzz --out m.dspp": "expected a column 'zzz' (--target), got 'size', 'y', 'price'",
    "fit wide.csv --target zzz --out m.dspp": "'c4', 'c5', 'c6', 'c7', 'c8', 'c9' and 3 more",
    "fit t.csv --target size,price --out m.dspp": "got 'size,price'; pass --target size --target price",
    f"fit https://example.org/t.csv {FIT}": "expected a file on this machine, got an address; download it first",
    "predict any.dspp . --out p.csv": "expected a file, got a folder; pass one of its files",
    f"fit t.csv {FIT} --encoding klingon": "--encoding: expected a text encoding such as utf-8, latin-1 or utf-16, got",
    "fit t.parquet --target PRICE --out m.dspp": "expected a column 'PRICE' (--target); did you mean 'price'?",
    f"fit words.csv {FIT}": "column 'price': expected numbers to predict, got 2 classes ('high', 'low')",
    f"fit flat.csv {FIT}": "column 'price': expected a target that varies, got 1 in all 2 rows",
    f"fit t.csv {FIT} --drop siez": "expected a column 'siez' (--drop); did you mean 'size'?",
    f"fit t.csv {FIT} --validation none.csv": "none.csv: the file does not exist",
    f"fit t.csv {FIT} --validation other.csv": "other.csv: expected a column 'price' (--target)",
    f"fit t.csv {FIT} --kernel rbg": "unknown kernel 'rbg'; choose one of: matern12",
    f"fit t.csv {FIT} --model dspq": "unknown preset 'dspq'; choose one of: bpdgp",
    f"fit t.csv {FIT} --likelihood poisson": "unknown likelihood 'poisson'; choose one of: auto, gaussian",
    f"fit t.csv {FIT} --schedule slow": "unknown schedule 'slow'; choose one of: ",
    f"fit t.csv {FIT} --layers 0": "--layers: expected a whole number of at least 1, got 0",
    f"fit t.csv {FIT} --epochs 0": "--epochs: expected a whole number of at least 1, got 0",
    f"fit t.csv {FIT} --features 10,x": "--features: expected layer sizes such as 100,50, got '10,x'",
    f"fit t.csv {FIT} --time-budget soon": "--time-budget: expected a duration such as 90s",
    f"fit t.csv {FIT} --validation-fraction 2": "--validation-fraction: expected a number in [0, 1)",
    f"fit t.csv {FIT} --trials 3": "--trials is an option of --tune",
    f"fit t.csv {FIT} --memory much": "--memory: expected a size such as 4GB or 500MB, got 'much'",
    "predict none.dspp t.csv --out p.csv": "none.dspp: the file does not exist; check the path",
    "predict t.csv t.csv --out p.csv": "t.csv was not written by dspp, or it is damaged",
    "predict any.dspp none.csv --out p.csv": "none.csv: the file does not exist",
    "predict any.dspp t.csv --out p.xlsx": "p.xlsx: expected a file name ending in one of .csv",
    "predict any.dspp t.csv --out no/p.csv": "the folder no does not exist",
    "predict any.dspp t.csv --out any.dspp": "cannot overwrite an input",
    "predict any.dspp t.csv --out p.csv --keep Size": "expected a column 'Size' (--keep); did you mean 'size'?",
    "predict any.dspp t.csv --out p.csv --interval 90%": "got 90%; use --interval 0.9",
    "predict any.dspp t.csv --out p.csv --quantiles 2": "--quantiles: expected",
    "predict any.dspp t.csv --out p.csv --above nan": "--above: expected a finite number, got nan",
    "evaluate none.dspp t.csv": "none.dspp: the file does not exist",
    "evaluate any.dspp none.csv": "none.csv: the file does not exist",
    "evaluate any.dspp t.csv --report no/r.html": "the folder no does not exist",
    "evaluate any.dspp t.csv --report r.PDF": "r.PDF: expected a file name ending in .html or .htm",
    "info none.dspp": "none.dspp does not exist; check the path",
    "info pipe": "pipe is a pipe, not a file; check the path",
    "predict pipe t.csv --out p.csv": "pipe is a pipe, not a file; check the path",
    "predict any.dspp t.csv --out pipe.csv --overwrite": "pipe.csv: expected a regular file, got a pipe",
    "predict any.dspp t.csv --out /dev/null --overwrite": "/dev/null: expected a regular file, got a device",
    "fit t.csv --target price --out pipe --overwrite": "pipe: expected a regular file, got a pipe",
    "fit t.csv --target price --out /dev/null": "/dev/null: expected a regular file, got a device",
    f"fit t.csv {FIT} --report pipe --overwrite": "pipe: expected a regular file, got a pipe",
    f"tune t.csv {FIT} --study pipe": "pipe: expected a regular file, got a pipe",
    "evaluate any.dspp t.csv --report pipe --overwrite": "pipe: expected a regular file, got a pipe",
    "info t.csv": "t.csv was not written by dspp, or it is damaged",
    "demo --folder .": "expected an empty folder",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, bool]]:
    """The exit code and the message of each mistake, and whether torch was imported by then, from one process."""
    folder = tmp_path_factory.mktemp("quick")
    (folder / "t.csv").write_text("size,y,price\n1,2,3\n4,5,6\n")
    (folder / "wide.csv").write_text(",".join(f"c{i}" for i in range(13)) + "\n" + ",".join("1" * 13) + "\n")
    (folder / "t.txt").write_text("size,price\n1,2\n")
    (folder / "other.csv").write_text("size,y\n1,2\n")
    (folder / "words.csv").write_text("size,price\n1,low\n2,high\n3,low\n4,low\n")
    (folder / "flat.csv").write_text("size,price\n1,1\n2,1\n")
    (folder / "empty.csv").write_text("")
    pq.write_table(pa.table({"size": [1.0, 2.0], "price": [3.0, 4.0]}), folder / "t.parquet")
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "pipe.csv")
    save_file({}, folder / "any.dspp", metadata={"dspp": "{}"})  # begins like a model; its rest is not read
    lines = "\n".join(json.dumps(command.split()) for command in MISTAKES)
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},  # whose entries may be relative to another folder
    )
    return dict(zip(MISTAKES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_answered_without_torch(command: str, answers: dict[str, tuple[int, str, bool]]) -> None:
    code, text, torch = answers[command]
    assert code == 2
    assert text.startswith("dspp: ")
    assert MISTAKES[command] in text
    assert not torch


def test_the_test_above_can_fail() -> None:
    """Torch is noticed once it is imported: a model that is opened for real needs it."""
    script = RUN.replace("import dspp.cli", "import dspp.cli, torch")
    done = subprocess.run([sys.executable, "-c", script], input='["info", "x"]', capture_output=True, text=True)
    assert json.loads(done.stdout)[0][2] is True


def test_unknown_names_are_refused_alike_by_the_command_line_and_the_registry(
    answers: dict[str, tuple[int, str, bool]],
) -> None:
    with pytest.raises(InputError) as by_registry:
        KERNELS["rbg"]
    assert answers[f"fit t.csv {FIT} --kernel rbg"][1] == f"dspp: --kernel: {by_registry.value}\n"


def test_the_closest_name() -> None:
    names = ["Price", "size in m2", "y", "price"]
    assert closest("PRICE", names) == "Price"
    assert closest("Y", names) == "y"
    assert closest("size_in_m2", names) == "size in m2"
    assert closest("colour", names) is None
