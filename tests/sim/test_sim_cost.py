"""Money through a real leader, gateway and agents in virtual time: metered, compared, acted on."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from dsec.agent.substrates.simulated import Profile
from dsec.cost.ledger import Ledger
from dsec.journal.moneybook import MoneyReader
from dsec.world.memory import AccessRule
from sim_world import Sim, create

PRICE = Decimal("3.6")
"""USD per node-hour: a thousandth of a dollar a second for eight cores."""
NODE = Profile(
    name="sim",
    cpu_milli=8000,
    memory_bytes=64 << 30,
    boot=(0.01, 0.05),
    register=(0.01, 0.05),
)


def document(name: str, replicas: int, least: int, budget: dict[str, Any] | None = None) -> str:
    """Return a task of one role, a core and 8 GiB a replica: an eighth of a node."""
    role = {
        "name": "sim",
        "replicas": replicas,
        "min": least,
        "image": "hub/base:1",
        "nodeLabels": {"dsec.dev/simulated": "true"},
        "resources": {"cpuMilli": 1000, "memoryBytes": 8 << 30},
    }
    return json.dumps(
        {
            "apiVersion": "dsec.dev/v1alpha1",
            "kind": "Experiment",
            "metadata": {"name": name},
            "spec": {"roles": [role], **({"budget": budget} if budget else {})},
        }
    )


async def start(sim: Sim) -> None:
    """Start a leader and one machine of a pool with a price."""
    pool = {
        "kind": "SandboxNodePool",
        "metadata": {"name": "own"},
        "spec": {"placement": {"priceMicro": int(PRICE * 10**6)}},
    }
    await sim.records.create(pool)
    sim.start_controller()
    await sim.add_node("n0", NODE)
    await sim.ready(nodes=1)
    node = await sim.records.get("SandboxNode", "n0")
    await sim.records.replace({**node, "spec": {**node["spec"], "pool": "own"}})


async def submit(sim: Sim, text: str) -> None:
    """Submit a task."""
    answer = await sim.client.post("/v1/projects/lab/experiments", content=text)
    assert answer.status_code == 201, answer.text


def running(sim: Sim, name: str) -> int:
    """Return how many sandboxes of a task live."""
    return sum(
        1
        for agent in sim.agents.values()
        for entry in agent.core
        if entry.live and entry.spec.identity.experiment == name
    )


async def rows(sim: Sim) -> list[dict[str, Any]]:
    """Return all rows of the money book."""
    found: list[dict[str, Any]] = []
    await MoneyReader(sim.objects, found.extend).refresh()
    return found


async def conditions(sim: Sim, name: str) -> dict[str, dict[str, Any]]:
    """Return the conditions of a task by type."""
    status = (await sim.experiment(name))["status"]
    return {one["type"]: one for one in status["conditions"]}


async def alerts(sim: Sim, budget: str) -> list[int]:
    """Return the percents that history tells of a budget, in order."""
    found = []
    for info in await sim.objects.list("history/"):
        data, _ = await sim.objects.get(info.key)
        for line in data.splitlines():
            row = json.loads(line)
            if row["kind"] == "budget-alert" and row["body"]["budget"] == budget:
                found.append(row["body"]["percent"])
    return found


def test_cost_grows_by_price_resources_and_time(simulate: Callable[..., None]) -> None:
    """COST-02, COST-04: two replicas are a quarter of a node; the rest is the pool's."""

    async def scenario() -> None:
        async with Sim() as sim:
            await start(sim)
            await submit(sim, document("rollouts", 2, 2))
            await sim.until(lambda: running(sim, "rollouts") == 2, 60)
            await sim.clock.sleep(600 - sim.clock.monotonic() % 300 + 35)
            first = (await sim.client.get("/v1/cost?by=task")).json()
            await sim.clock.sleep(1800)
            second = (await sim.client.get("/v1/cost?by=task")).json()

            def money(found: dict[str, Any], key: str) -> Decimal:
                row = next(one for one in found["items"] if one["key"] == key)
                return Decimal(row["money"]["USD"])

            seconds = Decimal(str(second["at"])) - Decimal(str(first["at"]))
            assert seconds >= 1700
            grown = money(second, "research/lab/rollouts") - money(first, "research/lab/rollouts")
            assert abs(grown - PRICE / 3600 / 4 * seconds) < Decimal("0.01")
            whole = sum(Decimal(one["money"]["USD"]) for one in second["items"])
            assert whole == Decimal(second["total"]["money"]["USD"])
            idle = money(second, "pool:own") - money(first, "pool:own")
            assert abs(idle - 3 * grown) < Decimal("0.01")
            for by in ("tenant", "project", "pool", "day"):
                other = (await sim.client.get(f"/v1/cost?by={by}")).json()
                assert other["total"]["money"] == second["total"]["money"], by

    simulate(scenario)


