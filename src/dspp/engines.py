"""Parallel tasks in processes of this machine or of a Ray cluster; tasks of a lost worker are retried.

There are two pools and one loop. `local` uses one loky process (from joblib) per slot. `ray` uses Ray's tasks rather
than its joblib backend (`ray.util.joblib`), which runs a fixed set of actors without retries, so that the whole call
fails if a node dies. `joblib.Parallel` is not used either: it gives up all running tasks when one worker dies, and it
draws the next task before the caller has seen the last result, on which a search depends.

While a task runs, `report` and `is_stopped` connect it with the caller, and `waited` says how long it took to start. So
no clock, file or signal of one machine is needed: time limits travel as seconds, counted from when a task was drawn.
"""

import atexit
import logging
import os
import select
import socket
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing import Pipe
from typing import Any, Protocol, TypeVar

from dspp.errors import DsppError, InputError
from dspp.extras import require

ENGINES = ("local", "ray")
BEAT = 0.2  # seconds between two calls of `while_waiting`, and at least between two reports from a worker
REACH = 5.0  # timeout for reaching a Ray cluster, in seconds; Ray itself would retry for minutes
WAIT = object()  # in place of a task: there is none until another result has arrived
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

T = TypeVar("T")
R = TypeVar("R")


class TasksLost(DsppError, RuntimeError):  # noqa: N818 - the name says what happened
    """Tasks failed because their workers were lost repeatedly; `numbers` are the tasks."""

    def __init__(self, message: str, numbers: tuple[int, ...]) -> None:
        super().__init__(message, numbers)
        self.message, self.numbers = message, numbers

    def __str__(self) -> str:
        return self.message


class _Lost(Exception):  # noqa: N818 - not an error of the task, which is retried
    """The worker or node of a task was lost."""


class _Channel:
    """What connects a running task with the caller of `run_all`.

    Args:
        waited: Seconds from when the task was drawn to when it began.
        send: Sends the caller what the task reports; some reports may get lost.
        ask: Returns whether the caller wants the task to stop, or is gone.
        every: Seconds between two calls of these.
    """

    def __init__(
        self, waited: float, send: Callable[[Any], object], ask: Callable[[], object], every: float = 0.0
    ) -> None:
        self.waited, self._send, self._ask, self._every = waited, send, ask, every
        self._stopped, self._sent, self._asked = False, 0.0, 0.0

    def report(self, value: Any) -> None:
        """Send a value."""
        if time.monotonic() - self._sent >= self._every:
            self._sent = time.monotonic()
            self._send(value)

    def is_stopped(self) -> bool:
        """Return whether the task should stop."""
        if not self._stopped and time.monotonic() - self._asked >= self._every:
            self._asked = time.monotonic()
            self._stopped = self._ask() is True
        return self._stopped


_channel: _Channel | None = None  # of the task that runs in this process


def report(value: Any) -> None:
    """Report how far the running task is, to `on_report` of its caller; does nothing outside of `run_all`."""
    if _channel is not None:
        _channel.report(value)


def is_stopped() -> bool:
    """Return whether the running task should stop, because its caller wants it or is gone."""
    return _channel is not None and _channel.is_stopped()


def waited() -> float:
    """Return how many seconds the running task waited for its worker."""
    return 0.0 if _channel is None else _channel.waited


@contextmanager
def _connected(channel: _Channel) -> Iterator[None]:
    """Connect the task that runs in a block."""
    global _channel
    before, _channel = _channel, channel
    try:
        yield
    finally:
        _channel = before


