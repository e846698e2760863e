// The matrix: one tab stop, arrows, selection and its actions, a drawer. The server replaces cells; the rest is kept.
"use strict";
(() => {
  const table = document.getElementById("matrix");
  if (!table) return;
  const drawer = document.getElementById("drawer"), act = document.getElementById("act"), peek = document.getElementById("peek");
  const selected = new Set(), opened = new Set();
  let current = "";
  const cells = () => [...table.querySelectorAll("button.cell")];
  const isShown = (cell) => !cell.closest("tr").hidden;
  const chosen = () => cells().filter((cell) => selected.has(cell.id));

  function count() {
    const ids = new Set(), states = new Set();
    for (const cell of chosen()) { states.add(cell.dataset.state); for (const id of cell.dataset.ids.split(" ")) ids.add(id); }
    document.getElementById("num-selected").textContent = ids.size;
    act.hidden = !selected.size;
    for (const element of act.querySelectorAll("[data-fits]")) element.hidden = !element.dataset.fits.split(" ").some((state) => states.has(state));
    const fields = [...ids].map((id) => Object.assign(document.createElement("input"), { type: "hidden", name: "experiment", value: id }));
    document.getElementById("chosen").replaceChildren(...fields);
  }

  // Restores what a swap has lost: pressed cells, the tab stop, opened methods.
  function restore() {
    for (const id of [...selected]) if (!document.getElementById(id)) selected.delete(id);
    const all = cells();
    if (!all.some((cell) => cell.id === current)) current = all.find(isShown)?.id || "";
    for (const cell of all) {
      cell.setAttribute("aria-pressed", selected.has(cell.id));
      cell.tabIndex = cell.id === current ? 0 : -1;
    }
    for (const button of table.querySelectorAll("button.open")) show(button, opened.has(button.id));
    count();
  }

  function show(button, isOpen) {
    button.setAttribute("aria-expanded", isOpen);
    button.textContent = isOpen ? "▾" : "▸";
    for (let row = button.closest("tr").nextElementSibling; row?.classList.contains("part"); row = row.nextElementSibling) row.hidden = !isOpen;
  }

  function toggle(cell) {
    if (!selected.delete(cell.id)) selected.add(cell.id);
    cell.setAttribute("aria-pressed", selected.has(cell.id));
    count();
  }

  function open(cell) {
    const ids = cell.dataset.ids.split(" ").map((id) => `experiment=${encodeURIComponent(id)}`).join("&");
    htmx.ajax("GET", `/drawer?${ids}`, { target: "#drawer-body" }).then(() => { if (!drawer.open) drawer.showModal(); });
  }

  function act_on(cell, action) {
    if (!selected.size) toggle(cell);
    const button = act.querySelector(`button[value="${action}"]`);
    if (!button.hidden) button.click();
  }

  function move(cell, key) {
    const rows = [...table.querySelectorAll("tr")].filter((row) => !row.hidden && row.querySelector("button.cell"));
    const row = cell.closest("tr"), column = cell.closest("td").cellIndex;
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const rowCells = [...row.querySelectorAll("button.cell")], next = rowCells[rowCells.indexOf(cell) + (key === "ArrowRight" ? 1 : -1)];
      next?.focus();
      return;
    }
    let place = rows.indexOf(row);
    do place += key === "ArrowDown" ? 1 : -1; while (rows[place] && !rows[place].cells[column]?.querySelector("button.cell"));
    rows[place]?.cells[column].querySelector("button.cell").focus();
  }

  table.addEventListener("keydown", (event) => {
    const cell = event.target.closest("button.cell");
    if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { " ": () => toggle(cell), Enter: () => open(cell), r: () => act_on(cell, "retry"), c: () => act_on(cell, "cancel") };
    for (const key of ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"]) keys[key] = () => move(cell, key);
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  table.addEventListener("focusin", (event) => {
    const cell = event.target.closest("button.cell");
    if (!cell) return;
    if (cell.id !== current) { const before = document.getElementById(current); if (before) before.tabIndex = -1; }
    current = cell.id;
    cell.tabIndex = 0;
    peek.textContent = cell.getAttribute("aria-label");
  });
  table.addEventListener("mouseover", (event) => {
    const cell = event.target.closest("button.cell");
    if (cell) peek.textContent = cell.getAttribute("aria-label");
  });
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("button.cell"), opener = event.target.closest("button.open");
    if (cell && (event.ctrlKey || event.metaKey || event.shiftKey)) toggle(cell);
    else if (cell) open(cell);
    if (opener) {
      if (!opened.delete(opener.id)) opened.add(opener.id);
      show(opener, opened.has(opener.id));
    }
  });
  document.addEventListener("click", (event) => {
    const pick = event.target.closest("button.pick");
    if (!pick) return;
    selected.clear();
    for (const cell of cells()) if (pick.dataset.pick === "all" || cell.dataset.state === pick.dataset.pick) selected.add(cell.id);
    restore();
  });
  for (const select of document.querySelectorAll("#baseline, #agents")) select.addEventListener("change", () => select.form.submit());

  let focus = "", isFirst = Boolean(document.getElementById("more")), fresh = [];
  document.body.addEventListener("htmx:beforeSwap", () => { focus = document.activeElement.id; });
  document.body.addEventListener("htmx:oobAfterSwap", (event) => {
    if (event.detail.target.classList.contains("cell")) fresh.push(event.detail.target.id);
  });
  document.body.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.elt?.id !== "poll") return;
    if (!isFirst) for (const id of fresh) document.getElementById(id)?.classList.add("changed");
    isFirst = false;
    fresh = [];
    document.getElementById("more")?.remove();
    restore();
    const focused = focus && document.getElementById(focus);
    if (focused && document.activeElement !== focused) focused.focus({ preventScroll: true });
  });
  document.body.addEventListener("htmx:responseError", (event) => {
    if (event.detail.target.id === "drawer-body") event.detail.target.textContent = "The dashboard could not show this run; its terminal says why.";
  });
  restore();
})();
