"""The images, without building any: linted, pinned, small, and with what they need inside."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from common import config
from drafter.config import DrafterConfig
from gateway.config import GatewayConfig
from tests.docker.images import FILES, ROOT, extras, instructions, requirements
from verifier.config import VerifierConfig

CLASSES: dict[str, Any] = {
    "gateway": GatewayConfig,
    "verifier": VerifierConfig,
    "drafter": DrafterConfig,
}
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))


def closure(image: str) -> set[str]:
    """Every distribution an image installs, as the metadata of this environment say."""
    wanted = [Requirement(each) for each in requirements(extras(image))]
    found: set[str] = set()
    while wanted:
        each = wanted.pop()
        name = canonicalize_name(each.name)
        environments = [{"extra": extra} for extra in ("", *each.extras)]
        if each.marker and not any(each.marker.evaluate(env) for env in environments):
            continue
        found.add(name)
        try:
            below = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:  # CUDA's libraries, on a machine without
            continue
        for need in below:
            inside = not need.marker or any(need.marker.evaluate(e) for e in environments)
            if inside and canonicalize_name(need.name) not in found:
                need.marker = None
                wanted.append(need)
    return found


@pytest.mark.parametrize("image", FILES)
def test_lint(image: str) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, FILES[image]], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_gateway_has_no_torch_and_all_it_may_be_told_to_use() -> None:
    installed = closure("gateway")
    assert not {"torch", "transformers", "numpy"} & installed
    assert {"tokenizers", "redis", "kubernetes", "pyjwt", "cryptography"} <= installed
    assert {"prometheus-client", "opentelemetry-exporter-otlp-proto-grpc"} <= installed


def test_workers_have_torch_and_nothing_of_the_gateways() -> None:
    installed = closure("worker")
    assert {"torch", "transformers", "huggingface-hub"} <= installed
    assert {"prometheus-client", "opentelemetry-exporter-otlp-proto-grpc"} <= installed
    assert not {"kubernetes", "pyjwt"} & installed


@pytest.mark.parametrize("image", FILES)
def test_everything_is_pinned(image: str) -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    assert closure(image) <= pinned
    arguments = dict(each.rest.split("=", 1) for each in instructions(image) if each.word == "ARG")
    assert re.fullmatch(r"3\.11\.\d+", arguments["PYTHON_VERSION"])
    installs = [each.rest for each in instructions(image) if "pip install" in each.rest]
    assert installs
    assert all("--no-cache-dir" in each for each in installs)
    environment = " ".join(each.rest for each in instructions(image) if each.word == "ENV")
    assert "PIP_CONSTRAINT=/src/constraints.txt" in environment


@pytest.mark.parametrize("image", FILES)
def test_the_last_stage_holds_the_environment_and_no_root(image: str) -> None:
    last = max(each.stage for each in instructions(image))
    final = [each for each in instructions(image) if each.stage == last]
    assert [e.rest for e in final if e.word == "COPY"] == ["--from=build /opt/venv /opt/venv"]
    assert [e.rest for e in final if e.word == "USER"] == ["10001:10001"]
    assert not any("pip" in e.rest for e in final if e.word == "RUN")


def test_workers_find_the_driver_and_ask_for_no_gpu() -> None:
    """Which ones a container sees is not for an image to say: that for processors is this one."""
    steps = instructions("worker")
    environment = " ".join(each.rest for each in steps if each.word == "ENV")
    assert "NVIDIA_VISIBLE_DEVICES" not in environment
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64 " in environment
    assert 'NVIDIA_REQUIRE_CUDA="${REQUIRE_CUDA}"' in environment
    assert 'REQUIRE_CUDA="cuda>=13.0"' in [each.rest for each in steps if each.word == "ARG"]


@pytest.mark.parametrize("image", FILES)
def test_the_sources_an_image_copies_are_there_and_reach_the_builder(image: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    for each in instructions(image):
        if each.word != "COPY" or each.rest.startswith("--from"):
            continue
        *sources, _ = each.rest.split()
        for source in sources:
            assert (ROOT / source).exists()
            assert source in allowed or source.split("/")[0] in allowed


def test_an_unknown_extra_is_refused() -> None:
    with pytest.raises(SystemExit, match="error: no extra cuda; there are all, "):
        requirements(["cuda"])


@pytest.mark.parametrize("name", CLASSES)
def test_composed_services_understand_their_flags(name: str) -> None:
    service = COMPOSE["services"][name]
    python, dash_m, module, *argv = service["command"]
    assert [python, dash_m, module] == ["python", "-m", name]
    settings = config.load(
        CLASSES[name], argv, prog=name, description="", environ=service["environment"]
    )
    (mount,) = service["volumes"]
    models = getattr(settings, "models", None) or [settings.model]
    for model in models:
        source = ROOT / "docker" / mount["source"] / Path(model).relative_to(mount["target"])
        assert (source / "tokenizer.json").is_file()


def test_a_composed_gateway_looks_where_the_others_listen() -> None:
    services = COMPOSE["services"]
    argv = services["gateway"]["command"][3:]
    settings = config.load(GatewayConfig, argv, prog="gateway", description="", environ={})
    for tier in ("verifier", "drafter"):
        workers = services[tier]["command"][3:]
        worker = config.load(CLASSES[tier], workers, prog=tier, description="", environ={})
        assert getattr(settings, f"{tier}s") == (f"dns:{tier}:{worker.port}",)
    assert settings.store_url == "redis://valkey:6379/0"


def test_composed_containers_are_locked_down() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        outside = [each for each in service["networks"] if each != "fleet"]
        assert outside == (["public"] if name == "gateway" else [])
        if "build" in service:
            file = ROOT / "docker" / service["build"]["context"] / service["build"]["dockerfile"]
            assert file.resolve() in FILES.values()
    assert COMPOSE["networks"]["fleet"]["internal"] is True
