"""What an operator copies works as it lies there (Procfile, compose file, systemd units, Valkey settings)."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from dotenv import dotenv_values
from honcho.environ import parse_procfile

from mcptasks.cli.embedded import CONFIG, find_binary
from mcptasks.settings import Settings
from mcptasks.times import duration_ms
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROCFILE: dict[str, str] = dict(parse_procfile((ROOT / "Procfile").read_text()).processes)

#: For giving back what runs, once the grace is over.
SPARE_S = 15

#: What must be set to something by whoever deploys.
SECRETS = {
    "VALKEY_PASSWORD",
    "FLOWER_BASIC_AUTH",
    "MCPTASKS_REQUEST_STATE_KEYS",
    "MCPTASKS_CONSOLE_TOKEN",
    "GRAFANA_PASSWORD",
}
PASSWORD = "f00dfeed" * 8
#: The services that run this project's own image.
OURS = ("server", "worker", "console", "flower")


def unit(file: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    parser.read(file)
    return parser


def modules_in(command: list[str]) -> set[str]:
    """The files that a command line of ours makes Python import."""
    named = [words for option, words in pairwise(command) if option in ("-A", "serve")]
    console = {"mcptasks/console/app.py"} if "console" in command else set[str]()
    return {words.partition(":")[0].replace(".", "/") + ".py" for words in named} | console


def commands() -> dict[str, list[str]]:
    """Every command line of ours that any of the files starts."""
    found = {f"Procfile {name}": shlex.split(line) for name, line in PROCFILE.items()}
    found |= {f"compose {name}": SERVICES[name]["command"] for name in OURS}
    found |= {file.name: shlex.split(unit(file)["Service"]["ExecStart"]) for file in UNITS}
    docker = re.search(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert docker is not None
    return found | {"Dockerfile": yaml.safe_load(docker[1])}


@pytest.mark.parametrize(("place", "command"), commands().items(), ids=list(commands()))
def test_every_command_names_a_module_that_is_there(place: str, command: list[str]) -> None:
    files = modules_in(command)
    assert len(files) == 1, f"{place} starts one thing of ours"
    assert all((ROOT / file).is_file() for file in files), files


# --- Valkey ----------------------------------------------------------------------------------------------------------


@contextmanager
def started_valkey(argv: list[str], folder: Path, **env: str) -> Generator[int]:
    """`argv` runs, its `valkey-server CONF` being the real one with our file; the value is its free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    program = folder / "valkey-server"
    # Our options go in before the command's own: a last `-` (standard input) counts only in the last place.
    program.write_text(
        "#!/bin/sh\nshift\n"
        'echo "$@" > arguments\n'
        f"exec {shlex.quote(str(find_binary()))} {shlex.quote(str(DEPLOY / 'valkey.conf'))}"
        f' --port {port} --bind 127.0.0.1 --dir . --logfile valkey.log "$@"\n'
    )
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **env}

    def listens() -> bool:
        assert process.poll() is None, f"it ended: {(folder / 'valkey.log').read_text()}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen(argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(listens, description="the server listens")
            yield port
        finally:
            process.terminate()


def settings() -> dict[str, str]:
    lines = (DEPLOY / "valkey.conf").read_text().splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {name: value.strip('"') for name, value in pairs}


def test_the_real_server_takes_every_setting_of_valkey_conf(tmp_path: Path) -> None:
    with started_valkey(["valkey-server", "valkey.conf"], tmp_path) as port, redis.Redis(port=port) as client:
        running = client.config_get("*")
    wanted = settings()
    del wanted["bind"]
    assert {"appendonly", "appendfsync", "maxmemory-policy", "save", "timeout", "tcp-keepalive"} <= set(wanted)
    wanted |= {"maxmemory": str(1 << 30), "auto-aof-rewrite-min-size": str(64 << 20)}
    assert {name: running[name] for name in wanted} == wanted


def test_every_setting_of_valkey_conf_has_its_reason_above_it() -> None:
    """Issue 2: the Valkey settings that durability needs, each with its reason."""
    lines = (DEPLOY / "valkey.conf").read_text().splitlines()
    bare = [line for above, line in pairwise(lines) if line and line[0] != "#" and above[:1] != "#"]
    assert [line for line in bare if not line.startswith("auto-aof-rewrite-min-size")] == []


def test_the_embedded_valkey_keeps_data_as_the_deployed_one_does() -> None:
    """What a developer sees survive in `mcptasks dev` survives in production too, and the other way round."""
    both = settings().keys() & CONFIG.keys() - {"bind"}
    assert {"appendonly", "appendfsync", "maxmemory-policy", "save"} <= both
    assert {name: CONFIG[name] for name in both} == {name: settings()[name] for name in both}