def test_one_overrun_degrades_and_the_other_ends(simulate: Callable[..., None]) -> None:
    """W-18, COST-03, COST-16: each by its own choice, alerts once each, results first."""

    async def scenario() -> None:
        async with Sim() as sim:
            await start(sim)
            # a quarter of a node costs 0.25 thousandths a second: 800 s
            money = {"limit": "0.2", "currency": "USD"}
            await submit(sim, document("soft", 2, 1, {**money, "onExceed": "degrade"}))
            await submit(sim, document("hard", 2, 1, {**money, "onExceed": "terminate"}))
            await sim.until(lambda: running(sim, "soft") + running(sim, "hard") == 4, 60)
            await sim.clock.sleep(300)
            assert (await conditions(sim, "soft"))["WithinBudget"]["status"] == "True"
            await sim.until(lambda: running(sim, "hard") == 0, 700)
            assert sim.clock.monotonic() > 700
            await sim.until(lambda: running(sim, "soft") == 1, 60)
            await sim.clock.sleep(120)
            ended = await conditions(sim, "hard")
            assert ended["Completed"]["status"] == "True"
            assert ended["Completed"]["message"] == "all replicas have ended: 2 over-budget"
            assert "budget task/research/lab/hard" in ended["WithinBudget"]["message"]
            answer = await sim.client.get("/v1/projects/lab/experiments/hard/results")
            ends = [json.loads(line)["end"] for line in answer.text.splitlines()]
            assert [one["reason"] for one in ends] == ["over-budget", "over-budget"]
            assert all("terminate" in one["message"] or "end:" in one["message"] for one in ends)
            leader = sim.leader()
            assert leader is not None
            # COST-06: allocated, consumed and returned come to nothing
            assert leader.controller.term.accountant.ledger.balances("research/lab/hard") == {}
            held = await conditions(sim, "soft")
            assert held["WithinBudget"]["status"] == "False"
            assert held["WithinBudget"]["reason"] == "LevelReached"
            assert running(sim, "soft") == 1
            for name in ("soft", "hard"):
                status = (await sim.experiment(name))["status"]["budget"]
                assert [one["percent"] for one in status["alerts"]] == [50, 80, 100], name
                assert Decimal(status["spent"]) >= Decimal("0.2")
                assert await alerts(sim, f"task/research/lab/{name}") == [50, 80, 100]
            # what was ended stays so, and what was degraded does not grow again
            await sim.clock.sleep(300)
            assert (running(sim, "hard"), running(sim, "soft")) == (0, 1)

    simulate(scenario)


def test_a_budget_record_refuses_growth_as_a_condition(simulate: Callable[..., None]) -> None:
    """COST-12: what runs goes on, new replicas wait, and the task says for which budget."""

    async def scenario() -> None:
        async with Sim() as sim:
            await start(sim)
            level = {"percent": 100, "level": "soft", "action": "stop-growing"}
            spec = {"scope": "project", "limit": "0.1", "currency": "USD", "levels": [level]}
            budget = {
                "kind": "Budget",
                "metadata": {"name": "monthly", "namespace": "lab"},
                "spec": spec,
            }
            await sim.records.create(budget)
            await submit(sim, document("rollouts", 2, 1))
            await sim.until(lambda: running(sim, "rollouts") == 2, 60)
            answer = await sim.client.post(
                "/v1/projects/lab/sandboxes", json={"creates": [create("early")]}
            )
            (first,) = answer.json()["answers"]
            await sim.clock.sleep(500)
            body = {"role": "sim", "replicas": 4}
            where = "/v1/projects/lab/experiments/rollouts"
            assert (await sim.client.post(f"{where}/scale", json=body)).status_code == 200
            await sim.clock.sleep(60)
            assert running(sim, "rollouts") == 2
            told = await conditions(sim, "rollouts")
            assert told["WithinBudget"]["status"] == "False"
            assert "budget lab/monthly" in told["Scheduled"]["message"]
            (waits,) = (await sim.experiment("rollouts"))["status"]["pendingReasons"]
            assert (waits["reason"], waits["count"]) == ("budget", 2)
            status = (await sim.records.get("Budget", "monthly", "lab"))["status"]
            assert status["action"] == "stop-growing"
            (item,) = (await sim.client.get("/v1/budgets")).json()["items"]
            assert (item["name"], item["status"]["action"]) == ("monthly", "stop-growing")
            # single creates are refused in words, and a key that is known keeps its answer
            single = "/v1/projects/lab/sandboxes"
            both = {"creates": [create("early"), create("late")]}
            early, late = (await sim.client.post(single, json=both)).json()["answers"]
            assert early["id"] == first["id"]
            assert late["outcome"] == "refused"
            assert late["message"].startswith("budget lab/monthly: ")
            # more money, and they start
            record = await sim.records.get("Budget", "monthly", "lab")
            await sim.records.replace({**record, "spec": {**spec, "limit": "10"}})
            await sim.until(lambda: running(sim, "rollouts") == 4, 60)

    simulate(scenario)


