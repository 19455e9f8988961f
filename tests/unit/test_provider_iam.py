"""The rights that the AWS policies give are those that the code uses, and no more."""

import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from dsec.agent.config import load
from dsec.providers.aws_launch import template_data
from dsec.providers.user_data import ADDRESS, INSTANCE, LARGEST, agent_settings, render
from provider_make import T0, Offer, aws_settings

PACKAGE = resources.files("dsec.providers")
PREFIXES = {"service-quotas": "servicequotas"}
CALL = re.compile(r'"(ec2|autoscaling|pricing|service-quotas)",\s*"([a-z_]+)"')
NOT_CALLS = {"iam:PassRole"}


def _policy(name: str) -> list[dict[str, Any]]:
    statements: list[dict[str, Any]] = json.loads((PACKAGE / "iam" / name).read_text())["Statement"]
    return statements


def _actions(name: str) -> set[str]:
    found: set[str] = set()
    for statement in _policy(name):
        given = statement["Action"]
        found |= {given} if isinstance(given, str) else set(given)
    return found


def test_the_controller_may_do_what_it_does() -> None:
    """Each call in the code has its right, and each right its call."""
    used = set()
    for path in PACKAGE.iterdir():
        if path.name.startswith("aws"):
            for service, operation in CALL.findall(path.read_text()):
                name = "".join(word.capitalize() for word in operation.split("_"))
                used.add(f"{PREFIXES.get(service, service)}:{name}")
    assert used | NOT_CALLS == _actions("controller.json")


def test_whatever_changes_something_is_bound_to_the_installation() -> None:
    """Rights to change are conditional on our tag or name what may be passed."""
    for statement in _policy("controller.json"):
        if statement["Sid"] in {"Look", "LaunchFrom"}:
            continue
        assert statement["Condition"], statement["Sid"]
        text = json.dumps(statement["Condition"])
        assert "dsec.dev/installation" in text or "PassedToService" in text, statement["Sid"]
    assert _actions("gateway.json") == {"ec2:DescribeInstances"}
    (trust,) = _policy("node-trust.json")
    assert trust["Principal"] == {"Service": "ec2.amazonaws.com"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_the_first_start_script_is_a_script(market: str) -> None:
    """It parses, fits the API's limit, and every unit it enables it has written."""
    settings = aws_settings("i", labels={"taints": "team=a", "team": 'a"$(reboot)'})
    text = render(settings, settings.pools["burst"], Offer(market=market), T0)
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(text) < LARGEST
    assert "reboot" not in text
    enabled = re.findall(r"dsec-[a-z]+\.(?:service|timer)", text.splitlines()[-1])
    assert enabled == ["dsec-deadline.timer", "dsec-agent.service"]
    for unit in enabled:
        assert f"cat > /etc/systemd/system/{unit}" in text


@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_the_agent_takes_the_settings_of_the_script(tmp_path: Path, market: str) -> None:
    """What the script writes is what the agent reads, with machine and address put in."""
    settings = aws_settings("i", labels={"taints": "team=a", "team": "a"})
    told = json.dumps(agent_settings(settings, settings.pools["burst"], Offer(market=market), T0))
    told = told.replace(INSTANCE, "i-0123456789abcdef0").replace(ADDRESS, "10.0.0.7")
    (tmp_path / "agent.json").write_text(told)
    config = load({"config": tmp_path / "agent.json"}, {})
    assert (config.node_name, config.pool, config.join) == ("i-0123456789abcdef0", "burst", "aws")
    assert config.run_until is not None
    assert config.run_until.timestamp() == T0
    assert config.watch_spot is (market == "spot")
    taints = "team=a,dsec.dev/spot" if market == "spot" else "team=a"
    assert config.labels["taints"] == taints
    assert config.labels["market"] == market


@pytest.mark.parametrize(("late", "ends"), [(10, False), (70, True)])
def test_the_guard_of_a_machine_is_a_program(tmp_path: Path, late: int, *, ends: bool) -> None:
    """Without any agent it ends a machine a minute after its run-until, by the command it has."""
    until = datetime.now(UTC) - timedelta(seconds=late)
    config = {
        "stateDir": str(tmp_path),
        "gateway": "https://g:1",
        "nodeName": "n",
        "runUntil": until.isoformat(),
        "shutdown": ["touch", str(tmp_path / "off")],
    }
    (tmp_path / "agent.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "dsec.agent.deadline", "--config", tmp_path / "agent.json"]
    subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "off").exists() is ends


def test_too_long_settings_are_refused() -> None:
    """The API would refuse them at every launch."""
    settings = aws_settings("i", labels={f"l{n}": "x" * 200 for n in range(100)})
    with pytest.raises(ValueError, match="user data of pool burst"):
        render(settings, settings.pools["burst"], Offer(), T0)


def test_templates_have_no_user_data() -> None:
    """The end of a node is in each launch's own user data: a template would fix it."""
    pool = aws_settings("i").pools["burst"]
    assert "UserData" not in template_data(pool)
    assert template_data(pool)["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"]
