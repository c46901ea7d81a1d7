"""The Kubernetes files are accepted by a current Kubernetes, and hold together as the fleet needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from mcptasks.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
#: The newest minor version whose schemas the validator brings.
VERSION = "1.37"
#: For giving back what runs, once the grace is over.
SPARE_S = 15

Object = dict[str, Any]


def objects() -> list[Object]:
    """Everything that is applied."""
    return [one for file in FILES if file.name != "kustomization.yaml" for one in yaml.safe_load_all(file.read_text())]


def name_of(one: Object) -> str:
    return f"{one['kind']} {one['metadata']['name']}"


NATIVE = [one for one in objects() if "keda.sh" not in one["apiVersion"]]
SCALING = [one for one in objects() if "keda.sh" in one["apiVersion"]]
WORKLOADS = [one for one in NATIVE if one["kind"] in ("Deployment", "StatefulSet")]


def found(kind: str, name: str) -> Object:
    [one] = [one for one in objects() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return one


def container(one: Object) -> Object:
    [only] = one["spec"]["template"]["spec"]["containers"]
    return only


@pytest.mark.parametrize("one", NATIVE, ids=name_of)
def test_kubernetes_accepts_it(one: Object) -> None:
    """Strictly: a misspelt field is an error here, and would be dropped silently there."""
    kubernetes_validate.validate(one, VERSION, strict=True)


def test_the_validator_sees_a_misspelt_field() -> None:
    worker = yaml.safe_load(yaml.safe_dump(found("Deployment", "worker")))
    worker["spec"]["template"]["spec"]["terminationGracePeriod"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(worker, VERSION, strict=True)


def test_kustomize_is_told_of_every_file_but_secrets_and_scaling() -> None:
    """Secrets are made by whoever deploys, and KEDA is not in every cluster."""
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    others = {"kustomization.yaml", "secret.example.yaml", "keda.yaml"}
    assert set(kustomization["resources"]) == {file.name for file in FILES} - others
    assert {one["name"] for one in kustomization["images"]} == {"mcptasks"}


@pytest.mark.parametrize("one", WORKLOADS, ids=name_of)
def test_every_pod_is_unprivileged_probed_and_bounded(one: Object) -> None:
    pod, only = one["spec"]["template"]["spec"], container(one)
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["automountServiceAccountToken"] is False
    # Or the environment has every service's address, and FLOWER_PORT=tcp://... ends Flower at its start.
    assert pod["enableServiceLinks"] is False
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert only["livenessProbe"] and only["resources"]["limits"]["memory"]
    # A probe that is harsh with a fleet whose store is away makes an outage of everything out of it.
    assert only["livenessProbe"]["failureThreshold"] * only["livenessProbe"]["periodSeconds"] >= 60


@pytest.mark.parametrize("one", WORKLOADS, ids=name_of)
def test_what_belongs_to_a_pod_finds_it(one: Object) -> None:
    """Selector, service, disruption budget, volumes and the ports that probes name."""
    labels, only = one["spec"]["template"]["metadata"]["labels"], container(one)
    assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {port["name"] for port in only.get("ports", [])}
    for other in NATIVE:
        if other["metadata"]["name"] == one["metadata"]["name"] and other["kind"] == "Service":
            assert other["spec"]["selector"].items() <= labels.items()
            assert {port["targetPort"] for port in other["spec"]["ports"]} <= ports
        if other["metadata"]["name"] == one["metadata"]["name"] and other["kind"] == "PodDisruptionBudget":
            assert other["spec"]["selector"]["matchLabels"].items() <= labels.items()
    probes = [only[name] for name in ("startupProbe", "readinessProbe", "livenessProbe") if name in only]
    assert {probe[how]["port"] for probe in probes for how in ("tcpSocket", "httpGet") if how in probe} <= ports
    claims = {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
    volumes = {volume["name"] for volume in one["spec"]["template"]["spec"]["volumes"]} | claims
    assert {mount["name"] for mount in only["volumeMounts"]} <= volumes


def test_servers_and_workers_survive_a_drained_node() -> None:
    for name in ("server", "worker"):
        assert found("Deployment", name)["spec"]["replicas"] == 2
        assert found("PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1


def test_workers_are_killed_only_after_their_grace() -> None:
    """Kubernetes waits longer than MCPTASKS_SHUTDOWN_GRACE_MS, or runs are cut off that were to be given back."""
    grace_ms = int(found("ConfigMap", "mcptasks")["data"]["MCPTASKS_SHUTDOWN_GRACE_MS"])
    pod = found("Deployment", "worker")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= grace_ms / 1000 + SPARE_S


def test_flowers_memory_has_room_for_the_tasks_that_it_keeps() -> None:
    """Measured: 115 MB, and 2.7 KB for each task. By default it keeps 100,000, and would be killed again and again."""
    flower = container(found("Deployment", "flower"))
    [kept] = [int(one["value"]) for one in flower["env"] if one["name"] == "FLOWER_MAX_TASKS"]
    assert 115e6 + kept * 2_700 < 0.8 * int(flower["resources"]["limits"]["memory"].removesuffix("Mi")) * 2**20


def test_every_setting_is_one() -> None:
    """A misspelt MCPTASKS_ variable would be ignored."""
    known = {f"MCPTASKS_{name.upper()}" for name in Settings.model_fields} | {"MCPTASKS_CONSOLE_TOKEN"}
    used = set(found("ConfigMap", "mcptasks")["data"])
    for one in WORKLOADS:
        used |= {variable["name"] for variable in container(one).get("env", [])}
    assert {name for name in used if name.startswith("MCPTASKS_")} <= known


def test_every_secret_that_is_used_is_in_the_example_without_a_value() -> None:
    used = {
        variable["valueFrom"]["secretKeyRef"]["key"]
        for one in WORKLOADS
        for variable in container(one).get("env", [])
        if "valueFrom" in variable
    }
    assert found("Secret", "mcptasks")["stringData"] == dict.fromkeys(used, "")


def test_valkey_has_the_very_settings_of_the_other_ways() -> None:
    assert found("ConfigMap", "valkey")["data"]["valkey.conf"] == (DEPLOY / "valkey.conf").read_text()


def test_keda_scales_the_workers_by_the_queues_length_and_by_how_long_tasks_wait() -> None:
    """Held against the documented fields of keda.sh/v1alpha1; all metadata are texts."""
    by_kind = {one["kind"]: one for one in SCALING}
    assert by_kind.keys() == {"TriggerAuthentication", "ScaledObject"}
    spec, worker = by_kind["ScaledObject"]["spec"], found("Deployment", "worker")
    assert spec.keys() <= {
        *("scaleTargetRef", "pollingInterval", "cooldownPeriod", "idleReplicaCount", "minReplicaCount"),
        *("maxReplicaCount", "fallback", "advanced", "triggers"),
    }
    assert spec["scaleTargetRef"] == {"kind": "Deployment", "name": worker["metadata"]["name"]}
    assert (
        worker["spec"]["replicas"] <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    )
    triggers = {trigger["type"]: trigger for trigger in spec["triggers"]}
    assert triggers.keys() == {"redis", "prometheus"}
    assert all(isinstance(text, str) for one in triggers.values() for text in one["metadata"].values())
    length, wait = triggers["redis"], triggers["prometheus"]["metadata"]
    assert length["metadata"].keys() == {"address", "databaseIndex", "listName", "listLength"}
    assert length["metadata"]["listName"] == "".join(
        Settings.model_fields[name].default for name in ("prefix", "queue")
    )
    assert wait.keys() == {"serverAddress", "query", "threshold", "ignoreNullValues"} and float(wait["threshold"]) > 0
    # Nobody who does not answer takes workers away.
    assert (wait["ignoreNullValues"], spec["fallback"]["behavior"]) == ("false", "currentReplicasIfHigher")
    assert length["authenticationRef"]["name"] == by_kind["TriggerAuthentication"]["metadata"]["name"]
    [password] = by_kind["TriggerAuthentication"]["spec"]["secretTargetRef"]
    assert password["parameter"] == "password" and password["key"] in found("Secret", "mcptasks")["stringData"]
