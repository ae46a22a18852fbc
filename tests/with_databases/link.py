"""A network between a client and its database that can be cut and mended."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Link:
    """Passes bytes to and fro from `with` to the end of the block; while cut, nobody gets through."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener: socket.socket | None = None
        self._sockets: list[socket.socket] = []
        self.port = 0
        self.mend()

    def mend(self) -> None:
        """Let connections through again, at the same port."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """End every connection, and refuse new ones."""
        assert self._listener is not None
        for opened in (self._listener, *self._sockets):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        self._sockets.clear()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_error: object) -> None:
        self.cut()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += (client, server)
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for opened in (source, target):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
