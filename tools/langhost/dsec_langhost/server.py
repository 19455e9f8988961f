"""Serve the language host to the engine that started it, and go when the engine goes."""

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from pulumi.runtime.proto import language_pb2_grpc

from dsec_langhost import children
from dsec_langhost.host import LanguageHost

# A plugin that runs holds a thread for as long as it lives.
_WORKERS = 64


def serve() -> int:
    """Print the port, serve until told to stop, and leave no child behind."""
    server = grpc.server(
        ThreadPoolExecutor(_WORKERS),
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
    )
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageHost(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    engine = os.getppid()
    while os.getppid() == engine and not stopping.wait(1):
        time.sleep(0)
    children.end_all()
    server.stop(0)
    # Threads that still stream to a gone engine must not keep this process.
    os._exit(0)
