"""Warehouse files that stay open between the writers of a test.

To open a file and to close it takes DuckDB 40 ms, and commands of a test do so hundreds of times; another connection to an
open file takes 0.5 ms. `make test-all` opens and closes every file, as the program does.
"""

import subprocess
from collections import OrderedDict
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import RLock

import duckdb
import pytest

from slackwater.warehouse.store.connection import Opening
from slackwater.warehouse.store.files import has_wal

#: Number of files that are kept open.
MOST = 4


class OpenFile:
    """A file kept open: its options, the number of its writers, and its state when the last of them closed it."""

    def __init__(self, path, opening, connection):
        self.path, self.opening, self.connection = path, opening, connection
        self.writers, self.state = 0, None

    def is_as_left(self, opening):
        return self.opening == opening and self.state == state_of(self.path)


class Writer:
    """Connection to an open file; when the last one closes, the log is merged into the file, as DuckDB does at the end."""

    def __init__(self, files, file):
        self._files, self._file, self._is_open = files, file, True
        self._cursor = file.connection.cursor()

    def __getattr__(self, name):
        return getattr(self._cursor, name)

    def close(self):
        self._cursor.close()
        if self._is_open:
            self._is_open = False
            self._files.finish(self._file)


def state_of(file):
    """Return what changes if a file is replaced or written by others; None if there is none."""
    with suppress(FileNotFoundError):
        found = file.stat()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    return None


class OpenFiles:
    """The files kept open, the most recently used last; none once another process was started, which may want to write."""

    def __init__(self):
        self._open, self._turn, self._are_kept = OrderedDict(), RLock(), True

    def writer(self, opening, connect):
        """Return a connection to the file of ``opening``, opened by ``connect`` unless it is open and nobody else changed it."""
        path = Path(opening.name).absolute()
        with self._turn:
            file = self._open.get(path)
            if file is not None and (file.writers or file.is_as_left(opening)):
                return self._written(file)
            self.close(path)
        connection = connect()  # may wait for another process
        with self._turn:
            return self._written(self._open.setdefault(path, OpenFile(path, opening, connection)))

    def _written(self, file):
        file.writers += 1
        self._open.move_to_end(file.path)
        for unused in list(self._open)[:-MOST]:
            self.close(unused)
        return Writer(self, file)

    def finish(self, file):
        """Count a writer out; the last one merges the log into the file."""
        with self._turn:
            file.writers -= 1
            if not file.writers and has_wal(file.path):
                with suppress(duckdb.Error):
                    file.connection.execute("CHECKPOINT")
            file.state = state_of(file.path)
            if not self._are_kept:
                self.close(file.path)

    def close(self, path):
        """Close a file unless it has a writer."""
        with self._turn:
            if path in self._open and not self._open[path].writers:
                self._open.pop(path).connection.close()

    def close_all(self):
        """Close all files that have no writer, and from now on every file with its last writer."""
        self._are_kept = False
        for path in list(self._open):
            self.close(path)


@contextmanager
def open_files():
    """Keep files open inside the block; other processes, and connections past `open_store`, find them closed."""
    files = OpenFiles()
    plain, connect, start, begin = (
        Opening._connect,
        duckdb.connect,
        subprocess.Popen.__init__,
        BaseProcess.start,
    )

    def writer(opening, patience):
        return files.writer(opening, lambda: plain(opening, patience))

    def connected(database=":memory:", *more, **options):
        files.close(Path(str(database)).absolute())
        return connect(database, *more, **options)

    def started(process, *more, **options):
        files.close_all()
        start(process, *more, **options)

    def begun(process):
        files.close_all()
        begin(process)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Opening, "_connect", writer)
        patch.setattr(duckdb, "connect", connected)
        patch.setattr(subprocess.Popen, "__init__", started)
        patch.setattr(BaseProcess, "start", begun)
        yield
    files.close_all()
