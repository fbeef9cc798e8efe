"""Where the API server is, and what is said where nobody knows."""

import builtins
import datetime
import json
import ssl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.errors import StartupError
from gateway.discovery import kube_api
from tests.certificates import Authority
from tests.fakes import kubeapi
from tests.unit.gateway.discovery.reports import endpoint_slice


async def test_a_kubeconfig_file(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(kubeapi.kubeconfig("http://127.0.0.1:1"))
    configuration = await kube_api.load_configuration(file)
    assert configuration.host == "http://127.0.0.1:1"


async def test_a_pod_knows_its_cluster(tmp_path: Path, monkeypatch) -> None:
    for name, text in (("TOKEN", "t"), ("CERT", "certificate")):
        (tmp_path / name).write_text(text)
        where = f"kubernetes.aio.config.incluster_config.SERVICE_{name}_FILENAME"
        monkeypatch.setattr(where, str(tmp_path / name))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    configuration = await kube_api.load_configuration(None)
    assert configuration.host == "https://[fd00::1]:443"


async def test_a_pods_token_is_read_again_when_it_was_renewed(tmp_path: Path, monkeypatch) -> None:
    files = Authority("cluster").issue(tmp_path / "server")
    assert files.cert is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    token, clock = tmp_path / "token", Clock()
    token.write_text("first")
    module = "kubernetes.aio.config.incluster_config"
    monkeypatch.setattr(f"{module}.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(f"{module}.SERVICE_CERT_FILENAME", str(files.ca))
    times = SimpleNamespace(datetime=clock, timedelta=datetime.timedelta)
    monkeypatch.setattr(f"{module}.datetime", times)
    async with kubeapi.serving(tls=context) as cluster:
        cluster.apply(endpoint_slice("v-1", "10.0.0.1"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", cluster.url.rpartition(":")[2])
        api = kube_api.EndpointSliceApi("default", "", await kube_api.load_configuration(None))
        cluster.token = "first"
        assert len((await api.list())[0]) == 1
        cluster.token = "second"
        with pytest.raises(kube_api.CredentialsError, match="401 Unauthorized"):
            await api.list()
        token.write_text("second")
        clock.forward_s = 120
        assert len((await api.list())[0]) == 1
        await api.close()


async def test_a_plugins_token_is_made_anew_when_it_ran_out(tmp_path: Path) -> None:
    status = {"token": "first", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    }
    said, file = tmp_path / "said", tmp_path / "kubeconfig"
    said.write_text(json.dumps(credential))
    async with kubeapi.serving() as cluster:
        text = json.loads(kubeapi.kubeconfig(cluster.url))
        plugin = {
            "apiVersion": credential["apiVersion"],
            "command": "cat",
            "args": [str(said)],
            "interactiveMode": "Never",
        }
        text["users"][0]["user"] = {"exec": plugin}
        file.write_text(json.dumps(text))
        cluster.token = "first"
        api = kube_api.EndpointSliceApi("default", "", await kube_api.load_configuration(file))
        await api.list()
        cluster.token = status["token"] = "second"
        said.write_text(json.dumps(credential))
        await api.list()
        await api.close()


class Clock:
    """Stands for the class `datetime`, and can be put forward."""

    forward_s = 0

    def now(self) -> datetime.datetime:
        return datetime.datetime.now() + datetime.timedelta(seconds=self.forward_s)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "kubeconfig: needed outside a pod: Service host/port is not set"),
        ("", "kubeconfig: .*/kubeconfig cannot be used: "),
        ("{", "kubeconfig: .*/kubeconfig cannot be used: "),
        ('{"kind": "Config"}', "kubeconfig: .*/kubeconfig cannot be used: "),
    ],
)
async def test_no_usable_configuration(tmp_path: Path, monkeypatch, text, message) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    with pytest.raises(StartupError, match=message):
        await kube_api.load_configuration(None if text is None else file)


async def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"kubeconfig: .*nowhere"):
        await kube_api.load_configuration(tmp_path / "nowhere")


async def test_without_the_package(monkeypatch) -> None:
    real = builtins.__import__

    def without(name, *args, **options):
        if name.startswith("kubernetes"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StartupError, match=r"pip install 'paceline-server\[kubernetes\]'"):
        await kube_api.load_configuration(None)


def test_outside_a_pod_the_namespace_is_default(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(kube_api, "NAMESPACE_FILE", tmp_path / "namespace")
    assert kube_api.own_namespace() == "default"
    (tmp_path / "namespace").write_text("prod\n")
    assert kube_api.own_namespace() == "prod"


def test_a_gateway_without_kubernetes_does_not_load_its_client() -> None:
    code = (
        "import sys, gateway.__main__\n"
        "loaded = {'kubernetes', 'aiohttp'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
