// On every page: say so when the server is gone, and take the word away when it is back.
"use strict";
const trouble = document.getElementById("trouble");
document.body.addEventListener("htmx:sendError", () => { trouble.hidden = false; });
document.body.addEventListener("htmx:afterRequest", (event) => { if (event.detail.successful) trouble.hidden = true; });
// A refusal is an answer, too: it is shown where the answer would have been.
document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status === 403) { event.detail.shouldSwap = true; event.detail.isError = false; }
});
