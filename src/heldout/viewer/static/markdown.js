// Markdown as elements, never as HTML text: `marked` reads it, and its tokens become elements here.
// HTML in it is shown as text, images are not loaded, a link shows where it goes and goes to the web
// or nowhere.

import * as math from "./math.js";
import { visible } from "./text.js";
import { Lexer } from "./vendor/marked.js";

/** Makes elements: the page's own, since this module may be a script beside that of the page. */
let html;
export function setElements(make) {
  html = make;
}

const LONGEST = 100_000;
const LONGEST_CODE = 20_000;
/** Languages whose comments begin with #. */
const HASHED = /^(py|sh|bash|zsh|shell|rb|ruby|r$|ya?ml|toml|make|perl|julia|elixir)/i;
const WORDS =
  "and as async await break case class const continue def del elif else enum except extends false False " +
  "finally fn for from func function if impl import in is lambda let match mut new None not null or pass " +
  "pub raise return self static struct switch this throw true True try type use var void while with yield";
/** What most languages write alike. */
const codePattern = (comment) =>
  new RegExp(
    [
      `(?<comment>${comment})`,
      String.raw`(?<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\x60(?:[^\x60\\]|\\.)*\x60)`,
      String.raw`(?<number>\b\d[\w.]*)`,
      String.raw`(?<keyword>\b(?:${WORDS.replaceAll(" ", "|")})\b)`,
    ].join("|"),
    "g",
  );
const [HASH, SLASH] = ["#.*", String.raw`\/\/.*|\/\*[^]*?\*\/`].map(codePattern);
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };

