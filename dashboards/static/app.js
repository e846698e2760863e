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
