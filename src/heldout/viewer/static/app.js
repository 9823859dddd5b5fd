// The frame of all pages: which one is shown, the theme, the keys that work everywhere.

import { stored, takeToken } from "./api.js";
import { Compare } from "./compare.js";
import { Curve } from "./curve.js";
import { Curves } from "./curves.js";
import { isExport, readAnswers } from "./exported.js";
import { History } from "./history.js";
import { useKeys } from "./hooks.js";
import * as keys from "./keys.js";
import { Refusals } from "./note.js";
import { Pair } from "./pair.js";
import { go, here, link, onChange } from "./route.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { Sample } from "./sample.js";
import { Samples } from "./samples.js";
import { Several } from "./several.js";
import { visible } from "./text.js";
import { Component, html, render } from "./vendor/preact-htm.js";

const THEME = "heldout-theme";
const HELP = [
  ["?", "this help"],
  ["/", "filter"],
  ["j k ↑ ↓ PgUp PgDn Home End", "move"],
  ["Enter", "open"],
  ["Esc", "back"],
  ["g r", "all runs"],
  ["x, c", "mark a run; compare those marked"],
  ["f", "failures"],
  ["r", "remark on a sample, with --notes"],
  ["n p", "next and previous sample, or flip"],
  ["[ ]", "previous and next attempt, or step"],
  ["← →", "move the crosshair of a curve"],
  ["m e s d", "Markdown; reasoning; JSON; difference"],
  ["w", "swap A and B"],
  ["t", "light or dark"],
  ["y", "copy the link"],
];

/** What a tab is called: the run and what is shown of it, the most telling first. */
function title({ path, params }) {
  const [first, name, second] = path;
  const shown = {
    run: [params.get("id"), second === "samples" && "samples", name],
    compare: [params.get("id"), name && `${name} and ${second}`],
    curve: [params.get("id"), name],
  }[first];
  return visible([...(shown || ["runs"]).filter(Boolean), "heldout"].join(" · "));
}

function page({ path, params }) {
  const [first, name, second, third] = path;
  const key = path.join("/");
  if (first === "run" && name) {
    const shown = { samples: Samples, sample: Sample }[second] || Run;
    return html`<${shown} key=${key} name=${name} params=${params} />`;
  }
  if (first === "compare" && name && second) {
    const shown = third === "sample" ? Pair : Compare;
    return html`<${shown} key=${key} a=${name} b=${second} params=${params} />`;
  }
  if (first === "curve" && name) {
    const shown = second === "sample" ? History : Curve;
    return html`<${shown} key=${key} name=${name} params=${params} />`;
  }
  if (first === "several") return html`<${Several} key=${key} params=${params} />`;
  if (first === "curves") return html`<${Curves} key=${key} params=${params} />`;
  return html`<${Runs} key="runs" params=${params} />`;
}

function Help({ onClose }) {
  useKeys({ Escape: onClose });
  return html`<section class="help" aria-label="keys">
    <dl>${HELP.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <label><input type="checkbox" checked=${!keys.isOff()}
      onChange=${(event) => keys.turn(event.target.checked)} /> keys are on</label></section>`;
}

class App extends Component {
  state = { route: here(), help: false, copied: false };

  componentDidMount() {
    this.componentDidUpdate();
    onChange(() => this.setState({ route: here() }));
    addEventListener("resize", () => this.forceUpdate());
  }

  /** Before the page is mounted: its own keys come on top. */
  componentWillMount() {
    const current = {
      "?": this.turnHelp,
      "g r": () => go(["runs"]),
      "/": () => document.querySelector("[data-filter]")?.focus(),
      Escape: () => document.activeElement?.blur(),
      t: this.turnTheme,
      y: this.copy,
    };
    keys.use({ current });
  }

  turnHelp = () => this.setState({ help: !this.state.help });

  turnTheme = () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    stored.set(THEME, next);
  };

  copy = async () => {
    await navigator.clipboard.writeText(location.href);
    this.setState({ copied: true });
    setTimeout(() => this.setState({ copied: false }), 1500);
  };

  skip = (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  };

  componentDidUpdate() {
    document.title = title(this.state.route);
  }

  render(_, { route, help, copied }) {
    const made = isExport() && document.querySelector("meta[name=made]")?.content;
    return html`
      <a class="skip" href="#main" onClick=${this.skip}>to the content</a>
      <header class="top"><a class="brand" href=${link(["runs"])}>heldout</a>
        <span class="space"></span>
        ${copied ? html`<span role="status">copied</span>` : null}
        <button class="plain" onClick=${this.turnTheme} aria-label="light or dark">◐</button>
        <button class="plain" onClick=${this.turnHelp} aria-label="keys" aria-expanded=${help}>?</button>
      </header>
      ${help ? html`<${Help} onClose=${this.turnHelp} />` : null}
      <main id="main" tabindex="-1"><${Refusals} />${page(route)}</main>
      ${made ? html`<footer class="soft">${made}</footer>` : null}`;
  }
}

async function start() {
  const theme = stored.get(THEME);
  if (theme) document.documentElement.dataset.theme = theme;
  await takeToken();
  const data = document.getElementById("data");
  if (data) await readAnswers(data);
  render(html`<${App} />`, document.getElementById("app"));
}

start();
