"""Checks the Kubernetes manifests and the Helm chart; `scripts/check deploy` runs it.

The plain manifests are what the chart renders, but for spaces at the ends of lines. All are valid for the oldest and
the newest Kubernetes that the chart is for. References between objects lead to objects, and each pod's configuration is
one that `lockkeeper serve` accepts. `--write` writes the plain manifests.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import helm_python
import kubernetes_validate
import yaml

KUBERNETES = pathlib.Path(__file__).parent / "kubernetes"
CHART = KUBERNETES / "chart"
# The oldest has the label pod-index, see Chart.yaml.
VERSIONS = ["1.28", kubernetes_validate.latest_version()]
VARIANTS = {"lockkeeper.yaml": {}, "lockkeeper-tls.yaml": {"tls": {"enabled": True}}}
# As the page docs/deploy.md has them in its command.
HOSTS = ["localhost", "127.0.0.1", "lockkeeper.lockkeeper.svc"]
ORDER = ["configmap", "services", "disruption", "statefulset"]
HEADER = """\
# Rendered from cluster-config/kubernetes/chart{values}; `scripts/check deploy` compares.
# Change the chart, then:
#   target/deploy-tools/bin/python cluster-config/check_deployment.py --write
# It is for the namespace lockkeeper: docs/deploy.md, "Kubernetes".
"""


def rendered(chart, values):
    parts = chart.render(values, name="lockkeeper", namespace="lockkeeper")
    parts = {name: re.sub(" +$", "", text, flags=re.MULTILINE) for name, text in parts.items()}
    return [parts.pop(f"lockkeeper/templates/{name}.yaml").strip() + "\n" for name in ORDER] + list(parts.values())


def manifest(chart, values):
    header = HEADER.format(values=" with tls.enabled=true" if values else "")
    return header + "---\n" + "---\n".join(rendered(chart, values))


def objects(chart, values):
    texts = rendered(chart, values)
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def fail(message):
    sys.exit(f"check_deployment: {message}")


def expect(is_so, message):
    if not is_so:
        fail(message)


def check_references(found):
    """Names and labels by which one object means another."""
    by_kind = {(one["kind"], one["metadata"]["name"]): one for one in found}
    (stateful,) = [one["spec"] for one in found if one["kind"] == "StatefulSet"]
    pod = stateful["template"]
    labels = pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    expect(("Service", stateful["serviceName"]) in by_kind, "serviceName names no Service")
    expect(by_kind["Service", stateful["serviceName"]]["spec"]["publishNotReadyAddresses"], "members need DNS early")
    for one in found:
        kind, spec = one["kind"], one.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        selector = selector.get("matchLabels", selector)
        expect(selector.items() <= labels.items(), f"{kind} selects other pods")
        if kind == "Service":
            expect({port["targetPort"] for port in spec["ports"]} <= ports, f"{kind} leads to a port that is not there")
        if kind == "NetworkPolicy":
            named = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
            expect(named == ports, "the network policy is not about all ports")
    claims = {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]}
    volumes = claims | {volume["name"] for volume in pod["spec"]["volumes"]}
    expect({mount["name"] for mount in container["volumeMounts"]} == volumes, "volumes and mounts differ")
    for volume in pod["spec"]["volumes"]:
        if "configMap" in volume:
            expect(("ConfigMap", volume["configMap"]["name"]) in by_kind, "the volume's ConfigMap is missing")


def check_configurations(found, lockkeeper):
    """Each pod has a configuration, and `lockkeeper serve` accepts it."""
    (stateful,) = [one["spec"] for one in found if one["kind"] == "StatefulSet"]
    (files,) = [one["data"] for one in found if one["kind"] == "ConfigMap"]
    first = stateful["ordinals"]["start"]
    pods = {f"pod-{ordinal}.toml" for ordinal in range(first, first + stateful["replicas"])}
    expect(set(files) == pods, f"configurations {sorted(files)} for pods {sorted(pods)}")
    with tempfile.TemporaryDirectory() as directory:
        certs = ["certs", "init", "--dir", directory, "--cluster", "lockkeeper"]
        subprocess.run([lockkeeper, *certs], check=True, stdout=subprocess.DEVNULL)
        for node in range(1, 10):
            hosts = [word for host in HOSTS for word in ("--host", host)]
            node_certs = ["certs", "node", "--dir", directory, "--id", str(node), *hosts]
            subprocess.run([lockkeeper, *node_certs], check=True, stdout=subprocess.DEVNULL)
        for name, text in files.items():
            path = pathlib.Path(directory) / name
            path.write_text(text.replace("/etc/lockkeeper-tls", directory))
            checked = [lockkeeper, "serve", "--check-config", "--config", str(path)]
            subprocess.run(checked, check=True, stdout=subprocess.DEVNULL)


def check_refusals(chart):
    """Values that would make a wrong cluster are refused."""
    for values in [{"nodes": [1, 1, 2]}, {"nodes": [0]}, {"replicas": 5}, {"tls": {"enabled": "yes"}}]:
        try:
            chart.render(values, name="lockkeeper", namespace="lockkeeper")
        except helm_python.HelmError:
            continue
        fail(f"the chart takes {values}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the plain manifests")
    parser.add_argument("--lockkeeper", default="target/debug/lockkeeper", help="the program")
    args = parser.parse_args()
    findings = helm_python.lint(str(CHART))
    expect(not findings["errors"], f"helm lint: {findings}")
    with helm_python.Chart.load(str(CHART)) as chart:
        for name, values in VARIANTS.items():
            text = manifest(chart, values)
            if args.write:
                (KUBERNETES / name).write_text(text)
            expect((KUBERNETES / name).read_text() == text, f"{name} is not what the chart renders; --write writes it")
        replaced = {"nodes": [1, 4, 3], "zookeeperPort": 2181, "antiAffinity": "preferred"}
        for values in [*VARIANTS.values(), replaced, replaced | {"tls": {"enabled": True}}]:
            found = objects(chart, values)
            for one in found:
                for version in VERSIONS:
                    kubernetes_validate.validate(one, version, strict=True)
            check_references(found)
            check_configurations(found, args.lockkeeper)
        check_refusals(chart)
    print(f"the manifests are valid for Kubernetes {' and '.join(VERSIONS)}, and the chart renders them")


main()
