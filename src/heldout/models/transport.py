"""POST requests under either event loop: aiohttp under asyncio, httpx2 under trio.

Both keep connections to one address open between requests, and bound the size of a body.
`post(body, headers)` returns the answer whatever its status. A connection that failed is a
`TransientError`, one that could not be made `Unreachable`, a body that is too large an
`EndpointError`. There is no timeout here: the attempt's own covers it.
"""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import unquote, urlsplit

import sniffio

from heldout.errors import EndpointError, InvalidInput, TransientError, Unreachable

MAX_BODY = 64 * 1024 * 1024
"""Bytes of an unpacked body. A chat completion has kilobytes; a server must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Response:
    """A server's answer; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def _too_large(url: str) -> EndpointError:
    return EndpointError(f"{url} sent more than {MAX_BODY >> 20} MiB for one answer; gave up")


def _make_response(status: int, headers: Mapping[str, str], chunks: list[bytes]) -> Response:
    by_name = {name.lower(): value for name, value in headers.items()}
    return Response(status, by_name, b"".join(chunks))


class _AiohttpTransport:
    def __init__(self, url: str, max_connections: int) -> None:
        import aiohttp

        self._aiohttp, self._url = aiohttp, url
        proxy, proxy_headers = _find_proxy(url)
        self._options: dict[str, Any] = {"proxy": proxy, "proxy_headers": proxy_headers}
        self._headers: dict[str, str] = {}
        if url.startswith("http://"):  # the proxy gets the request itself instead of a CONNECT
            self._options, self._headers = {"proxy": proxy}, proxy_headers
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=max_connections),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Response:
        aiohttp, url = self._aiohttp, self._url
        headers = {**headers, **self._headers}
        try:
            async with self._session.post(
                url, data=body, headers=headers, allow_redirects=False, **self._options
            ) as response:
                chunks: list[bytes] = []
                size = 0
                async for chunk in response.content.iter_any():
                    size += len(chunk)
                    if size > MAX_BODY:
                        raise _too_large(url)
                    chunks.append(chunk)
                return _make_response(response.status, response.headers, chunks)
        except aiohttp.ClientConnectorError as problem:
            raise Unreachable(f"nothing answers at {url}: {problem.os_error}") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise TransientError(f"{url}: {type(problem).__name__}: {problem}") from None

    async def close(self) -> None:
        await self._session.close()


def _find_proxy(url: str) -> tuple[str | None, dict[str, str]]:
    """Find the proxy in HTTP_PROXY and the like, and the header with its password, as httpx2 does.

    aiohttp's own `trust_env` would also read ~/.netrc, which would conflict with the key. The
    password is not left in the address, which messages contain.
    """
    parts, proxies = urlsplit(url), urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy is None or urllib.request.proxy_bypass(parts.netloc):
        return None, {}
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.username is None:
        return parts.geturl(), {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    encoded = base64.b64encode(login.encode()).decode()
    return address, {"Proxy-Authorization": f"Basic {encoded}"}


POOL = 16
"""Connections per httpx2 client, which walks over all of them for every request. Measured with 500
in flight: 3.5 ms of CPU per request with one pool of 500, 1.0 with pools of 16."""


class _Httpx2Transport:
    def __init__(self, url: str, max_connections: int) -> None:
        try:
            import httpx2
        except ImportError:
            raise InvalidInput(
                "HTTP endpoints under trio need httpx2: pip install 'heldout[trio]'"
            ) from None
        self._httpx2: Any = httpx2
        self._url = url
        full, rest = divmod(max_connections, POOL)
        self._sizes = [POOL] * full + [rest] * (rest > 0)
        self._busy = [0] * len(self._sizes)
        # Certificates take 50 ms to load: once for all, and not for a plain connection.
        is_encrypted = url.startswith("https") or bool(urllib.request.getproxies())
        verify = httpx2.create_ssl_context() if is_encrypted else False
        self._clients: list[Any] = [
            httpx2.AsyncClient(
                limits=httpx2.Limits(max_connections=size, max_keepalive_connections=size),
                timeout=None,
                follow_redirects=False,
                verify=verify,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none are kept
            )
            for size in self._sizes
        ]

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Response:
        index = min(range(len(self._sizes)), key=lambda i: self._busy[i] / self._sizes[i])
        self._busy[index] += 1
        try:
            return await self._post(self._clients[index], body, headers)
        finally:
            self._busy[index] -= 1

    async def _post(self, client: Any, body: bytes, headers: Mapping[str, str]) -> Response:
        httpx2, url = self._httpx2, self._url
        # Nothing packed: an error in unpacking would leave generators open, as below.
        headers = {**headers, "accept-encoding": "identity"}
        chunks: list[bytes] = []
        size = 0
        try:
            async with client.stream("POST", url, content=body, headers=headers) as response:
                async for chunk in response.aiter_raw():
                    size += len(chunk)
                    if size <= MAX_BODY:
                        chunks.append(chunk)
                    else:
                        # Leaving the loop would leave generators below it open. Reading on from
                        # a closed response ends them, with an error.
                        await response.aclose()
                if size > MAX_BODY:
                    raise _too_large(url)
                return _make_response(response.status_code, response.headers, chunks)
        except httpx2.ConnectError as problem:
            raise Unreachable(f"nothing answers at {url}: {problem}") from None
        except httpx2.HTTPError as problem:
            if size > MAX_BODY:
                raise _too_large(url) from None
            raise TransientError(f"{url}: {type(problem).__name__}: {problem}") from None

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


Transport = _AiohttpTransport | _Httpx2Transport


def open_transport(url: str, max_connections: int) -> Transport:
    """Make the transport for the event loop that is running."""
    if sniffio.current_async_library() == "trio":
        return _Httpx2Transport(url, max_connections)
    return _AiohttpTransport(url, max_connections)
