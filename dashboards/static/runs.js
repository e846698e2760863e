// The table of runs: keep the selection and the columns when the table is replaced, and mark rows that changed.
"use strict";
const boxes = () => [...document.querySelectorAll('#table input[name="experiment"]')];
const count = () => { document.getElementById("num-selected").textContent = boxes().filter((box) => box.checked).length; };
let selectedIds = new Set();
let texts = new Map();
const rows = () => [...document.querySelectorAll("#table tbody tr")];

document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.id !== "table") return;
  selectedIds = new Set(boxes().filter((box) => box.checked).map((box) => box.value));
  texts = new Map(rows().map((row) => [row.id, row.textContent]));
});
document.body.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.id !== "table" && event.detail.target?.id !== "table") return;
  for (const box of boxes()) box.checked = selectedIds.has(box.value);
  for (const row of rows()) row.classList.toggle("changed", texts.has(row.id) && texts.get(row.id) !== row.textContent);
  count();
});
// An added column moves from its field to the columns, unless another one is being typed by then.
document.body.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.elt.id !== "query" || !event.detail.successful) return;
  const { add, columns } = event.target.elements, added = event.detail.requestConfig.formData.get("add");
  if (!added) return;
  columns.value = `${columns.value},${added}`;
  if (add.value === added) add.value = "";
});
document.addEventListener("change", (event) => { if (event.target.name === "experiment") count(); });
document.getElementById("pick-all").addEventListener("click", () => {
  const isAll = boxes().every((box) => box.checked);
  for (const box of boxes()) box.checked = !isAll;
  count();
});
