// Mathematics: a part of TeX as MathML elements. Loaded when a text has any. A command that is not known
// stays the text it is, and so does a formula that cannot be read.

const NAMESPACE = "http://www.w3.org/1998/Math/MathML";
const LONGEST = 5_000;
const DEEPEST = 40;

const GREEK =
  "alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ iota ι kappa κ lambda λ " +
  "mu μ nu ν xi ξ pi π rho ρ sigma σ tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ " +
  "Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Phi Φ Psi Ψ Omega Ω infty ∞ partial ∂ nabla ∇ emptyset ∅ ell ℓ " +
  "hbar ℏ ldots … cdots ⋯ dots … vdots ⋮ ddots ⋱ Re ℜ Im ℑ angle ∠ triangle △ degree °";
const OPERATORS =
  "times × cdot · div ÷ pm ± mp ∓ le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ approx ≈ equiv ≡ sim ∼ cong ≅ propto ∝ " +
  "to → rightarrow → Rightarrow ⇒ leftarrow ← Leftarrow ⇐ leftrightarrow ↔ Leftrightarrow ⇔ implies ⟹ " +
  "iff ⟺ mapsto ↦ in ∈ notin ∉ subset ⊂ subseteq ⊆ supset ⊃ cup ∪ cap ∩ setminus ∖ land ∧ wedge ∧ lor ∨ " +
  "vee ∨ neg ¬ forall ∀ exists ∃ mid ∣ parallel ∥ perp ⊥ circ ∘ ast ∗ oplus ⊕ otimes ⊗ ll ≪ gg ≫ star ⋆ " +
  "langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lbrace { rbrace } vert | Vert ‖ colon : backslash \\";
const LARGE = "sum ∑ prod ∏ int ∫ iint ∬ oint ∮ bigcup ⋃ bigcap ⋂";
const FUNCTIONS =
  "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker gcd";
