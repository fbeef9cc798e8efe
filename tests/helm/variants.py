"""Values that use what no example does."""

from __future__ import annotations

from typing import Any

from tests.helm.chart import overlay, values

_SMALL = {
    "insecure": True,
    "verifier": {"pools": {"v": {"model": {"path": "/opt/target"}}}},
    "drafter": {"pools": {"d": {"model": {"path": "/opt/draft"}}}},
}

VARIANTS: dict[str, dict[str, Any]] = {
    "one-verifier": {"insecure": True, "verifier": _SMALL["verifier"]},
    "images-as-volumes": overlay(
        _SMALL,
        {
            "gateway": {"models": {"m": {"oci": {"reference": "registry/m:1", "path": "m"}}}},
            "verifier": {
                "pools": {
                    "v": {"model": {"name": "m", "path": "", "oci": {"reference": "registry/m:1"}}}
                }
            },
        },
    ),
    "downloads": overlay(
        values("cpu-only"),
        {
            "hubToken": {"existingSecret": "hub"},
            "image": {"registry": "registry.example.com/p"},
            "pods": {
                "extraEnv": [
                    {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
                    {"name": "HOME", "value": "/home"},
                    {"name": "HF_HOME", "value": "/home/hub"},
                    {"name": "TRANSFORMERS_OFFLINE", "value": "1"},
                ],
                "extraVolumes": [{"name": "authority", "configMap": {"name": "authority"}}],
                "extraVolumeMounts": [{"name": "authority", "mountPath": "/etc/authority"}],
            },
        },
    ),
    "downloads-of-one-name": overlay(
        _SMALL,
        {
            "gateway": {
                "models": {
                    "m": {"download": {"repository": "one/m"}},
                    "n": {"download": {"repository": "other/m"}},
                }
            }
        },
    ),
    "recreated-and-slow": overlay(
        _SMALL,
        {
            "pods": {"drainS": 900},
            "gateway": {"drainS": 1},
            "verifier": {"defaults": {"strategy": {"type": "Recreate"}}},
        },
    ),
    "client-certificates": overlay(
        values("t4-a10-h100"),
        {
            "auth": {"existingSecret": ""},
            "tls": {"public": {"clientCertificates": True}, "fleet": {"serverName": "workers"}},
        },
    ),
    "certificates-outside-only": overlay(
        _SMALL,
        {"tls": {"public": {"existingSecret": "public"}}, "auth": {"existingSecret": "tenants"}},
    ),
    "named-accounts": overlay(_SMALL, {"serviceAccount": {"gateway": "g", "worker": "w"}}),
    "one-named-account": overlay(
        _SMALL, {"serviceAccount": {"gateway": "g", "annotations": {"role": "arn"}}}
    ),
    "own-accounts": overlay(
        _SMALL, {"serviceAccount": {"create": False, "gateway": "g"}, "rbac": {"create": False}}
    ),
    "store-with-password": overlay(
        _SMALL, {"valkey": {"existingSecret": "store", "maxMemory": "1gb"}}
    ),
    "store-elsewhere": overlay(_SMALL, {"store": {"url": "rediss://store:6380/1"}}),
    "no-store-no-policies-six": overlay(
        _SMALL,
        {"valkey": {"enabled": False}, "networkPolicy": {"enabled": False}, "listen": "::"},
    ),
    "monitored": overlay(
        values("t4-a10-h100"),
        {
            "metrics": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
            "grafanaDashboards": {
                "enabled": True,
                "labels": {"dashboards": "yes"},
                "annotations": {"grafana_folder": "Paceline"},
            },
        },
    ),
    "traced": overlay(
        _SMALL,
        {
            "tracing": {
                "enabled": True,
                "otlpEndpoint": "http://collector.tracing:4317",
                "sampling": {"requests": 1, "rounds": 0.5},
            },
            "networkPolicy": {
                "tracing": {"peers": [{"podSelector": {"matchLabels": {"app": "collector"}}}]}
            },
        },
    ),
    "scaled-by-desired-replicas": overlay(
        _SMALL,
        {
            "metrics": {"prometheus": {"address": "http://prometheus:9090"}},
            "verifier": {"pools": {"v": {"autoscaling": {"kind": "keda"}}}},
            "drafter": {
                "pools": {"d": {"autoscaling": {"kind": "hpa", "hpa": {"desiredReplicas": True}}}}
            },
        },
    ),
    "everything-of-a-pod": overlay(
        _SMALL,
        {
            "imagePullSecrets": [{"name": "pull"}],
            "pods": {
                "annotations": {"a": "b"},
                "labels": {"team": "x"},
                "affinity": {"podAntiAffinity": {}},
                "runtimeClassName": "nvidia",
                "priorityClassName": "high",
                "shm": {"sizeLimit": "1Gi"},
                "extraEnv": [{"name": "OMP_NUM_THREADS", "value": "4"}],
                "extraVolumes": [{"name": "more", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
            },
            "gateway": {
                "image": {"digest": "sha256:" + "0" * 64},
                "service": {
                    "type": "LoadBalancer",
                    "loadBalancerClass": "example.com/internal",
                    "annotations": {"x": "y"},
                },
            },
            "serviceAccount": {"annotations": {"role": "arn"}},
            "extraObjects": [
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more"}}
            ],
        },
    ),
    "scaled-by-own-metrics": overlay(
        _SMALL,
        {
            "verifier": {
                "pools": {
                    "v": {
                        "autoscaling": {
                            "kind": "hpa",
                            "min": 1,
                            "max": 9,
                            "hpa": {
                                "metrics": [
                                    {
                                        "type": "Pods",
                                        "pods": {
                                            "metric": {"name": "paceline_num_requests_waiting"},
                                            "target": {"type": "AverageValue", "averageValue": 5},
                                        },
                                    }
                                ],
                                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
                            },
                        }
                    }
                }
            }
        },
    ),
}