class _Pool(Protocol):
    """A pool of workers."""

    def free(self) -> bool: ...  # whether another task can run now

    def submit(self, number: int, task: Any, waited: float) -> Any: ...  # a handle

    def ready(
        self, handles: list[Any], seconds: float
    ) -> list[Any]: ...  # those that are done, waiting at most this long

    def result(self, handle: Any) -> Any: ...  # raises _Lost, or what the function raised

    def news(self) -> Iterable[tuple[int, Any]]: ...  # what tasks have reported, with their numbers

    def stop(self) -> None: ...  # tell running tasks to stop

    def close(self) -> None: ...  # stop running tasks


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
    on_report: Callable[[int, Any], None] | None = None,
) -> Iterator[tuple[int, R]]:
    """Call `function(task, *shared)` for each task, and yield (task number, result) in the order of completion.

    A task is drawn when a worker is free, in the caller's thread and after the caller has received all earlier results,
    so that tasks may depend on them. `WAIT` in place of a task means that the next one depends on a result that has not
    arrived. A single local job runs in this process; several run in processes of one thread each. On Ray, a task uses
    one CPU. When the caller stops iterating, running tasks are stopped.

    Args:
        function: The function; importable by the workers, or a plain function that can be pickled.
        tasks: The first arguments.
        shared: The other arguments, sent once to each worker (local) or node (Ray).
        engine: "local", or "ray" (`pip install 'dspp[ray]'`).
        jobs: Number of parallel tasks; None: the number of CPUs of this machine or of the cluster.
        address: Address of a Ray cluster, HOST:PORT, or "auto" for one on this machine. None: $RAY_ADDRESS or, if not
            set, a new Ray instance that ends with the tasks. An existing connection of this process takes precedence.
        tries: How often to try a task whose worker is lost.
        while_waiting: Called a few times per second while waiting for results. If it returns True, no more tasks are
            drawn, and in those that run `is_stopped` is true; an exception it raises ends them at once. If tasks run in
            this process, it is called by `is_stopped`.
        on_report: Called with the number of a task and what it passed to `report`.

    Raises:
        InputError: The engine is unknown or not installed, or the cluster cannot be reached.
        TasksLost: The workers of some tasks were lost `tries` times; the results of the others were yielded.
        Exception: Any exception of the function; running tasks are stopped.
    """
    check_engine(engine, jobs, address)
    if engine == "local" and (jobs or cores()) == 1:
        return _run_here(function, tasks, shared, while_waiting, on_report)
    open_pool = partial(_pool, engine, jobs, address, function, shared)
    return _run_on_pool(open_pool, tasks, tries, while_waiting, on_report)


def check_engine(engine: str, jobs: int | None, address: str | None) -> None:
    """Check the arguments of `run_all`.

    Raises:
        InputError: The engine is unknown, the number of jobs is not positive, or the engine needs no address.
    """
    if engine not in ENGINES:
        raise InputError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    if jobs is not None and (not isinstance(jobs, int) or jobs < 1):
        raise InputError(f"jobs: expected an integer ≥ 1, or None for all CPUs, got {jobs!r}")
    if engine == "local" and address is not None:
        raise InputError(f"address: expected None for the engine 'local', got {address!r}; use engine='ray'")


def cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_workers(engine: str, jobs: int | None) -> int:
    """Return how many tasks run side by side; of a Ray cluster, the number of its CPUs once it is connected."""
    if jobs is not None or engine == "local":
        return jobs or cores()
    ray = _import_ray()
    return int(ray.cluster_resources().get("CPU", 1)) or 1 if ray.is_initialized() else 1


def _run_here(
    function: Callable[..., R],
    tasks: Iterable[T],
    shared: tuple[Any, ...],
    while_waiting: Callable[[], object] | None,
    on_report: Callable[[int, Any], None] | None,
) -> Iterator[tuple[int, R]]:
    for number, task in enumerate(tasks):
        send = _ignore if on_report is None else partial(on_report, number)
        with _connected(_Channel(0.0, send, while_waiting or _ignore)):
            result = function(task, *shared)
        yield number, result


def _ignore(*given: Any) -> None:
    """Do nothing."""


