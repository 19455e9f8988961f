"""A taken node: with all that root can read there, every call beyond its own is denied and audited.

Each attempt is a row: what is tried, and the refusal that must come. Attempts that reach dsec must
leave an audit row with caller, call and reason: the gateway's are found by their correlation id.
"""

import json
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from cluster import ApiServer
from control_plane import INTERNAL
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from dsec.api import frames
from dsec.gateway import ca
from security_world import SYSTEM, Loot, argv_and_environment, forged, robbed

pytestmark = pytest.mark.cluster

DENIED = (403, "denied")
UNKNOWN = (401, "unauthenticated")
FENCED = (409, "fenced")
INVALID = (422, "invalid")
Refusal = tuple[int, str]
Call = Callable[[Loot, httpx2.Client], httpx2.Response]


@pytest.fixture(scope="module")
def loot(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loot]:
    """Everything that node-a has."""
    with robbed(apiserver, tmp_path_factory.mktemp("plane")) as found:
        yield found


def registration(loot: Loot, name: str, **about: Any) -> dict[str, Any]:
    """Return a registration under a name."""
    inventory = {"cpuMilli": 1, "memoryBytes": 1 << 30, "diskBytes": 1 << 30, "simulated": True}
    return {
        "name": name,
        "uid": "thief",
        "bootId": "b",
        "incarnation": 1 << 30,
        "endpoint": loot.agents["node-a"].replace("node-a", name),
        "inventory": inventory,
        "utc": datetime.now(UTC).isoformat(),
        **about,
    }


def request_for(name: str, unit: str) -> str:
    """Return a certificate request for a name and a unit."""
    subject = [
        x509.NameAttribute(NameOID.COMMON_NAME, name),
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
    ]
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name(subject))
        .add_extension(names, critical=False)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
        .decode()
    )


def join(name: str, **about: Any) -> Call:
    """Register with node-a's certificate."""
    return lambda loot, client: client.post(
        "/agent/v1/register", json=registration(loot, name, **about)
    )


def join_by(token: str, name: str, **about: Any) -> Call:
    """Register with a found token and no certificate."""

    def call(loot: Loot, client: httpx2.Client) -> httpx2.Response:
        with loot.client(loot.plane.server, certificate=False) as bare:
            bare.headers.update({k: v for k, v in client.headers.items() if k.startswith("x-dsec")})
            bare.headers["Authorization"] = f"Bearer {getattr(loot, token)}"
            return bare.post("/agent/v1/register", json=registration(loot, name, **about))

    return call


def push(**row: str) -> Call:
    """Write one row of the journal; `sandbox` may be `own` or `foreign`."""

    def call(loot: Loot, client: httpx2.Client) -> httpx2.Response:
        node, boot = row.pop("push_node", "node-a"), row.pop("boot", "b")
        told = {"node": node, "bootId": boot, "seq": 1, "utc": "2026-01-01T00:00:00Z", "kind": "k"}
        told |= {k: getattr(loot, v) if k == "sandbox" else v for k, v in row.items()}
        return client.post("/agent/v1/journal", json={"node": node, "bootId": boot, "rows": [told]})

    return call


def put(path: str) -> Call:
    """Write a file of a scene; {own} and {foreign} are sandboxes."""
    return lambda loot, client: client.put(
        "/agent/v1/artifacts/" + path.format(own=loot.own, foreign=loot.foreign), content=b"x"
    )


def ask(method: str, path: str, *, by: str = "", **body: Any) -> Call:
    """Call the users' API, with a found token or with the certificate alone."""

    def call(loot: Loot, client: httpx2.Client) -> httpx2.Response:
        if by:
            client.headers["Authorization"] = f"Bearer {getattr(loot, by)}"
        where = path.format(own=loot.own, foreign=loot.foreign)
        return client.request(method, where, **body)

    return call


