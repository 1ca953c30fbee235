"""Compiles and loads `moments.cpp` and `algebra.cpp`, which take half the time of torch's operations or less.

It is optional. The first model on a machine compiles it, in two to three seconds, if there is a C++ compiler; the
result is kept in the user's cache folder (`$XDG_CACHE_HOME/dspp`). Without a compiler or a folder, with another dtype
or device or a kernel of one's own, or with DSPP_COMPILE=0 in the environment, torch computes the same up to rounding.

A library's name ends with the SHA-256 of its content, so that one which was cut off or changed is compiled again.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

log = logging.getLogger("dspp")
HEADER, *SOURCES = (Path(__file__).with_name(name) for name in ("common.h", "algebra.cpp", "moments.cpp"))
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
MAX_SECONDS = 20  # of compilation
RETRY_SECONDS = 3_600  # until a compiler that has failed is tried again
PROCESSOR = ("model name", "flags", "Features", "CPU implementer", "CPU variant", "CPU part")  # on x86; on ARM


@functools.cache
def load() -> ctypes.CDLL | None:
    """Return the compiled code; None, with the reason in the log, if it is switched off or cannot be compiled."""
    if os.name != "posix" or os.environ.get("DSPP_COMPILE", "1") == "0":
        return None
    try:
        folder, name = _cache_folder(), f"moments-{_fingerprint()}"
        for path in sorted(folder.glob(f"{name}-*.so")):
            try:
                return _open(path)
            except (OSError, AttributeError) as error:
                log.info("compiling again: %s", error)
                path.unlink(missing_ok=True)
        compiler = _find_compiler()
        with _remember_failure(folder / f"{name}-{_describe(compiler)}.failed"):
            return _open(_compile(compiler, folder, name))
    except (OSError, AttributeError) as error:
        log.info("without compiled code: %s", error)
        return None


def library() -> ctypes.CDLL:
    """Return the compiled code, which the caller knows to be there."""
    found = load()
    assert found is not None
    return found


def addresses(*tensors: Tensor | None) -> list[int | None]:
    """Return where tensors begin, as the compiled code takes them; None: there is none."""
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def _open(path: Path) -> ctypes.CDLL:
    """Load a library and declare its functions.

    An `OSError` says that another user may have written it or that its content is not what was compiled, an
    `AttributeError` that it lacks a function.
    """
    with open(path, "rb", opener=_open_itself) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or not _is_ours(found):
            raise OSError(f"{path}: expected a file that only this user can write to")
        if hashlib.file_digest(file, "sha256").hexdigest() != path.stem.rpartition("-")[2]:
            raise OSError(f"{path}: the content does not match the name")
    library = ctypes.CDLL(str(path))
    count, number, address = ctypes.c_long, ctypes.c_int, ctypes.c_void_p
    for function in ("panel_columns", "backward_tasks", "root_numbers"):
        getattr(library, function).restype = count
    library.backward_tasks.argtypes, library.root_numbers.argtypes = [count, count], [count]
    library.forward.argtypes = [address, count, number, *[address] * 5]
    library.backward.argtypes = [address, address, number]
    library.kernel_matrix.argtypes = [*[count] * 3, number, ctypes.c_double, number, *[address] * 3]
    library.inverse_root.argtypes = [count, count, number, *[address] * 5]
    library.transposed_product.argtypes = [count, count, *[number] * 4, *[address] * 3]
    for function in ("forward", "backward", "kernel_matrix", "inverse_root", "transposed_product"):
        getattr(library, function).restype = None
    return library


def _open_itself(path: str, flags: int) -> int:
    """Open a file, but not what a link points to, and without waiting for the writer of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _cache_folder() -> Path:
    """Return a folder that only this user can write to, since code is loaded from it."""
    folder = _cache_home() / "dspp"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder = folder.resolve()
    parent = folder.parent.stat().st_mode
    replaceable = parent & stat.S_IWOTH and not parent & stat.S_ISVTX  # in /tmp only the owner can rename a folder
    if not _is_ours(folder.stat()) or replaceable:
        raise OSError(f"{folder}: other users can write to it or replace it; set XDG_CACHE_HOME to a private folder")
    return folder


def _cache_home() -> Path:
    """Return $XDG_CACHE_HOME or ~/.cache; a relative path does not count, nor does an empty one."""
    home = os.environ.get("HOME", os.path.expanduser("~"))
    for place in (os.environ.get("XDG_CACHE_HOME", ""), os.path.join(home, ".cache")):
        if os.path.isabs(place):
            return Path(place)
    raise OSError("there is no cache folder; set XDG_CACHE_HOME to an absolute path")


def _fingerprint() -> str:
    """Return a name for this code on this kind of processor: folders may be shared between machines."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (HEADER, *SOURCES)))
    digest.update(repr((FLAGS, platform.machine(), platform.processor())).encode())
    info = Path("/proc/cpuinfo")
    digest.update(_describe_processor(info.read_text() if info.exists() else "").encode())
    return digest.hexdigest()[:16]


def _describe_processor(info: str) -> str:
    """Return the lines of /proc/cpuinfo on which the compiled code depends, without those that change."""
    return "".join(sorted({line for line in info.splitlines() if line.startswith(PROCESSOR)}))


def _find_compiler() -> str:
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++")):
        if found := shutil.which(name):
            return found
    raise OSError("there is no C++ compiler")


def _describe(compiler: str) -> str:
    """Return a name for this compiler, which changes when it is installed again."""
    found = os.stat(compiler)
    return hashlib.sha256(repr((compiler, found.st_size, found.st_mtime_ns)).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _remember_failure(path: Path) -> Iterator[None]:
    """Store in a file why the block failed; until it expires, raise the same again in place of the block."""
    with contextlib.suppress(FileNotFoundError):
        if abs(time.time() - path.stat().st_mtime) < RETRY_SECONDS:
            reason = path.read_text("utf-8", errors="replace")
            raise OSError(f"{reason} (within the last hour; delete {path} to try again)")
    try:
        yield
    except (OSError, AttributeError) as error:
        with contextlib.suppress(OSError):
            path.write_text(str(error), "utf-8", errors="replace")
        raise
    path.unlink(missing_ok=True)


def _compile(compiler: str, folder: Path, name: str) -> Path:
    """Compile the code, in two to three seconds, and return the complete library."""
    import subprocess  # imported here, as they are seldom needed
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(dir=folder) as desk:
        part = Path(desk) / "moments.so"
        command = [compiler, *FLAGS, *map(str, SOURCES), "-o", str(part)]
        null = subprocess.DEVNULL
        with subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True) as process:
            try:
                status = process.wait(MAX_SECONDS)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    if hasattr(os, "killpg"):
                        os.killpg(process.pid, signal.SIGKILL)  # with the processes that the compiler has started
                if isinstance(error, subprocess.TimeoutExpired):
                    raise OSError(str(error)) from None
                raise
        if status:
            raise OSError(f"{' '.join(command)} ended with status {status}")
        with part.open("rb") as file:
            path = folder / f"{name}-{hashlib.file_digest(file, 'sha256').hexdigest()}.so"
            part.chmod(0o700)  # whatever the umask
            os.fsync(file.fileno())
        part.replace(path)
    return path