def _run_on_pool(
    open_pool: Callable[[], _Pool],
    tasks: Iterable[T],
    tries: int,
    while_waiting: Callable[[], object] | None,
    on_report: Callable[[int, Any], None] | None,
) -> Iterator[tuple[int, Any]]:
    tasks, numbers = iter(tasks), count()
    drawn_at: dict[int, float] = {}
    stopping = False
    again: deque[tuple[int, T]] = deque()  # lost tasks, before fresh ones
    running: dict[Any, tuple[int, T]] = {}  # by handle
    losses: dict[int, int] = {}
    given_up: dict[int, str] = {}
    with ExitStack() as stack:
        pool = open_pool()
        stack.callback(pool.close)
        while True:
            while not stopping and pool.free():
                if (drawn := again.popleft() if again else _draw(tasks, numbers)) is None:
                    break
                since = drawn_at.setdefault(drawn[0], time.monotonic())
                running[pool.submit(*drawn, time.monotonic() - since)] = drawn
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
            for number, value in pool.news():
                if on_report is not None and any(number == one for one, _ in running.values()):
                    on_report(number, value)
            if while_waiting is not None and while_waiting() is True and not stopping:
                stopping = True
                pool.stop()
    if given_up:
        raise TasksLost(
            f"lost the worker {tries} times, gave up {'; '.join(given_up.values())}. The most common cause is too "
            "little memory: try fewer jobs or a smaller model. All other tasks are done",
            tuple(given_up),
        )


def _draw(tasks: Iterator[T], numbers: Iterator[int]) -> tuple[int, T] | None:
    """Return the next task with its number, or None if there is none, or none until another result has arrived."""
    task = next(tasks, WAIT)
    return None if task is WAIT else (next(numbers), task)  # type: ignore[return-value]


def _short(what: object) -> str:
    text = " ".join(str(what).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def _pool(
    engine: str, jobs: int | None, address: str | None, function: Callable[..., Any], shared: tuple[Any, ...]
) -> _Pool:
    return _Ray(jobs, address, function, shared) if engine == "ray" else _Local(jobs or cores(), function, shared)


# ---------------------------------------------------------------- this machine

_work: tuple[Callable[..., Any], tuple[Any, ...], Any]  # in a worker: function, shared arguments, end of pipe
_parent: int | None = None  # in a worker: the parent process
_busy = threading.Lock()  # held while a worker runs a task


def _is_orphan() -> bool:
    """Return whether this process is a local worker whose parent is gone; Ray stops its own workers."""
    return _parent is not None and os.getppid() != _parent


def _start_worker(function: Callable[..., Any], shared: tuple[Any, ...], parent: int, end: Any) -> None:
    """Initialise a worker. It ignores Ctrl-C, which the terminal also sends to its parent."""
    import signal

    global _work, _parent
    _work, _parent = (function, shared, end), parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_when_orphaned, daemon=True).start()


def _exit_when_orphaned() -> None:
    """Exit once the parent is gone and the current task, which may save its state, has ended."""
    while not _is_orphan():
        time.sleep(1.0)
    with _busy:
        os._exit(1)


def _call(number: int, task: Any, drawn_at: float) -> Any:
    """Call the function; `drawn_at` is a time of a clock (`time.monotonic`) that processes of a machine share."""
    function, shared, end = _work

    def send(value: Any) -> None:
        if select.select([], [end.fileno()], [], 0.0)[1]:  # unless the pipe is full
            with suppress(OSError):
                end.send((number, value))

    def ask() -> bool:
        return _is_orphan() or bool(end.poll())

    with _busy, _connected(_Channel(time.monotonic() - drawn_at, send, ask, BEAT)):
        return function(task, *shared)


