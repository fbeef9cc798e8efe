"""What an image installs is enough to serve: its RUN lines in a fresh environment, then a start.

Takes minutes and the package index, so it runs only when asked for:
PACELINE_TEST_IMAGES=1 make test ARGS=tests/docker/test_install.py
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.images import FILES, ROOT, instructions

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("PACELINE_TEST_IMAGES"), reason="PACELINE_TEST_IMAGES is not set"
    ),
    pytest.mark.timeout(1800),
]

ENTRIES = {
    "gateway": [["gateway", "--verifier", "127.0.0.1:1", "--model", "target"]],
    "worker": [["verifier", "--model", "target"], ["drafter", "--model", "draft"]],
}


@pytest.mark.parametrize("image", FILES)
def test_what_an_image_installs_serves(image: str, tmp_path: Path) -> None:
    source, venv = tmp_path / "src", tmp_path / "venv"
    source.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {
        "PATH": f"{venv}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PIP_CONSTRAINT": str(source / "constraints.txt"),
    }
    for step in instructions(image):
        if step.stage != 0:
            continue
        if step.word == "COPY":
            *names, target = step.rest.split()
            for name in names:
                place = source / target / (Path(name).name if target.endswith("/") else "")
                copy(ROOT / name, place)
        elif step.word == "RUN":
            command = step.rest.replace("/opt/venv", str(venv)).replace(
                "/tmp/req", f"{tmp_path}/req"
            )
            subprocess.run(["bash", "-ec", command], cwd=source, env=environment, check=True)
    for module, *argv in ENTRIES[image]:
        start_and_stop(venv, environment, module, argv)


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def start_and_stop(venv: Path, environment: dict[str, str], module: str, argv: list[str]) -> None:
    """Starts a service away from the repository, so that only what is installed can be found."""
    models = ROOT / "models" / "demo"
    argv = [str(models / each) if each in ("target", "draft") else each for each in argv]
    command = [str(venv / "bin" / "python"), "-m", module, *argv, "--port=0", "--health-port=0"]
    with subprocess.Popen(
        command, cwd=venv, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = json.loads(process.stdout.readline())
            assert (line["event"], line["service"]) == ("serving", module)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
