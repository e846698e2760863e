// Keyboard shortcuts of the samples page; each one clicks a link of the page.
"use strict";
const LINKS = { j: "next", ArrowRight: "next", k: "previous", ArrowLeft: "previous", n: "step-after", p: "step-before" };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const link = document.getElementById(LINKS[event.key]);
  if (link) { event.preventDefault(); link.click(); }
});
