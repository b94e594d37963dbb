"""A loopback server that answers what `datasets` asks of the hub, and that fails on demand."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


class FakeHub:
    """Serves data set repositories: ``hub.repositories["owner/name"] = {"main": {"train.jsonl": b"..."}}``.

    Each revision (branch, tag) has its own files; the commit is a hash of them. A context manager: `url`
    answers inside the block, and refuses connections after it.

    Attributes:
        requests: every "METHOD /path" so far.
        gated: ids whose files answer 401.
        failing: part of a path -> status: what requests whose path holds the part get.
        cutting: names of files of which only the first half arrives before the connection ends.
        hang: seconds to wait before any answer.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, Files]] = {}
        self.requests: list[str] = []
        self.gated: set[str] = set()
        self.failing: dict[str, int] = {}
        self.cutting: set[str] = set()
        self.hang = 0.0
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FakeHub":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def run(self, script: str, home: Path, **environment: str) -> dict[str, Any]:
        """Run Python source in a child process that knows only this hub; it prints one line of JSON last.

        The settings of the hub are read at import, so no test can use it in its own process. ``home`` is the
        child's cache: the same one twice is a second visit.
        """
        settings = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
        settings |= {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            "NO_PROXY": "127.0.0.1",
            **environment,
        }
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env=settings,
            cwd=home.parent,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.strip().splitlines()[-1]) | {"stderr": done.stderr}


def commit_of(files: Files) -> str:
    """40 hexadecimal digits that stand for the content, as a commit does."""
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that gave up waiting is what a hanging hub is for; printed, it would stand in another test's output.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        time.sleep(self.hub.hang)
        for shown, status in self.hub.failing.items():
            if shown in path:
                return self.answer(status, b"fails on demand")
        part = path.strip("/").split("/")
        if part[:2] == ["api", "datasets"]:
            return self.api("/".join(part[2:4]), part[4:])
        if part[0] == "datasets" and part[3:4] == ["resolve"]:
            return self.resolve("/".join(part[1:3]), part[4], "/".join(part[5:]))
        return self.error(404, "EntryNotFound")

    def find(self, name: str, revision: str) -> tuple[str, Files] | None:
        """(commit, files), or None after having answered that there is no such repository or revision."""
        if name not in self.hub.repositories:
            self.error(401, "RepoNotFound")  # to strangers the hub does not say which ids exist
            return None
        revisions = self.hub.repositories[name]
        for known, files in revisions.items():
            if revision in (known, commit_of(files)):
                return commit_of(files), files
        self.error(404, "RevisionNotFound")
        return None

    def api(self, name: str, rest: list[str]) -> None:
        kind, revision, *folder = rest or ["revision", "main"]
        if not (found := self.find(name, revision)):
            return None
        commit, files = found
        if kind == "revision":
            siblings = [{"rfilename": path} for path in files]
            return self.json({"id": name, "sha": commit, "siblings": siblings, "private": False, "tags": []})
        if kind != "tree":
            return self.error(404, "EntryNotFound")
        inside = "".join(f"{part}/" for part in folder)
        entries: dict[str, dict[str, Any]] = {}
        for path, content in files.items():
            if path.startswith(inside):
                child, _, deeper = path.removeprefix(inside).partition("/")
                if "recursive=true" in self.path.lower():
                    child, deeper = path.removeprefix(inside), ""
                size, sort = (0, "directory") if deeper else (len(content), "file")
                oid = hashlib.sha1(content).hexdigest()
                entries[child] = {"type": sort, "path": inside + child, "size": size, "oid": oid}
        return self.json(list(entries.values())) if entries else self.error(404, "EntryNotFound")

    def resolve(self, name: str, revision: str, path: str) -> None:
        if not (found := self.find(name, revision)):
            return None
        commit, files = found
        if name in self.hub.gated:
            return self.error(401, "GatedRepo", commit)
        if path not in files:
            return self.error(404, "EntryNotFound", commit)
        etag = f'"{hashlib.sha1(files[path]).hexdigest()}"'
        return self.answer(200, files[path], {"ETag": etag, "X-Repo-Commit": commit})

    def json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def error(self, status: int, code: str, commit: str = "") -> None:
        self.answer(status, b"", {"X-Error-Code": code} | ({"X-Repo-Commit": commit} if commit else {}))

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ((headers or {}) | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            cut = self.path.rpartition("/")[2] in self.hub.cutting
            self.wfile.write(body[: len(body) // 2] if cut else body)
            self.close_connection = cut
