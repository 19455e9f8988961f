"""Images: pulling from a registry, whiteouts as overlayfs sees them, checks of what came."""

import asyncio
import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dsec.agent.images import ImageStore, Stack
from dsec.api.reasons import EndReason
from dsec.local.initbin import ensure_init
from dsec.world.substrate import SubstrateError
from ports import free_ports

pytestmark = pytest.mark.root

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
BASE = {
    "a/one": "1", "a/two": "2", "test": "root", "sub/test": "sub", "d/x": "x", "d/y": "y",
    "both": "old", "gone/deep/file": "f",
}  # fmt: skip
CHANGE = {
    ".wh.test": "", "a/.wh.one": "", "d/.wh..wh..opq": "", "d/z": "z", ".wh.both": "",
    "both": "new", ".wh.gone": "",
}  # fmt: skip
MERGED = {"a/two": "2", "sub/test": "sub", "d/z": "z", "both": "new"}


def archive(files: dict[str, str], program: bytes = b"") -> bytes:
    """Return a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in {**files, **({"bin/true": ""} if program else {})}.items():
            content = program if name == "bin/true" else text.encode()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def layout(path: Path, layers: list[bytes], architecture: str = ARCH) -> Path:
    """Write an image as an OCI layout with uncompressed layers."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return f"sha256:{digest}"

    kind = "application/vnd.oci.image"
    rows = [
        {"mediaType": f"{kind}.layer.v1.tar", "digest": blob(data), "size": len(data)}
        for data in layers
    ]
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": ["/bin/true"], "Cmd": ["x"], "Env": ["K=a=b"], "User": "7"},
            "rootfs": {"type": "layers", "diff_ids": [row["digest"] for row in rows]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": {
                "mediaType": f"{kind}.config.v1+json", "digest": blob(config), "size": len(config),
            },
            "layers": rows,
        }
    ).encode()  # fmt: skip
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": f"{kind}.manifest.v1+json",
                "digest": blob(manifest),
                "size": len(manifest),
                "annotations": {"org.opencontainers.image.ref.name": "image"},
            }
        ],
    }
    (path / "index.json").write_text(json.dumps(index))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return path


