"""What is removed of a secret that somebody sends back."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout._core.secrets import LEAKED_RUN, remove_secret, remove_secrets

ALPHABET = string.ascii_letters + string.digits + "-_"
SECRET = "sk-" + "".join(random.Random(7).choices(ALPHABET, k=61))


def in_json(text: str, backslash: str = "\\") -> str:
    return "".join(f"{backslash}u{ord(character):04x}" for character in text)


FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "escaped in JSON": in_json,
    "escaped in JSON within JSON": lambda text: in_json(text, "\\\\"),
    "every other character escaped": lambda text: "".join(
        in_json(c) if i % 2 else c for i, c in enumerate(text)
    ),
    "percent-encoded": lambda text: "".join(f"%{ord(c):02X}" for c in text),
    "percent-encoded twice": lambda text: "".join(f"%25{ord(c):02x}" for c in text),
    "in base64": lambda text: base64.b64encode(text.encode()).decode(),
    "in base64 after one character": lambda text: base64.b64encode(f":{text}".encode()).decode(),
    "in base64 after two": lambda text: base64.b64encode(f"u:{text}".encode()).decode(),
    "in base64 for URLs": lambda text: base64.urlsafe_b64encode(f"{text}~".encode()).decode(),
    "in base64, percent-encoded": lambda text: (
        base64.b64encode(text.encode()).decode().replace("+", "%2B").replace("/", "%2F")
    ),
}


def is_left(form: Callable[[str], str], content: bytes) -> bool:
    """Whether sixteen characters in a row are there in that form, at whatever alignment."""
    runs = [SECRET[i : i + LEAKED_RUN] for i in range(len(SECRET) - LEAKED_RUN + 1)]
    # In base64 the characters at its ends share a letter with their neighbours.
    cores = [form(run)[4:-4] for run in runs]
    return any(core.encode() in content for core in cores)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "part", [SECRET, SECRET[:-1], SECRET[1:], SECRET[20:36]], ids=["whole", "end", "start", "run"]
)
def test_a_secret_and_sixteen_characters_of_it_are_removed(form: str, part: str) -> None:
    content = f'{{"error": "bad key: {FORMS[form](part)}, sorry"}}'.encode()
    assert is_left(FORMS[form], content)
    redacted = remove_secret(content, SECRET, b"[key]")
    assert redacted.startswith(b'{"error": "bad key: ')
    assert redacted.endswith(b', sorry"}')
    assert b"[key]" in redacted
    assert not is_left(FORMS[form], redacted)


def test_fifteen_characters_of_a_secret_and_other_texts_stay() -> None:
    content = f"{SECRET[:15]} {SECRET[30:45]} {FORMS['percent-encoded'](SECRET[:15])} \\u0073 %73"
    assert remove_secret(content.encode(), SECRET, b"[key]") == content.encode()


def test_a_short_secret_is_removed_where_it_is_whole() -> None:
    secret = "abcdefghijklm"
    assert remove_secret(b"x abcdefghijklm y", secret, b"[key]") == b"x [key] y"
    assert remove_secret(b"x abcdefghijkl y", secret, b"[key]") == b"x abcdefghijkl y"
    encoded = base64.b64encode(secret.encode())
    assert b"[key]" in remove_secret(encoded, secret, b"[key]")


def test_of_a_path_to_a_key_only_the_whole_is_removed() -> None:
    path = "/home/somebody/project/key.pem"
    assert remove_secrets(f"{path} /home/somebody/project/a.py", [path], "[key]") == (
        "[key] /home/somebody/project/a.py"
    )


@given(st.text(alphabet=st.sampled_from([*'\\"/%u05abn', "ö", "\n"]), max_size=40))
def test_a_reply_in_json_stays_json(before: str) -> None:
    content = json.dumps({"text": f"{before}{SECRET[3:]}{before}"}).encode()
    text = json.loads(remove_secret(content, SECRET, b"[key]"))["text"]
    assert "[key]" in text
    assert SECRET[3:19] not in text


@pytest.mark.parametrize("offset", range(-3, 4))
def test_a_secret_across_two_pieces_of_a_long_text_is_removed(offset: int) -> None:
    from heldout._core.secrets import _PIECE

    for form in ("as it is", "escaped in JSON within JSON"):
        leak = FORMS[form](SECRET).encode()
        start = _PIECE - len(leak) // 2 + offset
        content = b"." * start + leak + b"." * 100
        assert remove_secret(content, SECRET, b"[key]") == b"." * start + b"[key]" + b"." * 100


@pytest.mark.parametrize("unit", [b"\\", b"%25", b"\\u0061", SECRET[:8].encode(), b"\\u00"])
def test_the_work_grows_with_the_text_and_no_faster(unit: bytes) -> None:
    """Counted in calls of Python functions and steps, not in seconds: no load changes it."""
    import sys

    def count(content: bytes) -> int:
        steps = 0

        def trace(frame: object, event: str, argument: object) -> object:
            nonlocal steps
            steps += 1
            return trace

        remove_secret(b"", SECRET, b"")  # the forms of the secret are made once
        sys.settrace(trace)
        try:
            remove_secret(content, SECRET, b"[key]")
        finally:
            sys.settrace(None)
        return steps

    assert count(unit * 2000) <= 2.2 * count(unit * 1000) + 100
