"""A throw-away S3 server on loopback: SeaweedFS from its wheel, up in about four seconds."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsec.world.s3 import S3Config
from ports import free_ports

PORTS = (
    *("s3.port", "s3.port.grpc", "master.port", "master.port.grpc"),
    *("volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"),
)


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Config]:
    """Start a server with its files in a folder; kill it, who asked nicely lingers for 15 s."""
    (folder / "data").mkdir()
    keys = {"accessKey": "key", "secretKey": "secret"}
    identity = {
        "name": "dsec",
        "credentials": [keys],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = free_ports(len(PORTS))
    command = [
        *(str(Path(sys.executable).parent / "weed"), "-logtostderr", "server"),
        *(f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"),
        *("-s3.ip.bind=127.0.0.1", f"-s3.config={folder / 's3.json'}", "-s3.iam=false"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=256"),
        *("-volume.max=0", "-volume.minFreeSpace=1", "-volume.preStopSeconds=0"),
        *(f"-{name}={port}" for name, port in zip(PORTS, ports, strict=True)),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield S3Config("dsec", f"http://127.0.0.1:{ports[0]}", "us-east-1", "key", "secret")
    finally:
        process.kill()
        process.wait()
