"""`kernel`: numba's `njit` with a disk cache that is invalidated when any source of this folder changes.

numba keys compiled code by the file that contains the function: if a function that it calls changes
in another file, the old machine code is still loaded. Here the name of the cache folder contains a
hash of all sources of `slackwater.optimization.kernels`, so that kernels may call each other and the functions
they consist of (`part`). The folder is in ``NUMBA_CACHE_DIR`` if that is set, else in the package,
else in the user's cache. If none of these is writable, every process compiles for itself.
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

from numba import config, njit, version_info
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.types import unliteral
from numba.extending import register_jitable

from slackwater.optimization.kernels.rules import RULES

#: numba's settings, which its type hints do not declare.
_NUMBA: Any = config

Function = TypeVar("Function", bound=Callable[..., Any])

HERE = Path(__file__).parent
PREFIX = "slackwater-"
#: Days for which code compiled from other sources is stored: another version of the package may be
#: in use.
KEPT_DAYS = 14.0
# Division by zero gives infinity, as in numpy, which saves a branch and an error text in every
# division. No function is called through a C pointer, so that entry point need not be compiled.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}
KERNEL, PART = OPTIONS, OPTIONS
#: Class of the caches of kernels, None for numba's own.
CACHE: Any = None
if version_info[:2] == (0, 68):  # these replace steps of numba; other versions compile and load longer
    from slackwater.optimization.kernels.loading import KernelCache as CACHE
    from slackwater.optimization.kernels.lowering import KernelCompiler, PartCompiler

    # Only kernels have an entry point from Python: `KernelCompiler`.
    KERNEL = {**OPTIONS, "no_cpython_wrapper": True, "pipeline_class": KernelCompiler}
    PART = {**KERNEL, "pipeline_class": PartCompiler}
_DECORATING = threading.Lock()


def nothing() -> None:
    """Do nothing, in place of a step of numba that `CACHE` does where it is needed."""


def kernel(function: Function) -> Function:
    """Compile a function on its first call, or load the code compiled from the same sources before."""
    with _DECORATING:
        folder, given = cache_folder(), _NUMBA.CACHE_DIR
        try:
            _NUMBA.CACHE_DIR = "" if folder is None else str(folder)
            made: Any = njit(cache=folder is not None, **KERNEL)(function)
            if folder is not None and CACHE is not None:
                made._cache = CACHE(function)
                made._compilation_chain_init_hook = nothing
        finally:
            _NUMBA.CACHE_DIR = given
    if folder is not None:
        made._cache._cache_file.__class__ = CodeFiles
        made.compile = partial(_in_turn, made, made.compile)
    kept: Function = made
    return kept


def part(function: Function) -> Function:
    """Make a function callable from kernels: it is compiled only as a part of them and is plain Python for other callers.

    A kernel takes longer to compile: it also gets machine code and an entry point from Python for each
    signature, and is stored in separate files.
    """
    made: Function = register_jitable(**PART)(function)
    return made


def fast_part(function: Function) -> Function:
    """Make a `part` of loops without NaN in which the sign of zero is irrelevant: they compile to vector instructions."""
    made: Function = register_jitable(**PART, fastmath={"nnan", "nsz"})(function)
    return made


for _rule in RULES:
    part(_rule)


def _in_turn(made: Any, compiled: Callable[[Any], Any], signature: Any) -> Any:
    """Compile or load a signature of a kernel; processes that start at the same time take turns.

    The second process waits and then loads the code, instead of compiling it a second time. A
    literal number in the call of another kernel counts as a plain argument; otherwise numba would
    compile the kernel again for that number.
    """
    signature = tuple(map(unliteral, signature))
    if signature in made.overloads:
        return compiled(signature)
    # Take numba's lock first: the thread that has it may need this kernel while another thread
    # compiles it.
    with global_compiler_lock, contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # the folder is gone: every process compiles for itself
            lock = stack.enter_context(open(f"{made._cache._cache_file._index_path}.lock", "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            stack.callback(
                fcntl.flock, lock, fcntl.LOCK_UN
            )  # a child process forked meanwhile has the file open too
        return compiled(signature)


class CodeFiles(IndexDataCacheFile):
    """numba's files for the code of a function, safe for processes that compile at the same time.

    numba numbers the files of the signatures in the order of compilation. Two processes that
    compile two signatures at the same time both use the first number, and a later process runs the
    code of the wrong signature. Here the file name is a hash of the compiled signature, and the
    file is written before it is added to the index. If two processes write the index at the same
    time an entry may be lost, which costs a compilation.
    """

    def save(self, key: object, data: object) -> None:
        """Store ``data``, the code of ``key``: signature, processor, and the function's hash."""
        name = f"{Path(self._index_name).stem}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"
        files: Any = self
        files._save_data(name, data)
        files._save_index({**files._load_index(), key: name})


def source_hash(folder: Path) -> str:
    """Return a hash of the names and contents of the Python files of a folder."""
    sources = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        sources.update(f"{path.name} {len(content)}\n".encode() + content)
    return sources.hexdigest()[:16]


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Return the folder for compiled code, created if needed, and remove outdated folders; None if no place is writable."""
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
    """Yield the candidate parent folders for compiled code, the preferred first."""
    if _NUMBA.CACHE_DIR:
        yield Path(_NUMBA.CACHE_DIR)
        return
    yield HERE / "__pycache__"
    with contextlib.suppress(RuntimeError):  # no home folder
        yield user_cache() / "slackwater"


def user_cache() -> Path:
    """Return the user's cache folder; raises `RuntimeError` if there is no home folder."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    given = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return Path(given) if given else Path.home() / ".cache"


def prune(place: Path, current: Path) -> None:
    """Remove code compiled from other sources that has not been used for `KEPT_DAYS`.

    Safe while another process uses such a folder: numba compiles missing code again and recreates
    the folder.
    """
    # The current folder's modification time was just updated, so it serves as the present time.
    oldest = current.stat().st_mtime - KEPT_DAYS * 86400.0 if current.is_dir() else 0.0
    for folder in place.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            if folder != current and folder.is_dir() and folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
