// The page: groups of charts, the controls, dark and light.
const GROUP_HINTS = { lr: "Learning rates are drawn here where the plugin lr_monitor logs them: -p lr_monitor.", memory: "Memory is drawn here where the plugin memory measures it: -p memory." };

const NARROWEST = 400, GAP = 14; // of a chart and between two of them, in pixels

// Rows are full, and as even as can be: neither a chart nor a group of one leaves a gap beside it.
function fillRows(items, width) {
  const fit = Math.max(Math.floor((width + GAP) / (NARROWEST + GAP)), 1), rows = Math.ceil(items.length / fit);
  for (const item of items) item.style.setProperty("--per-row", String(Math.ceil(items.length / rows)));
}

function layOut() {
  const width = byId("groups").clientWidth;
  let singles = [];
  for (const group of document.querySelectorAll(".group:not([hidden])")) {
    const cards = [...group.querySelectorAll(".card:not([hidden])")], single = cards.length === 1 && !cards[0].classList.contains("wide");
    group.classList.toggle("single", single);
    fillRows(cards, width);
    if (single) singles.push(group);
    else {
      fillRows(singles, width);
      singles = [];
    }
  }
  fillRows(singles, width);
}

function showGroups() {
  const place = byId("groups"), groups = [...new Set(DATA.metrics.map((metric) => metric.group))];
  for (const group of groups) {
    const cards = DATA.metrics.filter((metric) => metric.group === group).map((metric) => {
      const chart = new Chart(metric);
      charts.push(chart);
      return chart.card;
    });
    place.append(make("details", { class: "group", open: true }, make("summary", {}, make("strong", {}, group), ` (${cards.length})`), make("div", { class: "grid" }, ...cards)));
  }
  layOut();
  addEventListener("resize", layOut);
  if (!groups.length) place.append(make("p", { class: "quiet" }, "No metrics to draw."));
  if (DATA.all_metrics) {
    for (const [group, hint] of Object.entries(GROUP_HINTS)) if (!groups.includes(group)) place.append(make("p", { class: "quiet" }, hint));
  }
  const thinned = DATA.metrics.flatMap((metric) => metric.curves).filter((curve) => curve.mx).length;
  if (thinned) byId("how").append(` ${thinned} of the curves have too many points for a page: of each stretch its lowest, its highest (faint) and its mean are drawn.`);
}

function showChips() {
  if (RUNS.length < 2) return;
  for (const [i, run] of RUNS.entries()) {
    const chip = make("button", { type: "button", class: "chip", title: `${run.name}: click to hide or show, double-click to show it alone`, "aria-pressed": "true" }, swatch(i), make("span", {}, run.name));
    const focus = (which) => () => {
      state.focus = which;
      for (const chart of charts) chart.focus(which);
    };
    chip.addEventListener("click", () => toggle(i));
    chip.addEventListener("dblclick", () => alone(i));
    chip.addEventListener("mouseenter", focus(i));
    chip.addEventListener("mouseleave", focus(null));
    byId("chips").append(chip);
  }
}

function toggle(run) {
  if (!state.hidden.delete(run)) state.hidden.add(run);
  showHidden();
}

function alone(run) {
  const others = RUNS.map((_, i) => i).filter((i) => i !== run), is = others.every((i) => state.hidden.has(i));
  state.hidden = new Set(is ? [] : others);
  showHidden();
}

function showHidden() {
  for (const [i, chip] of [...byId("chips").children].entries()) chip.setAttribute("aria-pressed", String(!state.hidden.has(i)));
  drawAll();
}

