// The list of a run's metrics: search in names and meanings.
"use strict";
const search = document.getElementById("metric-search");
function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let numFound = 0;
  for (const area of document.querySelectorAll("#metrics .area")) {
    let some = false;
    for (const label of area.querySelectorAll(".metric")) {
      label.hidden = !words.every((word) => label.textContent.toLowerCase().includes(word));
      some ||= !label.hidden;
      numFound += !label.hidden;
    }
    area.hidden = !some;
  }
  document.getElementById("metric-count").textContent = words.length ? `${numFound} found` : "";
}
search?.addEventListener("input", filter);
