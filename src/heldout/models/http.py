"""Servers: the client that all of their APIs share, and OpenAI-compatible chat completions.

The key is read from the environment and goes into the request header, nowhere else: it is not part
of the endpoint's description, and is removed from everything that a server sends back. Redirects
are not followed (they would carry the key).

    openai:MODEL                    OPENAI_BASE_URL, or OpenAI itself
    openai:MODEL@http://host/v1     any other server
    openrouter:MODEL and so on      providers in heldout/_core/providers.py

`ServerEndpoint` knows keys, connections, errors and streams. An API is a subclass that makes the
body of a request, joins the events of a stream and converts the reply: `HTTPEndpoint` here,
`AnthropicEndpoint` in anthropic.py, `ResponsesEndpoint` in responses.py.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial
from io import BytesIO
from typing import Annotated, Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import anyio.from_thread
import anyio.to_thread
import msgspec
import sniffio
from yarl import URL

from heldout._core.aio import current_loop, wait_for
from heldout._core.chat.messages import to_chat_api, tool_to_chat_api
from heldout._core.chat.tool_calls import call_id, next_call_number
from heldout._core.config import Sampling
from heldout._core.providers import OPENAI, Provider
from heldout._core.secrets import PLACEHOLDER_LENGTH, remove_secret, remove_secrets
from heldout._finish_reasons import BROKEN_OFF
from heldout.errors import (
    ContextFull,
    EndpointError,
    FatalEndpointError,
    InvalidInput,
    ModelRefused,
    TransientError,
    Unreachable,
)
from heldout.models.base import RatesContinuations
from heldout.types import (
    MOST_TOKENS,
    Completion,
    Continuation,
    Message,
    Rating,
    ToolCall,
    ToolSpec,
    Usage,
)

Result = TypeVar("Result")

MAX_REPLY_BYTES = 64_000_000
"""Bytes of a reply, decompressed, that are read; a longer one is the item's error."""
LONG_REPLY_BYTES = 256_000
"""A longer reply is redacted and read in a thread."""
TokenCount = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
"""What a reply says of tokens; another number makes it malformed."""
_MALFORMED = (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError)
"""What reading a reply of an unexpected form raises."""