function controls() {
  const axis = byId("x");
  for (const option of axis.options) option.disabled = !RUNS.some((run) => hasAxis(run, option.value));
  axis.addEventListener("change", () => {
    state.axis = axis.value;
    zoomTo(null);
    drawAll();
  });
  let waiting = 0;
  byId("smooth").addEventListener("input", (event) => {
    state.smooth = Number(event.target.value);
    byId("smooth-value").textContent = String(state.smooth);
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => charts.forEach((chart) => chart.draw()));
  });
  byId("log").addEventListener("change", (event) => {
    state.log = event.target.checked;
    charts.forEach((chart) => chart.draw());
  });
  byId("reset").addEventListener("click", () => zoomTo(null));
  byId("find").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/);
    for (const chart of charts) chart.card.hidden = !words.every((word) => chart.metric.name.toLowerCase().includes(word));
    for (const group of document.querySelectorAll(".group")) group.hidden = !group.querySelector(".card:not([hidden])");
    layOut();
  });
  const some = (signs) => RUNS.some((run) => signs.includes(run.outcome));
  const marks = [some(["completed"]) && "● completed", some(["stopped", "running"]) && "○ stopped or running", some(["failed", "killed", "interrupted"]) && "✕ failed, killed or interrupted",
    RUNS.some((run) => run.resumes.length) && "┊ resumed"].filter(Boolean);
  byId("marks").textContent = marks.length ? `Marks: ${marks.join(", ")}.` : "";
}

// Dark or light: what the system says until the button is used; kept where the browser lets a page keep things.
function themes() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("trainhooks-theme"); } catch { /* a file may not keep anything */ }
  const apply = () => {
    const dark = chosen ? chosen === "dark" : system.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    byId("theme-name").textContent = dark ? "dark" : "light";
    charts.forEach((chart) => chart.draw());
  };
  byId("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("trainhooks-theme", chosen); } catch { /* it holds until the page is closed */ }
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

function showMedia() {
  if (!DATA.media?.length) return;
  byId("media").hidden = false;
  const draw = {
    image: (item) => make("img", { src: `data:image/png;base64,${item.png}`, alt: `${item.name} at step ${item.step}` }),
    text: (item) => make("pre", {}, item.text),
    table: (item) => scrolled(table(item.columns.map((name) => ({ name })), item.rows.map((cells) => ({ cells }))), item.name),
    histogram: (item) => {
      const bars = make("div", { class: "bars", role: "img", "aria-label": `Histogram of ${item.name}` }), most = Math.max(...item.counts, 1e-9);
      for (const [i, count] of item.counts.entries()) {
        const one = make("i", { title: `${number(item.edges[i])} … ${number(item.edges[i + 1])}: ${number(count)}` });
        one.style.height = `${(100 * count) / most}%`;
        bars.append(one);
      }
      return make("div", {}, bars, make("p", { class: "quiet" }, `${number(item.edges[0])} … ${number(item.edges[item.edges.length - 1])}`));
    },
  };
  const figure = (item) => make("figure", { class: "card" }, draw[item.kind](item), make("figcaption", {}, ...(RUNS.length > 1 ? [swatch(item.run), ` ${RUNS[item.run].name}, `] : []), `step ${item.step}`));
  const named = new Map();
  for (const item of DATA.media) {
    const key = JSON.stringify([item.kind, item.name]), runs = named.get(key) ?? named.set(key, new Map()).get(key);
    (runs.get(item.run) ?? runs.set(item.run, []).get(item.run)).push(item); // the newest first
  }
  const showing = [...new Set(DATA.media.map((item) => item.run))];
  for (const [key, runs] of named) {
    // What runs have of one name stands side by side, the newest above; of a single run the older ones stand beside it.
    const rows = showing.length === 1 ? [...runs.values()] : Array.from({ length: Math.max(...[...runs.values()].map((items) => items.length)) }, (_, age) => showing.map((run) => runs.get(run)?.[age]));
    byId("media-list").append(make("h3", {}, JSON.parse(key)[1]));
    for (const row of rows) byId("media-list").append(make("div", { class: "media" }, ...row.map((item) => (item ? figure(item) : make("div", {})))));
  }
  if (DATA.media_left_out) byId("media-list").append(make("p", { class: "quiet" }, `${DATA.media_left_out} more are in the run folders.`));
}

// What is printed has all charts, also those that have not been in view.
addEventListener("beforeprint", () => {
  for (const chart of charts) {
    chart.visible = true;
    if (!chart.u) chart.draw();
  }
});

showRuns();
controls();
showChips();
showGroups();
showStages();
showPluginTime();
byId("plugins-table").append(matrix(DATA.plugins, "plugins"));
byId("configuration-table").append(matrix(DATA.configuration, "configuration"));
showMedia();
whole = fullRange();
themes();
