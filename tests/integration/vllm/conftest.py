"""vLLM for a CPU. To start an engine takes half a minute, so tests of a module share one."""

from __future__ import annotations

import os
import warnings

import pytest

# A small cache, and nothing that is compiled: it would take longer than the tests.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecated names of torch, pydantic and others
    import vllm.v1.engine.async_llm  # noqa: F401

from tests.tiny_model import save_tiny_model


def pytest_configure(config: pytest.Config) -> None:
    # vLLM leaves sockets of ZeroMQ, shared memory and the like to the garbage collector.
    for kind in ("pytest.PytestUnraisableExceptionWarning", "ResourceWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::{kind}")
    # It still passes prompts in a form, and starts processes in a way, that others deprecate.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore::FutureWarning")


MODEL = {"head_dim": 32, "max_position_embeddings": 256}
SETTINGS = {"enforce_eager": True, "dtype": "float32", "max_num_seqs": 16}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), **MODEL)
