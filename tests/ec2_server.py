"""A local EC2: moto's server behind a proxy that loses replies, runs out of machines, throttles.

The proxy adds what moto 5.2 leaves out, as the API describes it: the client token of RunInstances
(a repeat answers with the first launch, other parameters are a mismatch), MaxCount (moto launches
MinCount), states of spot requests, quotas of vCPUs, the price list, signatures of URLs.
"""

import hashlib
import http.client
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlencode
from xml.sax.saxutils import escape

from dsec.world.ec2 import AwsApi, AwsConfig
from ports import free_ports
from sts_shim import refusal

REGION = "us-east-1"
_XML = "http://ec2.amazonaws.com/doc/2016-11-15/"
_HOP = {"connection", "transfer-encoding", "content-length", "server", "date", "host"}


@dataclass
class Answer:
    """What a caller gets: None instead of one is a lost connection."""

    status: int
    body: bytes
    headers: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Call:
    """One call that came in. `number` counts from 0 since `World.calls` was cleared."""

    number: int
    action: str
    parameters: dict[str, str]


@dataclass
class World:
    """What the proxy does; tests change it between calls."""

    endpoint: str = ""
    calls: list[Call] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    """(action, fault): taken by the first call of that action. A fault is `lose` (done, the reply
    lost), `cut` (never arrives) or `CODE/STATUS/MESSAGE`: the API's own error (400, its code)."""
    capacity: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """(type, zone, market) to machines that are left; absent: any number."""
    quotas: dict[str, float] = field(default_factory=dict)
    prices: dict[tuple[str, str], str] = field(default_factory=dict)
    """(region, type) to the price in US dollars per hour."""
    spot_status: dict[str, str] = field(default_factory=dict)
    """Instance to the status code of its spot request."""
    before: Callable[[Call], None] = lambda _: None
    after: Callable[[Call], None] = lambda _: None
    secrets: dict[str, str] = field(default_factory=dict)
    """Access key to secret, of identities that may sign URLs."""
    launches: dict[str, tuple[str, Answer]] = field(default_factory=dict)
    """Client token to digest of its parameters, and the first answer."""
    lock: Lock = field(default_factory=Lock)

    def count(self, action: str) -> int:
        """Return how often an action was called."""
        return sum(call.action == action for call in self.calls)

    @cached_property
    def api(self) -> AwsApi:
        """A client of this world; the first call of each service takes half a second."""
        return AwsApi(
            AwsConfig(
                region=REGION,
                endpoint=self.endpoint,
                access_key="test",
                secret_key="secret",  # noqa: S106 - moto takes any
                connect_seconds=2.0,
                read_seconds=20.0,
            )
        )


def error(code: str, status: int, message: str = "") -> Answer:
    """Return an error as EC2 words it."""
    body = (
        "<?xml version='1.0' encoding='UTF-8'?><Response><Errors><Error>"
        f"<Code>{escape(code)}</Code><Message>{escape(message or code)}</Message>"
        "</Error></Errors><RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>"
    )
    return Answer(status, body.encode(), [("Content-Type", "text/xml")])


def _json(value: object) -> Answer:
    return Answer(200, json.dumps(value).encode(), [("Content-Type", "application/x-amz-json-1.1")])