HEX = "0" * 64
GATEWAY: list[tuple[str, Call, Refusal]] = [
    ("register as another node", join("node-b"), DENIED),
    ("register as a new node", join("node-c"), DENIED),
    ("ask for the controller's certificate", join("dsec-controller"), DENIED),
    ("ask for the gateway's name", join_by("join_token", "dsec-gateway.dsec-system.svc"), DENIED),
    ("be no name at all", join("Node_A"), INVALID),
    ("use the join token for another node", join_by("join_token", "node-b"), DENIED),
    ("use the join token for a new node", join_by("join_token", "node-c"), DENIED),
    ("use the pod's token for another node", join_by("pod_token", "node-b"), DENIED),
    ("use the pod's token for a new node", join_by("pod_token", "node-c"), DENIED),
    (
        "be reached where node-b is",
        join("node-a", endpoint="https://127.0.0.1:1/n/node-b"),
        INVALID,
    ),
    ("be reached by a trick", join("node-a", endpoint="https://h/n/node-b?/n/node-a"), INVALID),
    ("ask for an oversized registration", join("node-a", pool="x" * (2 << 20)), (413, "too-large")),
    ("write rows of node-b", push(push_node="node-b", node="node-b"), DENIED),
    ("mix in a row of node-b", push(node="node-b"), DENIED),
    ("write of a sandbox elsewhere", push(sandbox="foreign", tenant="other"), DENIED),
    ("write of a sandbox as one's own", push(sandbox="foreign", tenant="research"), DENIED),
    ("write of an own one as another's", push(sandbox="own", tenant="other"), DENIED),
    ("leave the journal's place", push(boot="../../../../audit/2026-01-01/g/b"), INVALID),
    ("upload for a sandbox of node-b", put("annex/-/{foreign}/stdout.log"), FENCED),
    ("upload into another project", put("annex/-/{own}/stdout.log"), DENIED),
    ("upload into an experiment", put("lab/secret/{own}/stdout.log"), DENIED),
    ("upload for nobody", put("lab/-/sb-unknown/stdout.log"), FENCED),
    ("climb out of the scene", put("lab/-/{own}/a/..%2f..%2f..%2fx"), INVALID),
    ("climb by an absolute path", put("lab/-/{own}//etc/passwd"), INVALID),
    ("an upload with control characters", put("lab/-/{own}/a%1bb%00"), INVALID),
    ("an upload over two lines", put("lab/-/{own}/a%0ab"), (404, "not-found")),
    ("read inputs of another project", ask("GET", f"/agent/v1/inputs/annex/{HEX}"), DENIED),
    ("climb out of the inputs", ask("GET", "/agent/v1/inputs/lab/..%252f..%252fbindlog"), INVALID),
    ("list experiments", ask("GET", "/v1/projects/lab/experiments"), UNKNOWN),
    (
        "list by the pod's token",
        ask("GET", "/v1/projects/lab/experiments", by="pod_token"),
        UNKNOWN,
    ),
    (
        "list by the join token",
        ask("GET", "/v1/projects/lab/sandboxes", by="join_token"),
        UNKNOWN,
    ),
    ("create sandboxes", ask("POST", "/v1/projects/lab/sandboxes", json={"creates": []}), UNKNOWN),
    ("end a sandbox", ask("DELETE", "/v1/projects/annex/sandboxes/{foreign}"), UNKNOWN),
    (
        "run a command elsewhere",
        ask("POST", "/v1/projects/annex/sandboxes/{foreign}/exec"),
        UNKNOWN,
    ),
    ("read output elsewhere", ask("GET", "/v1/projects/annex/sandboxes/{foreign}/logs"), UNKNOWN),
    ("make join tokens", ask("POST", "/v1/join-tokens", json={"count": 9}), UNKNOWN),
    ("learn the nodes", ask("GET", "/v1/nodes"), UNKNOWN),
]
"""Calls to the gateway with node-a's certificate."""

EXEC = frames.encode_request(frames.ExecCall(command=["id"]), b"")
AGENT: list[tuple[str, str, str, Any]] = [
    ("GET", "state", "watch node-b", None),
    ("POST", "sandboxes", "create on node-b", {"epoch": 1 << 40, "specs": []}),
    ("POST", "stop", "end what runs on node-b", {"epoch": 1 << 40, "ids": ["{foreign}"]}),
    ("POST", "ack", "have node-b forget", {"epoch": 1 << 40, "ids": ["{foreign}"]}),
    ("POST", "epoch", "lock the leader out of node-b", {"epoch": 1 << 40}),
    ("POST", "sandboxes/{foreign}/pause", "freeze a sandbox of node-b", {"epoch": 1 << 40}),
    ("POST", "sandboxes/{foreign}/exec", "run a command on node-b", EXEC),
    ("GET", "sandboxes/{foreign}/logs", "read output on node-b", None),
]
"""Calls to node-b's agent with node-a's certificate."""


def test_the_loot_is_what_a_node_may_have(loot: Loot) -> None:
    """Key, certificate, CA, journal, own sandbox: and no credential of any store or user."""
    names = {name.rpartition("/")[2] for name in loot.files}
    assert {"node.key", "node.crt", "ca.crt"} <= names
    everything = b"\n".join(loot.files.values())
    pid = loot.plane.processes["node-a"].pid
    everything += argv_and_environment(pid)
    for path in (loot.plane.folder / "etc-gateway/secrets").rglob("*"):
        if path.is_file() and path.name != "ca.crt" and len(path.read_bytes()) > 16:
            assert path.read_bytes() not in everything, path
    assert loot.plane.apiserver.token.encode() not in everything
    assert loot.foreign.encode() not in everything


