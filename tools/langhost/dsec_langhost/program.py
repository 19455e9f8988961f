"""Run one Pulumi program in its own interpreter and tell the host how it ended.

Started by file name with one argument, the descriptor from which the engine's serialised request
is read: configuration may hold secrets, which belong neither in arguments nor in the environment.
Exit codes: 0 done; 32 failed and the engine has been told why; 33 there is no Pulumi SDK here;
130 interrupted; any other is the program's own.
"""

import asyncio
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

REPORTED = 32
NO_SDK = 33
INTERRUPTED = 130

# The engine may allow as good as unlimited parallelism; each worker is a thread.
_MOST_WORKERS = 1024


def user_traceback(error: BaseException, program: Path) -> str:
    """Return the traceback from the first frame in the program's folder on.

    Frames before it are this script's and the SDK's. An error without any such frame, such as a
    syntax error, is shown without frames.
    """
    step = error.__traceback__
    while step is not None:
        file = Path(step.tb_frame.f_code.co_filename)
        if file == program or program in file.parents:
            return "".join(traceback.format_exception(type(error), error, step)).rstrip()
        step = step.tb_next
    return "".join(traceback.format_exception_only(type(error), error)).rstrip()


def entry_file(program: Path) -> Path:
    """Return the file to run; raises `FileNotFoundError` with a sentence."""
    file = program / "__main__.py" if program.is_dir() else program
    if not file.is_file():
        raise FileNotFoundError(f"the program folder has no {file.name}: {file.parent}")
    return file


def _interrupt(signum: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(signum, lambda *_: os._exit(INTERRUPTED))  # a second one does not wait
    raise KeyboardInterrupt


def _follow_parent() -> None:
    """End with the host, also when it was killed and could not say so."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True).start()


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what a failed program left, so that nothing complains about pending tasks."""
    for task in asyncio.all_tasks(loop):
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            loop.run_until_complete(task)
    loop.close()


def run(request: Any) -> int:
    """Run the program of a RunRequest; return the exit code."""
    import grpc
    import pulumi
    from pulumi.runtime import reset_options, run_in_stack, set_all_config

    program = Path(request.info.program_directory, request.info.entry_point or ".").resolve()
    folder = program if program.is_dir() else program.parent
    os.chdir(request.pwd or folder)
    sys.path[0] = str(folder)  # instead of this script's folder
    reset_options(
        project=request.project,
        stack=request.stack,
        root_directory=request.info.root_directory or None,
        parallel=request.parallel,
        engine_address=request.args[0] if request.args else "",
        monitor_address=request.monitor_address,
        preview=request.dryRun,
        organization=request.organization or "organization",
    )
    set_all_config(dict(request.config), list(request.configSecretKeys))
    loop = asyncio.new_event_loop()
    workers = min(max(request.parallel, 1) * 4, _MOST_WORKERS)
    loop.set_default_executor(ThreadPoolExecutor(workers))
    # What a failed program leaves unobserved was reported once; asyncio would say it again.
    loop.set_exception_handler(lambda *_: None)
    try:
        file = entry_file(program)
        sys.argv = [str(file)]
        loop.run_until_complete(
            run_in_stack(lambda: _ignore(runpy.run_path(str(file), run_name="__main__")))
        )
    except pulumi.RunError as error:
        pulumi.log.error(str(error))
        return REPORTED
    except grpc.RpcError as error:
        # An engine that is going away has already said why.
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            pulumi.log.error(error.details())
        return REPORTED
    except FileNotFoundError as error:
        if error.filename is not None:
            pulumi.log.error(_unhandled(error, folder))
        else:
            pulumi.log.error(str(error))
        return REPORTED
    except Exception as error:  # noqa: BLE001 - anything a program raises is its result
        pulumi.log.error(_unhandled(error, folder))
        return REPORTED
    finally:
        _finish(loop)
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _unhandled(error: BaseException, folder: Path) -> str:
    return f"Program failed with an unhandled exception:\n{user_traceback(error, folder)}"


def _ignore(result: object) -> None:
    """Drop a module's namespace, which the runtime would take for outputs."""
    del result


def main() -> None:
    """Read the request, run the program and exit."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    _follow_parent()
    try:
        with os.fdopen(int(sys.argv[1]), "rb") as pipe:
            data = pipe.read()
        try:
            from pulumi.runtime.proto import language_pb2
        except ModuleNotFoundError:
            sys.exit(NO_SDK)
        code = run(language_pb2.RunRequest.FromString(data))
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    sys.exit(code)


if __name__ == "__main__":
    main()
