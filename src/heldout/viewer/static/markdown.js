// Markdown as elements, never as HTML text: headings, lists, tables, code, emphasis. Images are not
// loaded; a link shows where it goes. Everything else stays the text it is.

import { html } from "./vendor/preact-htm.js";
import { visible } from "./text.js";

const LONGEST = 200_000;

/** @param {string} text */
export function Markdown({ text }) {
  if (text.length > LONGEST) return html`<pre class="said">${visible(text)}</pre>`;
  return html`<div class="markdown">${blocks(visible(text).split("\n"))}</div>`;
}

function blocks(lines) {
  const out = [];
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    const fence = /^\s*(`{3,}|~{3,})\s*([\w+-]*)/.exec(line);
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (fence) {
      const start = ++i;
      while (i < lines.length && !lines[i].trim().startsWith(fence[1])) i++;
      out.push(html`<pre><code>${lines.slice(start, i).join("\n")}</code></pre>`);
      i++;
    } else if (heading) {
      // Below the page's own headings.
      const level = Math.min(6, heading[1].length + 3);
      out.push(html`<${`h${level}`}>${inline(heading[2])}<//>`);
      i++;
    } else if (/^\s*([-*+]|\d+[.)])\s+/.test(line)) {
      const items = [];
      const ordered = /^\s*\d/.test(line);
      while (i < lines.length && /^\s*([-*+]|\d+[.)])\s+/.test(lines[i])) items.push(lines[i++].replace(/^\s*([-*+]|\d+[.)])\s+/, ""));
      out.push(html`<${ordered ? "ol" : "ul"}>${items.map((item) => html`<li>${inline(item)}</li>`)}<//>`);
    } else if (line.includes("|") && /^\s*\|?[\s:|-]+\|[\s:|-]*$/.test(lines[i + 1] || "")) {
      const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|");
      const head = cells(line);
      const rows = [];
      for (i += 2; i < lines.length && lines[i].includes("|"); i++) rows.push(cells(lines[i]));
      out.push(html`<table><thead><tr>${head.map((c) => html`<th>${inline(c.trim())}</th>`)}</tr></thead>
        <tbody>${rows.map((row) => html`<tr>${row.map((c) => html`<td>${inline(c.trim())}</td>`)}</tr>`)}</tbody></table>`);
    } else if (!line.trim()) {
      i++;
    } else {
      const start = i;
      while (i < lines.length && lines[i].trim() && !/^(\s*(`{3,}|~{3,})|#{1,6}\s|\s*([-*+]|\d+[.)])\s)/.test(lines[i])) i++;
      if (i === start) i++;
      out.push(html`<p>${inline(lines.slice(start, i).join("\n"))}</p>`);
    }
  }
  return out;
}

const INLINE = /(`+)([^`]+?)\1|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]\n]*)\]\((https?:\/\/[^\s)]+)\)/;

function inline(text) {
  const out = [];
  let rest = text;
  for (let match; (match = INLINE.exec(rest)); rest = rest.slice(match.index + match[0].length)) {
    out.push(rest.slice(0, match.index));
    if (match[2] !== undefined) out.push(html`<code>${match[2]}</code>`);
    else if (match[3] !== undefined) out.push(html`<strong>${match[3]}</strong>`);
    else if (match[4] !== undefined) out.push(html`<em>${match[4]}</em>`);
    else out.push(html`<a href=${match[6]} rel="noopener noreferrer" target="_blank">${match[5]} <span class="soft">(${match[6]})</span></a>`);
  }
  out.push(rest);
  return out;
}
