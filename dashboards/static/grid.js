// The grid's selection and menu. The server replaces cells; the selection is kept.
"use strict";
const menu = document.getElementById("menu");
const boxes = () => [...document.querySelectorAll('#matrix input[name="experiment"]')];
const stateOf = (box) => document.getElementById(box.id.replace("-pick", "")).querySelector(".badge").textContent;
const count = () => {
  const chosen = new Set(boxes().filter((box) => box.checked).map((box) => box.value));
  document.getElementById("num-selected").textContent = chosen.size;
};

let kept = null;
document.body.addEventListener("htmx:oobBeforeSwap", (event) => {
  if (event.detail.target.id !== "matrix") return;
  kept = { ids: new Set(boxes().filter((box) => box.checked).map((box) => box.id)), focus: document.activeElement.id };
});
document.body.addEventListener("htmx:oobAfterSwap", (event) => {
  if (event.detail.target.id !== "matrix" || kept === null) return;
  for (const box of boxes()) box.checked = kept.ids.has(box.id);
  const focused = kept.focus && document.getElementById(kept.focus);
  if (focused) focused.focus({ preventScroll: true });
  kept = null;
  count();
});

document.addEventListener("change", (event) => {
  if (event.target.name === "experiment") count();
});
document.addEventListener("click", (event) => {
  const pick = event.target.closest("button.pick");
  if (pick) {
    for (const box of boxes()) box.checked = pick.dataset.pick === "all" || stateOf(box) === pick.dataset.pick;
    count();
  }
  const more = event.target.closest("button.more");
  if (more) {
    const experiment = more.parentElement.querySelector("input").value;
    document.getElementById("menu-title").textContent = experiment;
    document.getElementById("menu-experiment").value = experiment;
    document.getElementById("menu-open").href = "/run/" + encodeURIComponent(experiment);
    document.getElementById("menu-outcome").replaceChildren();
    menu.showModal();
  }
});
count();
