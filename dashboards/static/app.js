// On every page: say so when the server is gone, and take the word away when it is back.
"use strict";
const trouble = document.getElementById("trouble");
document.body.addEventListener("htmx:sendError", () => { trouble.hidden = false; });
document.body.addEventListener("htmx:afterRequest", (event) => { if (event.detail.successful) trouble.hidden = true; });
// htmx keeps the focus of what has an id; what a person opened or scrolled sideways stays so, too.
let viewed = [];
document.body.addEventListener("htmx:afterSwap", () => {
  for (const { id, open, scrollLeft } of viewed) {
    const found = document.getElementById(id);
    if (found && open) found.open = true;
    if (found && scrollLeft) found.scrollLeft = scrollLeft;
  }
});
document.body.addEventListener("htmx:beforeSwap", (event) => {
  viewed = [...document.querySelectorAll("details[id], .scroll[id]")].map(({ id, open, scrollLeft }) => ({ id, open, scrollLeft }));
  // A refusal is an answer, too: it is shown where the answer would have been.
  if (event.detail.xhr.status === 403) { event.detail.shouldSwap = true; event.detail.isError = false; }
});
