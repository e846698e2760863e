// Draws each figure.chart: its specification comes from its address (data-source) or from the JSON inside it (a report).
// Vega's expressions are interpreted, so that no policy must allow eval; styles are in design.css.
"use strict";
(() => {
  const states = new Map();
  const isFolded = (figure) => Boolean(figure.closest("details:not([open])")); // such content may have a width
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function config() {
    const ink = colour("--ink"), faint = colour("--faint"), line = colour("--line");
    return {
      background: null, font: "system-ui, sans-serif", aria: false, mark: { aria: false }, view: { stroke: line },
      axis: { labelColor: faint, titleColor: ink, gridColor: line, gridOpacity: 0.6, domainColor: line, tickColor: line, labelFontSize: 11, titleFontSize: 12, titleFontWeight: 500 },
      legend: { labelColor: ink, orient: "top", labelFontSize: 12, labelLimit: 240, columns: document.documentElement.clientWidth < 640 ? 2 : 5 },
      header: { labelColor: ink, labelFontSize: 12 }, rule: { color: faint }, text: { color: faint },
    };
  }

  // The specification with the reader's options: smooth (points), seeds, log_x, log_y.
  function withOptions(spec, options, width) {
    const copy = structuredClone(spec);
    for (const param of copy.params || []) if (param.name === "showSeeds") param.value = Boolean(options.seeds);
    const view = copy.spec || copy; // of one panel
    for (const step of view.transform || []) if (step.window && options.smooth) step.frame = [1 - options.smooth, 0];
    const fields = { log_x: "x", log_y: "value" };
    for (const [name, field] of Object.entries(fields)) {
      if (options[name]) view.transform = [{ filter: `datum.${field} > 0` }, ...(view.transform || [])];
    }
    for (const layer of view.layer || []) {
      for (const axis of ["x", "y"]) {
        const channel = layer.encoding?.[axis];
        if (channel?.type === "quantitative" && options[`log_${axis}`]) { channel.scale = { ...channel.scale, type: "log" }; delete channel.scale.zero; }
      }
    }
    if (copy.facet) {
      const panels = new Set((copy.data?.values || []).map((row) => row[copy.facet.field])).size;
      copy.columns = Math.max(1, Math.min(panels, Math.floor(width / 380)));
      copy.spec.width = Math.max(160, Math.floor(width / copy.columns) - 90);
    }
    return copy;
  }

  // One drawing of a figure at a time: a view must not be ended while another one starts in its place.
  function draw(figure) {
    const state = states.get(figure);
    if (state) state.last = state.last.then(() => embed(figure));
    return state?.last;
  }

  async function embed(figure) {
    const state = states.get(figure), place = figure.querySelector(".chart-place");
    if (!state?.spec || isFolded(figure) || !place.clientWidth) return;
    const options = {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, expr: vegaInterpreter.expressionInterpreter,
      logLevel: vega.Error, defaultStyle: false, tooltip: { disableDefaultStyle: true }, config: config(),
    };
    state.embedded?.finalize();
    state.embedded = await vegaEmbed(place, withOptions(state.spec, state.options, place.clientWidth), options);
    await state.embedded.view.runAsync();
    figure.dataset.drawn = Number(figure.dataset.drawn || 0) + 1;
  }

  const LABELS = { seeds: "single seeds", log_x: "log x", log_y: "log y", smooth: "smooth" };
  function tools(figure) {
    const state = states.get(figure), place = figure.querySelector(".chart-tools");
    const offered = state.spec.usermeta?.options || [];
    if (!place || place.childElementCount || !offered.length) return;
    for (const name of offered) {
      const label = document.createElement("label");
      const control = document.createElement(name === "smooth" ? "select" : "input");
      if (name === "smooth") {
        const first = 1 - ((state.spec.spec || state.spec).transform?.find((step) => step.window)?.frame[0] ?? 0);
        for (const number of [...new Set([1, first, 3, 5, 10, 20])].sort((a, b) => a - b)) control.add(new Option(number === 1 ? "off" : `${number} points`, number, false, number === first));
      } else control.type = "checkbox";
      control.addEventListener("change", () => {
        state.options[name] = name === "smooth" ? Number(control.value) : control.checked;
        draw(figure);
      });
      label.append(control, ` ${LABELS[name]}`);
      place.append(label);
    }
    const hint = document.createElement("span");
    hint.className = "small";
    hint.textContent = "Click the legend to single out lines, drag to move, Ctrl and wheel to zoom, double-click to reset.";
    place.append(hint);
  }

  async function refresh(figure) {
    const state = states.get(figure);
    try {
      const separator = figure.dataset.source.includes("?") ? "&" : "?";
      const response = await fetch(`${figure.dataset.source}${separator}seen=${state.version}`);
      if (response.status === 200) {
        const update = await response.json();
        state.version = update.version;
        state.spec = update.spec;
        figure.querySelector(".chart-empty")?.toggleAttribute("hidden", Boolean(update.spec));
        figure.querySelector(".chart-files")?.toggleAttribute("hidden", !update.spec);
        if (update.spec) { tools(figure); await draw(figure); }
      }
    } catch (error) { if (!(error instanceof TypeError)) throw error; /* the server is away; app.js shows a notice */ }
  }

  async function poll(figure) {
    const state = states.get(figure);
    if (!figure.isConnected) { state.embedded?.finalize(); states.delete(figure); return; }
    if (!isFolded(figure)) await refresh(figure); // a folded one is read once it opens
    if (Number(figure.dataset.every)) setTimeout(() => poll(figure), 1000 * Number(figure.dataset.every));
  }

  function start(root) {
    const figures = [...root.querySelectorAll("figure.chart")];
    if (root.matches?.("figure.chart")) figures.push(root);
    for (const figure of figures) {
      if (states.has(figure)) continue;
      const inside = figure.querySelector('script[type="application/json"]');
      states.set(figure, { spec: inside ? JSON.parse(inside.textContent) : null, options: {}, version: "", embedded: null, last: Promise.resolve() });
      if (inside) { tools(figure); draw(figure); } else if (figure.dataset.source) poll(figure);
    }
  }

  const redraw = () => { for (const figure of states.keys()) draw(figure); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let timer = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(redraw, 200);
  });
  document.addEventListener("htmx:load", (event) => start(event.detail.elt));
  document.addEventListener("toggle", (event) => { if (event.target.open) for (const figure of event.target.querySelectorAll("figure.chart")) figure.dataset.source ? refresh(figure) : draw(figure); }, true);
  start(document);
})();
