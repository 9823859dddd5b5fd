"""`heldout view`: look at runs, comparisons and live curves in a browser."""

from __future__ import annotations

import asyncio
import signal
import webbrowser
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from heldout._core.format import printable
from heldout._core.temporary import remove_abandoned
from heldout.errors import InvalidInput
from heldout.reporting.names import explain_empty
from heldout.store.jsonl import replace_file
from heldout.store.runs import find_run

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command("view")
@click.argument("runs", nargs=-1, metavar="[RUN…]")
@click.option("--port", type=click.IntRange(0, 65_535), default=8765, show_default=True,
              help="The port, or the first of twenty to try; 0 is any.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve on.")
@click.option("--allow-host", "allow_hosts", multiple=True, metavar="NAME",
              help="A name this machine is reached by; needed with --host.")  # fmt: skip
@click.option(
    "--no-token", is_flag=True, help="Serve everybody who can reach the port, without a token."
)
@click.option("--notes", is_flag=True, help="Let the page write notes, to notes.jsonl in the run.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option(
    "--export",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write one HTML file with these runs instead, which opens without a server.",
)
@click.option(
    "--samples",
    default="failures",
    show_default=True,
    metavar="all|failures|N",
    help="With --export: whose conversations are inside.",
)
@click.option(
    "--redact", multiple=True, metavar="KEY", help="With --export: leave out the values of a key."
)
@click.option("--with-secrets", is_flag=True, help="With --export: let texts like keys through.")
def command(
    runs: tuple[str, ...],
    port: int,
    host: str,
    allow_hosts: tuple[str, ...],
    no_token: bool,
    notes: bool,
    no_browser: bool,
    export: Path | None,
    samples: str,
    redact: tuple[str, ...],
    with_secrets: bool,
) -> None:
    """Show RUNs in a browser: run directories, or folders of them. Default: outputs/evals.

    Nothing leaves this machine, and nothing can be changed from the page but, with --notes, what
    reviewers say of samples: notes.jsonl in the run directory.
    """
    if export is not None:
        from heldout.viewer.export import export_runs

        page = export_runs(
            find_roots(runs), samples=samples, redact=redact, allow_secrets=with_secrets
        )
        replace_file(export, page)
        click.echo(printable(f"Wrote {export}, {len(page) / 1e6:.1f} MB."))
        return
    from heldout.viewer.pages import Pages, scan_runs
    from heldout.viewer.server import serve

    if host not in LOOPBACK and not allow_hosts:
        raise InvalidInput(
            f"--host {host} can be reached from other machines: say by which name with "
            "--allow-host NAME"
        )
    if notes and no_token:
        raise InvalidInput("--notes needs the token: without it everybody here could write notes")
    pages = Pages(find_roots(runs), takes_notes=notes)

    def show(address: str) -> None:
        click.echo(printable(f"Serving {', '.join(map(str, pages.roots))} at {address}"))
        if not scan_runs(pages.roots):
            click.echo(printable(explain_empty(*pages.roots)))
        click.echo("Ctrl-C ends it.")

    server = serve(
        pages,
        host=host,
        port=port,
        token=not no_token,
        allow_hosts=allow_hosts,
        on_ready=show,
        open_browser=None if no_browser else webbrowser.open,
    )
    remove_abandoned()  # of viewers that were killed
    try:
        ended_by = asyncio.run(_serve_until_signal(server))
    except KeyboardInterrupt:
        click.echo()
    else:
        raise click.exceptions.Exit(128 + ended_by)
    finally:
        pages.close()


async def _serve_until_signal(server: Coroutine[Any, Any, None]) -> int:
    """Serve until SIGTERM or SIGHUP, and return which it was.

    Either would end the process at once, and leave the temporary tables of unfinished runs.
    """
    loop = asyncio.get_running_loop()
    serving = loop.create_task(server)
    received: list[int] = []

    def end(number: int) -> None:
        loop.remove_signal_handler(number)  # a second one ends the process at once
        received.append(number)
        serving.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as by nohup
            loop.add_signal_handler(number, end, number)
    try:
        await serving
    except asyncio.CancelledError:
        if not received:
            raise
    return received[0]


def find_roots(runs: tuple[str, ...]) -> list[Path]:
    """Find the folders that arguments name, or outputs/evals where there are none."""
    if not runs:
        return [Path("outputs/evals")]
    return [path if (path := Path(run)).is_dir() else find_run(run) for run in runs]
