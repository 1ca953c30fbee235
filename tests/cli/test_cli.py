"""The command line: a table in, distributions out, one clear line for whatever cannot be used."""

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from dspp import DSPPRegressor, load
from dspp.cli import app
from dspp.cli.options import duration, probabilities, sizes
from dspp.errors import DsppWarning, InputError
from dspp.metrics import describe_scores
from dspp.numbers import number as text_of
from dspp.prepare import split_rows
from dspp.settings import Settings
from dspp.table.files import open_table, write_table
from tests.modelfile.test_modelfile import with_header

TINY = shlex.split("--members 1 --inducing 8 --width 2 --epochs 3 --restarts 1")
# As if typed: Ctrl-C is not ignored, also where the tests run in the background.
MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import dspp.cli; dspp.cli.main()"


def dspp(*args: object) -> Any:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def done(*args: object) -> str:
    """What a command prints that ends well, having complained about nothing."""
    result = dspp(*args)
    assert (result.exit_code, result.stderr) == (0, "")
    return str(result.stdout)


def refused(*args: object) -> str:
    """The one line with which a command refuses what it was given."""
    result = dspp(*args)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("dspp: ")
    return str(result.stderr)


def refused_late(*args: object) -> str:
    """As `refused`, after the description of the table."""
    result = dspp(*args)
    assert result.exit_code == 2, result.output
    return str(result.stderr)


def spawn(*args: object, **how: Any) -> "subprocess.Popen[bytes]":
    """Run a command in a process of its own, its output on pipes."""
    command = [sys.executable, "-c", MAIN, *map(str, args)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | how.pop("env", {})
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **how)


# ---------------------------------------------------------------- a messy table


def messy(path: Path, num_rows: int, seed: int) -> Path:
    """Names, towns, dates and gaps, as people keep them."""
    rng = np.random.default_rng(seed)
    lines = ["name,town,size,sold,garden,price"]
    for i in range(num_rows):
        town, size = rng.choice(["Oslo", "Rome", "Paris"]), rng.normal(100, 20)
        price = 2 * size + {"Oslo": 50, "Rome": 0, "Paris": 20}[town] + rng.normal(0, 5)
        sold = date(2024, 1, 1) + timedelta(days=int(rng.integers(300)))
        cells = [f"house {i}", town, "NA" if i % 7 == 3 else f"{size:.2f}", sold, ["yes", "no", ""][i % 3]]
        lines.append(",".join(map(str, [*cells, "" if i % 25 == 24 else f"{price:.3f}"])))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def train(folder: Path) -> Path:
    return messy(folder / "train.csv", 150, seed=0)


@pytest.fixture(scope="module")
def test_file(folder: Path) -> Path:
    return messy(folder / "test.csv", 50, seed=1)


@pytest.fixture(scope="module")
def fitted(train: Path, folder: Path) -> tuple[Path, str]:
    """A model, and what `fit` printed."""
    out = folder / "model.dspp"
    return out, done("fit", train, "--target", "price", "--out", out, *TINY)


@pytest.fixture(scope="module")
def model(fitted: tuple[Path, str]) -> Path:
    return fitted[0]


def csv_file(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def odd_types(folder: Path) -> Path:
    """A model of columns whose types a few rows do not show: long numbers, times of day, and codes such as 01."""
    rng = np.random.default_rng(0)
    lines = ["id,clock,code,x,y"]
    for i in range(60):
        code, x = ["01", "02", "X1", "NA"][i % 4], rng.normal()
        lines.append(f"{9007199254740000 + 17 * i},{i % 24:02}:30,{code},{x:.3f},{5 * (code == '01') + x:.3f}")
    out = folder / "odd.dspp"
    done("fit", csv_file(folder / "odd.csv", lines), "--target", "y", "--out", out, *TINY)
    return out


def read(path: Path) -> dict[str, Any]:
    table = open_table(path).read().arrow
    return {name: table[name].to_numpy() for name in table.column_names}


def inputs(path: Path) -> pa.Table:
    return open_table(path).read().arrow.drop(["price"])


# ---------------------------------------------------------------- fit


def test_fit_says_what_it_reads_and_how_good_the_model_is(fitted: tuple[Path, str], train: Path) -> None:
    out, text = fitted
    known = load(out).fitted_
    for part in (
        f"{train}: 150 rows, 6 columns",
        "predicting  price",
        "from        2 categories, 1 number, 1 datetime; 1 left out",
        "rows        130 for training, 14 for choosing the best epoch",
        "dspp: 2 layers, width 2, 8 inducing points, 3 epochs",
        "note: 6 rows without a target left out",
        "note: column 'name' is left out",
        "Scores on 14 rows",
        text_of(known.metrics["nll"]),
        "% of 14 rows.",  # the verdict
        f"Model:  {out}",
        f"Next:   dspp predict {out} new.csv",
    ):
        assert part in text, part
    assert known.num_rows == 130
    assert not list(out.parent.glob("*checkpoint*"))


def test_fit_makes_the_model_that_python_makes(model: Path, train: Path, test_file: Path) -> None:
    table = open_table(train).read().arrow
    table = table.filter(table["price"].is_valid())
    own = DSPPRegressor(members=1, inducing=8, width=2, epochs=3, restarts=1)
    own.fit(table.drop(["price"]), table.select(["price"]))
    np.testing.assert_array_equal(load(model).predict(inputs(test_file)), own.predict(inputs(test_file)))


def test_fit_takes_every_kind_of_setting(train: Path, tmp_path: Path) -> None:
    out, val = tmp_path / "m.dspp", messy(tmp_path / "val.csv", 30, seed=2)
    settings = "--model nn+dspp --features 6,4 --layers 3 --kernel rbf --rule qr1 --sites 2 --topology mean-from-input"
    more = "--beta 0.3 --epochs 2 --batch-size 40 --learning-rate 0.01 --restarts 1 --patience 5 --seed 7 --threads 1"
    where = ["--validation", val, "--drop", "town", "--drop", "name", "--report", tmp_path / "r.html"]
    text = done(
        *("fit", train, "--target", "price", "--out", out, "--members", 1, "--inducing", 5, "--width", 2),
        *(*settings.split(), *more.split(), *where, "--time-budget", "10m", "--conformal"),
    )
    known = load(out).fitted_
    model = known.members[0].spec.model
    assert (model.features, model.layers, model.kernel, model.rule) == ((6, 4), 3, "rbf", "qr1")
    assert (model.sites, model.topology, known.members[0].spec.objective.beta) == (2, "mean-from-input", 0.3)
    train_config = known.members[0].train
    assert (train_config.epochs, train_config.batch_size, train_config.learning_rate) == (2, 40, 0.01)
    assert (train_config.restarts, train_config.patience, train_config.seed, train_config.threads) == (1, 5, 7, 1)
    assert known.conformal is not None
    assert known.encoder is not None
    assert known.encoder.column_names == ("size", "sold", "garden")
    assert f"{known.num_rows} for training, 29 for choosing the best epoch" in text
    assert f"Scores on 29 rows ({val})" in text
    assert "<svg" in (tmp_path / "r.html").read_text()


def test_several_targets_may_be_partly_observed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    x[::12] = 0.0  # inside the range of the others
    a, b = x + 1, 2 * x
    a[::4], b[::6] = np.nan, np.nan  # rows 0, 12, 24, 36 and 48 have neither
    columns = {"x": x, "a": pa.array(a, from_pandas=True), "b": pa.array(b, from_pandas=True)}
    pq.write_table(pa.table(columns), tmp_path / "two.parquet")
    common = ("--target", "a", "--target", "b", "--out", tmp_path / "m.dspp", *TINY)
    text = done("fit", tmp_path / "two.parquet", *common)
    assert "note: 5 rows without a target left out" in text
    assert "predicting  a, b" in text
    new = tmp_path / "new.csv"
    done("predict", tmp_path / "m.dspp", tmp_path / "two.parquet", "--out", new, "--interval", 0.8, "--samples", 1)
    got, mixture = read(new), load(tmp_path / "m.dspp").predict_dist(pa.table({"x": x}))
    assert [name for name in got if name.startswith("b_")] == [*("b_mean", "b_std", "b_lower", "b_upper", "b_sample_0")]
    np.testing.assert_array_equal(got["b_mean"], mixture.mean[:, 1])
    np.testing.assert_array_equal(got["a_upper"], mixture.marginal(0).interval(0.8)[1])
    assert json.loads(dspp("evaluate", tmp_path / "m.dspp", tmp_path / "two.parquet", "--json").stdout)["rows"] == 55


def test_targets_that_are_never_observed_together_are_reported_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=80)
    lines = [f"{v:.3f},{f'{v:.3f}' if i % 2 else ''},{'' if i % 2 else f'{2 * v:.3f}'}" for i, v in enumerate(x)]
    train, model = csv_file(tmp_path / "t.csv", ["x,a,b", *lines]), tmp_path / "m.dspp"
    done("fit", train, "--target", "a", "--target", "b", "--out", model, "--report", tmp_path / "r.html", *TINY)
    assert "figures of an output show the rows in which it was observed" in (tmp_path / "r.html").read_text()
    alone = csv_file(tmp_path / "a.csv", ["x,a,b", *(line for line in lines[1::2])])
    result = dspp("evaluate", model, alone)
    assert result.exit_code == 0
    assert "column 'b' has no values; the scores are of the other targets" in result.stderr
    assert "in nats per observed value" in " ".join(result.stdout.split())
    nothing = csv_file(tmp_path / "n.csv", ["x,a,b", "1,,", "2,,"])
    assert "column 'a': expected numbers, got no values" in refused("evaluate", model, nothing)


