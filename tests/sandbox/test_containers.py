"""Docker and Podman, as far as they can be tested without either: commands, and their absence."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from heldout.sandbox import SandboxError, SandboxLimits, open_sandbox
from heldout.sandbox.containers import make_exec_command, make_run_command, split_backend
from heldout.sandbox.sandbox import SandboxSettings


def test_a_container_has_no_network_no_rights_and_the_limits_of_the_sandbox() -> None:
    limits = SandboxLimits(memory=1000, disk=2000, processes=10, descriptors=30)
    settings = SandboxSettings("docker", False, limits, (("/data", "/in"),))
    words = make_run_command("docker", "box", "python:3.12-slim", settings)
    command = " ".join(words)
    for part in (
        "docker run --interactive --rm --init --pull never --name box",
        "--network none --read-only --user 1000:1000 --cap-drop ALL",
        "--security-opt no-new-privileges --memory 1000 --memory-swap 1000 --pids-limit 14",
        "--tmpfs /work:rw,exec,nosuid,nodev,size=2000,mode=755,uid=1000,gid=1000",
        "--volume /data:/in:ro --workdir /work python:3.12-slim sh -c echo ready; exec cat",
    ):
        assert part in command
    assert "--privileged" not in command
    run = make_exec_command("docker", "box", ["python", "-c", "1; 2"], {"A": "b c"})
    assert run == [
        *("docker", "exec", "--interactive", "--workdir", "/work", "--env", "A=b c"),
        *("box", "python", "-c", "1; 2"),
    ]
    assert split_backend("podman:registry:5000/image:tag") == ("podman", "registry:5000/image:tag")
    assert split_backend("docker")[1].startswith("python:3.")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "docker is not installed"),
        ("echo no socket >&2; exit 1", "docker does not answer: no socket"),
        (
            '[ "$1" = version ] || echo "no such image: x"',
            "docker could not start a container: no such image: x. `docker pull image` downloads",
        ),
    ],
)
def test_an_engine_that_is_not_there_or_has_no_image_is_an_error(
    script: str | None, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if script is not None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    async def main() -> None:
        async with open_sandbox("docker:image"):
            pass

    with pytest.raises(SandboxError) as raised:
        anyio.run(main)
    assert message in str(raised.value)