def merged(stack: Stack) -> dict[str, str]:
    """Return the files that overlayfs shows of an image, mounted in a namespace of its own."""
    lower = ":".join([*stack.lower, "/mnt"])
    script = f"""cd '{stack.base}' && mount -t overlay -o ro,lowerdir={lower} none /mnt &&
    cd /mnt &&
    find . -type f ! -name true -printf '%P\\n' |
        while read f; do echo "$f=$(cat "$f")"; done
    find . ! -type f ! -type d -printf 'odd=%P\\n'"""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], check=True, capture_output=True, text=True
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[str]:
    """Return the address of an empty registry on loopback, without TLS."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    config = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": address},
    }
    (tmp_path / "registry.yaml").write_text(json.dumps(config))
    server = await asyncio.create_subprocess_exec(
        "docker-registry", "serve", str(tmp_path / "registry.yaml"),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    host, port = address.split(":")
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.close()
        break
    yield address
    server.kill()
    await server.wait()


async def push(source: Path, target: str) -> str:
    """Push an image; returns its digest."""
    digest = source.parent / "digest"
    process = await asyncio.create_subprocess_exec(
        "skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"--digestfile={digest}",
        f"oci:{source}:image", f"docker://{target}",
    )  # fmt: skip
    assert await process.wait() == 0
    return digest.read_text().strip()


async def test_pull_by_tag_and_digest(tmp_path: Path, registry: str) -> None:
    """Whiteouts hide what they should and nothing else; a digest needs no registry twice."""
    program = ensure_init().read_bytes()
    image = layout(tmp_path / "image", [archive(BASE, program), archive(CHANGE)])
    digest = await push(image, f"{registry}/team/x:dev")
    store = ImageStore(tmp_path / "store", plain_http=frozenset({registry}))
    stack = await store.prepare(f"{registry}/team/x:dev")
    assert merged(stack) == MERGED
    assert stack.digest == digest
    assert (stack.command, stack.env, stack.user) == (["/bin/true", "x"], {"K": "a=b"}, "7")
    await push(layout(tmp_path / "new" / "image", [archive(BASE)]), f"{registry}/team/x:dev")
    assert (await store.prepare(f"{registry}/team/x:dev")).digest == digest
    store._fresh_until.clear()
    assert (await store.prepare(f"{registry}/team/x:dev")).digest != digest
    pinned = f"{registry}/team/x:dev@{digest}"
    assert (await store.prepare(pinned)).lower == stack.lower
    again = ImageStore(tmp_path / "store")  # no plain HTTP: it would fail if it asked
    assert (await again.prepare(pinned)).digest == digest
    default = ImageStore(
        tmp_path / "other", default_registry=registry, plain_http=frozenset({registry})
    )
    first, second = await asyncio.gather(
        default.prepare(f"team/x@{digest}"), default.prepare(pinned)
    )
    assert first.lower == second.lower
    assert sorted(path.name for path in default.layers.iterdir()) == sorted(first.lower)


async def test_pull_errors_give_the_reason(tmp_path: Path, registry: str) -> None:
    """Missing image, wrong digest, TLS where there is none, bad and incomplete references."""
    store = ImageStore(tmp_path / "store", plain_http=frozenset({registry}))
    strict = ImageStore(tmp_path / "strict")
    local = ImageStore(tmp_path / "local", local_roots=True)
    for where, image, said in [
        (store, f"{registry}/no/such:1", "unknown"),
        (store, f"{registry}/x@sha256:{'0' * 64}", "unknown"),
        (strict, f"{registry}/x:1", "HTTP"),
        (store, f"{registry}/UPPER:1", "lower-case"),
        (store, "noregistry:1", "names no registry"),
        (local, "rootfs:/no/such/file.tar", "No such file"),
    ]:
        with pytest.raises(SubstrateError, match=said) as failed:
            await where.prepare(image)
        assert failed.value.reason == EndReason.IMAGE_PULL_FAILED
        assert image in str(failed.value)
        assert where.known(image) is None
    assert list(store.layers.iterdir()) == []


async def test_another_architecture_is_refused(tmp_path: Path, registry: str) -> None:
    """By the configuration, and by the programs where the configuration lies."""
    store = ImageStore(tmp_path / "store", plain_http=frozenset({registry}))
    program = ensure_init().read_bytes()
    honest = layout(tmp_path / "a" / "image", [archive(BASE, program)], "s390x")
    digest = await push(honest, f"{registry}/honest:1")
    with pytest.raises(SubstrateError, match="s390x"):
        await store.prepare(f"{registry}/honest@{digest}")
    foreign = program[:18] + (0x16).to_bytes(2, "little") + program[20:]
    liar = layout(tmp_path / "b" / "image", [archive(BASE, foreign)])
    await push(liar, f"{registry}/liar:1")
    with pytest.raises(SubstrateError, match="ELF machine 22"):
        await store.prepare(f"{registry}/liar:1")


async def test_a_damaged_layer_is_refused(tmp_path: Path) -> None:
    """Content is checked against its name before it is unpacked."""
    store = ImageStore(tmp_path / "store")
    image = layout(tmp_path / "image", [archive(BASE)])
    index = json.loads((image / "index.json").read_text())
    blobs = image / "blobs" / "sha256"
    manifest = blobs / index["manifests"][0]["digest"].removeprefix("sha256:")
    layer = blobs / json.loads(manifest.read_text())["layers"][0]["digest"].removeprefix("sha256:")
    layer.write_bytes(layer.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="has content of"):
        await store._import(image, "img")


async def test_an_archive_cannot_write_outside_of_its_layer(tmp_path: Path) -> None:
    """Neither by '..' nor through a link that it brings itself."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        link = tarfile.TarInfo("way")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "victim")
        tar.addfile(link)
        for name in ("way/evil", "../evil"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    (tmp_path / "victim").mkdir()
    (tmp_path / "bad.tar").write_bytes(out.getvalue())
    store = ImageStore(tmp_path / "store", local_roots=True)
    with pytest.raises(SubstrateError):
        await store.prepare(f"rootfs:{tmp_path / 'bad.tar'}")
    assert list((tmp_path / "victim").iterdir()) == []
    assert not (store.layers / "evil").exists()
    assert list(store.layers.iterdir()) == []


async def test_a_local_root_is_taken_as_it_is_now(tmp_path: Path) -> None:
    """An archive that changed is read again; a directory is used in place."""
    store = ImageStore(tmp_path / "store", local_roots=True)
    path = tmp_path / "root.tar"
    digests = []
    for text in ("one", "second"):
        path.write_bytes(archive({"file": text * 5000}))
        stack = await store.prepare(f"rootfs:{path}")
        assert merged(stack) == {"file": text * 5000}
        digests.append(stack.digest)
    assert digests[0] != digests[1]
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "file").write_text("x")
    stack = await store.prepare(f"rootfs:{tmp_path / 'dir'}")
    assert (merged(stack), stack.digest) == ({"file": "x"}, "")


async def test_a_path_of_the_node_is_no_image_unless_allowed(tmp_path: Path) -> None:
    """A shared node never reads a path that a user names."""
    (tmp_path / "dir").mkdir()
    store = ImageStore(tmp_path / "store")
    with pytest.raises(SubstrateError, match="no image here"):
        await store.prepare(f"rootfs:{tmp_path / 'dir'}")
    assert list(store.layers.iterdir()) == []