def test_another_leader_has_the_same_ledger(simulate: Callable[..., None]) -> None:
    """COST-02: killed at any line, nothing is booked twice and nothing is lost."""

    async def scenario() -> None:
        async with Sim() as sim:
            await start(sim)
            await submit(sim, document("rollouts", 4, 4))
            await sim.until(lambda: running(sim, "rollouts") == 4, 60)
            for _ in range(3):
                await sim.clock.sleep(400)
                process = sim.leader()
                assert process is not None
                before = process.controller.term.accountant.ledger.books()
                await sim.kill(process)
                assert Ledger.rebuild(await rows(sim)).books() == before
                sim.start_controller()
                await sim.until(lambda: sim.leader() is not None, 120)
            await sim.clock.sleep(400)
            found = await rows(sim)
            ids = [one["id"] for one in found]
            assert len(ids) == len(set(ids))
            ledger = Ledger.rebuild(found)
            until = ledger.charged_until("n0")
            assert until is not None
            began = min(one["since"] for one in found if one["source"] == "n0")
            cost = ledger.total("pool:own", "USD") + ledger.total("pool:none", "USD")
            assert abs(cost - PRICE / 3600 * Decimal(until - began)) < Decimal("0.01")
            mine = ledger.total("research/lab/rollouts", "USD")
            assert abs(mine * 2 - cost) < cost / 20

    simulate(scenario)


def test_pause_rests_until_there_is_money(simulate: Callable[..., None]) -> None:
    """COST-03: pausable work rests, other work stops, and both go on when the limit is raised."""

    async def scenario() -> None:
        async with Sim() as sim:
            await start(sim)
            level = {"percent": 100, "level": "hard", "action": "pause"}
            spec = {"scope": "project", "limit": "0.1", "currency": "USD", "levels": [level]}
            budget = {
                "kind": "Budget",
                "metadata": {"name": "monthly", "namespace": "lab"},
                "spec": spec,
            }
            await sim.records.create(budget)
            soft = json.loads(document("soft", 1, 1))
            soft["spec"]["taskClass"] = "pausable"
            await submit(sim, json.dumps(soft))
            await submit(sim, document("firm", 1, 1))
            await sim.until(lambda: running(sim, "soft") + running(sim, "firm") == 2, 60)

            def states(name: str) -> list[str]:
                return [
                    entry.status.state.value
                    for agent in sim.agents.values()
                    for entry in agent.core
                    if entry.live and entry.spec.identity.experiment == name
                ]

            await sim.until(lambda: states("soft") == ["paused"] and states("firm") == [], 600)
            # there is room all the time, and it is the budget that keeps them
            for _ in range(600):
                await sim.clock.sleep(0.2)
                assert (states("soft"), states("firm")) == (["paused"], [])
            (waits,) = (await sim.experiment("firm"))["status"]["pendingReasons"]
            assert waits["reason"] == "budget"
            record = await sim.records.get("Budget", "monthly", "lab")
            await sim.records.replace({**record, "spec": {**spec, "limit": "10"}})
            await sim.until(lambda: states("soft") == ["running"], 90)
            await sim.until(lambda: states("firm") == ["running"], 60)

    simulate(scenario)


