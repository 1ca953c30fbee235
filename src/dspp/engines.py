"""Parallel tasks in processes of this machine or of a Ray cluster; a task whose worker is lost is tried again.

There are two pools and one loop. The local pool has a process and a pipe for each worker, so that one that dies costs
its own task only, and nothing outlives the caller: the pipe says that it is gone, and there are no queues, semaphores
or threads. loky (from joblib) starts the processes, as it does not run the caller's script again. Ray runs plain tasks
rather than its joblib backend (`ray.util.joblib`), whose fixed set of actors fails as a whole if a node dies.

While a task runs, `report` and `is_stopped` connect it with the caller, and `waited` says how long it took to start. So
no clock, file or signal of one machine is needed: time limits travel as seconds, counted from when a task was drawn.
"""

import atexit
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing import Pipe, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeVar

from dspp.errors import DsppError, InputError
from dspp.extras import require

ENGINES = ("local", "ray")
BEAT = 0.2  # seconds between two calls of `while_waiting`, and at least between two reports from a worker
MAX_TRIES = 3  # of a task whose worker is lost
MAX_CONNECT_SECONDS = 5.0  # for reaching a Ray cluster; Ray itself would retry for minutes
MAX_EXIT_SECONDS = 5.0  # for the exit code of a worker that has closed its pipe
WAIT = object()  # in place of a task: there is none until another result has arrived
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

T = TypeVar("T")
R = TypeVar("R")
Event = tuple[str, int, Any]  # "report", "done", "raised" or "lost"; the number of the task; what, or why


class TasksLost(DsppError, RuntimeError):  # noqa: N818 - the name says what happened
    """Tasks failed because their workers were lost repeatedly; `numbers` are the tasks."""

    def __init__(self, message: str, numbers: tuple[int, ...]) -> None:
        super().__init__(message, numbers)
        self.message, self.numbers = message, numbers

    def __str__(self) -> str:
        return self.message


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
        if time.monotonic() - self._sent >= self._every:
            self._sent = time.monotonic()
            self._send(value)

    def is_stopped(self) -> bool:
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


