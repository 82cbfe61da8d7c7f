"""A web server of a folder in a thread, with the habits and faults of real ones, and a record of what it sent."""

import email.utils
import gzip
import html
import re
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Server:
    root: Path
    ranges: bool = True
    lists: bool = True
    tells: str = "ETag"  # or Last-Modified, or nothing
    failing: int = 0  # answers of 503 to come
    cut: int = 0  # bodies to come that end in their middle
    gzips: bool = False  # sends whole files compressed to whom that is welcome
    short: bool = False  # sends half of each range, and says so
    refuses: tuple[str, ...] = ()  # ends of paths that are forbidden
    requests: list[tuple[str, str, int]] = field(default_factory=list)  # method, path, bytes of the body sent
    url: str = ""

    def sent(self, suffix: str = "") -> int:
        return sum(count for _, path, count in self.requests if path.endswith(suffix))

    def asked(self, suffix: str) -> list[str]:
        return [method for method, path, _ in self.requests if path.endswith(suffix)]

    def __enter__(self) -> "Server":
        server, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args) -> None:
                pass

            def do_HEAD(self) -> None:
                self.answer()

            def do_GET(self) -> None:
                self.answer()

            def reply(self, status: int, body: bytes = b"", size: int | None = None, **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body) if size is None else size))
                self.end_headers()
                whole, with_body = len(body), self.command == "GET"
                with lock:
                    if with_body and server.cut and whole and status == 206:
                        server.cut -= 1
                        body = body[: whole // 2]
                        self.close_connection = True
                    server.requests.append((self.command, self.path, len(body) if with_body else 0))
                if with_body:
                    self.wfile.write(body)

            def answer(self) -> None:
                path = urllib.parse.unquote(self.path)
                place = server.root / path.lstrip("/")
                if path.endswith(server.refuses) and server.refuses:
                    return self.reply(403)
                with lock:
                    fails = server.failing > 0 and self.command == "GET"
                    server.failing -= fails
                if fails:
                    return self.reply(503)
                if place.is_dir():
                    return self.folder(place, path)
                if not place.is_file():
                    return self.reply(404)
                return self.file(place)

            def folder(self, place: Path, path: str) -> None:
                if not server.lists:
                    return self.reply(403)
                if not path.endswith("/"):
                    return self.reply(301, Location=f"{self.path}/")
                names = [f"{child.name}/" if child.is_dir() else child.name for child in sorted(place.iterdir())]
                links = "".join(f'<a href="{urllib.parse.quote(n)}">{html.escape(n)}</a>' for n in ("../", *names))
                page = f'<html><a href="?C=N;O=D">Name</a><a href="http://elsewhere.example/x/">x</a>{links}</html>'
                return self.reply(200, page.encode(), Content_Type="text/html; charset=utf-8")

            def file(self, place: Path) -> None:
                status, headers = place.stat(), {"Content_Type": "application/octet-stream"}
                if server.tells == "ETag":
                    headers["ETag"] = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'  # as nginx makes it
                elif server.tells:
                    headers["Last_Modified"] = email.utils.formatdate(status.st_mtime, usegmt=True)
                if server.gzips and "gzip" in self.headers.get("Accept-Encoding", ""):
                    return self.reply(200, gzip.compress(place.read_bytes()), Content_Encoding="gzip", **headers)
                match = re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("Range", ""))
                if match is None or not server.ranges:
                    body = place.read_bytes() if self.command == "GET" else b""
                    return self.reply(200, body, size=status.st_size, **headers)
                first, last = int(match[1]), min(int(match[2]), status.st_size - 1)
                if server.short:
                    last = first + (last - first) // 2
                with place.open("rb") as handle:
                    handle.seek(first)
                    part = handle.read(last - first + 1)
                return self.reply(206, part, Content_Range=f"bytes {first}-{last}/{status.st_size}", **headers)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *args) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