def test_everybody_sees_their_own_cost(simulate: Callable[..., None]) -> None:
    """Projects by the right to list their tasks, pools by that to list nodes."""

    async def scenario() -> None:
        async with Sim() as sim:
            await start(sim)
            await submit(sim, document("rollouts", 2, 2))
            await sim.until(lambda: running(sim, "rollouts") == 2, 60)
            budget = {
                "kind": "Budget",
                "metadata": {"name": "monthly", "namespace": "lab"},
                "spec": {"scope": "project", "limit": "100", "currency": "USD"},
            }
            await sim.records.create(budget)
            await sim.clock.sleep(700)

            async def seen() -> tuple[set[str], int]:
                ask = {"Authorization": "Bearer user-token"}
                cost = (await sim.client.get("/v1/cost", headers=ask)).json()
                budgets = (await sim.client.get("/v1/budgets", headers=ask)).json()
                return {one["key"] for one in cost["items"]}, len(budgets["items"])

            assert await seen() == (set(), 0)
            rules = sim.records.access.rules
            rules.append(AccessRule(("ann",), ("list",), ("experiments", "budgets"), ("other",)))
            await sim.clock.sleep(15)
            assert await seen() == (set(), 0)
            rules.append(AccessRule(("ann",), ("list",), ("experiments", "budgets"), ("lab",)))
            await sim.clock.sleep(15)
            assert await seen() == ({"research/lab/rollouts"}, 1)
            rules.append(AccessRule(("ann",), ("list",), ("sandboxnodes",)))
            await sim.clock.sleep(15)
            keys, _ = await seen()
            assert "pool:own" in keys
            for query, field in (("by=week", "by"), ("from=yesterday", "from"), ("zone=X", "zone")):
                answer = await sim.client.get(f"/v1/cost?{query}")
                assert answer.status_code == 422
                assert answer.json()["details"][0]["path"] == field
            last = await sim.client.get("/v1/cost?from=2025-01-01&to=2025-02-01")
            assert last.json()["items"] == []

    simulate(scenario)


def test_a_dry_run_tells_what_it_may_cost(simulate: Callable[..., None]) -> None:
    """Least: its part of the node; most: the node for itself; and nothing is written."""

    async def scenario() -> None:
        async with Sim() as sim:
            await start(sim)
            await sim.clock.sleep(5)
            where = "/v1/projects/lab/experiments?dryRun=true"
            answer = await sim.client.post(where, content=document("rollouts", 4, 2))
            found = answer.json()["estimate"]
            assert found["currency"] == "USD"
            assert abs(Decimal(found["lowPerHour"]) - PRICE / 4) < Decimal("0.001")
            assert Decimal(found["highPerHour"]) == PRICE
            assert "an hour" in found["words"][0]
            assert (await sim.client.get("/v1/projects/lab/experiments")).json()["items"] == []
            await sim.records.delete("SandboxNodePool", "own")
            await sim.clock.sleep(5)
            answer = await sim.client.post(where, content=document("rollouts", 4, 2))
            (words,) = answer.json()["estimate"]["words"]
            assert words.startswith("no estimate: no pool says what its nodes cost")

    simulate(scenario)


def test_a_project_sets_no_limit_for_others(simulate: Callable[..., None]) -> None:
    """A budget that contradicts itself or its place says so, and limits nothing."""

    async def scenario() -> None:
        async with Sim() as sim:
            await start(sim)
            for name, spec in (
                ("account", {"scope": "account", "target": "research", "limit": "0"}),
                ("currency", {"scope": "project", "limit": "0"}),
            ):
                body = {"kind": "Budget", "metadata": {"name": name, "namespace": "lab"}}
                currency = {"currency": "USD"} if name == "account" else {}
                await sim.records.create({**body, "spec": {**spec, **currency}})
            await submit(sim, document("rollouts", 2, 2))
            await sim.until(lambda: running(sim, "rollouts") == 2, 60)
            await sim.clock.sleep(30)
            for name, field in (("account", "scope"), ("currency", "currency")):
                status = (await sim.records.get("Budget", name, "lab"))["status"]
                (ready,) = [one for one in status["conditions"] if one["type"] == "Ready"]
                assert (ready["status"], ready["reason"]) == ("False", "Invalid")
                assert f"spec.{field}" in ready["message"]
            assert running(sim, "rollouts") == 2

    simulate(scenario)
