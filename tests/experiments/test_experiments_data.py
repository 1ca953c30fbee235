"""The data sets of the experiments: nothing is parsed that no checksum vouches for, and no failure leaves a trace."""

import gzip
import hashlib
import importlib.util
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import typer
from scipy.io import savemat

from dspp.errors import InputError
from experiments import data
from experiments.data import DataMissing, __main__, convert, download, files, find, load, mujoco
from experiments.data.sources import PUBLIC_URL, SOURCES, Source, how_to_get

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((6, 4))  # three inputs and the target, more digits than single precision has
X, Y = TABLE[:, :-1], TABLE[:, -1]


def packed(table: np.ndarray) -> bytes:
    text = io.StringIO()
    np.savetxt(text, table, delimiter=",")
    return gzip.compress(text.getvalue().encode())


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def available(names: Iterable[str], folder: Path | None = None) -> list[str]:
    return [name for name in names if find(name, folder) is not None]


class Mirror(ThreadingHTTPServer):
    """A web server on this machine that does as `answer` says and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.mode = "serve"
        self.arrived, self.release = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/sets"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    server: Mirror

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        mirror, mode = self.server, self.server.mode
        mirror.asked.append(self.path)
        mirror.arrived.set()
        if mode == "hang":
            mirror.release.wait(20)
            return
        content = mirror.files.get(self.path)
        if mode.isdigit() or content is None:
            self.send_error(int(mode) if mode.isdigit() else 404)
            return
        if mode == "slow":
            mirror.release.wait(0.5)
        self.send_response(200)
        if mode != "no length":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if mode in ("serve", "slow") else content[: len(content) // 2])
        if mode == "stall":
            self.wfile.flush()
            mirror.release.wait(20)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test, and none of the user's settings."""
    for name in ("DSPP_DATA", "DSPP_DATA_URL", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DSPP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with Mirror() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


def publish(mirror: Mirror, monkeypatch: pytest.MonkeyPatch, *parts: bytes, rows: int = 6) -> Source:
    """Put a set `tiny` of these files on the server and into the table of known sets."""
    names = ["data.csv.gz", "data1.csv.gz"][: len(parts)]
    mirror.files |= {f"/sets/tiny/{name}": part for name, part in zip(names, parts, strict=True)}
    source = Source(rows, 3, blobs={name: blob(part) for name, part in zip(names, parts, strict=True)})
    monkeypatch.setitem(SOURCES, "tiny", source)
    return source


@pytest.fixture
def tiny(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    publish(mirror, monkeypatch, packed(TABLE))
    monkeypatch.setenv("DSPP_DATA_URL", mirror.url)
    return mirror


def contents(folder: Path) -> set[str]:
    return set(os.listdir(folder)) - {".lock"}


def save(path: Path, vouch: bool = True, **arrays: np.ndarray) -> Path:
    """An .npz file and, with `vouch`, its line in SHA256SUMS."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)  # type: ignore[arg-type]  # the keyword of numpy's own is not used
    if vouch:
        vouch_for(path)
    return path


def vouch_for(path: Path) -> None:
    with open(path.parent / "SHA256SUMS", "a") as sums:
        sums.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")


def refusal(name: str, folder: Path | None = None, kind: type[InputError] = InputError, **options: object) -> str:
    with pytest.raises(kind) as caught:
        load(name, folder, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    return message


class TestDownload:
    def test_what_was_published_is_loaded_and_kept(self, tiny: Mirror, cache: Path) -> None:
        first = load("tiny", download=True)
        np.testing.assert_array_equal(first.X, X.astype(np.float32))
        np.testing.assert_array_equal(first.y, Y.astype(np.float32))
        assert first.X.dtype == first.y.dtype == np.float64
        assert first.groups is None
        assert "uci_datasets" in first.origin
        assert contents(cache) == {"tiny.npz", "SHA256SUMS"}
        assert first.sha256 == hashlib.sha256((cache / "tiny.npz").read_bytes()).hexdigest()
        assert (cache / "SHA256SUMS").read_text() == f"{first.sha256}  tiny.npz\n"

        again = load("tiny")
        np.testing.assert_array_equal(again.X, first.X)
        assert (again.sha256, again.origin) == (first.sha256, first.origin)
        assert tiny.asked == ["/sets/tiny/data.csv.gz"]  # once

    def test_parts_are_joined_in_order(self, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
        publish(mirror, monkeypatch, packed(TABLE[:4]), packed(TABLE[4:]))
        np.testing.assert_array_equal(load("tiny", download=True, url=mirror.url).y, Y.astype(np.float32))

    def test_second_part_missing_leaves_nothing(
        self, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, cache: Path
    ) -> None:
        publish(mirror, monkeypatch, packed(TABLE[:4]), packed(TABLE[4:]))
        del mirror.files["/sets/tiny/data1.csv.gz"]
        assert "404" in refusal("tiny", None, DataMissing, download=True, url=mirror.url)
        assert contents(cache) == set()

    def test_other_lines_of_the_sums_stay(self, tiny: Mirror, cache: Path) -> None:
        save(cache / "other.npz", X=X, y=Y)
        load("tiny", download=True)
        assert set(files.read_sums(cache)) == {"other.npz", "tiny.npz"}
        assert load("other").X.shape == X.shape

    def test_no_download_unless_allowed(self, tiny: Mirror, cache: Path) -> None:
        message = refusal("tiny", None, DataMissing)
        assert str(cache) in message
        assert "--download tiny" in message
        assert tiny.asked == []
        assert not cache.exists()

    def test_argument_goes_before_environment(self, tiny: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DSPP_DATA_URL", "http://127.0.0.1:9/nobody")
        load("tiny", download=True, url=tiny.url + "/")
        assert len(tiny.asked) == 1

    def test_a_folder_can_be_the_mirror(self, tiny: Mirror, tmp_path: Path) -> None:
        (tmp_path / "clone" / "tiny").mkdir(parents=True)
        (tmp_path / "clone" / "tiny" / "data.csv.gz").write_bytes(packed(TABLE))
        load("tiny", download=True, url=(tmp_path / "clone").as_uri())
        assert tiny.asked == []

    def test_other_schemes_are_refused(self, tiny: Mirror) -> None:
        with pytest.raises(InputError, match="starts with https"):
            load("tiny", download=True, url="ftp://127.0.0.1/x")

    @pytest.mark.parametrize(
        ("mode", "says"),
        [
            ("404", "404"),
            ("500", "500"),
            ("hang", "timed out"),
            ("stall", "timed out"),
            ("cut", r"ended after \d+ of \d+ bytes"),
            ("no length", "git blob"),
        ],
    )
    def test_a_server_that_fails(self, tiny: Mirror, cache: Path, mode: str, says: str) -> None:
        tiny.mode = mode
        message = refusal("tiny", None, DataMissing, download=True, timeout=0.3)
        assert re.search(says, message)
        assert tiny.url in message
        assert contents(cache) == set()
        tiny.mode = "serve"
        assert load("tiny", download=True).X.shape == X.shape  # the failure stands in nobody's way

    def test_nobody_listens(self, tiny: Mirror, cache: Path) -> None:
        assert "cannot be fetched" in refusal("tiny", None, DataMissing, download=True, url="http://127.0.0.1:9/x")
        assert contents(cache) == set()

    def test_a_wrong_file_is_never_parsed(self, tiny: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(np, "loadtxt", lambda *_, **__: pytest.fail("parsed"))
        monkeypatch.setattr(gzip, "open", lambda *_, **__: pytest.fail("unpacked"))
        wrong = tiny.files["/sets/tiny/data.csv.gz"] + b"\0"
        tiny.files["/sets/tiny/data.csv.gz"] = wrong
        message = refusal("tiny", None, DataMissing, download=True)
        assert blob(wrong)[:12] in message
        assert SOURCES["tiny"].blobs["data.csv.gz"][:12] in message
        assert contents(cache) == set()

    @pytest.mark.parametrize(("limit", "says"), [("MAX_BYTES", "more than 0 bytes"), ("TOTAL_SECONDS", "after 0 s")])
    def test_limits(self, tiny: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch, limit: str, says: str) -> None:
        monkeypatch.setattr(download, limit, 0)
        assert says in refusal("tiny", None, DataMissing, download=True)
        assert contents(cache) == set()

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"no gzip", "expected a gzip file"),
            (packed(TABLE)[:-9], "expected a gzip file"),
            (gzip.compress(b"1,2,3,four\n"), "expected a gzip file of comma-separated numbers"),
            (packed(TABLE[:, :3]), "expected 4 columns (the inputs, then the target), got 3"),
            (packed(TABLE[:5]), "expected 6 rows of finite numbers in the public file, got 5"),
            (packed(np.where(Y[2] == TABLE, np.nan, TABLE)), "finite"),
            (packed(TABLE * 1e39), "finite"),
        ],
        ids=["plain", "cut", "text", "narrow", "short", "nan", "huge"],  # gzip has the time in it
    )
    def test_the_right_file_without_the_right_table(
        self, mirror: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, says: str
    ) -> None:
        publish(mirror, monkeypatch, content)
        assert says in refusal("tiny", None, DataMissing, download=True, url=mirror.url)
        assert contents(cache) == set()

    def test_public_houseelectric_says_that_it_differs(
        self, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        here = SOURCES["houseelectric"]
        assert (here.rows, here.public_rows) == (2049258, 2049280)
        content = packed(TABLE)
        mirror.files["/sets/houseelectric/data.csv.gz"] = content
        small = replace(here, inputs=3, public_rows=6, blobs={"data.csv.gz": blob(content)})
        monkeypatch.setitem(SOURCES, "houseelectric", small)
        monkeypatch.setattr(data, "__file__", str(tmp_path / "repo" / "experiments" / "data" / "__init__.py"))
        assert "2049280 rows, not the 2049258" in load("houseelectric", download=True, url=mirror.url).origin

    @pytest.mark.parametrize(
        ("content", "expected"),
        [(b"", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"), (b"hello\n", "ce013625030ba8dba906f756967f9e9ca394464a")],
    )
    def test_blob_id_is_that_of_git(self, content: bytes, expected: str) -> None:
        assert download.blob_id(io.BytesIO(content)) == expected


class TestCacheIsWrittenWhole:
    @pytest.mark.parametrize("target", ["SHA256SUMS", "tiny.npz"])
    def test_disk_fails_at_the_last_step(
        self, tiny: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch, target: str
    ) -> None:
        rename = os.replace

        def fail(source: Path, goal: Path) -> None:
            if goal.name == target:
                raise OSError(28, "No space left on device")
            rename(source, goal)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fail)
            with pytest.raises(InputError, match=f"cannot write to {cache}: No space left"):
                load("tiny", download=True)
        assert "tiny.npz" not in contents(cache)
        assert not [name for name in contents(cache) if name.endswith(".tmp")]
        assert load("tiny", download=True).X.shape == X.shape

    def test_disk_fails_in_the_middle(self, tiny: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(file: io.BufferedRandom, **_: object) -> None:
            file.write(b"half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np, "savez_compressed", fail)
        with pytest.raises(InputError, match="No space left"):
            load("tiny", download=True)
        assert contents(cache) == set()

    def test_line_before_file(self, tiny: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        order: list[str] = []
        rename = os.replace

        def note(source: Path, goal: Path) -> None:
            order.append(goal.name)
            rename(source, goal)

        monkeypatch.setattr(os, "replace", note)
        load("tiny", download=True)
        assert order == ["SHA256SUMS", "tiny.npz"]

    def test_cache_that_cannot_be_made(self, tiny: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("DSPP_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(InputError, match=r"cannot write to .*choose another folder"):
            load("tiny", download=True)

    def test_two_processes_at_once_download_once(self, tiny: Mirror, cache: Path) -> None:
        tiny.mode = "slow"
        both = [worker(tiny, cache) for _ in range(2)]
        outputs = [process.communicate(timeout=60) for process in both]
        assert outputs == [(f"{cache / 'tiny.npz'}\n", "")] * 2
        assert len(tiny.asked) == 1
        assert contents(cache) == {"tiny.npz", "SHA256SUMS"}
        assert load("tiny").X.shape == X.shape

    def test_killed_in_the_middle_is_no_obstacle(self, tiny: Mirror, cache: Path) -> None:
        tiny.mode = "stall"
        process = worker(tiny, cache)
        assert tiny.arrived.wait(30)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        assert contents(cache) == set()
        tiny.mode = "serve"
        assert load("tiny", download=True).X.shape == X.shape


def worker(mirror: Mirror, cache: Path) -> "subprocess.Popen[str]":
    """A process of its own that downloads `tiny`."""
    script = (
        "import sys; from pathlib import Path; from experiments.data import sources, download\n"
        "sources.SOURCES['tiny'] = sources.Source(6, 3, blobs={'data.csv.gz': sys.argv[1]})\n"
        "print(download.fetch('tiny', Path(sys.argv[2]), sys.argv[3]))"
    )
    arguments = [SOURCES["tiny"].blobs["data.csv.gz"], str(cache), mirror.url]
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


class TestPlaces:
    def test_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        monkeypatch.setattr(data, "__file__", str(tmp_path / "repo" / "experiments" / "data" / "__init__.py"))
        monkeypatch.setenv("DSPP_DATA", str(tmp_path / "env"))
        folders = [tmp_path / "flag", tmp_path / "env", tmp_path / "shared" / "data", cache]
        for i, folder in enumerate(folders):
            save(folder / "mine.npz", X=X, y=np.full(6, float(i)))
        assert list(data.places(folders[0]).values()) == folders
        for i, folder in enumerate(folders):
            found = load("mine", folders[0])
            assert found.y[0] == i
            assert list(data.places(folders[0]))[i] in found.origin
            (folder / "mine.npz").unlink()
        assert all(str(folder) in refusal("mine", folders[0], DataMissing) for folder in folders)

    def test_available_are_those_that_load(self, tmp_path: Path, tiny: Mirror) -> None:
        save(tmp_path / "mine.npz", X=X, y=Y)
        assert available(["tiny", "mine", "nowhere"], tmp_path) == ["mine"]
        load("tiny", download=True)
        assert available(["tiny", "mine", "nowhere"], tmp_path) == ["tiny", "mine"]
        assert available(["mine"]) == []

    def test_a_slip_in_a_folder_is_no_silent_search_elsewhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(InputError, match=r"--data: .*nowhere is not a folder"):
            available(["pol"], tmp_path / "nowhere")
        monkeypatch.setenv("DSPP_DATA", str(tmp_path / "nowhere"))
        with pytest.raises(InputError, match=r"\$DSPP_DATA: .*nowhere is not a folder"):
            available(["pol"])
        monkeypatch.setenv("DSPP_DATA", "")  # as good as unset
        assert available(["nowhere"]) == []

    def test_cache_follows_the_desktop_standard(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("DSPP_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert data.cache_folder() == tmp_path / "dspp" / "data"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert data.cache_folder() == tmp_path / ".cache" / "dspp" / "data"

    @pytest.mark.parametrize("name", ["../pol", "a/b", "", ".hidden", "pol\n", "/etc/passwd"])
    def test_names_that_are_paths(self, name: str) -> None:
        with pytest.raises(InputError, match="not a name of a data set"):
            load(name)

    @pytest.mark.parametrize("name", SOURCES)
    def test_every_set_says_how_to_get_it(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(data, "__file__", str(tmp_path / "repo" / "experiments" / "data" / "__init__.py"))
        message = refusal(name, None, DataMissing)
        how = "--download" if name in data.UNIVARIATE else "data.mujoco" if "mujoco" in name else f"put {name}.npz"
        assert (f"--add {name}=" if name in ("sarcos", "rhythmic_baxter") else how) in message


class TestChecksums:
    def test_a_changed_file_is_refused_before_numpy_sees_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = save(tmp_path / "mine.npz", X=X, y=Y)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        before = hashlib.sha256(path.read_bytes()).hexdigest()
        path.write_bytes(content)
        monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("opened"))
        message = refusal("mine", tmp_path)
        after = hashlib.sha256(content).hexdigest()
        assert str(path) in message
        assert before[:12] in message
        assert after[:12] in message
        assert "download it again" in message

    def test_numpy_is_asked_for_no_pickles(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save(tmp_path / "mine.npz", X=X, y=Y)
        asked: list[object] = []
        opener = np.load
        monkeypatch.setattr(np, "load", lambda *a, **k: asked.append(k["allow_pickle"]) or opener(*a, **k))
        load("mine", tmp_path)
        assert asked == [False]

    def test_a_pickle_is_refused_though_it_is_vouched_for(self, tmp_path: Path) -> None:
        canary = tmp_path / "canary"
        save(tmp_path / "mine.npz", X=np.array([[Trap(canary)]], dtype=object), y=np.ones(1))
        assert "expected an .npz file of plain arrays" in refusal("mine", tmp_path)
        assert not canary.exists()

    def test_arrays_nobody_asked_for_stay_closed(self, tmp_path: Path) -> None:
        canary = tmp_path / "canary"
        save(tmp_path / "mine.npz", X=X, y=Y, extra=np.array([Trap(canary)], dtype=object))
        np.testing.assert_array_equal(load("mine", tmp_path).X, X)
        assert not canary.exists()

    def test_the_advice_for_an_unknown_file_works(self, tmp_path: Path) -> None:
        folder = tmp_path / "with 'quotes' and $HOME"
        path = save(folder / "mine.npz", vouch=False, X=X, y=Y)
        message = refusal("mine", folder)
        assert hashlib.sha256(path.read_bytes()).hexdigest() in message
        command = re.search("`(.*)`", message)
        assert command is not None
        subprocess.run(["sh", "-c", command[1]], check=True)
        assert load("mine", folder).origin == "a file in --data, verified by SHA256SUMS there"

    def test_the_last_line_counts(self, tmp_path: Path) -> None:
        save(tmp_path / "mine.npz", X=X, y=Y)
        path = save(tmp_path / "mine.npz", vouch=False, X=X, y=-Y)
        refusal("mine", tmp_path)
        vouch_for(path)
        np.testing.assert_array_equal(load("mine", tmp_path).y, -Y)

    def test_the_built_in_table_decides_where_no_line_does(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = save(tmp_path / "tiny.npz", vouch=False, X=X, y=Y)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setitem(SOURCES, "tiny", Source(6, 3, origin="a test", sha256=sha256))
        (tmp_path / "SHA256SUMS").write_text(f"# a remark\n\n{'0' * 64}  other.npz\n{'0' * 63}  tiny.npz\n")
        assert (load("tiny", tmp_path).sha256, load("tiny", tmp_path).origin) == (sha256, "a test")
        monkeypatch.setitem(SOURCES, "tiny", Source(6, 3, sha256="1" * 64))
        assert "expected sha256 111111111111 from the table of known files" in refusal("tiny", tmp_path)

    def test_the_line_goes_before_the_built_in_table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = save(tmp_path / "tiny.npz", vouch=False, X=X, y=Y)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setitem(SOURCES, "tiny", Source(6, 3, sha256=sha256))
        (tmp_path / "SHA256SUMS").write_text(f"{'2' * 64} *./tiny.npz\n")
        assert "expected sha256 222222222222 from SHA256SUMS in its folder" in refusal("tiny", tmp_path)


class Trap:
    """Whoever unpickles this touches a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.canary,)


class TestContent:
    def test_single_and_several_outputs_and_trajectories(self, tmp_path: Path) -> None:
        save(tmp_path / "mine.npz", X=X.astype(np.float32), Y=TABLE, traj=np.arange(6, dtype=np.int16))
        found = load("mine", tmp_path)
        np.testing.assert_array_equal(found.y, TABLE)
        np.testing.assert_array_equal(found.groups, np.arange(6))
        assert found.X.dtype == np.float64

    @pytest.mark.parametrize(
        ("arrays", "says"),
        [
            ({"y": Y}, "got y"),
            ({"X": X}, "got X"),
            ({"z": X}, "got none of these"),
            ({"X": X, "y": Y, "Y": TABLE}, "got X, y, Y"),
            ({"X": Y, "y": Y}, "2-D"),
            ({"X": X, "y": Y[:5]}, "expected 6 rows"),
            ({"X": X[:0], "y": Y[:0]}, "0 sample"),
            ({"X": X, "y": TABLE[None]}, "3-D"),
            ({"X": np.where(X[1, 2] == X, np.nan, X), "y": Y}, "NaN at row 1, column 2"),
            ({"X": X, "y": np.where(Y[3] == Y, np.inf, Y)}, "inf at row 3"),
            ({"X": X.astype(str), "y": Y}, "expected numbers"),
            ({"X": X, "y": Y, "traj": np.arange(5)}, "traj: expected 6 whole numbers"),
            ({"X": X, "y": Y, "traj": Y}, "traj: expected 6 whole numbers, got float64"),
        ],
    )
    def test_wrong_arrays(self, tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
        path = save(tmp_path / "mine.npz", **arrays)
        message = refusal("mine", tmp_path)
        assert str(path) in message
        assert says in message

    @pytest.mark.parametrize(
        ("arrays", "says"),
        [({"X": X[:, :2], "y": Y}, "X of shape (6, 2)"), ({"X": X, "Y": TABLE}, "y of shape (6, 4)")],
    )
    def test_a_known_set_has_its_columns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrays: dict[str, np.ndarray], says: str
    ) -> None:
        monkeypatch.setitem(SOURCES, "tiny", Source(6, 3))
        save(tmp_path / "tiny.npz", **arrays)
        assert says in refusal("tiny", tmp_path)

    @pytest.mark.parametrize("damage", ["text", "npy", "half", "empty"])
    def test_no_npz(self, tmp_path: Path, damage: str) -> None:
        path = save(tmp_path / "mine.npz", X=X, y=Y)
        array = io.BytesIO()
        np.save(array, X)
        whole = path.read_bytes()
        path.write_bytes(
            {"text": b"X, y", "npy": array.getvalue(), "half": whole[: len(whole) // 2], "empty": b""}[damage]
        )
        vouch_for(path)
        assert "expected an .npz file" in refusal("mine", tmp_path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="there is no ../shared/data beside the repository")
class TestSharedData:
    @pytest.mark.parametrize("name", sorted(path.stem for path in SHARED.glob("*.npz")))
    def test_shape_is_that_of_sources_md(self, name: str) -> None:
        found = load(name)
        row = re.search(rf"^\| {name} \| (\d+) x (\d+)(?: -> (\d+))?", (SHARED / "SOURCES.md").read_text(), re.M)
        assert row is not None
        rows, inputs, outputs = int(row[1]), int(row[2]), int(row[3] or 1)
        assert found.X.shape == (rows, inputs)
        assert found.y.shape == ((rows, outputs) if outputs > 1 else (rows,))
        assert (SOURCES[name].rows, SOURCES[name].inputs, SOURCES[name].outputs) == (rows, inputs, outputs)
        assert found.origin == SOURCES[name].origin
        assert (found.groups is not None) == (name.startswith("mujoco") or name == "baxter_rhythmic_ugr")

    def test_built_in_checksums_are_those_of_the_folder(self) -> None:
        built_in = {f"{name}.npz": source.sha256 for name, source in SOURCES.items() if source.sha256}
        assert built_in == files.read_sums(SHARED)

    def test_blob_ids_are_those_of_sources_md(self) -> None:
        text = (SHARED / "SOURCES.md").read_text()
        listed = re.findall(r"^(\w+) ([0-9a-f]{40})(?:, data1 ([0-9a-f]{40}))?", text, re.M)
        assert {name: [first, *filter(None, [second])] for name, first, second in listed} == {
            name: list(SOURCES[name].blobs.values()) for name in data.UNIVARIATE
        }
        assert re.search(r"commit ([0-9a-f]{40})", text)[1] in PUBLIC_URL  # type: ignore[index]

    def test_sets_that_are_not_here_have_their_published_size(self) -> None:
        text = (SHARED / "SOURCES.md").read_text()
        absent = re.findall(r"^(\w+) .* (\d+) x (\d+), not here", text, re.M)
        assert len(absent) == 4
        for name, rows, inputs in absent:
            assert (SOURCES[name].rows, SOURCES[name].inputs) == (int(rows), int(inputs))


def test_groups_of_sets() -> None:
    assert (len(data.QUADRATURE), len(data.UNIVARIATE), len(data.ROBOTICS)) == (8, 12, 9)
    assert set(data.UNIVARIATE) | set(data.ROBOTICS) == set(SOURCES)
    sizes = [SOURCES[name].rows for name in data.UNIVARIATE]
    assert sizes == sorted(sizes)
    assert data.UNIVARIATE[:8] == data.QUADRATURE


class TestList:
    def run(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "experiments.data", *arguments],
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "200", **environment},
            text=True,
            capture_output=True,
            check=False,
        )

    def test_every_set_has_its_line(self, tmp_path: Path) -> None:
        save(tmp_path / "slice.npz", X=X, y=Y)
        done = self.run("--data", str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
        lines = {name: next(x for x in done.stdout.splitlines() if f" {name} " in x) for name in SOURCES}
        for name, source in SOURCES.items():
            assert f"{source.rows or '?'} × {source.inputs} → {source.outputs}" in lines[name]
        assert "--data" in lines["slice"]
        assert "--download buzz" in lines["buzz"]

    def test_errors_are_one_line(self, tmp_path: Path) -> None:
        done = self.run("--data", str(tmp_path / "nowhere"))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert "is not a folder" in done.stderr

    def test_download(self, tiny: Mirror, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
        __main__.main(None, ["tiny"])
        assert contents(cache) == {"tiny.npz", "SHA256SUMS"}
        assert "tiny" in capsys.readouterr().out


class Cart:
    """A robot that moves by its action: the observation is (goal, position)."""

    class action_space:  # noqa: N801 - as gymnasium has it
        shape = (1,)

    def __init__(self) -> None:
        self.seeds: list[int | None] = []
        self.closed = False

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, object]]:
        self.seeds.append(seed)
        self.at = np.array([7.0, len(self.seeds)])
        return self.at, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        assert np.abs(action).max() <= 1
        self.at = self.at + np.array([0.0, float(action[0])])
        return self.at, 0.0, False, False, {}

    def close(self) -> None:
        self.closed = True


class TestMujoco:
    ROBOT = mujoco.Robot("Cart", 4, (1,))

    def test_actions_are_an_ornstein_uhlenbeck_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mujoco, "MEMORY", (0.8, 0.8))
        monkeypatch.setattr(mujoco, "SCALE", (0.2, 0.2))
        a = mujoco.smooth_actions(np.random.default_rng(1), 40, 20000)
        tolerance = 5 / np.sqrt(20000)
        np.testing.assert_allclose(a.std(1), 0.2, rtol=tolerance)  # at every step, the first one too
        for lag in (1, 2, 5):
            np.testing.assert_allclose(np.mean(a[3] * a[3 + lag]) / 0.04, 0.8**lag, atol=tolerance)

    def test_actions_stay_in_bounds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mujoco, "SCALE", (3.0, 3.0))
        a = mujoco.smooth_actions(np.random.default_rng(1), 50, 3)
        assert np.abs(a).max() == 1

    def test_rows_are_steps_of_the_robot(self) -> None:
        cart = Cart()
        made = mujoco.simulate(cart, self.ROBOT, rows=10, seed=3)
        assert {key: array.shape for key, array in made.items()} == {"X": (10, 3), "Y": (10, 1), "traj": (10,)}
        np.testing.assert_array_equal(made["traj"], [0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
        np.testing.assert_allclose(made["Y"][:, 0], made["X"][:, 2], atol=1e-6)  # it moves by its action
        np.testing.assert_array_equal(made["X"][[0, 4, 8], 1], [1, 2, 3])  # each episode starts anew
        inside = np.diff(made["traj"]) == 0
        np.testing.assert_allclose(np.diff(made["X"][:, 1])[inside], made["Y"][:-1, 0][inside], atol=1e-6)
        assert cart.seeds == [3, None, None]

    def test_seed_decides(self) -> None:
        one, same, other = (mujoco.simulate(Cart(), self.ROBOT, 10, seed)["X"] for seed in (1, 1, 2))
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, other)

    def test_what_is_made_can_be_loaded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cart = Cart()
        monkeypatch.setitem(mujoco.ROBOTS, "cart", self.ROBOT)
        monkeypatch.setitem(SOURCES, "cart", Source(12, 3, outputs=1, origin="a test"))
        monkeypatch.setattr(mujoco, "open_environment", lambda _: cart)
        path = mujoco.make("cart", rows=10, out=tmp_path / "new" / "mine.npz")
        assert cart.closed
        assert load("mine", path.parent).y.shape == (10, 1)
        assert contents(path.parent) == {"mine.npz", "SHA256SUMS"}
        assert mujoco.make("cart") == data.cache_folder() / "cart.npz"
        assert len(np.load(data.cache_folder() / "cart.npz")["X"]) == 12

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("pol",), "no simulated data set 'pol'; choose from: mujoco_reacher"),
            (("mujoco_reacher", 0), "expected --rows of 1 or more"),
            (("mujoco_reacher", 5, Path("x.csv")), "FILE.npz"),
        ],
    )
    def test_bad_arguments(self, arguments: tuple[str, int, Path], says: str) -> None:
        with pytest.raises(InputError, match=says):
            mujoco.make(*arguments)

    def test_without_the_simulator_one_line_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "mujoco", None)
        with pytest.raises(InputError, match=r"not installed .*; pip install gymnasium mujoco imageio packaging$"):
            mujoco.make("mujoco_reacher", 5)

    @pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="mujoco is not installed")
    @pytest.mark.parametrize("name", mujoco.ROBOTS)
    def test_the_real_simulator(self, name: str, tmp_path: Path) -> None:
        mujoco.make(name, 250, tmp_path / f"{name}.npz")
        assert load(name, tmp_path).y.shape == (250, SOURCES[name].outputs)


