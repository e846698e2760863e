// The table of runs: keep the selection and the columns when the table is replaced, and mark rows that changed.
"use strict";
const boxes = () => [...document.querySelectorAll('#table input[name="experiment"]')];
const count = () => { document.getElementById("num-selected").textContent = boxes().filter((box) => box.checked).length; };
let kept = new Set();
let texts = new Map();
const rows = () => [...document.querySelectorAll("#table tbody tr")];

document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.id !== "table") return;
  kept = new Set(boxes().filter((box) => box.checked).map((box) => box.value));
  texts = new Map(rows().map((row) => [row.id, row.textContent]));
});
document.body.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.id !== "table" && event.detail.target?.id !== "table") return;
  for (const box of boxes()) box.checked = kept.has(box.value);
  for (const row of rows()) row.classList.toggle("changed", texts.has(row.id) && texts.get(row.id) !== row.textContent);
  const address = new URLSearchParams(location.search), form = document.getElementById("query");
  if (address.get("columns")) form.elements.columns.value = address.get("columns");
  form.elements.add.value = "";
  count();
});
document.addEventListener("change", (event) => { if (event.target.name === "experiment") count(); });
document.getElementById("pick-all").addEventListener("click", () => {
  const isAll = boxes().every((box) => box.checked);
  for (const box of boxes()) box.checked = !isAll;
  count();
});
