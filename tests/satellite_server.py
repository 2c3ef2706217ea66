"""A server on the loopback that can go away; see ``satellite_support``."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """A loopback HTTP server; ``mode`` may be set at any time: ``answer``, ``slow`` (first waits ``delay_s``), ``error``, ``refuse``, ``hang``.

    ``requests`` has (method, path, headers, body) of each request. ``reply(method, path, body)`` returns what is answered as
    (status, headers, bytes). Use it in a ``with`` statement.
    """

    def __init__(self, mode="answer", *, delay_s=0.5, reply=None):
        self.requests, self.errors, self.delay_s, self._mode = [], [], delay_s, "refuse"
        self.reply = reply or (lambda *_: (200, {"Content-Type": "application/json"}, b"{}"))
        self._released, self._server = threading.Event(), None
        self._reserved = socket.socket()  # bound and not listening: connections are refused, and nobody else gets the port
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.mode = mode

    @property
    def mode(self):
        return self._mode

    @mode.setter
    def mode(self, mode):
        assert mode in ("answer", "slow", "error", "refuse", "hang")
        self._mode = mode
        if mode == "refuse":
            self._stop()
        elif self._server is None:
            self._server = _Quiet(("127.0.0.1", self.port), _handler(self))
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        if mode != "hang":
            self._released.set()
        else:
            self._released.clear()

    def _stop(self):
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._released.set()
        self._stop()
        self._reserved.close()
        if self.errors:
            raise self.errors[0]


class _Quiet(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False

    def handle_error(self, *_):  # of a client that has gone
        pass


def _handler(server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.requests.append((self.command, self.path, dict(self.headers), body))
            if server.mode == "slow":
                threading.Event().wait(server.delay_s)
            if server.mode == "hang":
                server._released.wait()
            if server.mode == "refuse":  # on a connection from before
                self.close_connection = True
                return
            status, headers, answer = (500, {}, b"down") if server.mode == "error" else self._reply(body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def _reply(self, body):
            try:
                return server.reply(self.command, self.path, body)
            except Exception as error:  # the test is to see it
                server.errors.append(error)
                raise

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _any

        def log_message(self, *_):
            pass

    return Handler
