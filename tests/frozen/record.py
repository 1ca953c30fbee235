"""Wrote the frozen oracles, once, with the code before the redesign (commit 120ad9b): python tests/frozen/record.py.

It refuses to write where something is already recorded: oracles that follow the code guard nothing.
"""

import json
from pathlib import Path

import cases
import numpy as np
import places
import torch
from cases import CONFIG, MODELS, OUTPUTS, RESUMED, X_NEW, Y_NEW, X, Y, digest, scores, spec, table
from safetensors.torch import save_file

import dspp

DATA = Path(__file__).parents[1] / "data"


def main():
    torch.set_num_threads(1)
    DATA.mkdir(exist_ok=True)
    assert not list(DATA.iterdir()), f"{DATA} holds oracles already"
    write_json("splits.json", splits())
    write_json("encoding.json", encoding())
    parameters, predictions = {}, {}
    for name in MODELS:
        for outputs in OUTPUTS:
            result = dspp.fit(spec(name), dspp.Rows.of(X, Y[outputs]), config=CONFIG)
            own = {places.frozen_name(n): v.clone() for n, v in result.model.state_dict().items()}
            parameters |= {f"{name}/{outputs}/{n}": v for n, v in own.items()}
            parameters[f"{name}/{outputs}/history"] = float64([e.train_nll for e in result.history])
            for dtype in ("float32", "float64"):
                predictor = places.predictor_of(spec(name, dtype), X, None if outputs == 1 else outputs, own)
                found = scores(predictor(X_NEW), Y_NEW[outputs])
                predictions |= {f"{name}/{outputs}/{dtype}/{k}": v.contiguous() for k, v in found.items()}
    save_file(parameters, DATA / "parameters.safetensors")
    save_file(predictions, DATA / "predictions.safetensors")
    whole_fit()


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def write_json(name, values):
    (DATA / name).write_text(json.dumps(values, indent=1) + "\n")


def splits():
    found = {}
    for num_rows, seed in cases.SPLITS:
        parts = places.split(num_rows, (15, 3, 2), seed)
        found[f"paper {num_rows} {seed}"] = [summary(part) for part in parts]
        for given in (False, True):
            for conformal in (False, True):
                parts = places.held_out(num_rows, seed, given, conformal)
                found[f"memory {num_rows} {seed} {given} {conformal}"] = [summary(part) for part in parts]
    for given in cases.BATCHES:
        found[f"batches {given}"] = [summary(part.numpy()) for part in places.batch_indices(*given)]
    return found


def summary(index):
    index = np.asarray(index, dtype=np.int64)
    return [len(index), index[:5].tolist(), digest(index)]


def encoding():
    train, new, names = places.encode(table(300, 4), table(50, 5))
    return {
        "train": digest(train),
        "new": digest(new),
        "names": list(names),
        "json": places.encoder_json(table(300, 4)),
    }


def whole_fit():
    whole = dspp.fit(spec("dspp"), dspp.Rows.of(X, Y[1]), dspp.Rows.of(X_NEW, Y_NEW[1]), config=RESUMED)
    kept = {places.frozen_name(n): v.clone() for n, v in whole.model.state_dict().items()}
    kept["history"] = float64([[e.objective, e.train_nll, e.val_nll, e.learning_rate] for e in whole.history])
    kept["restart_nll"] = float64(whole.restart_nll)
    kept["best_epoch"] = torch.tensor(whole.best_epoch)
    save_file(kept, DATA / "resumed.safetensors")


if __name__ == "__main__":
    main()
