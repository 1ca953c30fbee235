"""Many tasks on many processes, of this machine or of a Ray cluster; what a lost worker was doing is done again.

Two pools, one loop. `local` is a loky process (joblib's) for each slot, and nothing but this package's own
dependencies. `ray` is Ray's plain tasks, not its joblib backend (`ray.util.joblib`): that one runs a fixed set of
actors and knows no retries, so that a node that dies takes its tasks with it, and the whole call ends. Nor is it
`joblib.Parallel` that runs here: it gives up all that is in flight when one worker dies, and it draws the next task
before the caller has seen the last result, which a search must not.
"""

import logging
import os
import socket
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol, TypeVar

from dspp.errors import DsppError, InputError

ENGINES = ("local", "ray")
BEAT = 0.2  # seconds between two calls of `while_waiting`
REACH = 5.0  # seconds in which a Ray cluster must answer; left alone, Ray itself tries for minutes
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

T = TypeVar("T")
R = TypeVar("R")


class TasksLost(DsppError, RuntimeError):  # noqa: N818 - the name says what happened
    """Tasks were given up, as their workers were lost again and again; `numbers` says which."""

    def __init__(self, message: str, numbers: tuple[int, ...]) -> None:
        super().__init__(message, numbers)
        self.message, self.numbers = message, numbers

    def __str__(self) -> str:
        return self.message


class _Lost(Exception):  # noqa: N818 - no error of the task: it is given again
    """The worker or the node of a task was lost."""


class _Pool(Protocol):
    """Somewhere to run tasks."""

    def free(self) -> bool: ...  # whether another task can run now

    def submit(self, task: Any) -> Any: ...  # a handle

    def ready(self, handles: list[Any], seconds: float) -> list[Any]: ...  # those that are done, after so long at most

    def result(self, handle: Any) -> Any: ...  # raises _Lost, or what the function raised

    def close(self) -> None: ...  # end what is running


def run_all(
    function: Callable[..., R],
    tasks: Iterable[T],
    *,
    shared: tuple[Any, ...] = (),
    engine: str = "local",
    jobs: int | None = 1,
    address: str | None = None,
    tries: int = 3,
    while_waiting: Callable[[], object] | None = None,
) -> Iterator[tuple[int, R]]:
    """Call `function(task, *shared)` for each task; yield (number of the task, result) as they come, each once.

    A task is drawn when a worker is free for it, in the caller's thread, after the results before it were taken: tasks
    may depend on them. One local job runs in this process; more are processes of one thread each. On Ray a task takes
    one CPU. When the caller stops asking, what is running is ended.

    Args:
        function: what to run; importable by the workers, or a plain function that can be sent to them.
        tasks: its first argument, one after the other.
        shared: its other arguments, sent once to each worker (local) or node (Ray), not with each task.
        engine: "local", or "ray", which `pip install 'dspp[ray]'` brings.
        jobs: tasks at once; None: as many as this machine, or the cluster, has CPUs.
        address: of a Ray cluster, HOST:PORT, or "auto" for one that was started on this machine. None: $RAY_ADDRESS or,
            without it, a Ray of our own that ends with the tasks. A Ray that this process is connected to goes first.
        tries: how often a task is given to a worker before it is given up.
        while_waiting: called a few times a second while no result comes; what it raises ends all. Not called where
            tasks run in this process.

    Raises:
        InputError: there is no such engine, it is not installed, or the cluster cannot be reached.
        TasksLost: workers of some tasks were lost `tries` times each; the others are done, and were yielded.
        Exception: what the function raises, as it is; what else is running is ended.
    """
    check_engine(engine, jobs, address)
    if engine == "local" and (jobs or cores()) == 1:
        return ((number, function(task, *shared)) for number, task in enumerate(tasks))
    return _run_on_pool(lambda: _pool(engine, jobs, address, function, shared), tasks, tries, while_waiting)


