// Keyboard shortcuts of the samples page, each clicks a link; and formulas, drawn by KaTeX as MathML (no inline style).
"use strict";
const LINKS = { j: "next", ArrowRight: "next", k: "previous", ArrowLeft: "previous", n: "step-after", p: "step-before" };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]), select, textarea")) return;
  const link = document.getElementById(LINKS[event.key]);
  if (link) { event.preventDefault(); link.click(); }
});

const FORMULA = /\$\$[^$]+\$\$|\\\[[^]*?\\\]|\\\([^]*?\\\)|\$[^$\n]+\$|\\boxed\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}/g;
const inner = (text) => text.replace(/^(\$\$?|\\\(|\\\[)/, "").replace(/(\$\$?|\\\)|\\\])$/, "");

function formulaElement(text) {
  const span = document.createElement("span");
  try {
    katex.render(inner(text), span, { output: "mathml", throwOnError: true, strict: "ignore", maxExpand: 200, displayMode: /^(\$\$|\\\[)/.test(text) });
  } catch (error) {
    if (!(error instanceof katex.ParseError)) throw error;
    span.textContent = text;  // not a formula that KaTeX knows: shown as it was written
  }
  span.title = text;
  if (text.startsWith("\\boxed")) span.className = "boxed";  // MathML has no box
  return span;
}

function formulas(root) {
  const isOn = document.getElementById("formulas").checked;
  for (const element of root.querySelectorAll(".math")) {
    element.dataset.text ??= element.textContent;
    const text = element.dataset.text;
    element.textContent = text;
    if (!isOn || !text.match(FORMULA)) continue;
    const parts = [];
    let last = 0;
    for (const match of text.matchAll(FORMULA)) {
      parts.push(text.slice(last, match.index), formulaElement(match[0]));
      last = match.index + match[0].length;
    }
    element.replaceChildren(...parts, text.slice(last));
  }
}
document.getElementById("formulas").addEventListener("change", () => formulas(document));
document.addEventListener("htmx:load", (event) => formulas(event.detail.elt));
formulas(document);
