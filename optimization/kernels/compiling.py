"""`kernel`: numba's `njit` with a cache on disk that knows when any source of this folder has changed.

numba keys compiled code by the one file that holds the function: when a function that it calls changes in another file, the
old machine code is read again. Here the cache folder is named by a hash of all sources of `optimization.kernels`, so kernels
may call each other, and the functions they are made of (`part`). The folder lies in ``NUMBA_CACHE_DIR`` if that is set, else
beside the package, else in the user's cache; where none can be written, every process compiles for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from numba import config, njit
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.types import unliteral
from numba.extending import register_jitable

from optimization.kernels.rules import RULES

#: Settings of numba that its types do not name.
_NUMBA: Any = config

Function = TypeVar("Function", bound=Callable[..., Any])

HERE = Path(__file__).parent
PREFIX = "slackwater-"
#: Days for which code compiled from other sources is kept: another version may be in use beside this one.
KEPT_DAYS = 14.0
# Division by zero gives infinity, as in numpy: no branch and no error text in every division. Nothing is called through a C
# pointer: that entry would be compiled for every function.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}
_DECORATING = threading.Lock()


def kernel(function: Function) -> Function:
    """Compile a function on its first call, or read what the same sources compiled to before."""
    with _DECORATING:
        folder, given = cache_folder(), _NUMBA.CACHE_DIR
        try:
            _NUMBA.CACHE_DIR = "" if folder is None else str(folder)
            made: Any = njit(cache=folder is not None, **OPTIONS)(function)
        finally:
            _NUMBA.CACHE_DIR = given
    if folder is not None:
        made._cache._cache_file.__class__ = CodeFiles
        made.compile = partial(_in_turn, made, made.compile)
    kept: Function = made
    return kept


def part(function: Function) -> Function:
    """A function that kernels may call: compiled as a part of them only, and plain Python to whoever else calls it.

    A kernel costs more to compile: it is also made callable from Python, for all its arguments, and kept in files of its own.
    """
    made: Function = register_jitable(**OPTIONS)(function)
    return made


def fast_part(function: Function) -> Function:
    """`part` for loops that never see a NaN and do not care for the sign of zero: they become vector instructions."""
    made: Function = register_jitable(**OPTIONS, fastmath={"nnan", "nsz"})(function)
    return made


for _rule in RULES:
    part(_rule)


def _in_turn(made: Any, compiled: Callable[[Any], Any], signature: Any) -> Any:
    """Compile one signature of a kernel, or read it: processes that start cold side by side do it one after the other.

    The second one waits and then finds the code, instead of spending the same seconds beside the first. A number that stands in
    another kernel's call is an argument like others: numba would compile the kernel once more for that number.
    """
    signature = tuple(map(unliteral, signature))
    if signature in made.overloads:
        return compiled(signature)
    # numba's own lock first: the thread that has it may ask for this kernel while another one compiles it.
    with global_compiler_lock, contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # the folder is gone: every process for itself
            lock = stack.enter_context(open(f"{made._cache._cache_file._index_path}.lock", "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            stack.callback(fcntl.flock, lock, fcntl.LOCK_UN)  # a child made meanwhile has the file open too
        return compiled(signature)


class CodeFiles(IndexDataCacheFile):
    """numba's files of one function's code, safe for processes that start cold side by side.

    numba numbers the files of the signatures in the order they come. Two processes that compile two signatures at once both take
    the first number, and whoever reads later runs the code of the other signature. Here a file is named by what was compiled, and
    written before it is listed; of two lists one may be lost, which costs a compilation.
    """

    def save(self, key: object, data: object) -> None:
        """Keep ``data``, the code of ``key``: signature, processor, and the function's own hash."""
        name = f"{Path(self._index_name).stem}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"
        files: Any = self
        files._save_data(name, data)
        files._save_index({**files._load_index(), key: name})


def source_hash(folder: Path) -> str:
    """A hash of the names and contents of the Python files of a folder."""
    sources = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        sources.update(f"{path.name} {len(content)}\n".encode() + content)
    return sources.hexdigest()[:16]


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Where this process keeps compiled code; None if no place can be written. Made, and old ones beside it removed."""
    try:
        name = PREFIX + source_hash(HERE)
    except OSError:
        return None  # no source files, as in an archive
    for place in places():
        folder = place / name
        try:
            known = folder.is_dir()
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            os.utime(folder)
        except OSError:
            continue
        if not known:
            prune(place, folder)
        return folder
    return None


def places() -> Iterator[Path]:
    """Folders to keep compiled code in, the best first."""
    if _NUMBA.CACHE_DIR:
        yield Path(_NUMBA.CACHE_DIR)
        return
    yield HERE / "__pycache__"
    with contextlib.suppress(RuntimeError):  # no home
        yield user_cache() / "slackwater"


def user_cache() -> Path:
    """The user's own cache folder; raises `RuntimeError` where there is no home."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    given = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return Path(given) if given else Path.home() / ".cache"


def prune(place: Path, current: Path) -> None:
    """Remove what other sources compiled to and nobody has used for `KEPT_DAYS`.

    Safe while another process runs on such a folder: numba compiles anew what it does not find, and makes the folder again.
    """
    # The folder in use was touched when it was found: it stands for now, and no clock is read.
    oldest = current.stat().st_mtime - KEPT_DAYS * 86400.0 if current.is_dir() else 0.0
    for folder in place.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            if folder != current and folder.is_dir() and folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
