"""`heldout check sandbox`: what there is, whether it holds, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heldout.sandbox import probes
from heldout.sandbox.sandbox import Sandbox
from tests.cli.conftest import Heldout
from tests.sandbox.conftest import bubblewrap

pytestmark = pytest.mark.integration
__all__ = ["bubblewrap"]


def test_all_probes_hold_in_bubblewrap(heldout: Heldout, bubblewrap: None) -> None:
    outcome = heldout("check", "sandbox")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == "All 12 probes hold."
    assert " NO " not in outcome.out


def test_a_probe_that_fails_is_named_and_the_exit_code_is_one(
    heldout: Heldout, bubblewrap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a backend without limits, and without a network namespace, would look like.
    async def raise_limits(sandbox: Sandbox) -> str | None:
        async with probes.open_sandbox(network=True) as other:
            return await probe_network(other)

    probe_network = probes._PROBES["no network"]
    monkeypatch.setitem(probes._PROBES, "no network", raise_limits)
    outcome = heldout("check", "sandbox", "--json")
    assert outcome.code == 1
    found = json.loads(outcome.out)
    assert found["backend"] == "bubblewrap"
    assert [probe for probe in found["probes"] if not probe["ok"]] == [
        {"name": "no network", "ok": False, "detail": "programs reach servers of the host"}
    ]


def test_without_a_backend_it_says_what_to_install(
    heldout: Heldout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = heldout("check", "sandbox")
    assert outcome.code == 1
    assert "No sandbox: install bubblewrap (`apt install bubblewrap`" in outcome.out
    for name, code, message in (
        ("chroot", 2, "no sandbox backend 'chroot'"),
        ("unsafe", 2, "the backend 'unsafe' isolates nothing"),
        ("podman:image", 4, "podman is not installed"),
    ):
        outcome = heldout("check", "sandbox", "--backend", name)
        assert outcome.code == code
        assert message in outcome.err
