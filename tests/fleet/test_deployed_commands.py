"""Every command of the deployment files starts as it stands there, and answers the probe that stands beside it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fleet.system import ROOT, Fleet, free_port
from tests.support.waiting import wait_until
from tests.unit.test_deploy_files import OURS, SERVICES, commands
from tests.unit.test_kubernetes_files import WORKLOADS, container

#: A cold Python with the SDK and Celery on a busy machine.
START_S: Final = 90.0
SECRETS: Final = {"FLOWER_BASIC_AUTH": "operator:fleet-test", "MCPTASKS_CONSOLE_TOKEN": "f00d" * 8}
#: What is on PATH where they are deployed.
PATH: Final = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
PORTS: Final = ("8000", "8080", "5555")

pytestmark = pytest.mark.slow


def started() -> dict[str, list[str]]:
    """Each command once, by one of the places that start it; the Procfile has a test of its own."""
    found = {place: argv for place, argv in commands().items() if not place.startswith("Procfile")}
    found |= {f"kubernetes {one['metadata']['name']}": container(one)["command"] for one in WORKLOADS if _ours(one)}
    once: dict[str, str] = {}
    for place, argv in found.items():
        once.setdefault(shlex.join([Path(argv[0]).name, *argv[1:]]).replace("%%", "%"), place)
    return {place: shlex.split(line) for line, place in once.items()}


def _ours(one: dict[str, Any]) -> bool:
    return container(one)["image"] == "mcptasks"


def on_port(argv: list[str], ports: dict[str, str]) -> list[str]:
    """The same command on free ports; systemd's placeholder filled in."""
    moved = [word.replace("%i", "1") for word in argv]
    for port, free in ports.items():
        moved = [re.sub(rf"\b{port}\b", free, word) for word in moved]
    return moved


@pytest.mark.parametrize("place", started())
def test_a_command_starts_and_answers_its_probe(fleet: Fleet, place: str) -> None:
    """A probe that never succeeds restarts its process for ever."""
    ports = {port: str(free_port()) for port in PORTS}
    argv = on_port(started()[place], ports)
    env = {**SECRETS, "PATH": PATH, "PYTHONPATH": str(ROOT)}
    proc = fleet.start_other(argv[0], argv, **env)
    kind = next(kind for kind in OURS if {"server": "serve"}.get(kind, kind) in argv)

    def healthy(probe: Callable[[], bool]) -> None:
        wait_until(
            lambda: _alive(proc.exit_code, proc.output) and probe(),
            description=f"{place} answers its probe",
            within_s=START_S,
        )

    for probe in _probes(kind):
        healthy(lambda probe=probe: _answers(on_port(probe, ports), fleet, env))


def _alive(code: int | None, output: str) -> bool:
    assert code is None, f"it ended ({code}):\n{output}"
    return True


def _probes(kind: str) -> list[list[str]]:
    """The commands that compose and Kubernetes probe it with."""
    composed = SERVICES[kind]["healthcheck"]["test"]
    assert composed[0] == "CMD"
    [pod] = [container(one) for one in WORKLOADS if one["metadata"]["name"] == kind]
    return [composed[1:], *_of_pod(pod)]


def _of_pod(pod: dict[str, Any]) -> list[list[str]]:
    ports = {port["name"]: str(port["containerPort"]) for port in pod.get("ports", [])}
    found: list[list[str]] = []
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        match pod.get(name):
            case {"exec": {"command": argv}}:
                found.append(argv)
            case {"httpGet": {"path": path, "port": port}}:
                found.append(["http", ports[port], path])
            case {"tcpSocket": {"port": port}}:
                found.append(["tcp", ports[port]])
            case _:
                assert name == "readinessProbe", "a worker takes messages, not requests"
    return [argv for at, argv in enumerate(found) if argv not in found[:at]]


def _answers(argv: list[str], fleet: Fleet, env: dict[str, str]) -> bool:
    if argv[0] == "http":
        code = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{argv[1]}{argv[2]}', timeout=3)"
        argv = [sys.executable, "-c", code]
    elif argv[0] == "tcp":
        argv = [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {argv[1]}), 3).close()"]
    done = subprocess.run(argv, env=fleet.environment(**env), capture_output=True, timeout=60, check=False)
    return done.returncode == 0
