"""A throw-away Kubernetes API: etcd and kube-apiserver on loopback, without nodes.

`ApiServer.start` raises ToolsMissing where the programs are not on this machine. `stop` ends both
processes by their id; nothing is left but the folder that the caller gave.
"""

import json
import os
import secrets
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from dsec.local.toolchain import lookup
from dsec.local.toolchain_table import TOOLS as CHAIN
from ports import free_ports

TOOLS = ("etcd", "kube-apiserver", "kubectl")
START_SECONDS = 90
"""Two cores shared with other work; an idle machine needs 8 s."""


class ToolsMissingError(Exception):
    """A program of the tool chain is not here."""


def tools() -> dict[str, Path]:
    """Return the programs. Raises ToolsMissingError; never builds or downloads."""
    found = {tool.name: lookup(tool) for tool in CHAIN if tool.name in TOOLS}
    missing = [name for name, one in found.items() if one is None]
    if missing:
        raise ToolsMissingError(f"{', '.join(missing)}: run dsec tools install")
    return {name: one.program for name, one in found.items() if one}


@dataclass
class ApiServer:
    """A running API server and how to talk to it as an administrator."""

    folder: Path
    url: str
    token: str
    kubeconfig: Path
    kubectl_program: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    def start(cls, folder: Path, *, flags: tuple[str, ...] = ()) -> "ApiServer":
        """Start both processes in a folder and wait until the API answers ready."""
        programs = tools()
        etcd_port, peer_port, port = free_ports(3)
        token = secrets.token_hex(16)
        (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "accounts.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        etcd_url = f"http://127.0.0.1:{etcd_port}"
        server = cls(
            folder,
            f"https://127.0.0.1:{port}",
            token,
            folder / "kubeconfig",
            programs["kubectl"],
        )
        server.kubeconfig.write_text(yaml.safe_dump(server.config()))
        try:
            server.run(
                programs["etcd"],
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls={etcd_url}",
                f"--advertise-client-urls={etcd_url}",
                f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
                "--unsafe-no-fsync",
            )
            server.run(
                programs["kube-apiserver"],
                f"--etcd-servers={etcd_url}",
                f"--secure-port={port}",
                "--bind-address=127.0.0.1",
                f"--cert-dir={folder / 'certs'}",
                f"--token-auth-file={folder / 'tokens.csv'}",
                f"--service-account-key-file={folder / 'accounts.key'}",
                f"--service-account-signing-key-file={folder / 'accounts.key'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.99.0.0/24",
                "--authorization-mode=RBAC",
                # as the local cluster: the agent is privileged, and admission refuses the others
                "--allow-privileged=true",
                # no controller manager runs here, so nobody would make service accounts
                "--disable-admission-plugins=ServiceAccount",
                *flags,
            )
            server.wait_ready()
        except BaseException:
            server.stop()
            raise
        return server

    def config(self) -> dict[str, Any]:
        """Return a kubeconfig. The certificate is the server's own, made in its folder."""
        certificate = str(self.folder / "certs" / "apiserver.crt")
        cluster = {"server": self.url, "certificate-authority": certificate}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        }

    def run(self, program: Path, *flags: str) -> None:
        """Start a process whose output goes to a file of its own."""
        with (self.folder / f"{program.name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen([str(program), *flags], stdout=log, stderr=log, cwd=self.folder)
            )

    def wait_ready(self) -> None:
        """Wait for /readyz. Raises RuntimeError with the log's end."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if any(one.poll() is not None for one in self.processes):
                break
            done = self.kubectl("get", "--raw", "/readyz", check=False)
            if done.returncode == 0:
                return
            time.sleep(0.5)
        logs = [path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log"))]
        raise RuntimeError("the API server did not get ready:\n" + "\n".join(logs))

    def kubectl(
        self, *words: str, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator."""
        return subprocess.run(
            [str(self.kubectl_program), f"--kubeconfig={self.kubeconfig}", *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=check,
            timeout=60,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
        )

    def apply(self, *records: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        """Create or update records; the caller looks at the exit status."""
        text = "\n---\n".join(json.dumps(one) for one in records)
        return self.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text, check=False
        )

    def stop(self) -> None:
        """Kill the processes and wait for them: nothing of them is kept."""
        for one in reversed(self.processes):
            one.kill()
            one.wait()
        self.processes.clear()
