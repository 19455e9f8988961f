"""Field reports about quantities: what is asked is kept exactly and compares by amount."""

import json

import pytest
from dsec.api import units
from dsec.api.documents import parse
from dsec.api.mistakes import DocumentError
from dsec.api.sandbox import Resources
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

ROLE = "roles: [{{role: a, image: i/a:1, resource: {{cpu: 1, mem: 1Gi, gpu: {gpu}}}}}]"


@pytest.mark.case("kubernetes#13631")
@pytest.mark.parametrize(
    ("text", "count", "shown"),
    [
        ("1.1Gi", 1_181_116_007, "1181116007 bytes"),
        ("1.2Gi", 1_288_490_189, "1288490189 bytes"),
        ("2.1Gi", 2_254_857_831, "2254857831 bytes"),
        ("1.5Gi", 1_610_612_736, "1536Mi"),
    ],
)
def test_case_kubernetes_13631(text: str, count: int, shown: str) -> None:
    """A broken binary size is whole bytes, rounded up, and never thousandths of a byte."""
    assert units.size(text) == count
    assert units.size_text(count) == shown
    assert units.size("1536Mi") == units.size("1.5Gi")


@pytest.mark.case("kubernetes#119855")
@given(st.integers(1, 9999), st.sampled_from(["k", "M", "G", "T", "P", "E", "Ki", "Gi", "Ei"]))
def test_case_kubernetes_119855(number: int, unit: str) -> None:
    """2000E is printed so that it is 2000E again."""
    count = units.size(f"{number}{unit}")
    assert units.size(units.size_text(count)) == count
    assert units.size_text(units.size("2000E")) == "2000E"


@pytest.mark.case("radar#1156")
@pytest.mark.parametrize("gpu", ["3000m", "0.5", "3k"])
def test_case_radar_1156(gpu: str) -> None:
    """Devices are whole: a document with thousandths of one is told what is allowed."""
    with pytest.raises(DocumentError) as caught:
        parse(f"name: x\n{ROLE.format(gpu=gpu)}")
    (mistake,) = caught.value.mistakes
    assert mistake.path == "roles[0].resource.gpu"
    assert "a whole number from 0 to 16" in mistake.allowed
    assert parse(f"name: x\n{ROLE.format(gpu=3)}").spec.roles[0].gpu.count == 3


@pytest.mark.case("kyverno#3103", "kyverno#428", "kyverno#6222")
def test_case_kyverno_3103() -> None:
    """Both orders of both units; equal amounts are equal, and their ratio is 1."""
    one, gib = units.size("1", bare=1), units.size("1Gi")
    assert one < gib
    assert gib > one
    assert units.size("1Gi") == units.size("1024Mi")
    assert units.cpu_milli("200m") == units.cpu_milli("0.2")
    assert units.size("256M") / units.size("256M") == 1


@pytest.mark.case("regolibrary#722", "helm-unittest#918")
def test_case_regolibrary_722() -> None:
    """A threshold in Gi sees a workload in Mi, and 50m is less than 200m."""
    assert units.size("1025Mi") > units.size("1Gi") > units.size("1023Mi")
    assert units.cpu_milli("50m") < units.cpu_milli("200m") < units.cpu_milli("1")


@pytest.mark.case("quantity-grammar")
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1E", 10**18),
        (" 1Gi", 1 << 30),
        ("1k", 1000),
        ("1K", 1000),
        ("1Ki", 1024),
        *((bad, None) for bad in ("1e3", "1e0", "1e", "+1", "+1Gi", ".5Gi", "5.Gi", "", " ", "Gi")),
    ],
)
def test_case_quantity_grammar(text: str, count: int | None) -> None:
    """What could be read in two ways is refused in words; what is taken means one thing."""
    if count is not None:
        assert units.size(text) == count
        return
    with pytest.raises(units.UnitError, match="must be"):
        units.size(text, bare=1)


@pytest.mark.case("kueue#14200-kin")
@pytest.mark.parametrize(
    "field", ["cpu_milli", "memory_bytes", "pids", "disk_bytes", "gpu_count", "gpu_shares"]
)
def test_case_kueue_14200_kin(field: str) -> None:
    """No way of asking takes a negative amount: request, text or document."""
    with pytest.raises(ValidationError, match="greater than or equal"):
        Resources(**{"cpu_milli": 1000, "memory_bytes": 1 << 30} | {field: -1})
    for read in (units.size, units.cpu_milli):
        with pytest.raises(units.UnitError):
            read("-1Gi")
    with pytest.raises(DocumentError):
        parse(f"name: x\n{ROLE.format(gpu=-1)}")


@pytest.mark.case("kueue#11137")
def test_case_kueue_11137_on_the_wire() -> None:
    """JSON holds every amount exactly, also where a float would not."""
    count = (1 << 53) + 1
    asked = Resources(cpu_milli=count, memory_bytes=count)
    assert Resources.model_validate(json.loads(asked.model_dump_json())) == asked
