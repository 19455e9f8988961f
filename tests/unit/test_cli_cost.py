"""`dsec cost` and `dsec budget` against a gateway on loopback: tables, data, pictures, mistakes."""

import json
from pathlib import Path

import pytest
import yaml
from client_fake import FakeGateway
from dsec.cli import codes
from test_cli import Cli, cli, document, gateway, server

__all__ = ["cli", "document", "gateway", "server"]


def row(key: str, money: str, idle: str = "0", hours: str = "0") -> dict[str, object]:
    """Return a row as a gateway answers it."""
    return {
        "key": key,
        "money": {"USD": money},
        "rounded": {"USD": money},
        "idle": {"USD": idle} if idle != "0" else {},
        "storage": {},
        "egress": {},
        "cpuHours": hours,
        "gpuHours": "0",
    }


@pytest.fixture
def money(gateway: FakeGateway) -> FakeGateway:
    """A gateway that knows of a task, a pool and two budgets."""
    gateway.costs = {
        "by": "task",
        "at": 1767268800.0,
        "from": None,
        "to": None,
        "items": [
            row("t/lab/one", "12.345678", hours="40"),
            row("pool:own", "4.000001", "4.000001"),
        ],
        "total": row("total", "16.345679", "4.000001", "40"),
        "pools": [
            {
                "pool": "own",
                "currency": "USD",
                "used": "12.345678",
                "idle": "4.000001",
                "idlePercent": "24.5",
            }
        ],
        "savings": [{"task": "t/lab/one", "percent": "31.5", "formula": "1 - 2 / 3"}],
    }
    status = {
        "spent": "81.5",
        "committed": "3",
        "left": "15.5",
        "forecast": "120",
        "forecastSource": "max(...); ledger, the last 24 h",
        "action": "stop-growing",
        "conditions": [
            {"type": "WithinLimit", "status": "False", "message": "81.50 of 100.00 EUR is spent"}
        ],
        "alerts": [{"percent": 80, "limit": "100", "at": "2026-01-01T12:00:00Z"}],
    }
    spec = {"scope": "project", "limit": "100", "currency": "EUR"}
    gateway.budgets = [
        {"name": "monthly", "project": "lab", "spec": spec, "status": status},
        {
            "name": "task/one",
            "project": "lab",
            "spec": {"scope": "task", "target": "one", "limit": "5", "currency": "EUR"},
            "status": {},
        },
    ]
    return gateway


def test_cost_as_a_table_says_waste_and_savings(cli: Cli, money: FakeGateway) -> None:
    """COST-04, COST-08, COST-17."""
    code, out, _ = cli("cost", "--by", "task", "--from", "2026-01-01", "--zone", "Europe/Berlin")
    assert code == codes.EXIT_OK
    assert money.asked == ["by=task&from=2026-01-01&zone=Europe%2FBerlin"]
    assert "t/lab/one" in out
    assert "12.35 USD" in out
    assert "total" in out
    assert "pool own: 12.35 USD used, 4.00 idle (24.5 %)" in out
    assert "task t/lab/one: saved 31.5 % beside its own peak, by the hour" in out
    assert "as of 2026-01-01 12:00:00 UTC" in out


def test_cost_as_data_is_exact(cli: Cli, money: FakeGateway) -> None:
    """Programs get what the server said, and every millionth."""
    assert json.loads(cli("cost", "--output", "json")[1]) == money.costs
    assert yaml.safe_load(cli("cost", "--output", "yaml")[1]) == money.costs
    assert cli("cost", "--output", "csv")[1].splitlines() == [
        "task,currency,money,idle,storage,egress,cpuHours,gpuHours",
        "t/lab/one,USD,12.345678,0,0,0,40,0",
        "pool:own,USD,4.000001,4.000001,0,0,0,0",
    ]


def test_cost_draws_a_picture(cli: Cli, money: FakeGateway, tmp_path: Path) -> None:
    """A PNG, and a name that is none is refused before anything is asked."""
    del money
    code, _, err = cli("cost", "--plot", str(tmp_path / "cost.png"))
    assert (code, err.strip()) == (codes.EXIT_OK, f"picture: {tmp_path / 'cost.png'}")
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    assert cli("cost", "--plot", str(tmp_path / "cost.txt"))[0] == codes.EXIT_USAGE
    assert cli("cost", "--by", "weather")[0] == codes.EXIT_USAGE


def test_nothing_spent_is_said(cli: Cli, gateway: FakeGateway) -> None:
    """An empty report is no empty table."""
    del gateway
    code, out, err = cli("cost")
    assert (code, out, err) == (codes.EXIT_OK, "", "nothing was spent\n")


def test_budgets_are_listed_and_described(cli: Cli, money: FakeGateway) -> None:
    """COST-03: limit, spent, promised, left, forecast with its formula, and what is in force."""
    code, out, _ = cli("budget", "list")
    assert code == codes.EXIT_OK
    for word in ("monthly", "100 EUR", "81.5", "15.5", "stop-growing", "task/one"):
        assert word in out
    assert json.loads(cli("budget", "list", "--output", "json")[1]) == {"items": money.budgets}
    code, out, _ = cli("budget", "describe", "monthly")
    assert out.splitlines() == [
        "budget monthly of project lab: at most 100 EUR, calendar month",
        "  81.50 of 100.00 EUR is spent",
        "  expected at the end: 120 EUR = max(...); ledger, the last 24 h",
        "  80 % of 100 was reached at 2026-01-01T12:00:00Z",
    ]
    assert "nothing is known yet" in cli("budget", "describe", "task/one")[1]
    code, _, err = cli("budget", "describe", "none")
    assert code == codes.EXIT_NOT_FOUND
    assert "there is no budget 'none'" in err
    money.budgets.append({**money.budgets[0], "project": "other"})
    assert cli("budget", "describe", "monthly")[0] == codes.EXIT_USAGE
    assert cli("budget", "describe", "monthly", "-p", "other")[0] == codes.EXIT_OK


def test_a_dry_run_shows_what_it_may_cost(cli: Cli, gateway: FakeGateway, document: Path) -> None:
    """In words for people, as `estimate` for programs."""
    gateway.estimate = {"currency": "USD", "words": ["from 0.90 USD an hour to 7.20 USD an hour"]}
    code, out, _ = cli("submit", "-f", str(document), "--dry-run")
    assert code == codes.EXIT_OK
    assert "  cost: from 0.90 USD an hour to 7.20 USD an hour" in out
    shown = json.loads(cli("submit", "-f", str(document), "--dry-run", "--output", "json")[1])
    assert shown["estimate"] == gateway.estimate
