"""Cache of compiled code on disk: reused, never stale, in a writable folder, and eventually removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numba import float64, int64
from numba.core.codegen import JITCodeLibrary
from numba.core.event import install_recorder
from numba.core.types import literal

from slackwater.optimization.kernels import compiling

CALLED = """
from slackwater.optimization.kernels.compiling import kernel


@kernel
def called(x):
    return 2.0 * x
"""
PROBE = """
from slackwater.optimization.kernels.called import called
from slackwater.optimization.kernels.compiling import kernel
from slackwater.optimization.kernels.rules import efficiency


@kernel
def probe(restart, n, before):
    return called(efficiency(restart, n, before))
"""
ASK = """
import numpy as np
from slackwater.optimization.kernels.compiling import cache_folder
from slackwater.optimization.kernels.probe import probe
from slackwater.optimization.kernels.rules import Restart
print(probe(Restart(np.full(4, 0.75), np.full(4, 0.5)), 3, 1), sum(probe.stats.cache_hits.values()), cache_folder())
"""


@pytest.fixture
def package(tmp_path) -> Path:
    """Copy the kernels into a package of the same name, with an additional kernel that calls other files."""
    folder = tmp_path / "copy" / "slackwater" / "optimization" / "kernels"
    folder.mkdir(parents=True)
    for outer in folder.parents[:2]:
        (outer / "__init__.py").write_text("")
    for source in compiling.HERE.glob("*.py"):
        shutil.copy(source, folder)
    (folder / "called.py").write_text(CALLED)
    (folder / "probe.py").write_text(PROBE)
    return folder


def printed(package: Path, script: str, **environment: str) -> list[str]:
    """Run a script in a new process and return the words that it prints."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    return subprocess.run(
        [sys.executable, "-c", script], env=clean | {"PYTHONPATH": str(package.parents[2])} | environment,
        cwd=package.parents[2], capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip


def ask(package: Path, **environment: str) -> tuple[float, int, Path]:
    """Run the probe in a new process; return its value, its number of cache hits and its cache folder."""
    value, hits, folder = printed(package, ASK, **environment)
    return float(value), int(hits), Path(folder)


def test_a_changed_callee_in_another_file_gives_the_new_answer(package, tmp_path):
    """Uses the folder of numba's own setting."""
    told = {"NUMBA_CACHE_DIR": str(tmp_path / "told")}
    value, found, before = ask(package, **told)
    assert (value, found) == (1.5, 0)
    assert before.parent == tmp_path / "told"
    assert any(before.rglob("*.nbi"))
    assert not (package / "__pycache__" / before.name).exists()
    # A different length: Python reuses its bytecode for a file of the same length and modification second.
    (package / "called.py").write_text(CALLED.replace("2.0", "4.00"))
    value, found, after = ask(package, **told)
    assert (value, found) == (3.0, 0)
    assert after != before
    (package / "called.py").write_text(CALLED)
    assert ask(package, **told) == (1.5, 1, before), "what the first process compiled is found again"


COMPILER = "import sys; print('numba.np.linalg' in sys.modules)"


@pytest.mark.skipif(compiling.CACHE is None, reason="this version of numba loads stored code itself")
def test_stored_code_is_loaded_without_the_compiler_of_numba(package):
    assert printed(package, f"{ASK}\n{COMPILER}")[::3] == ["1.5", "True"]
    assert printed(package, f"{ASK}\n{COMPILER}")[::3] == ["1.5", "False"]


@pytest.mark.slow  # the quick form: a changed callee in another file
def test_a_new_kernel_links_the_stored_code_of_another(package):
    alone = "from slackwater.optimization.kernels.called import called; print(called(1.5))"
    assert printed(package, alone) == ["3.0"]
    loaded = (
        "from slackwater.optimization.kernels.called import called; print(*called.stats.cache_hits.values())"
    )
    assert printed(package, f"{ASK}\n{loaded}")[::3] == ["1.5", "1"]
    assert ask(package)[:2] == (1.5, 1)


def test_without_a_setting_it_is_beside_the_package(monkeypatch):
    monkeypatch.setattr(compiling._NUMBA, "CACHE_DIR", "")
    assert next(compiling.places()) == compiling.HERE / "__pycache__"


def test_where_the_package_cannot_be_written_it_is_the_users_cache(package, tmp_path):
    if os.access(package, os.W_OK) and os.geteuid() == 0:
        # Root may write anywhere, so a file blocks the path of the cache folder.
        shutil.rmtree(package / "__pycache__", ignore_errors=True)
        (package / "__pycache__").write_text("")
    else:
        package.chmod(0o555)
    value, _, folder = ask(package, XDG_CACHE_HOME=str(tmp_path / "own"), HOME=str(tmp_path / "home"))
    assert value == 1.5
    assert tmp_path in folder.parents
    assert package not in folder.parents


def test_old_code_is_removed_and_what_is_in_use_is_not(tmp_path):
    current, old, recent, foreign = (
        tmp_path / name for name in ("slackwater-now", "slackwater-old", "slackwater-recent", "other")
    )
    long_ago = time.time() - 2 * compiling.KEPT_DAYS * 86400
    for folder in (current, old, recent, foreign):
        folder.mkdir()
        (folder / "code.nbi").write_text("")
    for folder in (old, foreign):
        os.utime(folder, (long_ago, long_ago))
    compiling.prune(tmp_path, current)
    assert {folder.name for folder in tmp_path.iterdir()} == {"slackwater-now", "slackwater-recent", "other"}