def test_the_composed_valkey_wants_its_password_and_shows_it_to_nobody(tmp_path: Path) -> None:
    """Arguments are public on a machine; the password comes in on standard input."""
    argv = [word.replace("$$", "$") for word in SERVICES["valkey"]["command"]]
    with started_valkey(argv, tmp_path, VALKEY_PASSWORD=PASSWORD) as port:
        assert PASSWORD not in (tmp_path / "arguments").read_text()
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with redis.Redis(port=port, password=PASSWORD) as ours:
            assert ours.config_get("appendonly") == {"appendonly": "yes"}


# --- compose and the image -------------------------------------------------------------------------------------------


def test_compose_runs_every_kind_of_process_and_two_of_those_that_carry_the_load() -> None:
    assert SERVICES.keys() == {"valkey", "proxy", "prometheus", "grafana", *OURS}
    assert (SERVICES["server"]["scale"], SERVICES["worker"]["scale"]) == (2, 2)
    assert "ports" not in SERVICES["server"], "two of them cannot have one port; the proxy has it"


def test_docker_compose_itself_accepts_the_file(tmp_path: Path) -> None:
    """Compose's own parser, as `docker compose config`; and it refuses to start without the secrets."""
    env, argv = tmp_path / ".env", [str(Path(sys.executable).parent / "docker-compose"), "-f", "compose.yaml"]
    env.write_text("".join(f"{name}=x\n" for name in SECRETS))
    argv += ["--env-file", str(env), "config", "--format", "json"]
    done = subprocess.run(argv, cwd=DEPLOY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["services"].keys() == SERVICES.keys()
    for name in SECRETS:
        env.write_text("".join(f"{other}=x\n" for other in SECRETS - {name}))
        refused = subprocess.run(argv, cwd=DEPLOY, capture_output=True, text=True, timeout=60)
        assert refused.returncode != 0 and name in refused.stderr


def test_workers_are_killed_only_after_their_grace() -> None:
    """What stops them waits longer than MCPTASKS_SHUTDOWN_GRACE_MS, or runs are cut off that were to be given back."""
    grace_s = Settings.model_fields["shutdown_grace_ms"].default / 1000
    service = unit(DEPLOY / "systemd" / "mcptasks-worker@.service")["Service"]
    assert int(service["TimeoutStopSec"]) >= grace_s + SPARE_S
    assert duration_ms(SERVICES["worker"]["stop_grace_period"]) / 1000 >= grace_s + SPARE_S


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_checked_restarted_and_unprivileged(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert service["restart"] == "unless-stopped"
    assert service["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("name", OURS)
def test_every_process_of_ours_waits_for_the_store_and_knows_it(name: str) -> None:
    service = SERVICES[name]
    assert service["depends_on"] == {"valkey": {"condition": "service_healthy"}}
    assert service["environment"]["MCPTASKS_REDIS_URL"].endswith("@valkey:6379/0")


def test_no_port_is_open_beyond_this_machine() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_file_that_compose_mounts_or_builds_from_is_there() -> None:
    mounts = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    files = [DEPLOY / mount for mount in mounts if mount.startswith(".")]
    build = SERVICES["server"]["build"]
    files.append(DEPLOY / build["context"] / build["dockerfile"])
    assert [file for file in files if not file.exists()] == []


def test_every_variable_of_compose_is_required_and_in_the_example_without_a_value() -> None:
    """No secret in a file of the repository, and none left out by mistake."""
    used = re.findall(r"(?<!\$)\$\{(\w+)(:\?)?", (DEPLOY / "compose.yaml").read_text())
    assert {name for name, _ in used} == SECRETS
    assert all(required for _, required in used)
    assert dotenv_values(DEPLOY / "env.example") == dict.fromkeys(SECRETS, "")


def test_the_images_are_pinned_to_a_patch_release() -> None:
    base = re.search(r"^ARG PYTHON=(\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    for image in (base[1], *(one["image"] for name, one in SERVICES.items() if name not in OURS)):
        assert re.search(r":v?\d+\.\d+\.\d+", image), image


def test_the_image_does_not_run_as_root() -> None:
    """A number, for Kubernetes' runAsNonRoot."""
    assert re.findall(r"^USER (\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE) == ["10001"]


def test_what_the_image_copies_is_let_into_the_build_context() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    allowed = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert sources == allowed


# --- systemd and the Procfile ----------------------------------------------------------------------------------------


def test_there_is_a_unit_for_each_process_of_ours() -> None:
    assert {file.stem for file in UNITS} == {
        "mcptasks-console",
        "mcptasks-flower",
        "mcptasks-server",
        "mcptasks-worker@",
    }


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_every_unit_restarts_stops_in_bounded_time_and_is_not_root(file: Path) -> None:
    service = unit(file)["Service"]
    assert service["Restart"] == "always"
    assert unit(file)["Unit"]["StartLimitIntervalSec"] == "0"
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) > 0
    assert service["User"] == "mcptasks"
    assert service["NoNewPrivileges"] == "true"
    assert unit(file)["Install"]["WantedBy"] == "multi-user.target"


def test_systemd_tells_only_the_workers_main_process_to_end() -> None:
    """SIGTERM to a pool's processes kills the runs that a warm shutdown waits for."""
    service = unit(DEPLOY / "systemd" / "mcptasks-worker@.service")["Service"]
    assert service["KillMode"] == "mixed"
    assert "--hostname worker-%i@%%h" in service["ExecStart"], "each instance has a node name of its own"


def test_the_units_read_their_secrets_from_a_file_with_an_example() -> None:
    assert {unit(file)["Service"]["EnvironmentFile"] for file in UNITS} == {"/etc/mcptasks/mcptasks.env"}
    example = dotenv_values(DEPLOY / "systemd" / "mcptasks.env.example")
    assert example == {
        "MCPTASKS_REDIS_URL": "redis://127.0.0.1:6379/0",
        "FLOWER_BASIC_AUTH": "",
        "MCPTASKS_CONSOLE_TOKEN": "",
        "MCPTASKS_ARTIFACTS_URL": "/var/lib/mcptasks/artifacts",
    }


def test_servers_read_the_artifacts_where_workers_write_them() -> None:
    """One volume, one directory; both for nobody else."""
    for name in ("server", "worker"):
        service = SERVICES[name]
        assert service["volumes"] == ["artifacts:/artifacts"]
        assert service["environment"]["MCPTASKS_ARTIFACTS_URL"] == "/artifacts"
    assert "install -d -o 10001 -g mcptasks -m 700 /artifacts" in (DEPLOY / "Dockerfile").read_text()
    writers = [unit(file)["Service"] for file in UNITS if "server" in file.name or "worker" in file.name]
    assert [(one["StateDirectory"], one["StateDirectoryMode"]) for one in writers] == [("mcptasks", "0700")] * 2


def test_the_procfile_names_the_four_processes() -> None:
    assert list(PROCFILE) == ["web", "worker", "console", "flower"]


def test_the_console_does_not_start_without_a_token() -> None:
    env = {name: value for name, value in os.environ.items() if name != "MCPTASKS_CONSOLE_TOKEN"}
    refused = subprocess.run(
        ["sh", "-c", PROCFILE["console"]], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert refused.returncode != 0
    assert "set it to a long secret" in refused.stderr


@pytest.mark.parametrize("login", [None, ""])
def test_flower_does_not_start_without_a_password(login: str | None) -> None:
    env = {name: value for name, value in os.environ.items() if name != "FLOWER_BASIC_AUTH"}
    env |= {} if login is None else {"FLOWER_BASIC_AUTH": login}
    pre = unit(DEPLOY / "systemd" / "mcptasks-flower.service")["Service"]["ExecStartPre"].replace("$$", "$")
    refused = subprocess.run(["sh", "-c", pre], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert "set it to user:password" in refused.stderr


def test_flower_only_shows_wherever_it_is_deployed() -> None:
    """Its actions work on messages, behind the store's back."""
    assert SERVICES["flower"]["environment"]["FLOWER_READ_ONLY"] == "true"
    assert unit(DEPLOY / "systemd" / "mcptasks-flower.service")["Service"]["Environment"] == "FLOWER_READ_ONLY=true"
    deployment = next(yaml.safe_load_all((DEPLOY / "kubernetes" / "flower.yaml").read_text()))
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "FLOWER_READ_ONLY", "value": "true"} in container["env"]


@pytest.mark.parametrize("login", [None, "", "me:mine"])
def test_the_procfiles_flower_has_a_password_and_only_shows(login: str | None, tmp_path: Path) -> None:
    """The operator's, or one of today that is printed once."""
    program = tmp_path / "celery"
    program.write_text('#!/bin/sh\necho "$FLOWER_BASIC_AUTH $FLOWER_READ_ONLY"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {name: value for name, value in os.environ.items() if not name.startswith("FLOWER_")} | {"PATH": path}
    env |= {} if login is None else {"FLOWER_BASIC_AUTH": login}
    ran = subprocess.run(
        ["sh", "-c", PROCFILE["flower"]], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    used, read_only = ran.stdout.split()
    assert read_only == "true"
    if login:
        assert (used, ran.stderr) == (login, "")
    else:
        assert re.fullmatch(r"mcptasks:[\w-]{12}", used)
        assert ran.stderr == f"Flower: log in as {used}\n"


@pytest.mark.parametrize("place", [place for place in commands() if "flower" in place])
def test_the_password_of_flower_is_on_no_command_line(place: str) -> None:
    assert not [word for word in commands()[place] if "basic" in word.lower() and word.startswith("--")]