class _Proxy:
    """Answers one request: a fault, a part that moto lacks, or moto itself."""

    def __init__(self, world: World, port: int) -> None:
        self._world = world
        self._port = port

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> Answer | None:
        """Return the answer, or None to hang up."""
        world = self._world
        form = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        target = headers.get("X-Amz-Target", "")
        query = parse_qs(path.partition("?")[2])
        action = target.rpartition(".")[2] or form.get("Action") or query.get("Action", [""])[0]
        with world.lock:
            call = Call(len(world.calls), action, form)
            world.calls.append(call)
            fault = self._fault(action)
        world.before(call)
        if fault == "cut":
            return None
        if fault not in ("", "lose"):
            code, status, message = [*fault.split("/"), "", ""][:3]
            return error(code, int(status or 400), message)
        if target:
            found = self._json_service(action, json.loads(body or b"{}"))
            found = found or self._forward(method, path, headers, body)
        elif action == "RunInstances":
            with world.lock:
                found = self._run(path, headers, form)
        elif "X-Amz-Credential" in query:
            found = self._signed(path, headers, query)
        elif action == "DescribeSpotInstanceRequests":
            found = self._spot()
        else:
            found = self._forward(method, path, headers, body)
        world.after(call)
        return None if fault == "lose" else found

    def _fault(self, action: str) -> str:
        for position, (wanted, fault) in enumerate(self._world.faults):
            if wanted in (action, "*"):
                del self._world.faults[position]
                return fault
        return ""

    def _run(self, path: str, headers: Any, form: dict[str, str]) -> Answer:
        world = self._world
        token = form.get("ClientToken", "")
        digest = hashlib.sha256(urlencode(sorted(form.items())).encode()).hexdigest()
        if token in world.launches:
            known, first = world.launches[token]
            if known == digest:
                return first
            return error("IdempotentParameterMismatch", 400, "the token was used otherwise")
        market = form.get("InstanceMarketOptions.MarketType", "on-demand")
        place = form["InstanceType"], form.get("Placement.AvailabilityZone", ""), market
        asked, least = int(form["MaxCount"]), int(form["MinCount"])
        left = world.capacity.get(place, asked)
        if left < least:
            return error("InsufficientInstanceCapacity", 500, f"no {place[0]} in {place[1]}")
        granted = min(asked, left)
        sent = {**form, "MinCount": str(granted), "MaxCount": str(granted)}
        answer = self._forward("POST", path, headers, urlencode(sent).encode())
        if answer.status == 200:
            if place in world.capacity:
                world.capacity[place] -= granted
            world.launches[token] = digest, answer
        return answer

    def _signed(self, path: str, headers: Any, query: dict[str, list[str]]) -> Answer:
        """Judge a URL's signature, which moto does not, and name the signer where moto looks."""
        if code := refusal(path, headers, self._world.secrets):
            return error(code, 403)
        scope = query["X-Amz-Credential"][0]
        form = {"Action": query["Action"][0], "Version": query["Version"][0]}
        told = {
            "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, Signature=0",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        return self._forward("POST", "/", told, urlencode(form).encode())

    def _spot(self) -> Answer:
        """Answer for the instances that moto says are spot, each with the state it was given."""
        rows = "".join(
            f"<item><spotInstanceRequestId>sir-{instance[2:]}</spotInstanceRequestId>"
            f"<state>active</state><status><code>{code}</code>"
            f"<updateTime>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime())}</updateTime>"
            f"<message>{code}</message></status><instanceId>{instance}</instanceId></item>"
            for instance, code in self._world.spot_status.items()
        )
        body = (
            f'<DescribeSpotInstanceRequestsResponse xmlns="{_XML}"><requestId>0</requestId>'
            f"<spotInstanceRequestSet>{rows}</spotInstanceRequestSet>"
            "</DescribeSpotInstanceRequestsResponse>"
        )
        return Answer(200, body.encode(), [("Content-Type", "text/xml")])

    def _json_service(self, action: str, body: dict[str, Any]) -> Answer | None:
        world = self._world
        if action == "GetServiceQuota":
            value = world.quotas.get(body["QuotaCode"])
            if value is None:
                text = json.dumps({"__type": "NoSuchResourceException", "message": "no quota"})
                return Answer(400, text.encode(), [("Content-Type", "application/x-amz-json-1.1")])
            return _json({"Quota": {"QuotaCode": body["QuotaCode"], "Value": value}})
        if action == "GetProducts":
            wanted = {one["Field"]: one["Value"] for one in body["Filters"]}
            price = world.prices.get((wanted["regionCode"], wanted["instanceType"]))
            return _json({"FormatVersion": "aws_v1", "PriceList": _products(price)})
        return None

    def _forward(self, method: str, path: str, headers: Any, body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            kept = {key: value for key, value in headers.items() if key.lower() not in _HOP}
            connection.request(method, path, body, kept)
            reply = connection.getresponse()
            answer = reply.read()
            return Answer(
                reply.status,
                answer,
                [(key, value) for key, value in reply.getheaders() if key.lower() not in _HOP],
            )
        finally:
            connection.close()


def _products(price: str | None) -> list[str]:
    """Return the entries of the price list of one product, as the price list writes them."""
    if price is None:
        return []
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": price}}
    terms = {"OnDemand": {"A.JRTC": {"priceDimensions": {"A.JRTC.6YS6": dimension}}}}
    return [json.dumps({"product": {"sku": "A"}, "terms": terms})]


def _handler(proxy: _Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = proxy.answer(self.command, self.path, self.headers, body)
            if answer is None:
                self.close_connection = True
                return
            with suppress(ConnectionError):  # a caller that was killed reads no answer
                self.send_response(answer.status)
                for key, value in answer.headers:
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

        do_GET = do_POST = _serve  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def ec2_world(folder: Path) -> Iterator[World]:
    """Start moto and the proxy before it, and end both."""
    (port,) = free_ports(1)
    with (folder / "moto.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
        )
    world = World()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(_Proxy(world, port)))
    server.daemon_threads = True
    world.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        _await_moto(port, process)
        yield world
    finally:
        server.shutdown()
        server.server_close()
        process.kill()
        process.wait()


def _await_moto(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/moto-api/data.json")
            if connection.getresponse().read():
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("moto's server did not start; see moto.log")


async def states(world: World) -> Counter[str]:
    """Return the number of instances in each state, whoever bought them, from moto itself."""
    found = await world.api.pages("ec2", "describe_instances", "Reservations")
    return Counter(
        one["State"]["Name"] for reservation in found for one in reservation["Instances"]
    )