class ServerEndpoint:
    """A model behind an HTTP API; subclasses know the API.

    Attributes:
        model: The name of the model.
        base_url: The address of the server.
    """

    kind: ClassVar[str]
    """The form's name, for the description."""
    path: ClassVar[str]
    """Where requests go, below the base URL."""
    provider: ClassVar[Provider]
    """The default address and key."""
    reply_type: ClassVar[type[msgspec.Struct]]
    """The parts of a reply that are read."""

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        key_variable: str | None = "",
        max_connections: int = 512,
    ) -> None:
        """Prepare requests; connections are opened when they are needed.

        Args:
            model: The name of the model.
            base_url: The address, such as http://localhost:8000/v1; None for the one in the
                environment (OPENAI_BASE_URL, ANTHROPIC_BASE_URL), or the provider's own.
            key_variable: The environment variable with the key; "" for the provider's own, None
                for no key.
            max_connections: How many connections are open at once.

        Raises:
            InvalidInput: If the address or the key cannot be one.
        """
        base_url = (base_url or self._default_url()).rstrip("/")
        if key_variable == "":
            key_variable = self.provider.key_variable
        key = (os.environ.get(key_variable) or "").strip() if key_variable else ""
        if not (key.isascii() and key.isprintable()):
            raise InvalidInput(f"{key_variable} holds characters that no key has")
        _check_address(base_url, key, key_variable or OPENAI.key_variable)
        self.model, self.base_url = model, base_url
        self._url = base_url + self.path
        self._key_variable, self._key = key_variable, key
        self._max_connections = max_connections
        self._client: Client | ThreadClient | None = None
        self._loop: Any = None
        self._is_available = False
        """Whether the server has sent anything but refused keys and failures of its own (5xx)."""
        self._has_answered = False
        """Whether it has answered a request: then what it refuses is about that request."""

    @classmethod
    def parse(cls, text: str, *, max_connections: int, provider: Provider | None = None) -> Self:
        """Make the endpoint of MODEL or MODEL@URL; without a URL the model is the provider's."""
        # The @ before a scheme, not the last one: that may be behind a password in the address,
        # which must be refused as an address and not become part of the model's name.
        at = re.search(r"@(?=[a-z][a-z0-9+.-]*://)", text, re.IGNORECASE)
        model, url = (text[: at.start()], text[at.end() :]) if at else (text, "")
        if not at and (schemeless := re.search(r"@(|localhost.*|[^@]*:[^@]*)$", text)):
            raise InvalidInput(
                f"the endpoint's address {schemeless[1]!r} does not start with http:// or "
                "https://, as in openai:MODEL@http://localhost:8000/v1"
            )
        if not model:
            raise InvalidInput("the endpoint names no model; it is openai:MODEL@URL")
        url = url or (provider.url if provider is not None else cls._default_url())
        provider = provider or cls.provider
        variable = provider.key_variable
        if url == provider.url and variable and not os.environ.get(variable, "").strip():
            raise InvalidInput(f"{model!r} at {url} needs a key: set {variable}")
        return cls(model, url, key_variable=variable, max_connections=max_connections)

    @classmethod
    def _default_url(cls) -> str:
        return os.environ.get(cls.provider.url_variable) or cls.provider.url

    def describe(self) -> dict[str, Any]:
        """Describe the model for the report: its name and its address."""
        return {"kind": self.kind, "model": self.model, "base_url": self.base_url}

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Take one model turn; see `Endpoint`."""
        body = self.body(messages, sampling, tools)
        return await self.send(body, next_call=next_call_number(messages))

    def body(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> dict[str, Any]:
        """Make the body of a request: the API's fields, with `sampling.extra_body` over them.

        A field that is None is left out.
        """
        body = {**self._fields(messages, sampling, tools), **(sampling.extra_body or {})}
        return {key: value for key, value in body.items() if value is not None}

    async def send(self, request: Mapping[str, Any], *, next_call: int = 0) -> Completion:
        """Send a request body as it is; calls without an id are numbered from `next_call`.

        Raises:
            EndpointError: If there is no answer; its type says whether a retry may help.
        """
        try:
            response = await self._post(request)
            if response.status < 500 and response.status not in (401, 403):
                self._is_available = True
            completion = await _off_loop(self._understand, response.body, response, next_call)
            self._has_answered = True
            return completion
        except TransientError as problem:
            if self._is_available or isinstance(problem, Unreachable):
                raise
            # Some servers do not say what is wrong: `transformers serve` answers 500 for a model
            # that it cannot load. So a server that has only ever failed counts as unreachable.
            raise Unreachable(
                f"{problem} (the server has answered nothing else yet; is {self.model!r} served?)",
                retry_after=problem.retry_after,
            ) from None

    async def _post(self, request: Mapping[str, Any]) -> Response:
        loop = current_loop()
        if self._client is None or self._loop is not loop:
            # Connections belong to the event loop they were made in.
            client = ThreadClient if sniffio.current_async_library() == "trio" else Client
            self._loop = loop
            self._client = client(self._url, self._key_headers(), self._key, self._max_connections)
        return await self._client.post(msgspec.json.encode(request))

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            client, self._client = self._client, None
            if self._loop is current_loop():
                await client.close()

    def _redact(self, content: bytes) -> bytes:
        """Remove what is secret from something that the server has sent."""
        return without_key(content, self._key)

    # --- What an API is ---

    def _key_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"} if self._key else {}

    def _fields(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> dict[str, Any]:
        """Make the API's own fields of a body; `sampling.extra_body` will be put over them."""
        raise NotImplementedError

    def _join_events(self, events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        """Join the events of a stream into the reply that would have come whole; None if cut."""
        raise NotImplementedError

    def _to_completion(self, reply: Any, response: Response, next_call: int) -> Completion:
        """Convert a reply of the API's `reply_type`."""
        raise NotImplementedError

    # --- Replies ---

    def _understand(self, response: Response, next_call: int) -> Completion:
        """Read a response, or raise the error that it is."""
        if response.status != 200:
            raise self._error_for(response)
        return self._without_key(self._read(response, next_call))

    def _without_key(self, completion: Completion) -> Completion:
        """Remove the key once more: a stream may have sent it in parts."""
        content = msgspec.json.encode(completion)
        redacted = self._redact(content)
        if redacted == content:
            return completion
        return msgspec.json.decode(redacted, type=Completion)

    def _read(self, response: Response, next_call: int) -> Completion:
        """Read an answer with status 200, whole or as a stream."""
        try:
            # By its content: some servers ignore `stream`.
            if response.body.lstrip().startswith((b"data:", b"event:", b"id:", b"retry:", b":")):
                joined = self._join_events(self._events(response))
                if joined is None:
                    raise TransientError(f"{self._url} broke off its stream before it was complete")
                reply = msgspec.convert(joined, self.reply_type)
            else:
                reply = msgspec.json.decode(response.body, type=self.reply_type)
        except _MALFORMED as problem:
            # With some gateways a 200 that is no answer is an error.
            if error := response.error():
                raise self._error_of(error, response) from None
            raise TransientError(
                f"{self._url} answered 200 with something that is not a reply "
                f"({type(problem).__name__}: {problem}): {response.excerpt()}"
            ) from None
        return self._to_completion(reply, response, next_call)

    def _events(self, response: Response) -> Iterator[dict[str, Any]]:
        """Decode the server-sent events that ended with an empty line."""
        data: list[bytes] = []
        # Line by line: a list of the lines of a long stream would take many times its memory.
        body = response.body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        for line in (line.removesuffix(b"\n") for line in BytesIO(body)):
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                content, data = b"\n".join(data), []
                if content == b"[DONE]":
                    return
                event = msgspec.json.decode(content, type=dict[str, Any])
                if event.get("type") == "error" or event.get("error"):
                    raise self._error_of(event.get("error") or event, response)
                yield event

    # --- Errors ---

    def _error_for(self, response: Response) -> EndpointError:
        """Classify an error: this request's, its length's, transient, or fatal to the whole run."""
        status, text = response.status, response.body[:2000].decode("utf-8", "replace").lower()
        what = f"{self._url} answered {status}: {response.excerpt()}"
        if status in (400, 413, 422, 500) and _TOO_LONG.search(text):
            return ContextFull(what)
        # A 403 is about the key until a request was allowed; after that, about this request.
        if status == 401 or (status == 403 and not self._is_available):
            key = f"the key in {self._key_variable}" if self._key else f"no {self._key_variable}"
            return FatalEndpointError(f"{what} (sent {key if self._key_variable else 'no key'})")
        if status == 404 or (status in (400, 422) and _UNKNOWN_MODEL.search(text)):
            return self._refusal(f"{what} (model {self.model!r}; is it served there?)")
        if status in (400, 422) and _REFUSED.search(text) and (field := _OWN_FIELD.search(text)):
            return self._refusal(
                f"{what} (sampling.extra_body.{field[1]}=null leaves {field[1]} out of the request)"
            )
        if status in TRANSIENT:
            return TransientError(what, retry_after=retry_after(response.headers))
        if 300 <= status < 400:
            return FatalEndpointError(
                f"{what} (a redirect, which is not followed: it would carry the key along; "
                "give the final address)"
            )
        return EndpointError(what)

    def _refusal(self, what: str) -> EndpointError:
        """Make the error of a request that was refused: of all of them, unless one was answered.

        A server also answers 404 where it has no route for this one request, with an image, say.
        """
        return EndpointError(what) if self._has_answered else ModelRefused(what)

    def _error_of(
        self, error: dict[str, Any] | str, response: Response, default: int = 500
    ) -> EndpointError:
        """Make the error that came with the status 200, or in a stream."""
        names = [] if isinstance(error, str) else [str(error.get(key)) for key in ("code", "type")]
        statuses = [int(n) if n.isdecimal() else STATUS_OF_ERROR.get(n, 0) for n in names]
        status = next(filter(None, statuses), default)
        body = self._redact(msgspec.json.encode({"error": error}))
        return self._error_for(Response(status, response.headers, body))


def _check_address(url: str, key: str, key_variable: str | None) -> None:
    if any(mark in url for mark in "@?#") or (len(key) >= PLACEHOLDER_LENGTH and key in url):
        raise InvalidInput(
            "the endpoint's address holds a user, password, key or query; keys do not belong "
            f"there, since it is stored with the report. Set {key_variable} instead, and write "
            "the address like http://host:8000/v1"
        )
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        is_valid = False
    if not is_valid or not url.isprintable() or " " in url:
        raise InvalidInput(
            f"an endpoint's address must be like http://host:8000/v1 or "
            f"https://host/v1, got {url!r}"
        )


# --- Turns that must be sent back as they came --------------------------------------------------


def with_api_turn(message: Message, api: str, turn: list[dict[str, Any]]) -> Message:
    """Keep a turn with calls as the API sent it: the next request must contain it so."""
    return replace(message, api_turn={"api": api, "turn": turn}) if message.tool_calls else message


def api_turn_of(
    message: Message, api: str, read: Callable[[list[dict[str, Any]]], Message]
) -> list[dict[str, Any]] | None:
    """Find a turn as the API sent it.

    Args:
        message: The turn as the conversation has it.
        api: The API that the turn goes to.
        read: Makes the message of a turn in the API's form.

    Returns:
        The turn; None if it came from another API, or no longer says what the message does:
        somebody may have changed either, and what is stored is what must be sent.
    """
    match message.api_turn:
        case {"api": str(name), "turn": list(turn)} if name == api:
            if all(isinstance(part, dict) for part in turn) and _says_the_same(message, read(turn)):
                return turn
    return None


def _says_the_same(message: Message, other: Message) -> bool:
    def parse_calls(turn: Message) -> list[Any]:
        return [(call.id, call.name, parse_arguments(call.arguments)) for call in turn.tool_calls]

    texts, others = replace(message, tool_calls=()), replace(other, tool_calls=())
    return texts == others and parse_calls(message) == parse_calls(other)


def parse_arguments(arguments: str) -> dict[str, Any]:
    """Parse a call's arguments for an API that takes objects only, whatever a model wrote."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):  # a model may nest without end
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}


# --- Connections --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Response:
    """A server's answer, without the key."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def error(self) -> dict[str, Any] | str | None:
        """Find the error in a body that has the usual form of one."""
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            error = msgspec.json.decode(self.body, type=dict[str, Any]).get("error")
            return error if isinstance(error, dict | str) else None
        return None

    def excerpt(self) -> str:
        """Quote the error's message, or the beginning of the body."""
        error = self.error()
        text = error.get("message") if isinstance(error, dict) else error
        if not isinstance(text, str):
            text = self.body.decode("utf-8", "replace")
        return text[:500].strip() or "(empty body)"


class Client:
    """POST requests to one address, over connections that stay open between them.

    There is no timeout here: the attempt's own covers it.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], key: str, max_connections: int
    ) -> None:
        self._url, self._proxy = url, _find_proxy(url)
        self._key = key
        self._session = aiohttp.ClientSession(
            headers={
                "content-type": "application/json",
                "accept-encoding": "gzip",
                **headers,
            },
            auto_decompress=False,  # `_read_body` does it, and knows when to stop
            connector=aiohttp.TCPConnector(limit=max_connections),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def post(self, body: bytes) -> Response:
        """Send a body, and return the answer whatever its status.

        Raises:
            Unreachable: If no connection could be made.
            TransientError: If the connection failed.
            EndpointError: If the answer is larger than `MAX_REPLY_BYTES`.
        """
        url = self._url
        try:
            async with self._session.post(
                url, data=body, allow_redirects=False, proxy=self._proxy
            ) as response:
                content = await self._read_body(response)
                content = await _off_loop(without_key, content, content, self._key)
                return Response(response.status, response.headers, content)
        except aiohttp.ClientConnectorError as problem:
            raise Unreachable(f"nothing answers at {url}: {problem.os_error}") from None
        except (aiohttp.ClientError, OSError) as problem:
            # It may quote the key, in a line that is not HTTP, and the address of the proxy.
            told = f"{type(problem).__name__}: {problem}".encode()
            reason = without_key(told, self._key).decode()
            if self._proxy is not None and self._proxy.raw_password:
                reason = remove_secrets(reason, [self._proxy.raw_password], "[password]")
            raise TransientError(f"{url}: {reason}") from None

    async def _read_body(self, response: aiohttp.ClientResponse) -> bytes:
        """Read a body, and decompress it, up to the limit."""
        given = response.headers.get("content-encoding", "identity").strip()
        encoding = given.lower()
        if encoding not in ("identity", "gzip"):
            shown = without_key(given.encode("utf-8", "replace"), self._key).decode()[:100]
            raise TransientError(f"{self._url} compressed its answer as {shown!r}, not as gzip")
        unzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS) if encoding == "gzip" else None
        pieces: list[bytes] = []
        size = 0
        async for piece in response.content.iter_any():
            if unzip is not None:
                try:
                    piece = unzip.decompress(piece, MAX_REPLY_BYTES - size + 1)
                except zlib.error as problem:
                    raise TransientError(f"{self._url}: not gzip: {problem}") from None
            pieces.append(piece)
            size += len(piece)
            if size > MAX_REPLY_BYTES:
                raise EndpointError(
                    f"{self._url} answered with more than {MAX_REPLY_BYTES / 1e6:g} MB "
                    "(heldout.models.http.MAX_REPLY_BYTES), which is not read on"
                )
        if unzip is not None and pieces and not unzip.eof:
            raise TransientError(f"{self._url} broke off its compressed answer")
        return b"".join(pieces)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


def without_key(content: bytes, key: str) -> bytes:
    """Remove a key from what a server sent, and parts of it, however they are written.

    It is done before anything is cut or decoded: half a key is a leak, too.
    """
    return content if len(key) < PLACEHOLDER_LENGTH else remove_secret(content, key, b"[key]")


async def _off_loop(function: Callable[..., Result], body: bytes, *args: Any) -> Result:
    """Call a function of a body, in a thread if that is long: other items have to go on."""
    if len(body) <= LONG_REPLY_BYTES:
        return function(*args)
    # Given up on, it changes nothing: what reads a body has no side effects.
    return await anyio.to_thread.run_sync(partial(function, *args), abandon_on_cancel=True)


def _find_proxy(url: str) -> URL | None:
    """Find the proxy in HTTP_PROXY and the like.

    aiohttp's own `trust_env` would also read ~/.netrc, which would conflict with the key.
    """
    parts, proxies = urlsplit(url), urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy is None or urllib.request.proxy_bypass(parts.netloc):
        return None
    return URL(proxy if "://" in proxy else f"http://{proxy}")


class ThreadClient:
    """A client for trio, which aiohttp does not run under: in an asyncio loop in a thread."""

    def __init__(self, *options: Any) -> None:
        self._thread = ExitStack()
        self._portal = self._thread.enter_context(anyio.from_thread.start_blocking_portal())
        self._client = self._portal.call(Client, *options)

    async def post(self, body: bytes) -> Response:
        """Send a body; see `Client`."""
        return await wait_for(self._portal.start_task_soon(self._client.post, body))

    async def close(self) -> None:
        """Close the connections, and end the thread."""
        await wait_for(self._portal.start_task_soon(self._client.close))
        await anyio.to_thread.run_sync(self._thread.close)


# --- Errors by status and text ------------------------------------------------------------------

TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
STATUS_OF_ERROR = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The HTTP status of an error that comes without one, by its name with OpenAI or Anthropic."""

# How servers say that the conversation does not fit: OpenAI and most others; vLLM; SGLang;
# llama.cpp; llama-cpp-python; text-generation-inference; Anthropic and Bedrock; Gemini; xAI.
_TOO_LONG = re.compile(
    r"context_length_exceeded|maximum context length|longer than the maximum model length"
    r"|longer than the model's context length|exceed_context_size|exceeds? the available context"
    r"|context size has been exceeded|exceed context window|tokens \+ `?max_new_tokens`? must be <="
    r"|(?:prompt|input) is too long|input token count .{0,40}exceeds the maximum"
    r"|maximum prompt length"
)
_UNKNOWN_MODEL = re.compile(
    r"model_not_found|(?:unknown|invalid|no such|not a valid)[ _]model"
    r"|\bmodel\b.{0,100}(?:not exist|not found)"
)
_REFUSED = re.compile(
    r"(?:unsupported|unrecognized|unknown|extra inputs?|extra_forbidden|not supported"
    r"|does not support|deprecated|removed|may only be set|not permitted|not allowed)"
)
_OWN_FIELD = re.compile(r"[`'\"\\](temperature|top_p|max_tokens|seed|stop|stream_options)[`'\"\\]")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how many seconds a server asks to wait."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):
            return float(headers.get(name, "")) * unit
    with suppress(ValueError):
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        return date.timestamp() - time.time()
    return None


# --- Chat completions ---------------------------------------------------------------------------


class _WireFunction(msgspec.Struct):
    name: str
    arguments: Any = None
    """JSON in a text; some servers send the value itself."""


class _WireToolCall(msgspec.Struct):
    function: _WireFunction
    id: str | None = None


class _WireMessage(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[_WireToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    message: _WireMessage
    finish_reason: str | None = None
    provider_specific_fields: dict[str, Any] | None = None

    @property
    def reason(self) -> str | None:
        """The provider's own finish reason: litellm writes `stop` for those it does not know."""
        native = (self.provider_specific_fields or {}).get("native_finish_reason")
        return native if isinstance(native, str) else self.finish_reason


class _ChatUsage(msgspec.Struct):
    prompt_tokens: TokenCount | None = None
    completion_tokens: TokenCount | None = None


class _ChatReply(msgspec.Struct):
    choices: list[_Choice]
    usage: _ChatUsage | None = None
    metadata: Any = None
    """SGLang's, which has the version of its weights."""


MAX_VERSION_CHARACTERS = 200
CALL_TEXTS = ("name", "arguments")
"""Texts of a call that a stream sends in parts."""


class HTTPEndpoint(ServerEndpoint, RatesContinuations):
    """A model of an OpenAI-compatible server."""

    kind = "openai"
    path = "/chat/completions"
    provider = OPENAI
    reply_type = _ChatReply
    _echo: ServerEndpoint | None = None

    async def rate(self, continuations: Sequence[Continuation]) -> Rating:
        """Return the likelihoods of given continuations, where the server tells them."""
        from heldout.models.completions import EchoEndpoint

        if self._echo is None:
            self._echo = EchoEndpoint(
                self.model,
                self.base_url,
                key_variable=self._key_variable,
                max_connections=self._max_connections,
            )
        assert isinstance(self._echo, EchoEndpoint)
        return await self._echo.rate(continuations)

    async def close(self) -> None:
        """Close the connections."""
        if self._echo is not None:
            await self._echo.close()
        await super().close()

    def _fields(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [self._message(m) for m in messages],
            "stream": sampling.stream,
            "stream_options": {"include_usage": True} if sampling.stream else None,
            **chat_fields(sampling, tools),
        }

    def _message(self, message: Message) -> dict[str, Any]:
        body = chat_message(message)
        # Models that reason between calls continue their reasoning. It is sent only under the name
        # that it came with: other servers refuse the field.
        match message.api_turn:
            case {"api": self.kind, "reasoning_field": "reasoning" | "reasoning_content" as name}:
                if message.tool_calls and message.reasoning is not None:
                    body[name] = message.reasoning
        return body

    def _join_events(self, events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        # In parts: to add to a text copies it, which takes long for one of megabytes.
        texts: defaultdict[str, list[str]] = defaultdict(list)
        calls: dict[int, dict[str, Any]] = {}
        finish_reason = usage = metadata = None
        for event in events:
            usage = event.get("usage") or usage
            metadata = event.get("metadata") or metadata
            for choice in (event.get("choices") or ())[:1]:
                finish_reason = choice.get("finish_reason") or finish_reason
                delta = choice.get("delta") or {}
                for name in ("content", "refusal", "reasoning_content", "reasoning"):
                    if delta.get(name) is not None:
                        texts[name].append(delta[name])
                for part in delta.get("tool_calls") or ():
                    _add_call_part(calls, part)
        if finish_reason is None:
            return None
        message: dict[str, Any] = {name: "".join(parts) for name, parts in texts.items()}
        message["tool_calls"] = [
            {"id": calls[i]["id"], "function": {k: "".join(calls[i][k]) for k in CALL_TEXTS}}
            for i in sorted(calls)
        ]
        choice = {"message": message, "finish_reason": finish_reason}
        return {"choices": [choice], "usage": usage, "metadata": metadata}

    def _to_completion(self, reply: _ChatReply, response: Response, next_call: int) -> Completion:
        if not reply.choices:
            raise EndpointError(f"{self._url} answered without choices: {response.excerpt()}")
        choice = reply.choices[0]
        if choice.reason is not None and choice.reason.lower() in BROKEN_OFF:
            raise TransientError(
                f"{self._url} broke off its answer (finish reason {choice.reason!r})"
            )
        completion = _to_completion(reply, next_call)
        for name in ("reasoning_content", "reasoning"):
            if completion.message.tool_calls and getattr(choice.message, name):
                api_turn = {"api": self.kind, "reasoning_field": name}
                return replace(completion, message=replace(completion.message, api_turn=api_turn))
        return completion


def chat_fields(sampling: Sampling, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """Make the fields of a request that say how to sample; None stands for those left out."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop) or None,
        "seed": sampling.seed,
        "tools": [tool_to_chat_api(tool) for tool in tools] or None,
    }


def chat_message(message: Message) -> dict[str, Any]:
    """Convert a message; where there are calls alone, some servers refuse an empty text."""
    body = to_chat_api(message)
    return {**body, "content": None} if message.tool_calls and message.content == "" else body


def completion_of(reply: Any) -> Completion:
    """Read a chat completion that was stored, as decoded JSON.

    Raises:
        InvalidInput: If it is not a chat completion.
    """
    try:
        parsed = msgspec.convert(reply, _ChatReply)
    except msgspec.ValidationError as problem:
        raise InvalidInput(f"not a chat completion: {problem}") from None
    if not parsed.choices:
        raise InvalidInput("a chat completion without choices")
    return _to_completion(parsed, 0)


def _add_call_part(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    # Where a server does not number its calls, a new id begins the next one.
    index = part.get("index")
    if index is None:
        index = len(calls) - (part.get("id") is None)
    call = calls.setdefault(index, {"id": None, **{name: [] for name in CALL_TEXTS}})
    call["id"] = call["id"] or part.get("id")
    for name in CALL_TEXTS:
        call[name].append((part.get("function") or {}).get(name) or "")


def _to_completion(reply: _ChatReply, next_call: int) -> Completion:
    choice = reply.choices[0]
    content, thinking = _split_content(choice.message.content)
    calls = [
        ToolCall(
            call.id or call_id(next_call + i),
            call.function.name,
            arguments_text(call.function.arguments),
        )
        for i, call in enumerate(choice.message.tool_calls or ())
    ]
    message = Message(
        "assistant",
        content or choice.message.refusal or "",
        tool_calls=tuple(calls),
        reasoning=choice.message.reasoning_content or choice.message.reasoning or thinking,
    )
    usage = None
    # Half of it would count as 0, and some servers write zeros where they do not count.
    if reply.usage and reply.usage.prompt_tokens and reply.usage.completion_tokens is not None:
        usage = Usage(reply.usage.prompt_tokens, reply.usage.completion_tokens)
    version = _read_weight_version(reply.metadata)
    return Completion(message, choice.reason, usage, weight_version=version)


def _read_weight_version(metadata: Any) -> str | None:
    version = metadata.get("weight_version") if isinstance(metadata, dict) else None
    if isinstance(version, str | int) and not isinstance(version, bool):
        return str(version)[:MAX_VERSION_CHARACTERS] or None
    return None


def _split_content(content: str | list[dict[str, Any]] | None) -> tuple[str, str | None]:
    """Return text and reasoning; Mistral's reasoning models send both as parts of the content."""
    if not isinstance(content, list):
        return content or "", None
    texts = [str(part.get("text", "")) for part in content if part.get("type") == "text"]
    thinking = [
        str(inner.get("text", ""))
        for part in content
        if part.get("type") == "thinking"
        for inner in part.get("thinking") or ()
    ]
    return "".join(texts), "".join(thinking) or None


def arguments_text(arguments: Any) -> str:
    """Return a call's arguments as JSON text; some servers send the value itself, or nothing."""
    if isinstance(arguments, str):
        return arguments
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)
