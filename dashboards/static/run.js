// Training curves of a run: fetched once, then only new steps.
"use strict";
const place = document.getElementById("curves");
const note = document.getElementById("curves-note");
const charts = new Map();
let last = 0;
let seen = "";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rows = (chart) => [chart.steps, ...chart.lines.values()];

function merge(chart) {
  const known = charts.get(chart.id);
  // The accuracy chart is sent whole each time; the other charts only with new steps.
  if (!known || chart.id === "accuracy") {
    const lines = new Map(chart.lines.map((line) => [line.label, line.values]));
    if (known) { known.steps = chart.steps; known.lines = lines; return known; }
    const added = { ...chart, lines, plot: null, box: null };
    charts.set(chart.id, added);
    return added;
  }
  const before = known.steps.length;
  known.steps = known.steps.concat(chart.steps);
  for (const line of chart.lines) {
    if (!known.lines.has(line.label)) known.lines.set(line.label, Array(before).fill(null));
    known.lines.set(line.label, known.lines.get(line.label).concat(line.values));
  }
  for (const [label, values] of known.lines) {
    while (values.length < known.steps.length) values.push(null);
    known.lines.set(label, values);
  }
  return known;
}

function box(chart) {
  const section = document.createElement("section");
  section.className = "chart";
  const title = document.createElement("h3");
  const about = document.createElement("p");
  title.textContent = chart.title;
  about.textContent = chart.about;
  about.className = "small";
  section.append(title, about);
  section.setAttribute("aria-label", chart.title);
  place.append(section);
  return section;
}

function draw(chart) {
  if (!chart.lines.size || !chart.steps.length) return;
  chart.box ||= box(chart);
  const shape = [...chart.lines.keys()].join("\n");
  if (chart.plot && chart.shape === shape) { chart.plot.setData(rows(chart)); return; }
  if (chart.plot) chart.plot.destroy();
  chart.shape = shape;
  const ink = color("--ink"), grid = { stroke: color("--line"), width: 1 };
  const axis = { stroke: ink, grid, ticks: grid };
  const series = [...chart.lines.keys()].map((label, number) => ({
    label, stroke: color(`--c${number % 6}`), width: 1.5, dash: number >= 6 ? [6, 4] : undefined, spanGaps: true,
    value: (_, value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toString()),
  }));
  const size = { width: Math.max(chart.box.clientWidth, 240), height: 220 };
  const options = { ...size, scales: { x: { time: false } }, axes: [axis, { ...axis, size: 62, values: (_, ticks) => ticks.map(tickLabel) }], series: [{ label: "step" }, ...series] };
  chart.plot = new uPlot(options, rows(chart), chart.box);
}

// Exponents for small values: differences of sampler and learner are about 1e-6.
function tickLabel(value) {
  if (value === null) return "";
  return value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
}

function redraw() {
  for (const chart of charts.values()) {
    if (chart.plot) { chart.plot.destroy(); chart.plot = null; draw(chart); }
  }
}

async function poll() {
  let isDone = false;
  try {
    const answer = await fetch(`${place.dataset.source}?since=${last}&seen=${seen}`);
    if (answer.status === 200) {
      const update = await answer.json();
      for (const chart of update.charts) draw(merge(chart));
      last = Math.max(last, update.last);
      seen = update.version;
      isDone = update.is_done;
      note.textContent = !last ? "No step is complete yet." : update.num_torn ? `${update.num_torn} steps have corrupt files and are not shown.` : "";
      place.dataset.last = last;
    }
  } catch { /* app.js shows a notice */ }
  if (!isDone) setTimeout(poll, 2000);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let timer = 0;
addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(redraw, 200); });
poll();
