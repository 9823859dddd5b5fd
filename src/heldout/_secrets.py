"""What is a secret: by the name of a variable, option or field, and by how a text looks.

The only list of secrets: redaction, export checks and worker environments all use it.
"""

from __future__ import annotations

import os
import re
from typing import Any

REDACTED = "[redacted]"
SHORTEST = 8
"""Shorter values of variables ("EMPTY", "none") are no secret, and may be words of a text."""

_NAME = re.compile(
    r"\w[._-]?key$|api[._-]?key|private[._-]?key|secret|password|passwd|passphrase|credential"
    r"|(?:^|[._-])pwd$|token$|(?:^|[._-])(?:auth|authorization|dsn)$",
    re.IGNORECASE,
)
_NO_SECRETS = {"PWD", "OLDPWD"}
"""Working directories, as shells set them."""

LOOKS_LIKE_KEY = re.compile(
    r"\b(?:(?:sk|pk|rk|hf|gh[pousr]|github_pat|glpat|xox[abp]|gsk|tgp|r8|nvapi)[-_]|AKIA|AIza)"
    r"[A-Za-z0-9_-]{16,}|\bBearer\s+\S+|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+"
)
"""What is redacted: too much rather than too little."""
IS_KEY = re.compile(
    r"sk-[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{40,}"
    r"|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}|xox[abprs]-[0-9A-Za-z-]{10,}|glpat-[\w-]{20}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"
)
"""Keys of model providers, code hosts and clouds in full: what is refused must not be a word."""
URL_PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def is_secret_name(name: str) -> bool:
    """Return whether what has this name is a secret: PGPASSWORD, OPENAI_APIKEY, --api-key."""
    return name not in _NO_SECRETS and _NAME.search(name) is not None


def environment_secrets(shortest: int = SHORTEST) -> list[str]:
    """List the values of variables whose names say that they are secrets, longest first."""
    values = {
        value
        for name, value in os.environ.items()
        if len(value) >= shortest and is_secret_name(name)
    }
    return sorted(values, key=len, reverse=True)


def redact_text(text: str) -> str:
    """Replace what looks like a key, a password in a URL, and what secret variables hold."""
    for value in environment_secrets():
        text = text.replace(value, REDACTED)
    return URL_PASSWORD.sub(REDACTED, LOOKS_LIKE_KEY.sub(REDACTED, text))


def redact_values(value: Any) -> Any:
    """Copy plain values with the secrets in them replaced: by their keys, and by how they look."""
    if isinstance(value, dict):
        return {
            key: REDACTED if is_secret_name(str(key)) and part else redact_values(part)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_values(part) for part in value]
    return redact_text(value) if isinstance(value, str) else value
