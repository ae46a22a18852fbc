"""A network between a client and its server that can be cut and mended."""

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
        self._forgotten: set[socket.socket] = set()
        self.port = 0
        self.mend()

    def mend(self, port: int | None = None) -> None:
        """Let connections through again, at the same port; to another server, if its port is given."""
        self._server = (self._server[0], port or self._server[1])
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def turn(self, port: int) -> None:
        """Lead new connections to another server; those that are open stay where they are."""
        self._server = (self._server[0], port)

    def cut(self) -> None:
        """End every connection, and refuse new ones."""
        assert self._listener is not None
        for opened in (self._listener, *self._sockets):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        self._sockets.clear()

    def forget(self) -> None:
        """Pass on nothing more of the connections that are open now, and do not end them, as firewalls do."""
        self._forgotten.update(self._sockets)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_error: object) -> None:
        self.cut()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    # The server is not there just now.
                    client.close()
                    continue
                for opened in (client, server):
                    # Else a small packet waits for the answer to the one before.
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += (client, server)
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if source not in self._forgotten:
                    target.sendall(data)
        for opened in (source, target):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
