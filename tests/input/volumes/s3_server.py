"""A real server with Amazon's interface, in a process of its own."""

import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

from jaxdist.launch.launchers.processes.loopback import free_port


class Bucket:
    """Puts objects into a bucket by HTTP, as any client may."""

    def __init__(self, address, name):
        self.address, self.name = address, name
        self.put("", b"")

    @property
    def environment(self):
        """What a program needs to find the server."""
        return {
            "AWS_ACCESS_KEY_ID": "anyone",
            "AWS_SECRET_ACCESS_KEY": "anything",
            "AWS_ENDPOINT_URL": self.address,
        }

    def put(self, key, content):
        url = f"{self.address}/{self.name}/{key}".rstrip("/")
        # urllib would call it a form, which the server parses.
        kind = {"Content-Type": "application/octet-stream"}
        asked = urllib.request.Request(url, content, kind, method="PUT")
        with urllib.request.urlopen(asked, timeout=20):
            pass

    def upload(self, folder, prefix):
        for file in Path(folder).rglob("*"):
            if file.is_file():
                inside = file.relative_to(folder).as_posix()
                self.put(f"{prefix}/{inside}", file.read_bytes())


@contextmanager
def s3_bucket(name):
    """Serve a bucket as long as the block runs."""
    port = free_port()
    words = sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, **quiet) as server:
        try:
            yield _answered(f"http://127.0.0.1:{port}", name)
        finally:
            server.terminate()


def _answered(address, name):
    """Return the bucket, as soon as the server answers."""
    for _ in range(600):
        try:
            return Bucket(address, name)
        except URLError:
            time.sleep(0.1)
    raise TimeoutError(address)
