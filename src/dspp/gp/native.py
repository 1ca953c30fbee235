"""Compiles and loads `moments.cpp` and `algebra.cpp`, which take half the time of torch's operations or less.

It is optional. The first model on a machine compiles it, in two to three seconds, if there is a C++ compiler; the
result is kept in the user's cache folder (`$XDG_CACHE_HOME/dspp`). Without a compiler or a folder, with another dtype
or device or a kernel of one's own, or with DSPP_COMPILE=0 in the environment, torch computes the same up to rounding.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import threading
from pathlib import Path

log = logging.getLogger("dspp")
HEADER, *SOURCES = (Path(__file__).with_name(name) for name in ("common.h", "algebra.cpp", "moments.cpp"))
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
MAX_SECONDS = 20  # of compilation


@functools.cache
def load() -> ctypes.CDLL | None:
    """Return the compiled code; None if it is switched off or cannot be compiled."""
    if os.name != "posix" or os.environ.get("DSPP_COMPILE", "1") == "0":
        return None
    try:
        path = _cache_folder() / f"moments-{_fingerprint()}.so"
        if not path.exists():
            _compile(path)
        library = ctypes.CDLL(str(path))
    except (OSError, RuntimeError) as error:
        log.debug("without compiled code: %s", error)
        return None
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


def _cache_folder() -> Path:
    """Return a folder that only this user can write to, since code is loaded from it."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dspp"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise OSError(f"{folder}: other users can write to it")
    return folder


def _fingerprint() -> str:
    """Return a name for this code on this kind of processor: folders may be shared between machines."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (HEADER, *SOURCES)))
    digest.update(repr((FLAGS, platform.machine(), platform.processor())).encode())
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    digest.update("".join(sorted({line for line in lines if line.startswith(("model name", "flags"))})).encode())
    return digest.hexdigest()[:16]


def _compile(path: Path) -> None:
    import subprocess  # imported here, as it is seldom needed

    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if compiler is None:
        raise OSError("there is no C++ compiler")
    part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    try:
        command = [compiler, *FLAGS, *map(str, SOURCES), "-o", str(part)]
        subprocess.run(command, check=True, capture_output=True, timeout=MAX_SECONDS)
        part.replace(path)
    except subprocess.SubprocessError as error:
        raise OSError(f"{compiler} failed: {error}") from error
    finally:
        part.unlink(missing_ok=True)