@atexit.register
def _join_feeders() -> None:
    """Wait until the threads that feed the queues of ended processes are done; they take milliseconds.

    They are daemons that loky does not join, and each removes semaphores as it ends. If the interpreter exits
    meanwhile, some remain registered, and loky reports them as leaked.
    """
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(1.0)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM, which may be sent to a whole group of processes, while a block runs.

    A process inherits this. One that died while it starts would leave loky waiting for it to read its arguments.
    """
    import signal
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as loky_tracker

    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    for tracker in (resource_tracker, loky_tracker):
        tracker.ensure_running()  # when it starts, it unblocks these signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Local:
    """A pool of processes. Each has its own executor, so that one that dies does not affect the others."""

    def __init__(self, jobs: int, function: Callable[..., Any], shared: tuple[Any, ...]) -> None:
        self._jobs, self._worker_args = jobs, (function, shared, os.getpid())
        self._idle: list[Any] = []
        self._busy: dict[Any, Any] = {}  # executors by future
        self._pipes: dict[Any, tuple[Any, Any]] = {}  # both ends, by executor

    def free(self) -> bool:
        """Return whether a process is idle or may be started."""
        return len(self._busy) < self._jobs

    def submit(self, number: int, task: Any, waited: float) -> Any:
        """Submit a task to an idle or new process; one that died while it was idle is dropped."""
        from joblib.externals.loky import ProcessPoolExecutor

        call = number, task, time.monotonic() - waited
        while self._idle:
            executor = self._idle.pop()
            with suppress(BrokenExecutor):
                return self._keep(executor, executor.submit(_call, *call))
            self._drop(executor)
        mine, its = Pipe()
        start = {"initializer": _start_worker, "initargs": (*self._worker_args, its)}
        executor = ProcessPoolExecutor(1, env=ONE_THREAD, **start)
        self._pipes[executor] = mine, its  # the executor may need its end again, to replace the process
        with _blocked_signals():  # in the new process for good: this one decides when to stop
            return self._keep(executor, executor.submit(_call, *call))

    def _keep(self, executor: Any, future: Any) -> Any:
        self._busy[future] = executor
        return future

    def ready(self, handles: list[Any], seconds: float) -> list[Any]:
        """Wait for some to be done."""
        return list(wait(handles, timeout=seconds, return_when=FIRST_COMPLETED).done)

    def result(self, handle: Any) -> Any:
        """Return the result of a task; its process is then idle or gone."""
        executor = self._busy.pop(handle)
        try:
            result = handle.result()
        except BrokenExecutor as problem:
            self._drop(executor)
            raise _Lost(problem) from None
        except BaseException:
            self._idle.append(executor)
            raise
        self._idle.append(executor)
        return result

    def news(self) -> Iterator[tuple[int, Any]]:
        """Yield what tasks have reported."""
        for executor in self._busy.values():
            mine, _ = self._pipes[executor]
            while mine.poll():
                yield mine.recv()

    def stop(self) -> None:
        """Tell running tasks to stop."""
        for executor in self._busy.values():
            with suppress(OSError):
                self._pipes[executor][0].send(None)

    def _drop(self, executor: Any) -> None:
        executor.shutdown(kill_workers=True)
        for end in self._pipes.pop(executor):
            end.close()

    def close(self) -> None:
        """Stop all processes."""
        for executor in self._busy.values():
            self._drop(executor)
        for executor in self._idle:
            executor.shutdown(wait=False)  # it takes seconds to exit


# ---------------------------------------------------------------- Ray


class _Ray:
    """A pool of Ray tasks, without Ray's own retries, which the loop counts."""

    def __init__(
        self, jobs: int | None, address: str | None, function: Callable[..., Any], shared: tuple[Any, ...]
    ) -> None:
        self._ray = ray = _import_ray()
        self._jobs = jobs
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(ray, address or os.environ.get("RAY_ADDRESS") or "local", jobs or cores())
        self._running: set[Any] = set()
        with _silence_ray():
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            self._mailbox = ray.remote(num_cpus=0, scheduling_strategy=here)(_Mailbox).remote()
            self._remote = ray.remote(num_cpus=1, max_retries=0)(_call_on_ray)
            self._work = ray.put((function, shared))  # stored on this node; other nodes fetch it once
        self._paths = [os.path.abspath(path) for path in sys.path]

    def free(self) -> bool:
        """Return whether the cluster, which may grow and shrink, has a free CPU."""
        return len(self._running) < num_workers("ray", self._jobs)

    def submit(self, number: int, task: Any, waited: float) -> Any:
        """Submit a task to the cluster."""
        self._mailbox.expect.remote(number, waited)
        with _silence_ray():
            handle = self._remote.remote(self._paths, (self._work, self._ray.put(task)), number, self._mailbox)
        self._running.add(handle)
        return handle

    def ready(self, handles: list[Any], seconds: float) -> list[Any]:
        """Wait for some to be done."""
        done, _ = self._ray.wait(handles, num_returns=1, timeout=seconds)
        return list(done)

    def result(self, handle: Any) -> Any:
        """Return the result of a task."""
        self._running.discard(handle)
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except errors.RayTaskError as problem:
            if isinstance(problem.cause, errors.RaySystemError):  # it could not unpickle its arguments
                raise DsppError(f"a Ray worker failed: {_last_line(problem)}. {_SAME_CODE}") from problem
            if isinstance(problem.cause, Exception) and not isinstance(problem.cause, errors.RayError):
                raise problem.cause from problem
            raise _Lost(problem) from None  # its arguments were on a lost node
        except errors.RayError as problem:  # its worker, its node or its result was lost
            raise _Lost(problem) from None

    def news(self) -> Iterable[tuple[int, Any]]:
        """Return what tasks have reported."""
        return list(self._ray.get(self._mailbox.take.remote()).items())

    def stop(self) -> None:
        """Tell running tasks to stop."""
        self._ray.get(self._mailbox.stop.remote())

    def close(self) -> None:
        """Cancel running tasks, and shut Ray down if we started it."""
        for handle in self._running:
            with suppress(Exception):
                self._ray.cancel(handle, force=True)
        if self._ours:
            self._ray.shutdown()


