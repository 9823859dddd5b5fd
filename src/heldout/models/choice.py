"""Which model an eval asks: the one that is named, or that of the run to resume. None is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from heldout._core.config import EvalConfig
from heldout._core.providers import check_model_name, model_name
from heldout.errors import InvalidInput, RunDirectoryError
from heldout.models.demo import DOWNLOAD, ON_DISK, install_missing
from heldout.store.run_dir import RunDir

SERVED = "openai:gpt-4o-mini"
"""The example of a model that a server has."""


def with_model(config: EvalConfig) -> EvalConfig:
    """Give a config a model: its own, or that of the run in its directory if it is to be resumed.

    Raises:
        InvalidInput: There is neither.
    """
    if config.endpoint is not None:
        return config
    model = None
    if config.resume and config.experiment_name is not None:
        with suppress(RunDirectoryError):  # there is none, or entering it says what is wrong
            info = RunDir(Path(config.output_dir) / config.experiment_name).read_info()
            model = stored_model(info.config)
    if model is None:
        raise missing_model("the eval has no model", "endpoint={!r}".format)
    return replace(config, endpoint=model)


def stored_model(config: Mapping[str, Any]) -> str | None:
    """Name the model of a stored run as `endpoint` takes it; None if text cannot name it."""
    endpoint = config.get("endpoint")
    name = model_name(endpoint) if isinstance(endpoint, dict) else None
    if name is None:
        return None
    try:
        check_model_name(name)
    except InvalidInput:  # a model in training, say
        return None
    return name


def missing_model(subject: str, write: Callable[[str], str]) -> InvalidInput:
    """Return the error for an eval without a model, with two ways to name one.

    Args:
        subject: What has no model.
        write: Writes what names a model, given its name.
    """
    install = install_missing()
    first = f"; first `{install}`" if install else ""
    return InvalidInput(
        f"{subject}. Name one: `{write('smollm2')}` asks a small model on this machine ({DOWNLOAD} "
        f"to download, {ON_DISK} on disk{first}); `{write(SERVED)}` asks a server (with its key in "
        "OPENAI_API_KEY)"
    )