def check_engine(engine: str, jobs: int | None, address: str | None) -> None:
    """Refuse what `run_all` cannot use.

    Raises:
        InputError: there is no such engine, the number of jobs is none, or an address was given to no purpose.
    """
    if engine not in ENGINES:
        raise InputError(f"engine: got {engine!r}, expected one of: {', '.join(ENGINES)}")
    if jobs is not None and (not isinstance(jobs, int) or jobs < 1):
        raise InputError(f"jobs: got {jobs!r}, expected a whole number of at least 1, or None for all CPUs")
    if engine == "local" and address is not None:
        raise InputError(f"address: got {address!r}, but only the engine 'ray' has one")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_on_pool(
    open_pool: Callable[[], _Pool], tasks: Iterable[T], tries: int, while_waiting: Callable[[], object] | None
) -> Iterator[tuple[int, Any]]:
    fresh = enumerate(tasks)
    again: deque[tuple[int, T]] = deque()  # lost: before fresh ones
    running: dict[Any, tuple[int, T]] = {}  # by handle
    losses: dict[int, int] = {}
    given_up: dict[int, str] = {}
    with ExitStack() as stack:
        pool = open_pool()
        stack.callback(pool.close)
        while True:
            while pool.free() and (drawn := again.popleft() if again else next(fresh, None)) is not None:
                running[pool.submit(drawn[1])] = drawn
            if not running:
                break
            for handle in pool.ready(list(running), BEAT):
                number, task = running.pop(handle)
                try:
                    result = pool.result(handle)
                except _Lost as loss:
                    losses[number] = losses.get(number, 0) + 1
                    if losses[number] < tries:
                        again.append((number, task))
                    else:
                        given_up[number] = f"task {number} ({_short(task)}): {_short(loss)}"
                else:
                    yield number, result
            if while_waiting is not None:
                while_waiting()
    if given_up:
        raise TasksLost(
            f"lost the worker {tries} times, so gave up {'; '.join(given_up.values())}. Most often memory ran out: try "
            "fewer jobs or a smaller model; all else is done",
            tuple(given_up),
        )


def _short(what: object) -> str:
    text = " ".join(str(what).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def _pool(
    engine: str, jobs: int | None, address: str | None, function: Callable[..., Any], shared: tuple[Any, ...]
) -> _Pool:
    return _Ray(jobs, address, function, shared) if engine == "ray" else _Local(jobs or cores(), function, shared)


# ---------------------------------------------------------------- this machine

_work: tuple[Callable[..., Any], tuple[Any, ...]]  # of a worker: the function and what its calls share
_parent: int | None = None  # of a worker: the process that waits for it
_busy = threading.Lock()  # held while a worker runs a task


def orphaned() -> bool:
    """In a local worker, whether the process that waits for it is gone; False anywhere else. Ray ends its own."""
    return _parent is not None and os.getppid() != _parent


def _begin(function: Callable[..., Any], shared: tuple[Any, ...], parent: int) -> None:
    """Make a process a worker. Ctrl-C, which a terminal sends to it too, is for its parent to heed."""
    import signal

    global _work, _parent
    _work, _parent = (function, shared), parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_as_an_orphan, daemon=True).start()


def _end_as_an_orphan() -> None:
    """A worker would wait for its next task for ever; the one it has may end in its own way, with its state kept."""
    while not orphaned():
        time.sleep(1.0)
    with _busy:
        os._exit(1)


def _call(task: Any) -> Any:
    function, shared = _work
    with _busy:
        return function(task, *shared)


class _Local:
    """A pool of processes. Each is an executor of its own, so that one that dies takes nothing else with it."""

    def __init__(self, jobs: int, function: Callable[..., Any], shared: tuple[Any, ...]) -> None:
        self._jobs, self._begin = jobs, (function, shared, os.getpid())
        self._idle: list[Any] = []
        self._busy: dict[Any, Any] = {}  # executors by what they run

    def free(self) -> bool:
        """Whether a process is idle, or may be begun."""
        return len(self._busy) < self._jobs

    def submit(self, task: Any) -> Any:
        """Give a task to a process that is idle, or to a new one."""
        from joblib.externals.loky import ProcessPoolExecutor

        executor = self._idle.pop() if self._idle else None
        if executor is None:
            executor = ProcessPoolExecutor(1, initializer=_begin, initargs=self._begin, env=ONE_THREAD)
        future = executor.submit(_call, task)
        self._busy[future] = executor
        return future

    def ready(self, handles: list[Any], seconds: float) -> list[Any]:
        """Wait for some to be done."""
        return list(wait(handles, timeout=seconds, return_when=FIRST_COMPLETED).done)

    def result(self, handle: Any) -> Any:
        """What came of a task; its process is idle again, or gone."""
        executor = self._busy.pop(handle)
        try:
            result = handle.result()
        except BrokenExecutor as problem:
            executor.shutdown(kill_workers=True)
            raise _Lost(problem) from None
        except BaseException:
            self._idle.append(executor)
            raise
        self._idle.append(executor)
        return result

    def close(self) -> None:
        """End all processes, those at work too."""
        for executor in self._busy.values():
            executor.shutdown(kill_workers=True)
        for executor in self._idle:
            executor.shutdown()