def run_all(
    function: Callable[..., R],
    tasks: Iterable[T],
    *,
    shared: tuple[Any, ...] = (),
    engine: str = "local",
    jobs: int | None = 1,
    address: str | None = None,
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
        while_waiting: Called a few times per second while waiting for results. If it returns True, no more tasks are
            drawn, and in those that run `is_stopped` is true; an exception it raises ends them at once. If tasks run in
            this process, it is called by `is_stopped`.
        on_report: Called with the number of a task and what it passed to `report`.

    Raises:
        InputError: The engine is unknown or not installed, or the cluster cannot be reached.
        TasksLost: The workers of some tasks were lost `MAX_TRIES` times; the results of the others were yielded.
        Exception: Any exception of the function; running tasks are stopped.
    """
    check_engine(engine, jobs, address)
    ask, tell = while_waiting or _ignore, on_report or _ignore
    if engine == "local" and (jobs or cores()) == 1:
        return _run_here(function, tasks, shared, ask, tell)
    if engine == "local":
        return _run_on_pool(partial(_Local, jobs or cores(), (function, shared)), tasks, ask, tell)
    return _run_on_pool(partial(_Ray, jobs, address, (function, shared)), tasks, ask, tell)


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


def _ignore(*given: Any) -> None:
    pass


def _run_here(
    function: Callable[..., R],
    tasks: Iterable[T],
    shared: tuple[Any, ...],
    while_waiting: Callable[[], object],
    on_report: Callable[[int, Any], object],
) -> Iterator[tuple[int, R]]:
    for number, task in enumerate(tasks):
        with _connected(_Channel(0.0, partial(on_report, number), while_waiting)):
            result = function(task, *shared)
        yield number, result


class _Pool(Protocol):
    """A pool of workers."""

    def is_free(self) -> bool: ...  # whether another task can run now

    def submit(self, number: int, task: Any, drawn_at: float) -> None: ...

    def events(self, seconds: float) -> Iterator[Event]: ...  # waits at most this long for the first

    def stop(self) -> None: ...  # tells running tasks to stop

    def close(self) -> None: ...  # ends all workers


def _run_on_pool(
    open_pool: Callable[[], _Pool],
    tasks: Iterable[T],
    while_waiting: Callable[[], object],
    on_report: Callable[[int, Any], object],
) -> Iterator[tuple[int, Any]]:
    fresh, numbers = iter(tasks), count()
    drawn: dict[int, tuple[T, float]] = {}  # tasks without a result, and when each was drawn
    running: set[int] = set()
    lost: deque[int] = deque()  # to be tried again, before fresh ones
    tries: Counter[int] = Counter()
    given_up: dict[int, str] = {}
    stopping = False
    with closing(open_pool()) as pool:
        while True:
            while pool.is_free() and not stopping:
                if lost:
                    number = lost.popleft()
                elif (task := next(fresh, WAIT)) is WAIT:
                    break
                else:
                    number = next(numbers)
                    drawn[number] = task, time.monotonic()  # type: ignore[assignment]
                tries[number] += 1
                running.add(number)
                pool.submit(number, *drawn[number])
            if not running:
                break
            for kind, number, value in pool.events(BEAT):
                if kind == "report":
                    on_report(number, value)
                    continue
                running.remove(number)
                if kind == "raised":
                    raise value
                if kind == "done":
                    del drawn[number]
                    yield number, value
                elif tries[number] < MAX_TRIES:
                    lost.append(number)
                else:
                    given_up[number] = f"task {number} ({_short(drawn[number][0])}): {_short(value)}"
            if not stopping and while_waiting() is True:
                stopping = True
                pool.stop()
    if given_up:
        raise TasksLost(
            f"lost the worker {MAX_TRIES} times, gave up {'; '.join(given_up.values())}. The most common cause is too "
            "little memory: try fewer jobs or a smaller model. All other tasks are done",
            tuple(given_up),
        )


def _short(what: object) -> str:
    text = " ".join(str(what).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


# ---------------------------------------------------------------- this machine


class _Local:
    """A pool of processes, started as they are needed."""

    def __init__(self, jobs: int, work: tuple[Callable[..., Any], tuple[Any, ...]]) -> None:
        self._jobs, self._work = jobs, work
        self._processes: dict[Connection, Any] = {}
        self._idle: list[Connection] = []
        self._busy: dict[Connection, int] = {}  # the number of its task
        atexit.register(self.close)  # before the interpreter waits for all processes

    def is_free(self) -> bool:
        return len(self._busy) < self._jobs

    def submit(self, number: int, task: Any, drawn_at: float) -> None:
        from joblib.externals.loky.backend.reduction import dumps

        work, pipe = None, self._take_idle()
        if pipe is None:
            work, pipe = self._work, self._start()
        self._busy[pipe] = number
        with suppress(OSError):  # if it has just died, the next event says so
            pipe.send_bytes(dumps((work, task, drawn_at)))

    def _take_idle(self) -> Connection | None:
        while self._idle:
            pipe = self._idle.pop()
            if self._processes[pipe].is_alive():
                return pipe
            self._drop(pipe)
        return None

    def _start(self) -> Connection:
        from joblib.externals.loky.backend.process import LokyProcess

        pipe, its = Pipe()
        process = LokyProcess(target=_serve, args=(its,), env=ONE_THREAD)
        with _blocked_signals():  # in the new process for good: this one decides when to stop
            process.start()
        its.close()
        self._processes[pipe] = process
        return pipe

    def events(self, seconds: float) -> Iterator[Event]:
        for pipe in wait(list(self._busy), seconds):
            assert isinstance(pipe, Connection)
            try:
                kind, value = pipe.recv()
            except (EOFError, OSError):
                self._processes[pipe].join(MAX_EXIT_SECONDS)
                reason = f"its process ended with the exit code {self._processes[pipe].exitcode}"
                yield "lost", self._drop(pipe), reason
                continue
            number = self._busy[pipe]
            if kind != "report":
                self._idle.append(pipe)
                del self._busy[pipe]
            if kind == "raised":
                value, text = value
                value.__cause__ = RuntimeError(f"in a worker\n{text}")
            yield kind, number, value

    def stop(self) -> None:
        for pipe in self._busy:
            with suppress(OSError):
                pipe.send(None)

    def _drop(self, pipe: Connection) -> int:
        """Kill a process, and return the number of its task, or -1."""
        from joblib.externals.loky.backend.utils import kill_process_tree

        process = self._processes.pop(pipe)
        if process.is_alive():
            kill_process_tree(process)
        pipe.close()
        return self._busy.pop(pipe, -1)

    def close(self) -> None:
        atexit.unregister(self.close)
        for pipe in list(self._busy):
            self._drop(pipe)
        for pipe in self._idle:  # which takes this as a sign to exit
            pipe.close()
        self._idle.clear()


def _serve(pipe: Connection) -> None:
    """Run the tasks that arrive in a worker, until the caller is gone."""
    from joblib.externals.loky.backend.reduction import dumps

    def send(value: Any) -> None:
        if select.select([], [pipe.fileno()], [], 0.0)[1]:  # unless the pipe is full
            with suppress(OSError):
                pipe.send_bytes(dumps(("report", value)))

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where signals cannot be blocked
    work: Any = None
    with suppress(EOFError, OSError):  # the caller is gone
        while True:
            if (message := pipe.recv()) is None:  # told to stop when it had just ended
                continue
            work, (task, drawn_at) = message[0] or work, message[1:]
            function, shared = work
            with _connected(_Channel(time.monotonic() - drawn_at, send, pipe.poll, BEAT)):
                try:
                    reply = dumps(("done", function(task, *shared)))
                except BaseException as problem:
                    reply = dumps(("raised", (problem, traceback.format_exc())))
            pipe.send_bytes(reply)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM, which may be sent to a whole group of processes; a process started here inherits it."""
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


# ---------------------------------------------------------------- Ray


class _Ray:
    """A pool of Ray tasks, without Ray's own retries, which the loop counts."""

    def __init__(self, jobs: int | None, address: str | None, work: tuple[Callable[..., Any], tuple[Any, ...]]) -> None:
        self._ray = ray = _import_ray()
        self._jobs = jobs
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(ray, address or os.environ.get("RAY_ADDRESS") or "local", jobs or cores())
        self._running: dict[Any, int] = {}  # numbers by handle
        self._stopped = False
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self._mailbox = ray.remote(num_cpus=0, scheduling_strategy=here)(_Mailbox).remote()
        self._remote = ray.remote(num_cpus=1, max_retries=0)(_call_on_ray)
        self._work = ray.put(work)  # stored on this node; other nodes fetch it once
        self._paths = [os.path.abspath(path) for path in sys.path]

    def is_free(self) -> bool:
        return len(self._running) < num_workers("ray", self._jobs)  # the cluster may grow and shrink

    def submit(self, number: int, task: Any, drawn_at: float) -> None:
        sent = self._work, self._ray.put(task)
        self._running[self._remote.remote(self._paths, sent, number, drawn_at, self._mailbox)] = number

    def events(self, seconds: float) -> Iterator[Event]:
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        if not self._stopped:
            for number, value in self._ray.get(self._mailbox.take.remote()):
                yield "report", number, value
        for handle in done:
            yield self._result(handle, self._running.pop(handle))

    def _result(self, handle: Any, number: int) -> Event:
        errors = self._ray.exceptions
        try:
            return "done", number, self._ray.get(handle)
        except errors.RayTaskError as problem:
            cause = problem.cause
            if isinstance(cause, errors.RaySystemError):  # it could not unpickle its arguments
                last = str(problem).strip().splitlines()[-1]
                cause = DsppError(f"a Ray worker failed: {_short(last)}. {_SAME_CODE}")
            elif isinstance(cause, errors.RayError) or not isinstance(cause, Exception):
                return "lost", number, problem  # its arguments were on a lost node
            cause.__cause__ = problem
            return "raised", number, cause
        except errors.RayError as problem:  # its worker, its node or its result was lost
            return "lost", number, problem

    def stop(self) -> None:
        self._stopped = True
        self._ray.kill(self._mailbox)

    def close(self) -> None:
        for handle in self._running:
            with suppress(Exception):
                self._ray.cancel(handle, force=True)
        if self._ours:
            self._ray.shutdown()


class _Mailbox:
    """An actor on the caller's node, through which tasks on all nodes reach the caller; without it, they stop."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, Any]] = []

    def now(self) -> float:
        return time.monotonic()

    def put(self, number: int, value: Any) -> None:
        self.reports.append((number, value))

    def take(self) -> list[tuple[int, Any]]:
        reports, self.reports = self.reports, []
        return reports


def _call_on_ray(paths: list[str], sent: tuple[Any, Any], number: int, drawn_at: float, mailbox: Any) -> Any:
    """Extend sys.path by the caller's, then unpickle and call the function."""
    import ray

    def ask() -> bool:
        try:
            return ray.get(mailbox.now.remote()) is None
        except ray.exceptions.RayError:  # the caller has ended the mailbox, or is gone
            return True

    sys.path.extend(path for path in paths if path not in sys.path)
    (function, shared), task = ray.get(list(sent))
    waited = ray.get(mailbox.now.remote()) - drawn_at
    with _connected(_Channel(waited, partial(mailbox.put.remote, number), ask, BEAT)):
        return function(task, *shared)


_SAME_CODE = (
    "Each machine of the cluster needs the same Python, the same version of dspp, and modules of your own at the same "
    "paths"
)
_HOW = (
    "expected HOST:PORT of a cluster (`ray start --head` prints it), 'auto' for one on this machine, or no address to "
    "run on this machine alone"
)


def _import_ray() -> Any:
    require("ray", "engine='ray'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        import ray.util.scheduling_strategies
    return ray


def _connect(ray: Any, address: str, jobs: int) -> None:
    """Connect to a cluster or, for the address "local", start Ray with `jobs` CPUs.

    Raises:
        InputError: There is no cluster at this address.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():  # other addresses are left to Ray
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=MAX_CONNECT_SECONDS).close()
        except (OSError, OverflowError) as problem:
            raise InputError(f"address: cannot reach Ray at {address!r} ({problem}); {_HOW}") from None
    own = {"num_cpus": jobs, "include_dashboard": False} if address == "local" else {}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, ValueError, RuntimeError) as problem:
        raise InputError(f"address: cannot connect to Ray at {address!r}: {_short(problem)}; {_HOW}") from None
