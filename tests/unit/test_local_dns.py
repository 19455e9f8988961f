"""The local cluster's DNS: questions parsed, names answered, everything else refused."""

import struct

import pytest
from dsec.local.cluster_dns import MOST_ADDRESSES, Names, parse

A, AAAA = 1, 28


def query(name: str, kind: int = A) -> bytes:
    """Return a DNS query as a resolver sends it."""
    labels = b"".join(bytes([len(p)]) + p.encode() for p in name.split("."))
    return struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def ask(names: Names, name: str, kind: int = A) -> tuple[int, list[str]]:
    """Return code and addresses of an answer; checks that it echoes number and question."""
    question = parse(query(name, kind))
    assert question is not None
    message = names.answer(question)
    number, flags, questions, answers, _, _ = struct.unpack_from("!6H", message)
    assert (number, questions) == (7, 1)
    assert message[12 : 12 + len(question.raw)] == question.raw
    records = message[12 + len(question.raw) :]
    assert len(records) == 16 * answers
    found = [".".join(map(str, records[at + 12 : at + 16])) for at in range(0, len(records), 16)]
    return flags & 15, found


@pytest.fixture
def names() -> Names:
    """Return a server's knowledge of one Service of each kind."""
    known = Names()
    meta = {"name": "web", "namespace": "team"}
    headless = {"name": "peers", "namespace": "team"}
    known.take(
        [
            {"metadata": meta, "spec": {"clusterIP": "10.1.2.3"}},
            {"metadata": headless, "spec": {"clusterIP": "None"}},
        ],
        [
            {
                "metadata": headless,
                "subsets": [{"addresses": [{"ip": f"10.0.0.{n}"} for n in range(1, 31)]}],
            }
        ],
    )
    return known


def test_a_service_has_its_address(names: Names) -> None:
    """By its full name, in any case of letters."""
    assert ask(names, "web.team.svc.cluster.local") == (0, ["10.1.2.3"])
    assert ask(names, "WEB.Team.svc.Cluster.Local") == (0, ["10.1.2.3"])


def test_a_headless_service_has_the_addresses_of_its_pods(names: Names) -> None:
    """At most as many as fit a plain answer."""
    code, found = ask(names, "peers.team.svc.cluster.local")
    assert code == 0
    assert found == [f"10.0.0.{n}" for n in range(1, MOST_ADDRESSES + 1)]


def test_another_type_of_a_known_name_is_an_empty_answer(names: Names) -> None:
    """Resolvers ask for AAAA too; an error would hide the A record from them."""
    assert ask(names, "web.team.svc.cluster.local", AAAA) == (0, [])


@pytest.mark.parametrize(
    "name", ["no.team.svc.cluster.local", "web.cluster.local", "cluster.local"]
)
def test_an_unknown_name_of_the_cluster_does_not_exist(names: Names, name: str) -> None:
    """NXDOMAIN, so that the resolver goes on to its next search domain."""
    assert ask(names, name) == (3, [])


@pytest.mark.parametrize("name", ["outside.example", "notcluster.local", "web.team.svc"])
def test_names_of_others_are_refused(names: Names, name: str) -> None:
    """This server speaks for the cluster alone."""
    assert ask(names, name) == (5, [])


@pytest.mark.parametrize("cut", [0, 5, 11, 12, 20, 28])
def test_half_a_message_is_no_question(cut: int) -> None:
    """Cut anywhere, it is dropped."""
    assert parse(query("web.team.svc.cluster.local")[:cut]) is None


def test_an_answer_is_no_question() -> None:
    """Two servers must not answer each other for ever."""
    message = bytearray(query("web.team.svc.cluster.local"))
    message[2] |= 0x80
    assert parse(bytes(message)) is None