def test_infinite_intervals_are_announced(train: Path, test_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.dspp"
    done("fit", train, "--target", "price", "--out", out, *TINY, "--conformal")
    result = dspp("predict", out, test_file, "--out", tmp_path / "p.csv", "--interval", 0.99)
    assert result.exit_code == 0
    assert "at a coverage of 0.99 intervals are infinite: " in result.stderr
    assert " calibration rows, need at least 99" in result.stderr


def test_tune_is_fit_with_a_search(train: Path, test_file: Path, tmp_path: Path) -> None:
    common = ("--target", "price", "--layers", 2, "--inducing", 8, "--epochs", 2, "--restarts", 1, "--trials", 2)
    text = done("fit", train, *common, "--tune", "--out", tmp_path / "a.dspp")
    done("tune", train, *common, "--study", tmp_path / "kept.study", "--out", tmp_path / "b.dspp")
    assert "Best of 2 settings: " in text
    assert "beta" in text
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"a.dspp", "b.dspp", "kept.study", "kept.study.best.dspp"}
    X = inputs(test_file)
    np.testing.assert_array_equal(load(tmp_path / "a.dspp").predict(X), load(tmp_path / "b.dspp").predict(X))


# ---------------------------------------------------------------- predict


@pytest.fixture(scope="module")
def predicted(model: Path, test_file: Path, folder: Path) -> dict[str, Any]:
    out = folder / "all.csv"
    more = shlex.split("--interval 0.8 --mixture --samples 2 --seed 3 --keep name --keep size --quantiles 0.1,0.5")
    above = shlex.split("--above 120 --above 90.5 --above -1")
    text = done("predict", model, test_file, "--out", out, *more, *above)
    assert text.startswith(f"Predicted 50 rows: {out}")
    return read(out)


def test_predictions_are_those_of_python(predicted: dict[str, Any], model: Path, test_file: Path) -> None:
    estimator, X = load(model), inputs(test_file)
    mixture = estimator.predict_dist(X)
    above = 1.0 - mixture.cdf(np.repeat([[120.0], [90.5], [-1.0]], 50, axis=1))
    expected = {
        "price_mean": mixture.mean,
        "price_std": mixture.std,
        "price_q0.1": mixture.quantile([0.1, 0.5])[0],
        "price_q0.5": mixture.quantile([0.1, 0.5])[1],
        "price_lower": mixture.interval(0.8)[0],
        "price_upper": mixture.interval(0.8)[1],
        "price_above_120": above[0],
        "price_above_90.5": above[1],
        "price_above_-1": above[2],
        "price_sample_0": estimator.sample(X, 2, random_state=3)[0],
        "price_sample_1": estimator.sample(X, 2, random_state=3)[1],
    }
    components = mixture.num_components
    for k in range(components):
        expected[f"price_weight_{k}"] = np.full(50, mixture.weights[k])
        expected[f"price_mean_{k}"] = mixture.component_mean[k]
        expected[f"price_std_{k}"] = mixture.torch.component_var[k].sqrt()
    assert set(predicted) == {"name", "size", *expected}
    for name, values in expected.items():
        np.testing.assert_array_equal(predicted[name], np.asarray(values), name)
    mean = sum(predicted[f"price_weight_{k}"] * predicted[f"price_mean_{k}"] for k in range(components))
    np.testing.assert_allclose(mean, predicted["price_mean"], rtol=1e-12)


