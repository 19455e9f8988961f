"""Start the processes that the host answers for, stream what they print, end them with the host."""

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

# How long a process may take to end by itself after it was told to, in seconds.
GRACE = 3.0

Chunk = tuple[Literal["stdout", "stderr"], bytes]

_alive: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


def _register(process: subprocess.Popen[bytes]) -> None:
    with _lock:
        _alive.add(process)


def _forget(process: subprocess.Popen[bytes]) -> None:
    with _lock:
        _alive.discard(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, then make it."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_all() -> None:
    """End every process that is still there, side by side."""
    with _lock:
        processes = list(_alive)
    threads = [threading.Thread(target=end, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_with_input(
    command: Sequence[str],
    data: bytes,
    folder: Path,
    environment: Mapping[str, str],
    on_cancel: Callable[[Callable[[], None]], object],
) -> int:
    """Run a command that reads `data` from the descriptor named by its last argument.

    It shares this process's output. `on_cancel` gets a function that ends it early. Returns the
    exit code, negative for a signal.
    """
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [*command, str(reader)],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        pass_fds=(reader,),
    )
    os.close(reader)
    _register(process)
    on_cancel(lambda: end(process))
    try:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(data)
    except BrokenPipeError:
        pass  # it ended before it read; its exit code says why
    try:
        return process.wait()
    finally:
        _forget(process)


def stream(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    on_cancel: Callable[[Callable[[], None]], object],
) -> Iterator[Chunk | int]:
    """Run a command; yield what it prints as it comes, and last its exit code."""
    process = subprocess.Popen(
        list(command),
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _register(process)
    on_cancel(lambda: end(process))
    chunks: queue.Queue[Chunk | None] = queue.Queue(maxsize=64)

    def read(name: Literal["stdout", "stderr"], pipe: IO[bytes] | None) -> None:
        while pipe is not None and (block := os.read(pipe.fileno(), 1 << 16)):
            chunks.put((name, block))
        chunks.put(None)

    pipes: tuple[tuple[Literal["stdout", "stderr"], IO[bytes] | None], ...] = (
        ("stdout", process.stdout),
        ("stderr", process.stderr),
    )
    for name, pipe in pipes:
        threading.Thread(target=read, args=(name, pipe), daemon=True).start()
    try:
        open_pipes = len(pipes)
        while open_pipes:
            chunk = chunks.get()
            if chunk is None:
                open_pipes -= 1
            else:
                yield chunk
        yield process.wait()
    finally:
        end(process)
        _forget(process)