def test_a_copy_of_a_shared_file_needs_no_sums(tmp_path: Path) -> None:
    """The built-in table vouches for a file that was copied alone."""
    if not (SHARED / "sarcos_testset.npz").is_file():
        pytest.skip("there is no ../shared/data beside the repository")
    shutil.copy(SHARED / "sarcos_testset.npz", tmp_path)
    assert load("sarcos_testset", tmp_path).origin == SOURCES["sarcos_testset"].origin


def test_the_list_of_experiments_says_which_data_sets_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.cli import list_command

    monkeypatch.setattr(data, "__file__", str(tmp_path / "repo" / "experiments" / "data" / "__init__.py"))
    monkeypatch.setenv("DSPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    save(tmp_path / "pol.npz", X=X, y=Y)
    list_command(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    (pol,) = (line for line in lines if line.startswith("│ pol "))
    (song,) = (line for line in lines if line.startswith("│ song "))
    assert "--data" in pol
    assert "--download song" in song


class TestAdd:
    """A table that somebody has becomes a data set in the cache."""

    ROWS = np.random.default_rng(3).normal(size=(6, 28))

    @pytest.fixture
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("DSPP_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(data, "__file__", str(tmp_path / "repo" / "experiments" / "data" / "__init__.py"))
        monkeypatch.setitem(SOURCES, "sarcos", Source(6, 21, 7))
        monkeypatch.setitem(SOURCES, "slice", Source(6, 27))
        return tmp_path / "cache"

    def write(self, path: Path, table: np.ndarray) -> Path:
        if path.suffix == ".mat":
            savemat(path, {"sarcos_inv": table})
        elif path.suffix == ".npy":
            np.save(path, table)
        else:
            np.savetxt(path, table, delimiter=",")
        return path

    @pytest.mark.parametrize("file", ["sarcos_inv.mat", "rows.npy", "rows.csv", "rows.csv.gz"])
    def test_the_columns_are_inputs_and_then_outputs(self, file: str, cache: Path, tmp_path: Path) -> None:
        convert.add("sarcos", self.write(tmp_path / file, self.ROWS), cache)
        found = load("sarcos")  # verified by the checksum that was written beside it
        np.testing.assert_array_equal(found.X, self.ROWS[:, :21].astype(np.float32))
        np.testing.assert_array_equal(found.y, self.ROWS[:, 21:].astype(np.float32))

    def test_a_single_output_is_a_vector(self, cache: Path, tmp_path: Path) -> None:
        convert.add("slice", self.write(tmp_path / "rows.npy", self.ROWS), cache)
        np.testing.assert_array_equal(load("slice").y, self.ROWS[:, 27].astype(np.float32))

    def test_a_set_of_unknown_length_may_have_any(self, cache: Path, tmp_path: Path) -> None:
        convert.add("rhythmic_baxter", self.write(tmp_path / "rows.npy", self.ROWS), cache)
        assert load("rhythmic_baxter").y.shape == (6, 7)

    @pytest.mark.parametrize(
        ("name", "table", "message"),
        [
            ("sarcos", ROWS[:5], r"expected 6 rows of 28 numbers, 21 input\(s\) and then 7 .* of shape \(5, 28\)"),
            ("sarcos", ROWS[:, 1:], r"of shape \(6, 27\)"),
            ("sarcos", ROWS.astype(str), "expected 6 rows of 28 numbers"),
            ("sarcos", np.where(ROWS > 1, np.nan, ROWS), "expected finite numbers"),
            ("sarkos", ROWS, "'sarkos' is not a name of a data set"),
        ],
    )
    def test_other_tables_are_refused(
        self, name: str, table: np.ndarray, message: str, cache: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(InputError, match=message):
            convert.add(name, self.write(tmp_path / "rows.npy", table), cache)
        assert not list(cache.glob("*.npz"))

    @pytest.mark.parametrize(
        ("file", "message"),
        [
            ("rows.mat", "expected a table of numbers"),
            ("rows.csv", "expected a table of numbers"),
            ("two.mat", "it has 2 variables: a, b; save one of them"),
            ("pickled.npy", "expected a table of numbers"),
            ("rows.xlsx", "expected a file that ends in .mat, .npy, .csv, .csv.gz"),
            ("absent.csv", "there is no such file"),
            ("absent.mat", "there is no such file"),
        ],
    )
    def test_other_files_are_refused(self, file: str, message: str, cache: Path, tmp_path: Path) -> None:
        (tmp_path / "rows.mat").write_bytes(b"not a matrix" * 50)
        (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
        savemat(tmp_path / "two.mat", {"a": self.ROWS, "b": self.ROWS})
        np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
        with pytest.raises(InputError, match=message):
            convert.add("sarcos", tmp_path / file, cache)

    def test_an_existing_data_set_is_kept(self, cache: Path, tmp_path: Path) -> None:
        path = convert.add("sarcos", self.write(tmp_path / "rows.npy", self.ROWS), cache)
        before = path.read_bytes()
        with pytest.raises(InputError, match="already exists; remove it to add sarcos again"):
            convert.add("sarcos", self.write(tmp_path / "rows.npy", 2 * self.ROWS), cache)
        assert path.read_bytes() == before

    def test_the_command_adds_a_file_or_says_why_not(self, cache: Path, tmp_path: Path, capsys) -> None:
        assert "--add sarcos=sarcos_inv.mat" in how_to_get("sarcos")
        assert "--add rhythmic_baxter=FILE" in how_to_get("rhythmic_baxter")
        with pytest.raises(typer.Exit):
            __main__.main(add=["sarcos"])
        assert "--add sarcos: expected NAME=FILE" in capsys.readouterr().err
        __main__.main(add=[f"sarcos={self.write(tmp_path / 'rows.npy', self.ROWS)}"])
        assert load("sarcos").y.shape == (6, 7)
