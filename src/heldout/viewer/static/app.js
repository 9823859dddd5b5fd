// The frame of all pages: which one is shown, the theme, the keys that work everywhere.

import { Component, html, render } from "./vendor/preact-htm.js";
import { embed, isExport, stored, takeToken } from "./api.js";
import { Compare } from "./compare.js";
import { Curve, History } from "./curve.js";
import * as keys from "./keys.js";
import { go, here, link, onChange } from "./route.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { Pair, Sample } from "./sample.js";
import { Samples } from "./samples.js";

const THEME = "heldout-theme";
const HELP = [
  ["?", "this help"],
  ["/", "filter"],
  ["j k ↑ ↓ PgUp PgDn Home End", "move"],
  ["Enter", "open"],
  ["Esc", "back"],
  ["g r", "all runs"],
  ["x, c", "mark a run; compare the two marked"],
  ["f", "failures"],
  ["n p", "next and previous sample"],
  ["[ ]", "previous and next attempt, or step"],
  ["m e s d", "Markdown; reasoning; JSON; difference"],
  ["w", "swap A and B"],
  ["t", "light or dark"],
  ["y", "copy the link"],
];

function page({ path, params }) {
  const [first, name, second, third] = path;
  const key = path.join("/");
  if (first === "run" && name && second === "samples") return html`<${Samples} key=${key} name=${name} params=${params} />`;
  if (first === "run" && name && second === "sample") return html`<${Sample} key=${key} name=${name} params=${params} />`;
  if (first === "run" && name) return html`<${Run} key=${key} name=${name} params=${params} />`;
  if (first === "compare" && name && second && third === "sample") return html`<${Pair} key=${key} a=${name} b=${second} params=${params} />`;
  if (first === "compare" && name && second) return html`<${Compare} key=${key} a=${name} b=${second} params=${params} />`;
  if (first === "curve" && name && second === "sample") return html`<${History} key=${key} name=${name} params=${params} />`;
  if (first === "curve" && name) return html`<${Curve} key=${key} name=${name} params=${params} />`;
  return html`<${Runs} key="runs" params=${params} />`;
}

class App extends Component {
  state = { route: here(), help: false, copied: false };

  componentDidMount() {
    onChange(() => this.setState({ route: here() }));
    addEventListener("resize", () => this.forceUpdate());
  }

  /** Before the page is mounted: its own keys come on top. */
  componentWillMount() {
    keys.use({
      "?": () => this.setState({ help: !this.state.help }),
      "g r": () => go(["runs"]),
      "/": () => document.querySelector("[data-filter]")?.focus(),
      Escape: () => (this.state.help ? this.setState({ help: false }) : document.activeElement?.blur()),
      t: () => this.theme(),
      y: () => this.copy(),
    });
  }

  theme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    stored.set(THEME, next);
  }

  async copy() {
    await navigator.clipboard.writeText(location.href);
    this.setState({ copied: true });
    setTimeout(() => this.setState({ copied: false }), 1500);
  }

  render(_, { route, help, copied }) {
    return html`
      <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>to the content</a>
      <header class="top"><a class="brand" href=${link(["runs"])}>heldout</a>
        <span class="space"></span>
        ${copied ? html`<span role="status">copied</span>` : null}
        <button class="plain" onClick=${() => this.theme()} aria-label="light or dark">◐</button>
        <button class="plain" onClick=${() => this.setState({ help: !help })} aria-label="keys" aria-expanded=${help}>?</button>
      </header>
      ${help
        ? html`<section class="help" aria-label="keys"><dl>${HELP.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
            <label><input type="checkbox" checked=${!keys.isOff()} onChange=${(event) => keys.turn(event.target.checked)} /> keys are on</label></section>`
        : null}
      <main id="main" tabindex="-1">${page(route)}</main>
      ${isExport() ? html`<footer class="soft">${document.querySelector("meta[name=made]")?.content}</footer>` : null}`;
  }
}

/** The answers inside an exported file: base64 of gzip of JSON. */
async function readEmbedded(element) {
  const bytes = Uint8Array.from(atob(element.textContent.trim()), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  embed(JSON.parse(await new Response(stream).text()));
}

const theme = stored.get(THEME);
if (theme) document.documentElement.dataset.theme = theme;
await takeToken();
const data = document.getElementById("data");
if (data) await readEmbedded(data);
render(html`<${App} />`, document.getElementById("app"));
