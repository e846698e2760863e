// On every page: show a notice while the server does not respond.
"use strict";
const trouble = document.getElementById("trouble");
document.body.addEventListener("htmx:sendError", () => { trouble.hidden = false; });
document.body.addEventListener("htmx:afterRequest", (event) => { if (event.detail.successful) trouble.hidden = true; });
// htmx keeps the focus of elements with an id; also keep opened <details> and horizontal scroll positions.
let viewed = [];
document.body.addEventListener("htmx:afterSwap", () => {
  for (const { id, open, scrollLeft } of viewed) {
    const element = document.getElementById(id);
    if (element && open) element.open = true;
    if (element && scrollLeft) element.scrollLeft = scrollLeft;
  }
});
document.body.addEventListener("htmx:beforeSwap", (event) => {
  viewed = [...document.querySelectorAll("details[id], .scroll[id]")].map(({ id, open, scrollLeft }) => ({ id, open, scrollLeft }));
  // Show the text of a refusal (403, 413) in place of the response.
  if ([403, 413].includes(event.detail.xhr.status)) { event.detail.shouldSwap = true; event.detail.isError = false; }
});

// Messages of the browser, switched on by a person: a grid ended, or experiments failed. Every open page asks for the counts.
const notify = document.getElementById("notify");
if (notify && "Notification" in window && isSecureContext) {
  const EVERY_MS = 10000;
  let earlierGrids = null;
  const isOn = () => localStorage.getItem("notify") === "on" && Notification.permission === "granted";
  const show = () => { notify.hidden = false; notify.setAttribute("aria-pressed", isOn()); };
  async function checkOnce() {
    if (!isOn()) { earlierGrids = null; return; }
    let grids;
    try {
      const response = await fetch("/counts");
      if (!response.ok) return;
      grids = await response.json();
    } catch (error) { if (error instanceof TypeError) return; throw error; /* the server is away */ }
    for (const [name, now] of Object.entries(grids)) {
      const before = earlierGrids?.[name];
      if (!before) continue;
      const failed = now.failed - before.failed;
      if (failed > 0) new Notification(`${now.title}: ${failed} failed`, { tag: `${name} failed` });
      if (now.is_ended && !before.is_ended) new Notification(`${now.title} has ended`, { body: `${now.done} done, ${now.failed} failed`, tag: `${name} ended` });
    }
    earlierGrids = grids;
  }
  notify.addEventListener("click", async () => {
    const turnsOn = !isOn() && (await Notification.requestPermission()) === "granted";
    localStorage.setItem("notify", turnsOn ? "on" : "off");
    show();
    checkOnce();
  });
  show();
  checkOnce();
  setInterval(checkOnce, EVERY_MS);
}
