"""A network that loses replies: the request arrives, the answer does not, and the connection is gone."""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress
from urllib.parse import urlsplit

from tests.eventually import HANG_S


class LossyProxy:
    """Stands between a client and its server from `with` to the end of the block."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._to_lose: deque[bytes] = deque()
        #: How many replies were lost.
        self.lost = 0
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []

    def lose_reply_to(self, request: bytes) -> None:
        """Lose the reply to the next request that contains these bytes."""
        self.lose_replies_to(request)

    def lose_replies_to(self, *requests: bytes) -> None:
        """Lose the replies to the next requests that contain these bytes, in this order."""
        self._to_lose = deque(requests)

    def __enter__(self) -> LossyProxy:
        self._begin(self._accept)
        return self

    def __exit__(self, *_error: object) -> None:
        for opened in self._sockets:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        for thread in self._threads:
            thread.join(timeout=HANG_S)

    def _begin(self, target, *arguments) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += (client, server)
                self._begin(self._pass_on, client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        """One request, one reply, as redis-py does without pipelines."""
        replies = threading.Thread(target=self._pass_back, args=(server, client), daemon=True)
        replies.start()
        with suppress(OSError):
            while request := client.recv(1 << 20):
                is_lost = bool(self._to_lose) and self._to_lose[0] in request
                if is_lost:
                    self._to_lose.popleft()
                    client.shutdown(socket.SHUT_RDWR)
                server.sendall(request)
                self.lost += is_lost
        replies.join(timeout=0.2)
        server.close()
        client.close()

    def _pass_back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while reply := server.recv(1 << 20):
                client.sendall(reply)