const LIMITS = "lim max min sup inf limsup liminf arg Pr";
const SPACES = {
  ",": "0.17em",
  ":": "0.22em",
  ";": "0.28em",
  "!": "0",
  " ": "0.25em",
  quad: "1em",
  qquad: "2em",
};
const ACCENTS = {
  hat: "^",
  widehat: "^",
  bar: "¯",
  overline: "¯",
  vec: "→",
  dot: "˙",
  ddot: "¨",
  tilde: "~",
};
const BLACKBOARD = { R: "ℝ", N: "ℕ", Z: "ℤ", Q: "ℚ", C: "ℂ", P: "ℙ", E: "𝔼", H: "ℍ" };
const FENCES = { pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", cases: "{" };

const table = (text) => {
  const words = text.split(" ");
  return new Map(words.flatMap((word, i) => (i % 2 ? [] : [[word, words[i + 1]]])));
};
const [greek, operators, large] = [GREEK, OPERATORS, LARGE].map(table);
const [functions, limits] = [FUNCTIONS, LIMITS].map((text) => new Set(text.split(" ")));

/** @typedef {[string, Record<string, string>, ...(string | Tree)[]]} Tree tag, attributes, children */

class Parser {
  constructor(tex) {
    this.tokens = tex.match(/\\[a-zA-Z]+|\\[\s\S]|\d+(?:\.\d+)?|\s+|[\s\S]/gu) || [];
    this.at = 0;
    this.depth = 0;
  }

  peek() {
    while (/^\s+$/.test(this.tokens[this.at] ?? "")) this.at++;
    return this.tokens[this.at];
  }

  next() {
    const token = this.peek();
    if (token === undefined) throw new Error("the formula ends too early");
    this.at++;
    return token;
  }

  /** Atoms up to a token that ends them. */
  row(...ends) {
    if (++this.depth > DEEPEST) throw new Error("too deep");
    const atoms = [];
    while (this.peek() !== undefined && !ends.includes(this.peek())) atoms.push(this.scripted());
    this.depth--;
    return atoms;
  }

  group() {
    if (this.peek() !== "{") return this.atom();
    this.next();
    const atoms = this.row("}");
    this.next();
    return atoms.length === 1 ? atoms[0] : ["mrow", {}, ...atoms];
  }

  /** A group as it is written. */
  words() {
    if (this.next() !== "{") return this.tokens[this.at - 1];
    let text = "";
    for (let open = 1; open; ) {
      const token = this.tokens[this.at++];
      if (token === undefined) throw new Error("a text is not closed");
      open += (token === "{") - (token === "}");
      if (open) text += token;
    }
    return text;
  }

  scripted() {
    const base = this.atom();
    let [sub, sup] = [null, null];
    for (;;) {
      const token = this.peek();
      if (!((token === "_" && !sub) || ((token === "^" || token === "'") && !sup))) break;
      this.next();
      if (token === "_") sub = this.group();
      else sup = token === "^" ? this.group() : ["mo", {}, "′"];
    }
    const [under, over, both] = base.limits
      ? ["munder", "mover", "munderover"]
      : ["msub", "msup", "msubsup"];
    if (sub && sup) return [both, {}, base, sub, sup];
    if (sub) return [under, {}, base, sub];
    return sup ? [over, {}, base, sup] : base;
  }

  atom() {
    const token = this.next();
    if (token === "{") {
      this.at--;
      return this.group();
    }
    if (token.startsWith("\\")) return this.command(token.slice(1));
    if (/^\d/.test(token)) return ["mn", {}, token];
    if (/^\p{L}$/u.test(token)) return ["mi", {}, token];
    if (token === "~") return ["mspace", { width: SPACES[" "] }];
    if ("^_}&".includes(token)) throw new Error(`${token} is out of place`);
    return ["mo", {}, token === "-" ? "−" : token];
  }

  command(name) {
    if (greek.has(name)) return ["mi", {}, greek.get(name)];
    if (operators.has(name)) return ["mo", {}, operators.get(name)];
    if (large.has(name)) return withLimits(["mo", {}, large.get(name)], !name.includes("int"));
    if (functions.has(name)) return ["mi", {}, name];
    if (limits.has(name)) return withLimits(["mi", {}, name], true);
    if (Object.hasOwn(SPACES, name)) return ["mspace", { width: SPACES[name] }];
    if (Object.hasOwn(ACCENTS, name))
      return ["mover", { accent: "true" }, this.group(), ["mo", {}, ACCENTS[name]]];
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
        return ["mfrac", {}, this.group(), this.group()];
      case "binom":
        return fenced("(", ["mfrac", { linethickness: "0" }, this.group(), this.group()], ")");
      case "sqrt": {
        if (this.peek() !== "[") return ["msqrt", {}, this.group()];
        this.next();
        const index = ["mrow", {}, ...this.row("]")];
        this.next();
        return ["mroot", {}, this.group(), index];
      }
      case "text":
      case "textbf":
      case "textit":
      case "mathrm":
      case "operatorname":
        return ["mtext", {}, this.words()];
      case "mathbb":
        return ["mi", {}, [...this.words()].map((letter) => BLACKBOARD[letter] || letter).join("")];
      case "mathbf":
      case "mathcal":
      case "boldsymbol":
      case "displaystyle":
      case "big":
      case "Big":
        return name.startsWith("math") || name === "boldsymbol" ? this.group() : ["mrow", {}];
      case "boxed":
        return ["mrow", { class: "boxed" }, this.group()];
      case "left": {
        const open = this.delimiter();
        const inside = ["mrow", {}, ...this.row("\\right")];
        this.next();
        return fenced(open, inside, this.delimiter());
      }
      case "begin":
        return this.environment(this.words());
    }
    return /^[a-zA-Z]/.test(name) ? ["mtext", {}, `\\${name}`] : ["mo", {}, name];
  }

  delimiter() {
    const token = this.next();
    return token === "." ? "" : (operators.get(token.slice(1)) ?? token.replace("\\", ""));
  }

  environment(name) {
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(["mtd", {}, ...this.row("&", "\\\\", "\\end")]);
      const token = this.next();
      if (token === "\\\\") rows.push([]);
      else if (token === "\\end") break;
    }
    if (this.words() !== name) throw new Error(`${name} is not ended`);
    const grid = ["mtable", {}, ...rows.map((cells) => ["mtr", {}, ...cells])];
    const [open, close] = FENCES[name] || "";
    return open ? fenced(open, grid, close || "") : grid;
  }
}

const withLimits = (node, limits) => Object.assign(node, { limits });
const fence = (text) => (text ? [["mo", { stretchy: "true" }, text]] : []);
const fenced = (open, inside, close) => ["mrow", {}, ...fence(open), inside, ...fence(close)];

/**
 * A formula as a tree; throws where it cannot be read.
 * @returns {Tree}
 */
export function parse(tex, isDisplay = false) {
  if (tex.length > LONGEST) throw new Error("too long");
  const parser = new Parser(tex);
  const atoms = parser.row();
  return ["math", { display: isDisplay ? "block" : "inline" }, ["mrow", {}, ...atoms]];
}

/** The elements of a tree: their names are those above, never what a text says. */
export function build([tag, attributes, ...children]) {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map((child) => (typeof child === "string" ? child : build(child))));
  return element;
}