def test_every_source_counts(package):
    known = compiling.source_hash(package)
    (package / "labels.py").write_text((package / "labels.py").read_text() + "\n")
    changed = compiling.source_hash(package)
    (package / "more.py").write_text("")
    assert len({known, changed, compiling.source_hash(package)}) == 3


def test_kernels_read_no_other_source_of_the_project():
    """Otherwise the hash would miss changes in those modules."""
    for path in compiling.HERE.glob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(("from ", "import ")) and line.split()[1].split(".")[0] == "slackwater":
                assert line.split()[1].startswith("slackwater.optimization.kernels"), (path.name, line)


def test_two_processes_that_compile_two_signatures_at_once_do_not_take_each_others_code(
    tmp_path, monkeypatch
):
    """Both processes read the empty index before either writes it: the later index wins, and its entries point to its code."""

    def files():
        return compiling.CodeFiles(str(tmp_path), "solve", "stamp")

    one, two = files(), files()
    monkeypatch.setattr(one, "_load_index", dict)
    monkeypatch.setattr(two, "_load_index", dict)
    two_saves = two._save_data

    def late(name, data):
        two_saves(name, data)
        one.save("(int64,)", "code of int64")

    monkeypatch.setattr(two, "_save_data", late)
    two.save("(float64,)", "code of float64")
    read = files()
    assert read.load("(float64,)") == "code of float64"
    assert read.load("(int64,)") in (None, "code of int64")
    read.save("(int64,)", "code of int64")
    assert (files().load("(int64,)"), files().load("(float64,)")) == ("code of int64", "code of float64")


def test_compiled_functions_keep_their_code_in_files_of_their_own():
    from slackwater.optimization.kernels.induction import induct_band

    assert isinstance(induct_band._cache._cache_file, compiling.CodeFiles)
    assert induct_band.compile.func is compiling._in_turn


def test_one_process_at_a_time_compiles_a_kernel(tmp_path):
    """The lock is released however compilation ends, and cached code needs no lock."""
    index = tmp_path / "solve.nbi"
    files = SimpleNamespace(_cache_file=SimpleNamespace(_index_path=str(index)))
    made = SimpleNamespace(overloads={(float64,): "code"}, _cache=files)

    def is_free(*_):
        with open(f"{index}.lock", "w") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    assert not compiling._in_turn(made, is_free, (int64,))
    assert is_free()
    with pytest.raises(ZeroDivisionError):
        compiling._in_turn(made, lambda _: 1 // 0, (int64,))
    assert is_free()
    assert compiling._in_turn(made, is_free, (float64,))
    files._cache_file._index_path = str(tmp_path / "gone" / "solve.nbi")
    assert compiling._in_turn(made, tuple, (int64,)) == (int64,)


def test_a_number_in_the_call_of_another_kernel_is_compiled_for_as_any_other(tmp_path):
    files = SimpleNamespace(_cache_file=SimpleNamespace(_index_path=str(tmp_path / "solve.nbi")))
    made = SimpleNamespace(overloads={(int64, float64): "code"}, _cache=files)
    assert compiling._in_turn(made, tuple, (literal(7), float64)) == (int64, float64)


def test_a_part_is_plain_python_to_whoever_is_not_a_kernel():
    from slackwater.optimization.kernels.labels import slot_costs

    assert not hasattr(slot_costs, "overloads")


@compiling.part
def steps_of(n):
    return np.arange(1.0, n) / 0.0


@compiling.part
def doubled(n):
    return 2.0 * steps_of(n)


def test_a_part_has_no_machine_code_of_its_own_and_shares_the_functions_that_it_calls(monkeypatch, tmp_path):
    emitted = []

    def counted(library):
        emitted.append(library.name)
        plain(library)

    def probe(n):
        return np.arange(1.0, n).sum() + doubled(n).max()

    plain = JITCodeLibrary._finalize_specific
    monkeypatch.setattr(JITCodeLibrary, "_finalize_specific", counted)
    monkeypatch.setattr(compiling, "cache_folder", lambda: tmp_path)
    with install_recorder("numba:compile") as compiled:
        assert compiling.kernel(probe)(4) == np.inf, "a division by zero, in a part of a part"
    assert any("probe" in name for name in emitted)
    assert not [name for name in emitted if name in ("doubled", "steps_of")]
    begun = [event.data["dispatcher"].py_func.__qualname__ for _, event in compiled.buffer if event.is_start]
    assert {"doubled", "steps_of"} < set(begun)
    assert begun.count("np_arange.<locals>.impl") == 1, "called by the kernel and by a part"


OTHER_NUMBA = """
import numba
numba.version_info = numba.version_info._replace(minor=numba.version_info.minor + 1)
import numpy as np
from slackwater.optimization.kernels.compiling import KERNEL, kernel, part

@part
def steps(n):
    return np.arange(1.0, n) / 0.0

@kernel
def most(n):
    return steps(n).max()

print(most(4), "pipeline_class" in KERNEL)
"""


@pytest.mark.slow
def test_other_versions_of_numba_compile_with_their_own_compiler(tmp_path):
    script = tmp_path / "other.py"
    script.write_text(OTHER_NUMBA)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["inf", "False"]