def test_calls_to_the_gateway_are_denied_and_audited(loot: Loot) -> None:
    """Each row of the table; what was denied stands in the audit with caller and reason."""
    wrong = {}
    for number, (name, call, refusal) in enumerate(GATEWAY):
        with loot.client(loot.plane.server) as client:
            client.headers["X-Dsec-Correlation-Id"] = f"try-{number}"
            answer = call(loot, client)
            body = _json(answer)
            got = answer.status_code, body.get("code", "")
            if got != refusal or not body["message"] or body["correlationId"] != f"try-{number}":
                wrong[name] = (got, answer.text[:300])
    assert not wrong
    rows = {str(row.body["correlationId"]): row.body for row in loot.audit()}
    for number, (name, _, refusal) in enumerate(GATEWAY):
        if refusal in (DENIED, UNKNOWN, FENCED):
            row = rows[f"try-{number}"]
            assert row["user"] in ("node-a", "anonymous"), name
            assert row["path"], name
            assert row["why"], name
            assert row["method"], name


def test_a_certificate_is_always_an_agents(loot: Loot) -> None:
    """Whatever the request says, node-a gets node-a's certificate, and it commands nobody."""
    with loot.client(loot.plane.server) as client:
        uid = loot.files[str(loot.plane.folder / "node-a/uid")].decode().strip()
        wanted = request_for("dsec-controller", "dsec-controller")
        asked = registration(loot, "node-a", csrPem=wanted, uid=uid)
        answer = client.post("/agent/v1/register", json=asked)
    assert answer.status_code == 200, answer.text
    given = x509.load_pem_x509_certificate(answer.json()["certificatePem"].encode())
    assert {one.value for one in given.subject} == {"node-a", "dsec-agent"}
    names = given.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["node-a"]
    assert given.not_valid_after_utc - datetime.now(UTC) <= timedelta(hours=24)


def test_another_agent_obeys_no_node(loot: Loot) -> None:
    """Node-b refuses each call of node-a and reports it; a stranger does not get a connection."""
    for method, path, name, body in AGENT:
        with loot.client(loot.agents["node-b"]) as client:
            where = "/v1/" + path.format(foreign=loot.foreign)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = client.request(method, where, content=content if body else None)
            assert (answer.status_code, _json(answer).get("code")) == DENIED, name
    with (
        loot.client(loot.agents["node-b"], certificate=False) as client,
        pytest.raises((ssl.SSLError, httpx2.TransportError)),
    ):
        client.get("/v1/state")
    with loot.plane.client() as client:
        status = client.get(f"/v1/projects/annex/sandboxes/{loot.foreign}").json()
        assert status["state"] == "running", "nothing of this has touched it"
    loot.plane.until("reports", lambda: len(loot.told_by_node_b()) >= len(AGENT))
    for row in loot.told_by_node_b():
        assert row.body["user"] == "node-a"
        assert row.body["why"]
        assert "/n/node-b/v1/" in str(row.body["path"])


def test_a_forged_capability_opens_nothing(loot: Loot) -> None:
    """Even under a gateway's certificate: no signature, a wrong key, sandbox, verb, life."""
    secrets = loot.plane.folder / "etc-gateway/secrets/ca"
    authority = ca.load((secrets / "ca.crt").read_text(), (secrets / "ca.key").read_text())
    now = datetime.now(UTC)
    right = {"sandbox": loot.foreign, "project": "annex", "tenant": "other"}
    claims = {**right, "verbs": ["exec"], "exp": now.timestamp() + 60}
    name = "X-Dsec-Capability"
    attempts = {
        "none": {},
        "no signature": forged(claims, "none"),
        "the public key as a secret": forged(claims, "HS256", authority.capability_public_pem),
        "another sandbox": {
            name: authority.capability(
                sandbox=loot.own, project="lab", tenant="research", verb="exec", now=now
            )
        },
        "another verb": {name: authority.capability(**right, verb="logs", now=now)},
        "expired": {name: authority.capability(**right, verb="exec", now=now - timedelta(hours=1))},
        "for ever": {name: authority.capability(**right, verb="exec", now=now + timedelta(days=1))},
    }
    with loot.gateway_client(loot.agents["node-b"]) as client:
        for what, headers in attempts.items():
            path = f"/v1/sandboxes/{loot.foreign}/exec"
            answer = client.post(path, content=EXEC, headers=headers)
            assert (answer.status_code, _json(answer).get("code")) == DENIED, what
        genuine = {name: authority.capability(**right, verb="exec", now=now)}
        assert client.post(path, content=EXEC, headers=genuine).status_code == 200


