// The matrix: one tab stop, arrows, selection and its actions. The server replaces it as a whole; the selection is kept.
"use strict";
(() => {
  const act = document.getElementById("act"), peek = document.getElementById("peek");
  if (!act) return;
  const selected = new Set();
  let current = "";
  const cells = () => [...document.querySelectorAll("#matrix button.cell")];
  const cellOf = (event) => event.target.closest?.("#matrix button.cell");

  function count() {
    const ids = new Set(), states = new Set();
    for (const cell of cells()) if (selected.has(cell.id)) { states.add(cell.dataset.state); for (const id of cell.dataset.ids.split(" ")) ids.add(id); }
    document.getElementById("num-selected").textContent = ids.size;
    act.hidden = !selected.size;
    for (const element of act.querySelectorAll("[data-fits]")) element.hidden = !element.dataset.fits.split(" ").some((state) => states.has(state));
    const fields = [...ids].map((id) => Object.assign(document.createElement("input"), { type: "hidden", name: "experiment", value: id }));
    document.getElementById("chosen").replaceChildren(...fields);
  }

  // Restores what a swap has lost: pressed cells and the tab stop.
  function restore() {
    const all = cells(), ids = new Set(all.map((cell) => cell.id));
    for (const id of [...selected]) if (!ids.has(id)) selected.delete(id);
    if (!ids.has(current)) current = all[0]?.id || "";
    for (const cell of all) {
      cell.setAttribute("aria-pressed", selected.has(cell.id));
      cell.tabIndex = cell.id === current ? 0 : -1;
    }
    count();
  }

  function toggle(cell) {
    if (!selected.delete(cell.id)) selected.add(cell.id);
    cell.setAttribute("aria-pressed", selected.has(cell.id));
    count();
  }

  // The page of a run that has begun; others have none, and are selected.
  function open(cell) {
    if (cell.dataset.page) location.assign(cell.dataset.page); else toggle(cell);
  }

  function act_on(cell, action) {
    if (!selected.size) toggle(cell);
    const button = act.querySelector(`button[value="${action}"]`);
    if (!button.hidden) button.click();
  }

  function move(cell, key) {
    const row = cell.closest("tr"), rows = [...document.querySelectorAll("#matrix tr")].filter((other) => other.querySelector("button.cell"));
    const column = cell.closest("td").cellIndex, across = { ArrowLeft: -1, ArrowRight: 1 }[key], down = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (across) { const inRow = [...row.querySelectorAll("button.cell")]; inRow[inRow.indexOf(cell) + across]?.focus(); return; }
    let place = rows.indexOf(row);
    do place += down; while (rows[place] && !rows[place].cells[column]?.querySelector("button.cell"));
    rows[place]?.cells[column].querySelector("button.cell").focus();
  }

  document.addEventListener("keydown", (event) => {
    const cell = cellOf(event);
    if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { " ": () => toggle(cell), Enter: () => open(cell), r: () => act_on(cell, "retry"), c: () => act_on(cell, "cancel") };
    for (const key of ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"]) keys[key] = () => move(cell, key);
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  document.addEventListener("focusin", (event) => {
    const cell = cellOf(event);
    if (!cell) return;
    if (cell.id !== current) { const before = document.getElementById(current); if (before) before.tabIndex = -1; }
    current = cell.id;
    cell.tabIndex = 0;
    peek.textContent = cell.getAttribute("aria-label");
  });
  document.addEventListener("mouseover", (event) => {
    const cell = cellOf(event);
    if (cell) peek.textContent = cell.getAttribute("aria-label");
  });
  document.addEventListener("click", (event) => {
    const cell = cellOf(event), pick = event.target.closest("button.pick");
    if (cell && (event.ctrlKey || event.metaKey || event.shiftKey)) toggle(cell);
    else if (cell) open(cell);
    if (!pick) return;
    selected.clear();
    for (const other of cells()) if (pick.dataset.pick === "all" || other.dataset.state === pick.dataset.pick) selected.add(other.id);
    restore();
  });
  document.body.addEventListener("htmx:afterSettle", restore);
  restore();
})();