def test_kept_columns_are_copied_as_they_were_typed(folder: Path, predicted: dict[str, Any], test_file: Path) -> None:
    cells = [line.split(",") for line in test_file.read_text().splitlines()[1:]]
    lines = (folder / "all.csv").read_text().splitlines()[1:]
    kept = [[cell.strip('"') for cell in line.split(",")[:2]] for line in lines]
    assert kept == [[name, size] for name, _, size, *_ in cells]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz", "parquet", "arrow"])
def test_kept_columns_stay_what_they_were_in_every_format(suffix: str, odd_types: Path, tmp_path: Path) -> None:
    out, kept = tmp_path / f"p.{suffix}", ["id", "clock", "code"]
    rows = [
        ["9007199254740995", "07:30", "01"],
        ["9007199254740993", "12:05", "NA"],
        ["9007199254741003", "23:59", " 02 "],
    ]
    new = csv_file(tmp_path / "new.csv", ["id,clock,code,x", *(",".join([*row, "0.5"]) for row in rows)])
    done("predict", odd_types, new, "--out", out, *(word for name in kept for word in ("--keep", name)))
    (batch,) = open_table(out).batches(verbatim=kept)
    assert [list(row.values()) for row in batch.arrow.select(kept).to_pylist()] == rows
    done("predict", odd_types, new, "--out", tmp_path / "alone.parquet")
    np.testing.assert_allclose(read(out)["y_mean"], read(tmp_path / "alone.parquet")["y_mean"], rtol=1e-14)


