"""A server whose single waits are short but whose response never ends: a byte now and then, in one of many places."""

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: Seconds between two bytes, far below any bound of a single wait.
PAUSE = 0.02
_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"

#: Where it drips -> the bytes sent at once, and the bytes then sent one by one, repeatedly.
WAYS: dict[str, tuple[bytes, bytes]] = {
    "nothing at all": (b"", b""),
    "the status line": (b"", b"H" * 10),
    "headers": (_OK + b"X-Slow: ", b"a"),
    "interim answers": (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "the body": (_OK + b"Content-Length: 1000000\r\n\r\n[", b" "),
    "a body without length": (_OK + b"Connection: close\r\n\r\n[", b" "),
    "chunks": (_CHUNKED, b"1\r\n \r\n"),
    "a chunk's extension": (_CHUNKED + b"1;x=", b"a"),
    "trailers after the last chunk": (_CHUNKED + b"2\r\n[]\r\n0\r\n", b"X-More: a\r\n"),
    "a compressed body that stays empty": (
        _OK + b"Content-Encoding: gzip\r\nContent-Length: 1000000\r\n\r\n" + gzip.compress(b"")[:10],
        b"\x00\x00\x00\xff\xff",
    ),
    "the body of an error": (b"HTTP/1.1 400 Bad\r\nContent-Length: 60000\r\n\r\n", b" "),
    "the body of a redirect": (
        b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 60000\r\n\r\n",
        b" ",
    ),
}


class Dripping:
    """The server: its port, and the number of connections cut by the client."""

    def __init__(self) -> None:
        self.port = 0
        self.cut = 0
        self.stop = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def dripping(way: str) -> Iterator[Dripping]:
    """Run a server on a free port that drips in this way, for the time of the block."""
    first, again = WAYS[way]
    server = Dripping()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(first)
            connection.settimeout(PAUSE)
            while not server.stop.is_set():
                for byte in again or (None,):
                    if byte is not None:
                        connection.sendall(bytes([byte]))
                    with suppress(TimeoutError):
                        if connection.recv(65_536) == b"":
                            server.cut += 1
                            return
            return
        server.cut += 1

    with _accepting(drip, server):
        yield server


@contextmanager
def _accepting(answer: Callable[[socket.socket], None], server: Dripping) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        server.port = listening.getsockname()[1]

        def accept() -> None:
            while not server.stop.is_set():
                with suppress(TimeoutError):
                    connection, _ = listening.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.stop.set()
            thread.join()