class _Mailbox:
    """An actor on the caller's node, through which tasks on all nodes reach the caller."""

    def __init__(self) -> None:
        self.stopped = False
        self.drawn_at: dict[int, float] = {}  # by the clock of this node
        self.reports: dict[int, Any] = {}

    def expect(self, number: int, waited: float) -> None:
        self.drawn_at[number] = time.monotonic() - waited

    def waited(self, number: int) -> float:
        return time.monotonic() - self.drawn_at[number]

    def report(self, number: int, value: Any) -> None:
        self.reports[number] = value

    def take(self) -> dict[int, Any]:
        reports, self.reports = self.reports, {}
        return reports

    def stop(self) -> None:
        self.stopped = True

    def is_stopped(self) -> bool:
        return self.stopped


def _call_on_ray(paths: list[str], sent: tuple[Any, Any], number: int, mailbox: Any) -> Any:
    """Extend sys.path by the caller's, then unpickle and call the function."""
    import ray

    sys.path.extend(path for path in paths if path not in sys.path)
    (function, shared), task = ray.get(list(sent))

    def ask() -> bool:
        try:
            return bool(ray.get(mailbox.is_stopped.remote()))
        except ray.exceptions.RayError:  # the caller is gone
            return True

    waited = float(ray.get(mailbox.waited.remote(number)))
    with _connected(_Channel(waited, partial(mailbox.report.remote, number), ask, BEAT)):
        return function(task, *shared)


def _last_line(problem: Exception) -> str:
    return _short(str(problem).strip().splitlines()[-1])


def _import_ray() -> Any:
    require("ray", "engine='ray'")
    with _silence_ray():
        import ray
        import ray.util.scheduling_strategies
    return ray


def _connect(ray: Any, address: str, jobs: int) -> None:
    """Connect to a cluster or, for the address "local", start Ray with `jobs` CPUs."""
    _check_reachable(address)
    own = {"num_cpus": jobs, "include_dashboard": False} if address == "local" else {}
    try:
        with _silence_ray():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, ValueError, RuntimeError) as problem:
        raise InputError(f"address: cannot connect to Ray at {address!r}: {_short(problem)}; {_HOW}") from None


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
        return  # not HOST:PORT: left to Ray
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
    except (OSError, OverflowError) as problem:
        raise InputError(f"address: cannot reach Ray at {address!r} ({problem}); {_HOW}") from None


@contextmanager
def _silence_ray() -> Iterator[None]:
    """Silence Ray's warnings and disable its usage statistics while a block runs."""
    before = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is None:
            del os.environ["RAY_USAGE_STATS_ENABLED"]
