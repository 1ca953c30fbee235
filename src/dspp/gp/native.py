"""The compiled version of predictions (`moments.cpp`): half the time of the passes and products of torch.

It is optional. The first model that predicts on a machine compiles it, in about a second, if there is a C++ compiler;
the result is kept in the user's cache folder (`$XDG_CACHE_HOME/dspp`). Without a compiler or a folder, with another
dtype or device or a kernel of one's own, or with DSPP_COMPILE=0 in the environment, torch computes the same up to
rounding.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from dspp.gp.kernels import RBF, KernelKind, Matern12, Matern32, Matern52

log = logging.getLogger("dspp")
SOURCE = Path(__file__).with_name("moments.cpp")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
MAX_SECONDS = 20  # of compilation
KINDS: list[type[KernelKind]] = [RBF, Matern12, Matern32, Matern52]  # in the order of moments.cpp


@dataclass(frozen=True)
class Packed:
    """Frozen inducing points in the order in which the compiled code reads them, see moments.cpp."""

    kind: type[KernelKind]
    zt: Float[Tensor, "W D M"]
    panels: Float[Tensor, "W P"]  # rows of B, by panel, each only up to its depth
    depths: Int[Tensor, " panels"]
    m: Float[Tensor, "W Q"]
    excess: Float[Tensor, "W Q"]
    panel_rows: int

    def moments(self, x: Float[Tensor, "W R D"]) -> tuple[Float[Tensor, "W R"], Float[Tensor, "W R"]] | None:
        """Return Aᵀ m and Aᵀ E A at each row; None if this was packed on another kind of machine."""
        library = load()
        if library is None or library.panel_rows() != self.panel_rows:
            return None
        x = x.contiguous()
        (W, R, D), M = x.shape, self.zt.shape[-1]
        mean, update = x.new_empty(W, R), x.new_empty(W, R)
        inputs = (x, self.zt, self.panels, self.depths, self.m, self.excess)
        sizes = (W, R, D, M, len(self.depths), self.panels.shape[-1])
        addresses = [tensor.data_ptr() for tensor in (*inputs, mean, update)]
        library.moments(KINDS.index(self.kind), *sizes, self.kind.horizon, *addresses)
        return mean, update


def pack(kind: type[KernelKind], z: Tensor, B: Tensor, m: Tensor, excess: Tensor, triangular: bool) -> Packed | None:
    """Return the arguments of `conditional.Frozen`, M a multiple of 16, for the compiled code; None: use torch."""
    if kind not in KINDS or z.dtype != torch.float32 or z.device.type != "cpu":
        return None
    library = load()
    if library is None:
        return None
    rows, M = library.panel_rows(), B.shape[-1]
    lead = -M % rows  # the first panel begins with zeros, so that the last one ends with B
    ends = range(rows - lead, M + 1, rows)
    depths = [end if triangular else M for end in ends]
    B = pad(B, (0, 0, lead, 0))
    panels = [B[:, i * rows : (i + 1) * rows, :depth].mT.flatten(1) for i, depth in enumerate(depths)]
    return Packed(
        kind,
        z.mT.contiguous(),
        torch.cat(panels, dim=1),
        torch.tensor(depths, dtype=torch.int32),
        pad(m, (lead, 0)).contiguous(),
        pad(excess, (lead, 0)).contiguous(),
        rows,
    )


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
        log.debug("predictions without compiled code: %s", error)
        return None
    count, address = ctypes.c_long, ctypes.c_void_p
    library.moments.argtypes = [ctypes.c_int, *[count] * 6, ctypes.c_float, *[address] * 8]
    library.moments.restype = None
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
    digest = hashlib.sha256(SOURCE.read_bytes())
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
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(part)]
        subprocess.run(command, check=True, capture_output=True, timeout=MAX_SECONDS)
        part.replace(path)
    except subprocess.SubprocessError as error:
        raise OSError(f"{compiler} failed: {error}") from error
    finally:
        part.unlink(missing_ok=True)
