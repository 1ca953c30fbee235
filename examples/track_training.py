"""Send training curves and scores to a tracker; here to a file of JSON lines, for any tool that reads them.

Run `python examples/track_training.py curves.jsonl`. A tracker needs two things of dspp: `fit(..., on_epoch=function)`
calls the function with the record of each epoch, and `fitted_.metrics` holds the scores afterwards.

With MLflow, instead of a file:

    import mlflow

    with mlflow.start_run():
        tracker = Tracker(lambda name, value, step: mlflow.log_metric(name, value, step=step))
        model.fit(X, y, on_epoch=tracker.on_epoch)
        tracker.log_scores(model)

Weights & Biases, Neptune, TensorBoard and others have such a function of name, value and step too.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

from sklearn.datasets import load_diabetes

from dspp import DSPPRegressor
from dspp.history import Epoch


class Tracker:
    """Passes curves and scores to `log`, a function of name, value and step.

    The members of an ensemble are trained side by side, so the epochs of each arrive together once it is trained. A
    new member begins with epoch 1, hence `member1/train_nll`, `member2/train_nll` and so on. A single model begins with
    short runs from several starts, which are not reported; its curve begins where the best of them continues.
    """

    def __init__(self, log: Callable[[str, float, int], object]) -> None:
        self.log = log
        self.first_epochs = 0

    @property
    def member(self) -> int:
        """The number of the current member; 1 is the first."""
        return max(1, self.first_epochs)

    def on_epoch(self, epoch: Epoch) -> None:
        """Log one epoch; an exception raised here would end training."""
        self.first_epochs += epoch.number == 1
        values = {
            "train_nll": epoch.train_nll,
            "val_nll": epoch.val_nll,  # None for the members of an ensemble, which are scored together
            "objective": epoch.objective,
            "learning_rate": epoch.learning_rate,
            "seconds": epoch.seconds,
        }
        for name, value in values.items():
            if value is not None:
                self.log(f"member{self.member}/{name}", value, epoch.number)

    def log_scores(self, model: DSPPRegressor) -> None:
        """Log the scores of a fitted model; `model.fitted_.scored` says of which rows they are."""
        for name, value in model.fitted_.metrics.items():
            if math.isfinite(value):
                self.log(name, value, 0)


def main(arguments: list[str] | None = None) -> None:
    """Fit a model to the diabetes data of scikit-learn and write its curves and scores."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("file", type=Path, help="the file to write")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--epochs", type=int, help="fewer are faster")
    given = parser.parse_args(arguments)

    X, y = load_diabetes(return_X_y=True, as_frame=True)
    with given.file.open("w") as file:

        def log(name: str, value: float, step: int) -> None:
            print(json.dumps({"name": name, "value": value, "step": step}), file=file, flush=True)

        tracker = Tracker(log)
        model = DSPPRegressor(members=given.members, epochs=given.epochs).fit(X, y, on_epoch=tracker.on_epoch)
        tracker.log_scores(model)
    print(f"{given.file}: training curves of {tracker.member} member(s), and scores on {model.fitted_.scored}")


if __name__ == "__main__":
    main()