# ---------------------------------------------------------------- Ray


class _Ray:
    """Tasks of Ray, given without retries of its own: the loop gives them again, and counts."""

    def __init__(
        self, jobs: int | None, address: str | None, function: Callable[..., Any], shared: tuple[Any, ...]
    ) -> None:
        self._ray = ray = _import_ray()
        self._jobs = jobs
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(ray, address or os.environ.get("RAY_ADDRESS") or "local", jobs or cores())
        self._running: set[Any] = set()
        with _hushed():
            self._remote = ray.remote(num_cpus=1, max_retries=0)(_call_on_ray)
            self._work = ray.put((function, shared))  # held by this process's node: other nodes fetch it once
        self._paths = [os.path.abspath(path) for path in sys.path]

    def free(self) -> bool:
        """Whether the cluster has a CPU more than we have tasks: it may grow and shrink meanwhile."""
        return len(self._running) < (self._jobs or int(self._ray.cluster_resources().get("CPU", 1)) or 1)

    def submit(self, task: Any) -> Any:
        """Give a task to the cluster."""
        with _hushed():
            handle = self._remote.remote(self._paths, (self._work, self._ray.put(task)))
        self._running.add(handle)
        return handle

    def ready(self, handles: list[Any], seconds: float) -> list[Any]:
        """Wait for some to be done."""
        done, _ = self._ray.wait(handles, num_returns=1, timeout=seconds)
        return list(done)

    def result(self, handle: Any) -> Any:
        """What came of a task."""
        self._running.discard(handle)
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except errors.RayTaskError as problem:
            if isinstance(problem.cause, errors.RaySystemError):  # it could not read what it was sent
                raise DsppError(f"a worker of Ray failed: {_last_line(problem)}. {_SAME_CODE}") from problem
            if isinstance(problem.cause, Exception) and not isinstance(problem.cause, errors.RayError):
                raise problem.cause from problem
            raise _Lost(problem) from None  # what it needed was on a node that is gone
        except errors.RayError as problem:  # its worker or its node died, or what it returned was lost with that
            raise _Lost(problem) from None

    def close(self) -> None:
        """End what is running; leave Ray as it was found."""
        for handle in self._running:
            with suppress(Exception):
                self._ray.cancel(handle, force=True)
        if self._ours:
            self._ray.shutdown()


def _call_on_ray(paths: list[str], sent: tuple[Any, Any]) -> Any:
    """Find modules where the caller finds them, and only then read what it sent."""
    import ray

    sys.path.extend(path for path in paths if path not in sys.path)
    (function, shared), task = ray.get(list(sent))
    return function(task, *shared)


def _last_line(problem: Exception) -> str:
    return _short(str(problem).strip().splitlines()[-1])


def _import_ray() -> Any:
    try:
        with _hushed():
            import ray
    except ImportError as problem:
        raise InputError(f"the engine 'ray' needs Ray ({problem}): pip install 'dspp[ray]'") from None
    return ray


def _connect(ray: Any, address: str, jobs: int) -> None:
    """Join a cluster or, at the address "local", start a Ray of `jobs` CPUs that ends with this process."""
    _check_reachable(address)
    own = {"num_cpus": jobs, "include_dashboard": False} if address == "local" else {}
    try:
        with _hushed():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, ValueError, RuntimeError) as problem:
        raise InputError(f"address: cannot use Ray at {address!r}: {_short(problem)}; {_HOW}") from None


_SAME_CODE = (
    "Each machine of the cluster needs the same Python, the same version of dspp, and modules of your own at the same "
    "paths"
)
_HOW = (
    "expected HOST:PORT of a cluster (`ray start --head` prints it), 'auto' for one on this machine, or no address to "
    "run on this machine alone"
)


def _check_reachable(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # a word, for Ray to understand or to refuse
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
    except (OSError, OverflowError) as problem:
        raise InputError(f"address: no Ray answers at {address!r} ({problem}); {_HOW}") from None


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep Ray's advice to its developers, and its report of who uses it, to itself."""
    before = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is None:
            del os.environ["RAY_USAGE_STATS_ENABLED"]