const DISPLAY = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])/;
/** Not a price: no space inside the signs, and no digit after the second. */
const INLINE = /^(?:\\\(([\s\S]+?)\\\)|\$(?!\s)((?:[^$\\\n]|\\[\s\S])+?)(?<!\s)\$(?!\d))/;
const HAS_MATH = /\$|\\[([]/;

/** A formula as a token of `marked`, at the start of what is left. */
function formula(source) {
  const display = DISPLAY.exec(source);
  const match = display || INLINE.exec(source);
  if (!match) return undefined;
  return { type: "math", raw: match[0], tex: match[1] ?? match[2], isDisplay: Boolean(display) };
}
const EXTENSIONS = {
  inline: [formula],
  startInline: [(source) => source.search(HAS_MATH)],
  renderers: {},
  childTokens: {},
};

/**
 * @param {{text: string, extracted?: string | null}} props what the grader extracted is marked where
 *   the rendered text has it last
 */
export function Markdown({ text, extracted = null }) {
  const raw = html`<pre class="said">${visible(text)}</pre>`;
  if (text.length > LONGEST) return raw;
  let tokens;
  let plain;
  try {
    tokens = new Lexer({ gfm: true, extensions: EXTENSIONS }).lex(visible(text));
    plain = new Rendering(null);
    plain.blocks(tokens);
  } catch {
    return raw; // nested deeper than a page can be
  }
  const wanted = extracted === null ? "" : visible(extracted);
  const start = wanted ? plain.text.lastIndexOf(wanted) : -1;
  const rendering = new Rendering(start < 0 ? null : [start, start + wanted.length]);
  const isLost = wanted && start < 0;
  return html`<div class="markdown">${rendering.blocks(tokens)}</div>
    ${isLost ? html`<p class="soft">what the grader extracted: <mark>${wanted}</mark></p>` : null}`;
}

/** One walk over the tokens; text between two offsets of what was rendered is marked. */
class Rendering {
  text = "";

  /** @param {[number, number] | null} mark */
  constructor(mark) {
    this.mark = mark;
  }

  blocks(tokens) {
    return tokens.map((token) => this.block(token));
  }

  block(token) {
    switch (token.type) {
      case "space":
      case "def":
        return null;
      case "hr":
        return html`<hr />`;
      case "code":
        return html`<pre tabindex="0"><code>${this.code(token)}</code></pre>`;
      case "heading": // below the page's own headings
        return html`<${`h${Math.min(6, token.depth + 3)}`}>${this.inlines(token)}<//>`;
      case "blockquote":
        return html`<blockquote>${this.blocks(token.tokens)}</blockquote>`;
      case "list":
        return this.list(token);
      case "table":
        return this.table(token);
      case "paragraph":
        return html`<p>${this.inlines(token)}</p>`;
      case "text": // of an item of a tight list
        return this.inlines(token);
      default:
        return this.inline(token);
    }
  }

  /** Code with its comments, strings, numbers and keywords told apart. */
  code({ text, lang }) {
    if (!lang || text.length > LONGEST_CODE) return this.leaf(text);
    const pieces = [];
    let end = 0;
    for (const match of text.matchAll(HASHED.test(lang) ? HASH : SLASH)) {
      const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
      pieces.push(this.leaf(text.slice(end, match.index)));
      pieces.push(html`<span class="code-${kind}">${this.leaf(match[0])}</span>`);
      end = match.index + match[0].length;
    }
    return [...pieces, this.leaf(text.slice(end))];
  }

  list({ ordered, start, items }) {
    const rows = items.map((item) => html`<li>${this.blocks(item.tokens)}</li>`);
    return ordered ? html`<ol start=${start}>${rows}</ol>` : html`<ul>${rows}</ul>`;
  }

  table({ header, rows }) {
    const cells = (row, tag) =>
      row.map((cell) => html`<${tag} class=${cell.align || ""}>${this.inlines(cell)}<//>`);
    return html`<div class="scroll" tabindex="0" role="group" aria-label="table"><table>
      <thead><tr>${cells(header, "th")}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${cells(row, "td")}</tr>`)}</tbody>
    </table></div>`;
  }

  inlines(token) {
    return token.tokens ? token.tokens.map((part) => this.inline(part)) : this.leaf(token.text);
  }

  inline(token) {
    switch (token.type) {
      case "strong":
        return html`<strong>${this.inlines(token)}</strong>`;
      case "em":
        return html`<em>${this.inlines(token)}</em>`;
      case "del":
        return html`<s>${this.inlines(token)}</s>`;
      case "codespan":
        return html`<code>${this.leaf(token.text)}</code>`;
      case "br":
        return html`<br />`;
      case "checkbox":
        return this.leaf(token.checked ? "☑ " : "☐ ");
      case "image":
        return html`<span class="soft">image: ${this.leaf(token.text)} (${token.href})</span>`;
      case "link":
        return this.link(token);
      case "math":
        return this.formula(token);
      case "text":
      case "escape":
        return token.tokens ? this.inlines(token) : this.leaf(decode(token.text));
      default: // HTML, which stays the text it is
        return this.leaf(token.raw);
    }
  }

  link(token) {
    const isWeb = /^https?:\/\//i.test(token.href);
    const target = token.autolink ? null : html` <span class="soft">(${token.href})</span>`;
    const content = html`${this.inlines(token)}${target}`;
    return isWeb
      ? html`<a href=${token.href} rel="noopener noreferrer" target="_blank">${content}</a>`
      : html`<span>${content}</span>`;
  }

  /** A formula; as it is written where it cannot be read, or has what is marked in it. */
  formula({ raw, tex, isDisplay }) {
    const written = this.leaf(raw);
    if (written !== raw) return written;
    try {
      const tree = math.parse(tex, isDisplay);
      return html`<span class="math" title=${raw} key=${raw}
        ref=${(element) => element?.replaceChildren(math.build(tree))}></span>`;
    } catch {
      return raw;
    }
  }

  leaf(text) {
    const start = this.text.length;
    this.text += text;
    if (!this.mark) return text;
    const [from, to] = this.mark.map((at) => Math.max(0, Math.min(at - start, text.length)));
    if (from >= to) return text;
    const marked = html`<mark title="what the grader extracted">${text.slice(from, to)}</mark>`;
    return html`${text.slice(0, from)}${marked}${text.slice(to)}`;
  }
}

const decode = (text) =>
  text.replace(/&(#?\w+);/g, (whole, name) => (Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : whole));