@pytest.mark.parametrize("suffix", ["parquet", "feather", "csv", "tsv", "csv.gz"])
def test_formats_and_batches_make_no_difference(
    suffix: str, predicted: dict[str, Any], model: Path, test_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / f"p.{suffix}"
    done("predict", model, test_file, "--out", out, "--batch-rows", 7, "--quantiles", "")
    got = read(out)
    assert list(got) == ["price_mean", "price_std"]
    for name, values in got.items():
        np.testing.assert_allclose(values, predicted[name], rtol=1e-14)  # sums over 10 components may round otherwise


def test_no_two_quantiles_share_a_column(model: Path, test_file: Path) -> None:
    text = done("predict", model, test_file, "--out", "-", "--quantiles", "0.05,0.9999999,0.99999999")
    names = ["price_mean", "price_std", "price_q0.05", "price_q0.9999999", "price_q0.99999999"]
    assert pa.csv.read_csv(pa.BufferReader(text.encode())).column_names == names


def test_a_dash_writes_csv_to_standard_output(predicted: dict[str, Any], model: Path, test_file: Path) -> None:
    text = done("predict", model, test_file, "--out", "-", "--quantiles", "0.1,0.5")
    table = pa.csv.read_csv(pa.BufferReader(text.encode()))
    assert table.column_names == ["price_mean", "price_std", "price_q0.1", "price_q0.5"]
    np.testing.assert_array_equal(table["price_q0.5"].to_numpy(), predicted["price_q0.5"])


def test_columns_may_come_in_another_order_and_unused_ones_may_be_absent(
    predicted: dict[str, Any], model: Path, test_file: Path, tmp_path: Path
) -> None:
    table = open_table(test_file).read().arrow
    pq.write_table(table.select(["garden", "sold", "size", "town"]), tmp_path / "other.parquet")
    done("predict", model, tmp_path / "other.parquet", "--out", tmp_path / "p.parquet")
    np.testing.assert_array_equal(read(tmp_path / "p.parquet")["price_mean"], predicted["price_mean"])


def test_intervals_are_recalibrated_where_the_model_was(train: Path, test_file: Path, tmp_path: Path) -> None:
    out, new = tmp_path / "m.dspp", tmp_path / "p.csv"
    done("fit", train, "--target", "price", "--out", out, *TINY, "--conformal")
    done("predict", out, test_file, "--out", new, "--interval", 0.7)
    expected, plain = load(out).predict_interval(inputs(test_file), 0.7), load(out).predict_dist(inputs(test_file))
    np.testing.assert_array_equal(read(new)["price_lower"], expected["price_lower"])
    assert not np.array_equal(read(new)["price_lower"], plain.interval(0.7)[0])
    assert "recalibrated 90 % intervals contain" in dspp("evaluate", out, test_file).stdout


def test_categories_never_seen_in_training_are_counted(model: Path, test_file: Path, tmp_path: Path) -> None:
    text = test_file.read_text().replace("Oslo", "Bergen").replace("house 1,Rome", "house 1,Turin")
    (tmp_path / "new.csv").write_text(text)
    result = dspp("predict", model, tmp_path / "new.csv", "--out", tmp_path / "p.csv", "--batch-rows", 20)
    count = text.count("Bergen") + text.count("Turin")
    assert result.exit_code == 0
    assert f"warning: column 'town': {count} values not seen in training" in result.stderr
    assert "'Bergen'" in result.stderr
    assert dspp("--quiet", "predict", model, tmp_path / "new.csv", "--out", tmp_path / "q.csv").output == ""


def test_blank_cells_are_refused_or_imputed(model: Path, test_file: Path, tmp_path: Path) -> None:
    table = inputs(test_file)
    place = table.schema.get_field_index("town")
    blank = table.set_column(place, "town", pa.array([None, *table["town"].to_pylist()[1:]], pa.string()))
    path, out = tmp_path / "blank.csv", tmp_path / "p.csv"
    rows = blank.append_column("price", open_table(test_file).read().arrow["price"])
    write_table(path, rows.to_batches(), rows.schema)
    for command in (["predict", model, path, "--out", out], ["evaluate", model, path]):
        assert "column 'town', row 0 (line 2): expected a value" in refused(*command)
        assert "--missing impute" in refused(*command)
        imputed = dspp(*command, "--missing", "impute")
        assert imputed.exit_code == 0, imputed.output
        assert "column 'town': blank cells, of which training had none, are filled in" in imputed.stderr
        assert "--missing: expected refuse or impute, got 'guess'" in refused(*command, "--missing", "guess")
    estimator = load(model).set_params(missing="impute")
    with pytest.warns(DsppWarning, match="column 'town': blank cells, of which training had none, are filled in"):
        mean = estimator.predict(blank)
    np.testing.assert_array_equal(read(out)["price_mean"], mean)
    with pytest.warns(DsppWarning, match="blank cells"):
        np.testing.assert_array_equal(estimator.predict_table(blank)["price_mean"], mean)
    with pytest.warns(DsppWarning, match="blank cells"):
        assert np.isfinite(estimator.score(blank[:20], rows["price"][:20].to_numpy()))
    with pytest.raises(InputError, match=r"column 'town', row 0.*missing='impute'"):
        load(model).predict(blank)
    with pytest.raises(InputError, match="missing: expected 'refuse' or 'impute', got 'guess'"):
        load(model).set_params(missing="guess").predict(table)


def test_a_model_trained_on_an_array_takes_columns_in_order(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    estimator = DSPPRegressor(members=1, inducing=5, width=2, epochs=1, restarts=1).fit(x, x[:, 0])
    estimator.save(tmp_path / "m.dspp")
    table = pa.table({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0]})
    pq.write_table(table, tmp_path / "t.parquet")
    pq.write_table(table.select(["a"]), tmp_path / "one.parquet")
    done("predict", tmp_path / "m.dspp", tmp_path / "t.parquet", "--out", tmp_path / "p.parquet")
    np.testing.assert_array_equal(read(tmp_path / "p.parquet")["y_mean"], estimator.predict(x))
    done("evaluate", tmp_path / "m.dspp", tmp_path / "t.parquet", "--report", tmp_path / "r.html")
    assert "expected 2 columns, got 1" in refused(
        "predict", tmp_path / "m.dspp", tmp_path / "one.parquet", "--out", tmp_path / "q.csv"
    )


# ---------------------------------------------------------------- evaluate and info


def test_evaluate_prints_the_scores_of_python(model: Path, test_file: Path, tmp_path: Path) -> None:
    table = open_table(test_file).read().arrow
    table = table.filter(table["price"].is_valid())
    X, y = table.drop(["price"]), table.select(["price"])
    expected, verdict = load(model).evaluate(X, y), load(model).calibration(X, y).verdict()
    found = json.loads(dspp("evaluate", model, test_file, "--json").stdout)  # one object and nothing else
    assert {name: found[name] for name in expected} == expected
    assert (found["rows"], found["verdict"]) == (48, verdict)
    assert found["warnings"] == ["2 rows without a target left out"]

    result = dspp("evaluate", model, test_file, "--report", tmp_path / "r.html")
    shown = " ".join(result.stdout.split())
    for described in describe_scores(
        {name: expected[name] for name in ("nll", "rmse", "crps", "r2", "pit_ks")}
    ).values():
        assert " ".join(described)[:40] in shown
    for level in (50, 80, 90, 95):
        assert f"{level} % coverage" in shown.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert verdict in result.stdout
    assert verdict.split(":")[0] in (tmp_path / "r.html").read_text()
    assert result.stderr == "dspp: warning: 2 rows without a target left out\n"


def test_evaluate_reads_the_rows_that_predict_reads(odd_types: Path, tmp_path: Path) -> None:
    """Without X1 in it, a column of codes looks like one of numbers."""
    lines = [f"{9007199254740000 + i},{i % 24:02}:15,0{1 + i % 2},0.1,{i % 3}" for i in range(20)]
    test = csv_file(tmp_path / "test.csv", ["id,clock,code,x,y", *lines])
    result = dspp("evaluate", odd_types, test, "--json")
    assert json.loads(result.stdout)["warnings"] == []
    done("predict", odd_types, test, "--out", tmp_path / "p.csv")
    squares = (read(tmp_path / "p.csv")["y_mean"] - np.arange(20) % 3) ** 2
    assert json.loads(result.stdout)["rmse"] == pytest.approx(np.sqrt(squares.mean()), rel=1e-6)
    bad = csv_file(tmp_path / "bad.csv", ["id,clock,code,x,y", "1,07:30,01,0.1,1", "2,07:30,01,0.1,one"])
    assert f"{bad}: column 'y', row 1 (line 3): expected a number, got 'one'" in refused("evaluate", odd_types, bad)


def test_validation_rows_are_read_in_the_types_of_training(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=60)
    header, codes = "code,day,x,y", ["01", "02", "X1"] * 20
    lines = [f"{code},2024-01-{1 + i % 28:02},{x[i]:.3f},{i % 3 + x[i]:.3f}" for i, code in enumerate(codes)]
    table = open_table(csv_file(tmp_path / "train.csv", [header, *lines])).read().arrow
    csv_file(tmp_path / "val.csv", [header, *(line for line in lines if "X1" not in line)])
    pq.write_table(table, tmp_path / "train.parquet")
    pq.write_table(table.filter(pa.array([code != "X1" for code in codes])), tmp_path / "val.parquet")
    found = []
    for val in ("val.parquet", "val.csv"):
        out = tmp_path / f"{val}.dspp"
        command = ("fit", tmp_path / "train.parquet", "--target", "y", "--validation", tmp_path / val, "--out", out)
        done(*command, *TINY)
        found.append(load(out).fitted_.metrics)
    assert found[0] == found[1]


def test_validation_rows_may_have_gaps_where_training_has_none(tmp_path: Path) -> None:
    lines = [f"{i % 7},{'ab'[i % 2]},{i % 5}" for i in range(40)]
    train = csv_file(tmp_path / "train.csv", ["x,c,y", *lines])
    val = csv_file(tmp_path / "val.csv", ["x,c,y", "1,a,2", ",b,3", "4,,2"])
    command = ("fit", train, "--target", "y", "--out", tmp_path / "m.dspp", *TINY)
    assert "Scores on 3 rows" in done(*command, "--validation", val)
    features = load(tmp_path / "m.dspp").fitted_.feature_names
    assert {"x is missing", "c=(missing)"} < set(features or ())
    val.write_text(val.read_text() + "big,a,2\n")
    line = refused(*command, "--validation", val, "--overwrite")
    assert f"{val}: column 'x', row 3 (line 5): expected a number, got 'big'" in line


@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_reports_number_rows_as_the_file_does(
    command: str, model: Path, train: Path, test_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr("dspp.report.write_evaluation_report", lambda found, *more: seen.update(found=found.table))
    settings = ("--target", "price", "--out", tmp_path / "m.dspp", *TINY)
    words = ("fit", train, *settings) if command == "fit" else ("evaluate", model, test_file)
    assert dspp(*words, "--report", tmp_path / "r.html").exit_code == 0
    prices = read(train if command == "fit" else test_file)["price"]
    y, labels = seen["found"].targets[:, 0], seen["found"].row_numbers
    np.testing.assert_array_equal(prices[labels], y)
    assert max(labels) >= len(y)  # not counted within those shown


def test_columns_that_drop_out_of_the_training_rows_are_noted_once(tmp_path: Path) -> None:
    held = split_rows(Settings(random_state=0), 60, False)[1][0]
    rows = [f"id {i},{'rare' if i == held else 'usual'},{i % 7},{i % 5}" for i in range(60)]
    path = csv_file(tmp_path / "train.csv", ["id,kind,x,y", *rows])
    text = done("fit", path, "--target", "y", "--out", tmp_path / "m.dspp", *TINY)
    left_out = "note: in the rows trained on, column 'kind' is left out: it has the same value in all rows"
    assert text.count(left_out) == 1
    assert text.count("column 'id'") == 1  # though the model's note counts fewer rows


def test_info_shows_what_a_model_is_made_of(model: Path) -> None:
    text, found, known = done("info", model), json.loads(done("info", model, "--json")), load(model).fitted_
    assert known.encoder is not None
    for part in (f"{model} (", "predicts price from 4 of 5 columns", "on 130 rows, 3 epochs", "torch "):
        assert part in text
    assert re.search(r"beta +0\.05 *\n", text)
    assert all(f"note: {note}" in text for note in known.notes)
    assert known.notes
    for column in known.encoder.describe():
        assert column["column"] in text
        assert column["description"][:30] in text
    assert found["columns"] == known.encoder.describe()
    assert found["validation"] == known.metrics
    assert found["parameters"] == sum(p.numel() for p in known.members[0].model.parameters())
    assert found["bytes"] == model.stat().st_size
    assert found["settings"]["model"]["inducing"] == 8
    assert found["versions"] == known.versions


# ---------------------------------------------------------------- what cannot be used

BAD_FITS = {
    "--target pric": "expected a column 'pric' (--target); did you mean 'price'?",
    "--target zzzz": "expected a column 'zzzz' (--target), got 'name', 'town'",
    "--target town": "column 'town': expected numbers to predict, got 3 classes ('Oslo', 'Paris', 'Rome'); dspp",
    "--target sold": "column 'sold': expected numbers to predict, got date32[day]",
    "--target price --target price": "expected each --target once",
    "--target price --drop twon": "expected a column 'twon' (--drop); did you mean 'town'?",
    "--target price --drop name --drop town --drop size --drop sold --drop garden": "expected at least one input",
    "--target price --model dspq": "unknown preset 'dspq'; choose one of: bpdgp, dgp, dspp",
    "--target price --model nn+dspq": "unknown preset 'dspq'",
    "--target price --kernel rbg": "unknown kernel 'rbg'; choose one of: ",
    "--target price --rule qr9": "unknown rule 'qr9'; choose one of: ",
    "--target price --topology ring": "unknown topology 'ring'; choose one of: ",
    "--target price --layers 0": "--layers: expected a whole number of at least 1, got 0",
    "--target price --epochs many": "--epochs: expected a whole number, got 'many'",
    "--target price --epochs 0": "--epochs: expected a whole number of at least 1, got 0",
    "--target price --features 10,x": "--features: expected layer sizes such as 100,50, got '10,x'",
    "--target price --time-budget soon": "--time-budget: expected a duration such as 90s, 5m or 1h30m, got 'soon'",
    "--target price --validation-fraction 2": "--validation-fraction: expected a number in [0, 1), such as 0.1, got 2",
    "--target price --validation gone.csv": "gone.csv: the file does not exist",
    "--target price --report no/r.html": "the folder no does not exist; create it first",
    "--target price --epoch 3": "No such option: --epoch",
    "--target price --threads 0": "--threads: expected a whole number of at least 1, got 0",
    "--target price --trials 3": "--trials is an option of --tune; add --tune",
    "--target price --study s": "--study is an option of --tune; add --tune",
    "--target price --address here:1": "address: expected None for the engine 'local', got 'here:1'",
    "": "Missing option '--target'",
}


@pytest.mark.parametrize("options", BAD_FITS)
def test_fit_refuses_with_one_line(options: str, train: Path, tmp_path: Path) -> None:
    line = refused("fit", train, *options.split(), "--out", tmp_path / "m.dspp")
    assert BAD_FITS[options] in line
    assert not list(tmp_path.iterdir())


BAD_TABLES = {
    "": "expected a table, got an empty file",
    "a,y\n": "expected at least one row, got only a header",
    "a,y\n1,2\n1,2,3\n": "line 3: expected 2 columns as in the header, got 3",
    "a,y\n1,2\n3,inf\n": "column 'y', row 1 (line 3): expected a finite number, got inf",
    "a,y\n1,2\n3,x\n": "column 'y', row 1 (line 3): expected a number, got 'x'",
    "a,y\n1,2\n-inf,3\n": "column 'a', row 1 (line 3): expected a finite number, got -inf",
    "a,y\n1,\n2,NA\n": "column 'y': expected numbers, got no values",
    "a,y\n1,2\n1,3\n": "expected at least one informative column",
    "a,a,y\n1,2,3\n": "expected unique column names, got 'a' more than once",
    "y\n1\n2\n": "expected at least one input column",
}


@pytest.mark.parametrize("text", BAD_TABLES)
def test_tables_that_cannot_be_learned_from(text: str, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text(text)
    line = refused("fit", path, "--target", "y", "--out", tmp_path / "m.dspp")
    assert line.startswith(f"dspp: {path}")
    assert BAD_TABLES[text] in line
    assert list(tmp_path.iterdir()) == [path]


BAD_PREDICTIONS = {
    "--quantiles 0.5,1.5": "--quantiles: expected numbers inside (0, 1), such as 0.05,0.5,0.95, got 0.5,1.5; use",
    "--quantiles half": "--quantiles: expected numbers inside (0, 1), such as 0.05,0.5,0.95, got half; use",
    "--quantiles 5,50,97.5": "got 5,50,97.5; use --quantiles 0.05,0.5,0.975",
    "--quantiles 5%,95%": "got 5%,95%; use --quantiles 0.05,0.95",
    "--interval 90": "--interval: expected a number inside (0, 1), such as 0.9, got 90; use --interval 0.9",
    "--interval 90%": "--interval: expected a number inside (0, 1), such as 0.9, got 90%; use --interval 0.9",
    "--interval 80%": "got 80%; use --interval 0.8",
    "--interval 0,95": "got 0,95; use --interval 0.95",
    "--interval 1": "got 1; use --interval 0.9",
    "--interval wide": "got wide; use --interval 0.9",
    "--above high": "--above: expected a number, got 'high'",
    "--above 3 --above 2,5": "--above: expected a number, got '2,5'",
    "--above inf": "--above: expected a finite number, got inf",
    "--keep pirce": "expected a column 'pirce' (--keep); did you mean 'price'?",
    "--samples -1": "--samples: expected a whole number of at least 0, got -1",
    "--samples 1 --seed -99999999999999999999": "--seed: expected a whole number of at least -",
    "--samples 1 --seed 99999999999999999999": "--seed: expected a whole number of at most ",
    "--batch-rows 0": "--batch-rows: expected a whole number of at least 1, got 0",
}


@pytest.mark.parametrize("options", BAD_PREDICTIONS)
def test_predict_refuses_with_one_line(options: str, model: Path, test_file: Path, tmp_path: Path) -> None:
    line = refused("predict", model, test_file, "--out", tmp_path / "p.csv", *options.split())
    assert BAD_PREDICTIONS[options] in line
    assert not list(tmp_path.iterdir())


def test_rows_that_cannot_be_predicted_are_named(model: Path, test_file: Path, tmp_path: Path) -> None:
    """By line in a text file, by number from 0 elsewhere; half-written files do not stay."""
    table = open_table(test_file).read().arrow
    lines = test_file.read_text().splitlines()
    lines[17] = lines[17].replace(lines[17].split(",")[2], "huge")
    bad, gap, absent = (tmp_path / name for name in ("bad.csv", "gap.csv", "absent.parquet"))
    bad.write_text("\n".join(lines))
    gap.write_text(test_file.read_text().replace("house 40,Rome", "house 40,").replace("house 40,Oslo", "house 40,"))
    gap.write_text(gap.read_text().replace("house 40,Paris", "house 40,"))
    pq.write_table(open_table(gap).read().arrow, tmp_path / "gap.parquet")
    pq.write_table(table.rename_columns(["name", "town", "sise", "sold", "garden", "price"]), absent)
    pq.write_table(table.append_column("price_std", table["size"]), tmp_path / "clash.parquet")
    before = set(tmp_path.iterdir())
    out, batches = ("--out", tmp_path / "p.csv"), ("--batch-rows", 16)
    missing = "expected a value, as in all training rows, got none"
    expected = {
        ("predict", bad, *out, *batches): f"{bad}: column 'size', row 16 (line 18): expected a number, got 'huge'",
        ("evaluate", bad): f"{bad}: column 'size', row 16 (line 18): expected a number, got 'huge'",
        ("predict", gap, *out, *batches): f"{gap}: column 'town', row 40 (line 42): {missing}",
        ("evaluate", gap): f"{gap}: column 'town', row 40 (line 42): {missing}",
        ("predict", tmp_path / "gap.parquet", *out, *batches): f"gap.parquet: column 'town', row 40: {missing}",
        ("predict", tmp_path / "clash.parquet", *out, "--keep", "price_std"): "got 'price_std' more than once",
        ("predict", absent, *out): f"{absent}: expected a column 'size', got none; did you mean 'sise'?",
    }
    for (command, *rest), message in expected.items():
        assert message in refused(command, model, *rest)
    assert set(tmp_path.iterdir()) == before


def test_a_mark_for_a_missing_number_is_named_by_its_line(model: Path, test_file: Path, tmp_path: Path) -> None:
    lines = test_file.read_text().splitlines()
    cells = lines[17].split(",")
    lines[17] = ",".join([*cells[:2], "3.4e38", *cells[3:]])
    (tmp_path / "mark.csv").write_text("\n".join(lines))
    line = refused("predict", model, tmp_path / "mark.csv", "--out", tmp_path / "p.csv", "--batch-rows", "5")
    assert f"mark.csv: column {lines[0].split(',')[2]!r}, row 16 (line 18): expected a value within" in line


def test_an_output_may_be_seen_seldom(tmp_path: Path) -> None:
    """Held-out rows may have none of it: they are judged by the other."""
    rows = [f"{i / 60:.3f},{i % 7 if i % 6 == 0 else ''},{i % 5}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["x,u,v", *rows]))
    for seed in range(4):
        out = tmp_path / f"{seed}.dspp"
        report = ("--report", tmp_path / f"{seed}.html", "--seed", seed)
        text = done("fit", tmp_path / "t.csv", "--target", "u", "--target", "v", "--out", out, *TINY, *report)
        assert "Scores on" in text
        assert "held out" in text


def test_files_that_are_no_models_or_tables(model: Path, train: Path, tmp_path: Path) -> None:
    for command in ("predict", "evaluate"):
        more = ("--out", tmp_path / "p.csv") if command == "predict" else ()
        assert "does not exist" in refused(command, tmp_path / "none.dspp", train, *more)
        assert f"{train} was not written by dspp" in refused(command, train, train, *more)
        assert "does not exist" in refused(command, model, tmp_path / "none.csv", *more)
        assert "expected a file name ending in" in refused(command, model, model, *more)
    assert "does not exist" in refused("info", tmp_path / "none.dspp")
    assert "expected a file name ending in" in refused("predict", model, train, "--out", tmp_path / "p.xlsx")


def test_nothing_that_is_there_is_lost(model: Path, train: Path, test_file: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("mine")
    kept = {path: path.read_bytes() for path in (there, train, test_file, model)}
    already = "already exists; pass --overwrite to replace it"
    assert already in refused("fit", train, "--target", "price", "--out", there)
    assert already in refused("fit", train, "--target", "price", "--out", tmp_path / "m.dspp", "--report", there)
    assert already in refused("predict", model, test_file, "--out", there)
    assert already in refused("evaluate", model, test_file, "--report", there)
    for path in (test_file, model):
        assert "cannot overwrite an input" in refused("predict", model, test_file, "--out", path, "--overwrite")
    assert "got a folder" in refused("predict", model, test_file, "--out", tmp_path)
    assert "the folder" in refused("predict", model, test_file, "--out", tmp_path / "no" / "p.csv")
    assert "expected an empty folder" in refused("demo", "--folder", tmp_path)
    assert kept == {path: path.read_bytes() for path in kept}
    (tmp_path / "link.csv").symlink_to(there)
    for out in (there, tmp_path / "link.csv"):
        done("predict", model, test_file, "--out", out, "--overwrite")
        assert there.read_text().startswith('"price_mean"')
        there.write_text("mine")
    assert (tmp_path / "link.csv").is_symlink()


def test_no_two_files_are_one(train: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    out, again = tmp_path / "m.dspp", tmp_path / "sub" / ".." / "m.dspp"
    before = train.read_bytes()
    for words, message in {
        ("fit", "--out", out, "--report", again): f"{again} is both --out and --report; use different files",
        ("fit", "--out", out, "--report", f"{out}.checkpoint"): "is both --report and the checkpoint",
        ("tune", "--out", out, "--study", out): f"{out} is both --out and --study",
        ("tune", "--out", f"{out}.best.dspp", "--study", out): "is both --out and the best model of the study",
        ("tune", "--out", out, "--report", f"{out}.study"): "is both --report and the study",
        ("tune", "--out", out, "--study", train): f"{train} is both an input and --study",
        ("fit", "--out", train, "--overwrite"): f"{train} is both an input and --out",
    }.items():
        assert message in refused(words[0], train, "--target", "price", *words[1:])
    assert [path.name for path in tmp_path.iterdir()] == ["sub"]
    assert train.read_bytes() == before


def test_an_unexpected_error_is_one_line_unless_asked_for_more(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspp.modelfile.load", lambda path: 1 / 0)
    result = dspp("info", model)
    line = "dspp: unexpected ZeroDivisionError: division by zero"
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"{line}; rerun with --debug to see where\n")
    for words in (["--debug", "info", model], ["info", model, "--debug"]):
        result = dspp(*words)
        assert result.exit_code == 1
        assert "Traceback" in result.stderr
        assert result.stderr.endswith(f"{line}\n")


def test_what_a_terminal_would_obey_is_shown_and_not_sent(model: Path, test_file: Path, tmp_path: Path) -> None:
    """Names in a table or in the model file of a stranger."""
    evil = "\x1b]0;owned\x07\x9b31m\ud800"
    lines = [f"{evil}in,{evil}out", *(f"{i % 7},{i % 7 + i % 3}" for i in range(60))]
    table, out = tmp_path / "t.csv", tmp_path / "m.dspp"
    table.write_bytes("\n".join(lines).replace("\ud800", "").encode())
    said = [done("fit", table, "--target", lines[0].split(",")[1].replace("\ud800", ""), "--out", out, *TINY)]

    def change(header: dict[str, Any]) -> None:
        header["notes"] = [{"subject": evil, "text": evil}]
        header["versions"] = {evil: evil}

    out.write_bytes(with_header(out.read_bytes(), change))
    said += [dspp(*words).output for words in (("info", out), ("info", out, "--json"), ("evaluate", out, table))]
    said += [dspp("predict", out, test_file, "--out", tmp_path / evil[:-1], "--debug").output]
    for text in said:
        assert not set(text) & set(evil) - set("]0;owned31m")
    assert r"note: \x1b]0;owned\x07\x9b31m\ud800" in said[1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="of Linux")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_named(unbuffered: str, model: Path, test_file: Path) -> None:
    for words in (["info", model], ["info", model, "--json"], ["predict", model, test_file, "--out", "-"]):
        with open("/dev/full", "wb") as full:
            environment = os.environ | {"PYTHONUNBUFFERED": unbuffered, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-c", MAIN, *map(str, words), "--quiet"][: -1 if "info" in words else None]
            result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, timeout=120)
        assert (result.returncode, result.stderr) == (1, b"dspp: no space left on standard output\n")


def test_a_full_folder_for_temporary_files_is_named(
    model: Path, test_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("shutil.copyfileobj", fail)
    words = ["predict", str(model), "-", "--out", str(tmp_path / "p.csv")]
    result = CliRunner().invoke(app, words, input=test_file.read_bytes())
    assert result.exit_code == 2
    line = f"dspp: standard input: cannot copy it to {tmp_path}: No space left on device; set TMPDIR to a folder with"
    assert result.stderr == f"{line} more space, or pass a file\n"
    assert not list(tmp_path.iterdir())


def test_no_command_is_a_question_and_a_wrong_one_a_mistake() -> None:
    assert done() == done("--help") == done("-h")
    assert "No such command 'fitt'" in refused("fitt")
    assert done("--version").startswith("dspp ")


# ---------------------------------------------------------------- stopping and going on


def test_a_checkpoint_is_neither_lost_nor_taken_up_unasked(train: Path, tmp_path: Path) -> None:
    out, checkpoint = tmp_path / "m.dspp", tmp_path / "m.dspp.checkpoint"
    command = ("fit", train, "--target", "price", "--out", out, *TINY)
    checkpoint.write_text("of another run")
    assert f"{checkpoint} already exists, from an unfinished run; pass --resume" in refused(*command)
    assert f"{checkpoint} was not written by dspp" in dspp(*command, "--resume").stderr
    assert checkpoint.read_text() == "of another run"
    checkpoint.unlink()
    done(*command, "--resume")  # with nothing to go on from, it begins
    assert [path.name for path in tmp_path.iterdir()] == ["m.dspp"]


@pytest.mark.parametrize("members", [1, 2])
def test_overwrite_discards_the_run_of_a_killed_process(members: int, train: Path, tmp_path: Path) -> None:
    """As of a job that runs every night and was killed last night."""
    out, checkpoint = tmp_path / "m.dspp", tmp_path / "m.dspp.checkpoint"
    command = ["fit", train, "--target", "price", "--out", out, *TINY, "--members", members, "--overwrite"]
    process = spawn(*command, "--epochs", 20_000)
    begun = checkpoint if members == 1 else checkpoint / "member-01.checkpoint"
    deadline = time.monotonic() + 120
    while not begun.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert f"another process is writing {checkpoint}" in dspp(*command).stderr
    assert process.poll() is None
    assert begun.exists()
    process.kill()
    process.communicate(timeout=60)
    assert checkpoint.exists()
    assert "in the checkpoint" in refused_late(*command, "--resume")  # it wanted 20,000 epochs
    assert f"note: discarded the unfinished run in {checkpoint}" in done(*command)
    assert [path.name for path in tmp_path.iterdir()] == ["m.dspp"]


def test_overwrite_leaves_a_folder_of_somebody_else_alone(train: Path, tmp_path: Path) -> None:
    out, mine = tmp_path / "m.dspp", tmp_path / "m.dspp.checkpoint" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    line = refused_late("fit", train, "--target", "price", "--out", out, *TINY, "--overwrite")
    assert "expected a folder of checkpoints, got one with 'notes.txt'" in line
    assert mine.read_text() == "mine"
    assert not out.exists()


def test_overwrite_discards_a_search_but_not_its_journal_by_name(train: Path, tmp_path: Path) -> None:
    out, study = tmp_path / "m.dspp", tmp_path / "m.dspp.study"
    command = ["tune", train, "--target", "price", "--out", out, "--trials", 1, *TINY[2:], "--overwrite"]
    study.write_text("of a killed search")
    assert "already exists, from an unfinished run" in refused(*command[:-1])
    assert "note: discarded the unfinished run" in done(*command)
    assert [path.name for path in tmp_path.iterdir()] == ["m.dspp"]
    study.write_text("mine")
    assert "expected the journal of a search" in refused_late(*command, "--study", study)
    assert study.read_text() == "mine"


def interrupted(command: list[str], checkpoint: Path, number: signal.Signals) -> str:
    """Start a command, send it a signal once it has trained for a moment, and return what it complained of."""
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    process = spawn(*command)
    lock = checkpoint.with_name(f"{checkpoint.name}.lock")
    deadline = time.monotonic() + 60
    while not (checkpoint.exists() and checkpoint.stat().st_mtime_ns > before and lock.exists()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    *progress, line = errors.decode().splitlines(keepends=True)
    assert all("% done" in one for one in progress)  # on a slow machine
    return line


def test_a_fit_that_is_stopped_twice_ends_as_if_it_had_not_been(train: Path, test_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "a model.dspp"  # with a space, so that the command has to be quoted
    checkpoint = tmp_path / "a model.dspp.checkpoint"
    settings = shlex.split("--members 1 --inducing 10 --width 2 --epochs 100 --batch-size 50 --restarts 2 --threads 1")
    command = ["fit", str(train), "--target", "price", "--out", str(out), *settings]
    for number in (signal.SIGINT, signal.SIGTERM):
        *progress, line = interrupted(command, checkpoint, number).splitlines()
        again = shlex.split(line.split("To resume: dspp ")[1])
        assert all("% done" in shown for shown in progress)
        assert again == [*command, *["--resume"] * ("--resume" not in command)]
        assert checkpoint.exists()
        assert not out.exists()
        command = again
    done(*command)
    done(*command[:5], tmp_path / "b.dspp", *settings)
    assert not checkpoint.exists()
    X = inputs(test_file)
    np.testing.assert_array_equal(load(out).predict(X), load(tmp_path / "b.dspp").predict(X))
    assert len(load(out).fitted_.members[0].history) == 100


# ---------------------------------------------------------------- in a process of its own


def test_help_needs_no_torch_and_lists_what_there_is() -> None:
    script = """
import contextlib, io, sys
from dspp.cli import app
from dspp.registry import part_names
kinds = ("preset", "kernel", "rule", "likelihood", "topology")
MODELS, KERNELS, RULES, LIKELIHOODS, TOPOLOGIES = map(part_names, kinds)
text = io.StringIO()
for words in (["--help"], ["fit", "--help"]):
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        app(words)
heavy = {"torch", "numpy", "scipy", "sklearn", "pyarrow", "matplotlib", "optuna"} & sys.modules.keys()
assert not heavy, heavy
from dspp.gp import kernels
from dspp import likelihoods, model, presets, quadrature
assert set(MODELS) == set(presets.PRESETS)
assert set(KERNELS) == set(kernels.KERNELS)
assert set(RULES) == set(quadrature.RULES)
assert set(LIKELIHOODS) == set(likelihoods.LIKELIHOODS)
assert set(TOPOLOGIES) == set(model.TOPOLOGIES)
shown = text.getvalue().replace("\\n", " ").replace("│", " ")
for names in (MODELS, KERNELS, RULES, LIKELIHOODS, TOPOLOGIES):
    assert ", ".join(names) in " ".join(shown.split()), names
assert "dspp[ray]" in shown  # brackets are not taken for a style
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("command", ["", "fit", "predict", "evaluate", "info", "tune", "demo"])
def test_help_shows_neither_types_nor_ranges(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0
    for odd in ("<", "{", "x>=", "<=", "922337203"):
        assert odd not in result.stdout, odd
    assert f"Usage: dspp {command}".rstrip() in result.stdout
    assert "Options ─" not in result.stdout or "--help" in result.stdout


def test_words_are_completed() -> None:
    words = {"dspp fit --model p": "ppgpr", "dspp fit --kernel r": "rbf", "dspp pre": "predict"}
    for typed, expected in words.items():
        environment = {
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
            "_DSPP_COMPLETE": "complete_bash",
        }
        text, _ = spawn(env=environment).communicate()
        assert text.decode().split() == [expected]


def test_a_pipe_sees_no_bars_and_may_be_closed(model: Path, test_file: Path, tmp_path: Path) -> None:
    rows = test_file.read_text().splitlines()
    (tmp_path / "long.csv").write_text("\n".join([rows[0], *rows[1:] * 200]))
    with spawn("predict", model, tmp_path / "long.csv", "--out", "-", "--batch-rows", 500) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'"price_mean"')
        process.stdout.close()
        assert re.fullmatch(rb"(predicting: [\d,]+ rows\n)*", process.stderr.read())  # lines on a slow machine, no bars
        assert process.wait() == 1


def test_python_dash_m_runs_the_same_commands() -> None:
    run = subprocess.run([sys.executable, "-m", "dspp", "nope"], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "dspp: No such command 'nope'. (see dspp --help)\n"


def test_the_demo_goes_the_whole_way(tmp_path: Path) -> None:
    demo_folder = tmp_path / "demo"
    (demo_folder / "model.dspp.checkpoint").mkdir(parents=True)  # as an interrupted demo leaves it
    (demo_folder / "model.dspp.checkpoint" / "member-01.checkpoint").write_text("of another run")
    text = done("demo", "--folder", demo_folder, "--epochs", 1, "--overwrite")
    names = ["model.dspp", "predictions.csv", "report.html", "test.csv", "train.csv"]
    assert sorted(path.name for path in demo_folder.iterdir()) == names
    for command in ("fit", "predict", "evaluate"):
        assert f"$ dspp {command} {demo_folder}" in text
    assert open_table(demo_folder / "train.csv").read().arrow.num_rows == 17_000
    assert open_table(demo_folder / "test.csv").read().arrow.num_rows == 3_000
    assert "best possible         -1.9188" in text
    table = open_table(demo_folder / "test.csv").read().arrow
    X, y = table.drop(["distance"]), table.select(["distance"])
    assert f"{load(demo_folder / 'model.dspp').score_nll(X, y):+.4f}" in text


# ---------------------------------------------------------------- what is typed


def test_lengths_of_time() -> None:
    typed = {"90": 90, "90s": 90, "5m": 300, "2h": 7200, "1h30m": 5400, "1.5h": 5400, " 10M ": 600, "1m5": 65}
    assert {text: duration(text) for text in typed} == typed
    for text in ("", "m", "5x", "-5m", "0", "1.2.3s", "5 m 3", "nan", "inf"):
        with pytest.raises(typer.BadParameter, match="expected a duration"):
            duration(text)


def test_lists_of_numbers() -> None:
    assert probabilities("0.5, 0.1,0.5") == (0.5, 0.1)
    assert probabilities("") == ()
    assert sizes("100, 20") == (100, 20)
    for text in ("0", "1", "nan", "a", "0.5;0.6"):
        with pytest.raises(typer.BadParameter, match=r"expected numbers inside \(0, 1\)"):
            probabilities(text)
    for text in ("", "0", "1.5", "-2", "10,"):
        with pytest.raises(typer.BadParameter, match="expected layer sizes"):
            sizes(text)
