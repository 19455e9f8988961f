"""Traces in CSV: what is read, and what is said of every mistake."""

from pathlib import Path

import pytest
from dsec.sim.trace import Job, Machine, TraceError, read_jobs, read_nodes

NODES = "sn,cpu_milli,memory_mib,gpu,model"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time"


def mistakes(error: TraceError) -> list[tuple[int, str, str]]:
    """Return (line, field, value) of each mistake."""
    return [(one.line, one.field, one.value) for one in error.mistakes]


def test_nodes_and_jobs_are_read() -> None:
    """Sizes become bytes; times become a begin and a duration; further columns are skipped."""
    assert read_nodes([NODES, "n1,64000,262144,2,P100", "n2,32000,1024,0,"], "f") == [
        Machine("n1", 64_000, 256 << 30, 2, "P100"),
        Machine("n2", 32_000, 1 << 30),
    ]
    assert read_jobs([PODS, "p1,4000,1024,1,470,A|B,5,65", "p2,1000,0,0,0,,,"], "f") == [
        Job("p1", 4000, 1 << 30, 1, 470, ("A", "B"), 5.0, 60.0),
        Job("p2", 1000, 0),
    ]
    short = ["memory_mib,name,cpu_milli,num_gpu,gpu_milli,qos", "1024,p1,4000,8,1000,LS"]
    assert read_jobs(short, "f") == [Job("p1", 4000, 1 << 30, 8, 1000)]


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("p,-1,1,0,0,,,", "cpu_milli", "-1"),
        ("p,x,1,0,0,,,", "cpu_milli", "x"),
        ("p,1e3,1,0,0,,,", "cpu_milli", "1e3"),
        ("p,\u0663,1,0,0,,,", "cpu_milli", "\u0663"),
        ("p,99999999999999999999999999,1,0,0,,,", "cpu_milli", "9" * 26),
        ("p,1,,0,0,,,", "memory_mib", ""),
        ("p,1,1,65,1000,,,", "num_gpu", "65"),
        ("p,1,1,1,1001,,,", "gpu_milli", "1001"),
        ("p,1,1,2,500,,,", "gpu_milli", "500"),
        ("p,1,1,0,500,,,", "gpu_milli", "500"),
        ("p,1,1,1,0,,,", "gpu_milli", "0"),
        ("p,1,1,0,0,,soon,", "creation_time", "soon"),
        ("p,1,1,0,0,,nan,", "creation_time", "nan"),
        ("p,1,1,0,0,,9,3", "deletion_time", "3"),
        (",1,1,0,0,,,", "name", ""),
        ("p,1,1,0,0", "fields", "5"),
    ],
)
def test_each_mistake_names_file_line_field_and_value(line: str, field: str, value: str) -> None:
    """And says what is allowed."""
    with pytest.raises(TraceError) as caught:
        read_jobs([PODS, "good,1,1,0,0,,,", line], "pods.csv")
    assert mistakes(caught.value) == [(3, field, value)]
    assert str(caught.value).startswith(f"pods.csv:3: {field}: {value!r}; allowed: ")
    assert not str(caught.value).endswith("allowed: ")


def test_all_mistakes_come_at_once() -> None:
    """The first twenty in words, the others as a number."""
    with pytest.raises(TraceError) as caught:
        read_nodes([NODES, *(f"n{n},0,1,1," for n in range(30))], "nodes.csv")
    assert len(caught.value.mistakes) == 60
    assert str(caught.value).endswith("nodes.csv: 40 more mistakes")


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ([], "columns"),
        (["a,b,c"], "columns"),
        ([NODES], "lines"),
        ([NODES, 'n1,"1,2'], "fields"),
        ([NODES, "n1,1,1,0,", "n1,1,1,0,"], "sn"),
    ],
)
def test_what_is_no_node_list_is_refused(lines: list[str], field: str) -> None:
    """Empty, other columns, no lines, an open quote, a name twice."""
    with pytest.raises(TraceError) as caught:
        read_nodes(lines, "nodes.csv")
    assert [one.field for one in caught.value.mistakes] == [field]


def test_a_file_with_bytes_is_read_as_csv(tmp_path: Path) -> None:
    """Line ends of other systems are no mistake."""
    path = tmp_path / "nodes.csv"
    path.write_bytes(f"{NODES}\r\nn1,1,1,0,\r\n".encode())
    with path.open(newline="") as file:
        assert [one.name for one in read_nodes(file, str(path))] == ["n1"]
