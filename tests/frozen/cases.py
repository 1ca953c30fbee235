"""What was frozen, as a function of nothing but this file: tables, models, runs."""

import datetime
import hashlib

import numpy as np
import pyarrow as pa

import dspp

SPLITS = [(20, 0), (21, 3), (100, 0), (100, 7), (824, 0), (1_000, 42), (25_001, 1), (200_000, 5)]
BATCHES = [(10, 3, 0, 0), (100, 32, 7, 4), (1_001, 500, 1, 39)]
TINY = {"inducing": 8, "width": 2, "sites": 3, "test_sites": 4}
MODELS = {
    "svgp": {},
    "od-svgp": {"mean_inducing": 10},
    "ppgpr": {},
    "dgp": {},
    "gamma-dgp": {},
    "bpdgp": {},
    "dspp": {},
    "dspp qr1": {"rule": "qr1"},
    "dspp qr2": {"rule": "qr2"},
    "dspp gauss-hermite": {"rule": "gauss-hermite"},
    "dspp 3 layers": {"layers": 3, "topology": "all-from-both"},
    "dspp matern32": {"kernel": "matern32"},
    "nn+dspp": {"features": (6, 4)},
}
OUTPUTS = (1, 3)
CONFIG = dspp.TrainConfig(epochs=5, batch_size=15, restarts=1, seed=11, threads=1)  # 4 steps per epoch, 20 in all
RESUMED = CONFIG.change(epochs=6, restarts=2, restart_epochs=2)


def random(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


X, X_NEW = random(0, 60, 3), random(1, 25, 3)
Y = {1: np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * random(2, 60)}
Y[3] = np.stack([Y[1], X[:, 2] - Y[1], np.cos(X[:, 1])], axis=1) + 0.05 * random(3, 60, 3)
Y_NEW = {1: np.sin(2 * X_NEW[:, 0]) + 0.3 * X_NEW[:, 1]}
Y_NEW[3] = np.stack([Y_NEW[1], X_NEW[:, 2] - Y_NEW[1], np.cos(X_NEW[:, 1])], axis=1)


def spec(name, dtype="float64"):
    return dspp.preset(name.split()[0], **(TINY | MODELS[name] | {"dtype": dtype}))


def table(num_rows, seed):
    """Numbers, whole numbers, truths, text, many levels, dates, times; gaps in all of them."""
    generator = np.random.default_rng(seed)

    def gaps(values, share):
        return [None if gone else value for value, gone in zip(values, generator.random(num_rows) < share, strict=True)]

    day = datetime.datetime(2020, 1, 1)
    moments = [day + datetime.timedelta(hours=int(h)) for h in generator.integers(0, 20_000, num_rows)]
    return pa.table(
        {
            "size": generator.normal(50, 20, num_rows),
            "rooms": pa.array(gaps(generator.integers(1, 6, num_rows).tolist(), 0.1), pa.int64()),
            "offset": 1e8 + generator.random(num_rows),
            "sold": pa.array(gaps((generator.random(num_rows) < 0.4).tolist(), 0.05), pa.bool_()),
            "town": pa.array(gaps(generator.choice(["Ulm", "Köln", "Bonn"], num_rows).tolist(), 0.08), pa.string()),
            "pair": generator.choice(["yes", "no"], num_rows).tolist(),
            "street": [f"street {i}" for i in generator.geometric(0.06, num_rows)],
            "note": ["the same"] * num_rows,
            "built": pa.array([m.date() for m in moments], pa.date32()),
            "seen": pa.array(gaps(moments, 0.1), pa.timestamp("us")),
        }
    )


def target(rows):
    size = np.array(rows["size"].to_pylist())
    town = np.array([{"Ulm": 1.0, "Köln": 3.0, "Bonn": 2.0, None: 0.0}[t] for t in rows["town"].to_pylist()])
    return 1000 + 20 * size * (1 + town) + 100 * random(9, len(size))


def digest(array):
    """SHA-256 of an array's bytes, little-endian."""
    array = np.ascontiguousarray(array)
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()).hexdigest()


def scores(distribution, y):
    """Everything that a predictive distribution says of some rows, as float64."""
    one = [distribution] if np.ndim(y) == 1 else [distribution.marginal(t) for t in range(y.shape[1])]
    columns = y.reshape(len(y), -1).T
    import torch

    targets = torch.from_numpy(y).to(distribution.mean.dtype)
    return {
        "mean": distribution.mean.double(),
        "std": distribution.std.double(),
        "log_prob": distribution.log_prob(targets).double(),
        "crps": torch.stack([o.crps(torch.from_numpy(c.copy())) for o, c in zip(one, columns, strict=True)]),
        "cdf": torch.stack([o.cdf(torch.from_numpy(c.copy())) for o, c in zip(one, columns, strict=True)]),
        "quantile": torch.stack([o.quantile(torch.tensor([0.05, 0.5, 0.9]).double()) for o in one]),
    }
