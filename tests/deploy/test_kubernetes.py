"""The manifests, against the schemas of Kubernetes and what they promise together."""

import re
import shutil
import subprocess

import kubernetes_validate
import pytest

from service.settings import Settings, load_settings
from tests.deploy.files import KUBERNETES, MONITORING, ROOT, laid_over, lineage, load, manifests

# The first with the sleep of preStop on by default, and the newest whose schemas we have.
VERSIONS = ("1.30", kubernetes_validate.latest_version())
BASE = manifests(KUBERNETES / "base")
DEPLOYMENT = BASE["deployment.yaml"]
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
OWN_MODELS = laid_over(
    DEPLOYMENT, load(KUBERNETES / "components" / "own-models" / "deployment.yaml")
)
GPU = laid_over(DEPLOYMENT, load(KUBERNETES / "overlays" / "gpu" / "deployment.yaml"))
SETTINGS = load_settings(KUBERNETES / "base" / "settings.env")
WHOLE = {
    **{f"base/{name}": manifest for name, manifest in BASE.items()},
    "own-models/deployment": OWN_MODELS,
    "own-models/volume": load(KUBERNETES / "components/own-models/persistentvolumeclaim.yaml"),
    "gpu/deployment": GPU,
    "cluster/namespace": load(KUBERNETES / "overlays/cluster/namespace.yaml"),
    "monitoring/networkpolicy": load(MONITORING / "networkpolicy.yaml"),
}
TIME_TO_END_S = 10
LABEL = {"app.kubernetes.io/name": "triwire"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", WHOLE)
def test_a_manifest_keeps_to_the_schema_and_has_no_field_that_is_unknown(name, version):
    kubernetes_validate.validate(WHOLE[name], version, strict=True)


def test_the_schema_would_find_a_field_that_is_unknown():
    wrong = laid_over(DEPLOYMENT, {"spec": {"template": {"spec": {"restartpolicy": "Never"}}}})
    with pytest.raises(kubernetes_validate.ValidationError, match="restartpolicy"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def kustomizations():
    found = sorted((ROOT / "deploy").rglob("kustomization.yaml"))
    assert len(found) == 5
    return found


@pytest.mark.parametrize("path", kustomizations(), ids=lambda path: path.parent.name)
def test_a_kustomization_names_what_is_there_and_leaves_nothing_out(path):
    told = load(path)
    patches = [patch["path"] for patch in told.get("patches", ())]
    named = {*told.get("resources", ()), *told.get("components", ()), *patches}
    assert named
    assert all((path.parent / name).exists() for name in named)
    lying_there = {file.name for file in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
    assert lying_there <= named
    for generator in told.get("configMapGenerator", ()):
        for file in (*generator.get("envs", ()), *generator.get("files", ())):
            assert (path.parent / file).is_file()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("name", ["base", "overlays/cluster", "overlays/gpu"])
def test_kustomize_builds_it(name):
    subprocess.run(["kubectl", "kustomize", KUBERNETES / name], capture_output=True, check=True)


def sleeps_s(container):
    return container["lifecycle"]["preStop"]["sleep"]["seconds"]


def test_the_pod_has_time_for_all_that_it_does_on_its_way_out():
    on_the_way_s = sleeps_s(CONTAINER) + SETTINGS.shutdown_grace_s + SETTINGS.drain_timeout_s
    assert POD["terminationGracePeriodSeconds"] >= on_the_way_s + TIME_TO_END_S
    # Whatever was let in ends within the time to drain.
    assert SETTINGS.drain_timeout_s >= SETTINGS.request_timeout_s


def test_balancers_notice_within_the_grace_time_that_it_is_leaving():
    probe = CONTAINER["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] <= SETTINGS.shutdown_grace_s


def test_probes_ask_for_what_they_mean():
    asked = {
        kind: CONTAINER[f"{kind}Probe"]["httpGet"]["path"]
        for kind in ("startup", "readiness", "liveness")
    }
    assert asked == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    # Probes show no key, so they must need none.
    assert "probes" not in SETTINGS.protected
    startup = CONTAINER["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300


@pytest.mark.parametrize("deployment", [DEPLOYMENT, OWN_MODELS, GPU], ids=["base", "own", "gpu"])
def test_pods_keep_to_the_restricted_standard(deployment):
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert all(
        volume.keys() & {"emptyDir", "secret", "persistentVolumeClaim"} for volume in pod["volumes"]
    )
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_the_user_is_the_one_of_the_image_and_owns_what_is_mounted():
    user, group = lineage("serve").values("USER")[-1].split(":")
    context = POD["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))
    assert context["fsGroup"] == int(group)


def test_what_the_settings_name_is_mounted():
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert mounts[SETTINGS.compilation_cache] == "compiled"
    assert mounts[str(SETTINGS.api_keys_file.parent)] == "keys"
    (keys,) = [volume["secret"] for volume in POD["volumes"] if volume["name"] == "keys"]
    # A secret that is not there keeps pods from starting, unless it is optional.
    assert not keys.get("optional")
    assert mounts["/tmp"]
    own = OWN_MODELS["spec"]["template"]["spec"]
    (copying,) = own["initContainers"]
    told = load(KUBERNETES / "components" / "own-models" / "kustomization.yaml")
    (setting,) = told["configMapGenerator"][0]["literals"]
    assert setting == f"TRIWIRE_CHECKPOINTS={copying['args'][1]}"
    (mount,) = [m for m in own["containers"][0]["volumeMounts"] if m["name"] == "models"]
    assert copying["args"][1].startswith(mount["mountPath"])
    assert mount["readOnly"] is True


def test_everything_selects_the_same_pods_by_a_label_that_they_have():
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert labels == LABEL
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == LABEL
    assert BASE["service.yaml"]["spec"]["selector"] == LABEL
    assert BASE["poddisruptionbudget.yaml"]["spec"]["selector"]["matchLabels"] == LABEL
    assert BASE["networkpolicy.yaml"]["spec"]["podSelector"]["matchLabels"] == LABEL
    assert load(MONITORING / "networkpolicy.yaml")["spec"]["podSelector"]["matchLabels"] == LABEL


def test_ports_go_by_one_name_from_the_service_to_the_image():
    (port,) = CONTAINER["ports"]
    assert [str(port["containerPort"])] == lineage("serve").values("EXPOSE")
    (through,) = BASE["service.yaml"]["spec"]["ports"]
    assert through["targetPort"] == port["name"]
    monitor = load(MONITORING / "servicemonitor.yaml")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (through["name"], "/metrics")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= (
        BASE["service.yaml"]["metadata"]["labels"].items()
    )


def test_nobody_gets_out_and_only_the_port_of_the_service_is_open():
    policy = BASE["networkpolicy.yaml"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"protocol": "TCP", "port": "http"}]]


def test_the_autoscaler_scales_the_deployment_and_leaves_one_pod_while_another_goes():
    scaler = BASE["horizontalpodautoscaler.yaml"]["spec"]
    assert scaler["scaleTargetRef"] == {
        "apiVersion": DEPLOYMENT["apiVersion"],
        "kind": "Deployment",
        "name": DEPLOYMENT["metadata"]["name"],
    }
    # A number of replicas in the manifest would undo the autoscaler's at every apply.
    assert "replicas" not in DEPLOYMENT["spec"]
    assert scaler["minReplicas"] > BASE["poddisruptionbudget.yaml"]["spec"]["maxUnavailable"]
    assert DEPLOYMENT["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_every_variable_of_ours_in_any_file_is_a_setting():
    known = {f"TRIWIRE_{name.upper()}" for name in Settings.model_fields} | {"TRIWIRE_CONFIG"}
    files = [
        *(ROOT / "deploy").rglob("*.*"),
        *(ROOT / name for name in ("Dockerfile", "docs/containers.md", "service/probe.py")),
        *ROOT.glob("docker-compose*.yml"),
    ]
    found = {
        name
        for file in files
        if file.is_file()
        for name in re.findall(r"TRIWIRE_[A-Z_]*[A-Z]", file.read_text(encoding="utf-8"))
    }
    assert len(found) > 5
    assert found <= known


def test_no_manifest_holds_a_secret():
    kinds = [manifest["kind"] for manifest in WHOLE.values()]
    assert "Secret" not in kinds
    assert not SETTINGS.api_keys


def test_the_image_is_the_version_of_the_project():
    version = re.search(r'image.version="([^"]+)"', (ROOT / "Dockerfile").read_text())
    assert version
    images = [c["image"] for c in OWN_MODELS["spec"]["template"]["spec"]["initContainers"]]
    assert {CONTAINER["image"], *images} == {f"triwire:{version[1]}"}
    cluster = load(KUBERNETES / "overlays" / "cluster" / "kustomization.yaml")
    assert [image["newTag"] for image in cluster["images"]] == [version[1]]
