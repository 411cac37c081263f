"""S3 servers for benchmarks, on loopback, stopped by process id: SeaweedFS, and rclone, which ignores If-None-Match."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ACCESS, SECRET, BUCKET = "test", "testtest", "ckpt"
_START_TIMEOUT_S = 60.0


class ServerMissing(Exception):
    """The server's package is not installed, or it does not come up."""


def free_port() -> int:
    """Returns a port that nobody listens on, with room for the same plus 10000."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 55000:
            return port


def environment(endpoint: str) -> dict[str, str]:
    """Returns what clients of a server need in their environment."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextlib.contextmanager
def seaweedfs() -> Iterator[str]:
    """Yields the endpoint of a SeaweedFS that honours conditional writes, with the bucket ``ckpt``."""
    ports = {name: free_port() for name in ("s3", "master", "volume", "filer", "admin")}
    with _directory() as directory:
        command = [
            _program("weed"), "mini", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            "-master.telemetry=false", "-admin.ui=false", "-webdav=false", f"-bucket={BUCKET}",
            *(f"-{name}.port={port}" for name, port in ports.items()),
        ]  # fmt: skip
        secrets = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
        with _running(command, {**os.environ, **secrets}, directory, ports["s3"]) as endpoint:
            yield endpoint


@contextlib.contextmanager
def rclone() -> Iterator[str]:
    """Yields the endpoint of a store that accepts ``If-None-Match`` and ignores it."""
    port = free_port()
    with _directory() as directory:
        (directory / "data" / BUCKET).mkdir(parents=True)
        command = [
            _program("rclone"), "serve", "s3", "--config", "/dev/null", "--auth-key", f"{ACCESS},{SECRET}",
            "--addr", f"127.0.0.1:{port}", "--vfs-cache-mode", "off", str(directory / "data"),
        ]  # fmt: skip
        with _running(command, dict(os.environ), directory, port) as endpoint:
            yield endpoint


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ServerMissing(f"{name} is not installed: pip install -e '.[bench]'")
    return found


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="plait-s3-", dir=os.environ.get("PLAIT_BENCH_DIR", "/var/tmp")))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _running(command: list[str], variables: dict[str, str], directory: Path, port: int) -> Iterator[str]:
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        _await(process, port, directory)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], port: int, directory: Path) -> None:
    """Waits until the server takes an object; both answer requests before they can keep anything."""
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=f"http://127.0.0.1:{port}",
        access_key_id=ACCESS,
        secret_access_key=SECRET,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "5s"},
        retry_config={"max_retries": 0},
    )
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            obstore.put(store, "ready", b"1", use_multipart=False)
            obstore.delete(store, "ready")
        except (BaseError, OSError):
            time.sleep(0.1)
        else:
            return
    text = (directory / "server.log").read_text(encoding="utf-8", errors="replace")
    raise ServerMissing(f"{command_name(process)} does not come up: {text[-300:]}")


def command_name(process: subprocess.Popen[bytes]) -> str:
    """Returns the program of a process."""
    return Path(str(process.args[0] if isinstance(process.args, list) else process.args)).name