def test_the_controller_listens_to_gateways_only(loot: Loot) -> None:
    """Creates and ends without the shared secret, or with what the node has: denied, audited."""
    create = {"project": "annex", "batch": {"creates": []}}
    end = {"project": "annex", "ids": [loot.foreign]}
    for part, port in loot.plane.internal.items():
        for token in ("", loot.join_token, loot.pod_token, "none"):
            with loot.client(f"http://127.0.0.1:{port}", token=token) as client:
                for path, body in (("creates", create), ("end", end)):
                    answer = client.post(f"/internal/v1/{path}", json=body)
                    assert (answer.status_code, _json(answer).get("code")) == DENIED, part

    def audited() -> bool:
        rows = [row for row in loot.audit() if row.node.startswith("controller-")]
        return len(rows) == 16 and all(row.body["why"] and row.body["path"] for row in rows)

    loot.plane.until("the controllers' audit", audited)


def test_kubernetes_knows_no_node(loot: Loot) -> None:
    """The pod's token is for dsec alone, the certificate is no identity; the account has no right.

    The last is tried with a token of the account for Kubernetes itself, which no pod gets.
    """
    url = loot.plane.apiserver.url
    verify = ssl.create_default_context(
        cafile=str(loot.plane.apiserver.folder / "certs/apiserver.crt")
    )
    more = loot.plane.apiserver.kubectl("create", "token", "dsec-agent", "-n", SYSTEM)
    group = "/apis/dsec.dev/v1alpha1"
    account = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/dsec-controller/token"
    calls = [
        ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets", None),
        ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets/dsec-api-keys", None),
        ("GET", f"{group}/namespaces/annex/experiments", None),
        ("GET", f"{group}/tenants", None),
        ("PATCH", f"{group}/sandboxnodes/node-b/status", {}),
        ("DELETE", f"{group}/sandboxnodes/node-b", None),
        ("GET", "/api/v1/nodes", None),
        ("PUT", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/dsec-controller", {}),
        ("POST", account, {"spec": {}}),
        ("GET", "/api/v1/namespaces/annex/pods", None),
    ]
    for token, status in (
        (loot.pod_token, 401),
        (loot.join_token, 401),
        (more.stdout.strip(), 403),
    ):
        headers = {"Authorization": f"Bearer {token}"}
        with httpx2.Client(base_url=url, verify=verify, headers=headers, trust_env=False) as client:
            for method, path, body in calls:
                kind = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
                answer = client.request(method, path, json=body, headers=kind)
                assert answer.status_code == status, (method, path, answer.text[:200])
                assert answer.json()["kind"] == "Status"


def test_storage_knows_no_node(loot: Loot) -> None:
    """Without a credential, or with what the node has: no object can be listed, read or written."""
    keys = {"none": "", "join token": loot.join_token[:20], "the node's name": "node-a"}
    for what, key in keys.items():
        headers = {}
        if key:
            scope = f"{key}/20260101/us-east-1/s3/aws4_request"
            headers["Authorization"] = (
                f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature={HEX}"
            )
        with httpx2.Client(base_url=loot.plane.s3.endpoint, headers=headers, trust_env=False) as c:
            for method, path in (
                ("GET", "/dsec?list-type=2&prefix=bindlog/"),
                ("GET", "/dsec/bindlog/00000000000000000001"),
                ("PUT", "/dsec/bindlog/00000000000000099999"),
                ("DELETE", "/dsec/bindlog/00000000000000000001"),
                ("GET", "/"),
            ):
                answer = c.request(method, path)
                assert answer.status_code in (400, 403), (what, method, path, answer.text[:200])
                assert "<Code>" in answer.text


def test_no_secret_is_written_or_shown(loot: Loot) -> None:
    """No key, token or credential in a log, an argument, the environment or the history."""
    plane, private = loot.plane, loot.plane.folder / "etc-gateway/secrets"
    words = {
        "API key": "dsec_admin_0123456789",
        "join token": loot.join_token,
        "pod token": loot.pod_token,
        "CA key": (private / "ca/ca.key").read_text().splitlines()[1],
        "gateway key": (private / "tls/tls.key").read_text().splitlines()[1],
        "node key": loot.files[str(loot.tls / "node.key")].decode().splitlines()[1],
        "internal secret": f"Bearer {INTERNAL}",
        "Kubernetes token": plane.apiserver.token,
    }
    shown = {path.name: path.read_text(errors="replace") for path in plane.folder.glob("*.log")}
    for name, process in plane.processes.items():
        shown[f"ps {name}"] = argv_and_environment(process.pid).decode(errors="replace")
    shown["history"] = "\n".join(
        row.model_dump_json() for prefix in ("audit", "history") for row in loot.audit(prefix)
    )
    spool = [data.decode(errors="replace") for name, data in loot.files.items() if "spool" in name]
    shown["spool"] = "\n".join(spool)
    found = [
        (place, what) for place, text in shown.items() for what, w in words.items() if w in text
    ]
    assert not found


def _json(answer: httpx2.Response) -> dict[str, Any]:
    """Return an answer's body, or nothing where it is no JSON."""
    try:
        return dict(answer.json())
    except ValueError:
        return {}
