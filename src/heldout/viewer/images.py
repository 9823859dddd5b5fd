"""Images of messages that a page may show: those inside the message itself, up to a size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from heldout.types import Message

IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+")
"""What is shown. No SVG, which is a document, and no address: nothing is loaded from elsewhere."""
LONGEST = 4_000_000
"""Characters of one image."""
MOST = 8
"""Images of one message."""


def find_images(message: Message) -> list[str]:
    """Return the images of a message as data URLs; others are named in its text alone."""
    if isinstance(message.content, str):
        return []
    urls = [url for part in message.content for url in _urls(part)]
    return [url for url in urls if len(url) <= LONGEST and IMAGE.fullmatch(url)][:MOST]


def _urls(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the address in a part, as OpenAI's and Anthropic's messages have it."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    if isinstance(url, str):
        yield url
    source = part.get("source")
    if isinstance(source, Mapping) and source.get("type") == "base64":
        yield f"data:{source.get('media_type')};base64,{source.get('data')}"
