"""Recreates the three MuJoCo data sets: a simulated robot under smooth random actions, one row per step.

    pip install gymnasium mujoco imageio packaging
    python -m experiments.data.mujoco mujoco_reacher --rows 30000 --out FILE

X is observation and action, Y the change after one step, traj the episode. Another version of the simulator or another
seed gives other rows, so the file gets its own line in SHA256SUMS in its folder.
"""

import contextlib
import importlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
import typer

from dspp.errors import InputError
from experiments.data import cache_folder
from experiments.data.files import lock_folder, store
from experiments.data.sources import SOURCES

MEMORY = (0.5, 0.95)  # range of φ, drawn per episode: from nearly white to slow actions
SCALE = (0.1, 0.55)  # range of s, the standard deviation of its actions, which are clipped to ±1


@dataclass(frozen=True)
class Robot:
    """A gymnasium environment."""

    environment: str
    steps: int  # per episode
    targets: tuple[int, ...]  # entries of the observation whose change is predicted


ROBOTS = {
    "mujoco_reacher": Robot("Reacher-v5", 100, (0, 1, 2, 3, 6, 7, 8, 9)),  # 4 and 5 are the goal, which is fixed
    "mujoco_swimmer": Robot("Swimmer-v5", 200, tuple(range(8))),
    "mujoco_halfcheetah": Robot("HalfCheetah-v5", 200, tuple(range(8, 17))),  # the velocities
}


class Environment(Protocol):
    """The part of a gymnasium environment that is used here."""

    action_space: Any

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, Any]:
        """Start an episode; return the first observation."""

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        """Take an action; the next observation is returned first."""


def smooth_actions(rng: np.random.Generator, steps: int, size: int) -> np.ndarray:
    """Draw the actions of an episode in [-1, 1]: a stationary Ornstein-Uhlenbeck process a ← φ a + s √(1 − φ²) ε."""
    memory, scale = rng.uniform(*MEMORY), rng.uniform(*SCALE)
    noise = scale * rng.standard_normal((steps, size))  # (steps, A)
    noise[1:] *= np.sqrt(1 - memory**2)
    for i in range(1, steps):
        noise[i] += memory * noise[i - 1]
    return np.clip(noise, -1, 1)


def simulate(environment: Environment, robot: Robot, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Simulate the given number of steps and return X, Y and traj; the last episode may be cut short."""
    rng = np.random.default_rng(seed)
    size = int(environment.action_space.shape[0])
    X: list[np.ndarray] = []
    Y: list[np.ndarray] = []
    targets = list(robot.targets)
    while len(X) < rows:
        before, _ = environment.reset(seed=None if X else seed)
        for action in smooth_actions(rng, min(robot.steps, rows - len(X)), size).astype(np.float32):
            after = environment.step(action)[0]
            X.append(np.concatenate([before, action]))
            Y.append((after - before)[targets])
            before = after
    episode = np.arange(rows, dtype=np.int32) // robot.steps
    return {"X": np.array(X, np.float32), "Y": np.array(Y, np.float32), "traj": episode}


def open_environment(robot: Robot) -> Any:
    """Open the environment, or raise a clear error if the simulator is not installed."""
    os.environ.setdefault("MUJOCO_GL", "disable")  # no rendering, so no graphics driver
    try:
        importlib.import_module("mujoco")
        gymnasium = importlib.import_module("gymnasium")
    except ImportError as problem:
        raise InputError(
            f"the simulator is not installed ({problem}); pip install gymnasium mujoco imageio packaging"
        ) from None
    return gymnasium.make(robot.environment, max_episode_steps=robot.steps + 1)  # does not end before our own limit


def make(name: str, rows: int | None = None, out: Path | None = None, seed: int = 0) -> Path:
    """Simulate a data set and write it, by default with the original's rows and into the cache; return its file.

    Raises:
        InputError: There is no such data set or no simulator, or the file cannot be written.
    """
    if name not in ROBOTS:
        raise InputError(f"no simulated data set {name!r}; choose from: {', '.join(ROBOTS)}")
    rows = SOURCES[name].rows if rows is None else rows
    path = (cache_folder() / f"{name}.npz" if out is None else Path(out)).absolute()
    if rows < 1 or path.suffix != ".npz":
        raise InputError(f"expected --rows of 1 or more and --out FILE.npz, got {rows} and {path}")
    with (
        tempfile.TemporaryDirectory() as aside,
        contextlib.chdir(aside),  # where MuJoCo leaves its MUJOCO_LOG.TXT
        contextlib.closing(open_environment(ROBOTS[name])) as environment,
    ):
        arrays = simulate(environment, ROBOTS[name], rows, seed)
    with lock_folder(path.parent):
        store(path, arrays)
    return path


def main(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(ROBOTS)}.")],
    rows: Annotated[int | None, typer.Option(help="Steps to simulate; by default as many as the original has.")] = None,
    out: Annotated[Path | None, typer.Option(help="File NAME.npz to write; by default in the cache.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random actions and starts.")] = 0,
) -> None:
    """Recreate one of the MuJoCo data sets."""
    try:
        typer.echo(f"wrote {make(name, rows, out, seed)}")
    except InputError as problem:
        typer.echo(f"Error: {problem}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
