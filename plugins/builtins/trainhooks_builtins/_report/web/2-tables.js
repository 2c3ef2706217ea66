// What is known of the runs besides their curves, as tables.
const SIGNS = { completed: "●", stopped: "○", running: "○", failed: "✕", killed: "✕", interrupted: "✕", unknown: "○" };

function table(columns, rows, kind = "") {
  const head = make("tr", {}, ...columns.map((one) => make("th", { scope: "col", class: one.number ? "number" : null, title: one.title }, ...[one.name].flat())));
  const body = rows.map((row) =>
    make("tr", { class: row.differs ? "differs" : null }, ...row.cells.map((cell, i) => {
      const content = [cell].flat().filter((part) => part !== null && part !== undefined && part !== "");
      const label = typeof columns[i]?.name === "string" ? columns[i].name : null;
      return make(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, class: columns[i]?.number ? "number" : null, "data-name": label }, ...content);
    })));
  return make("table", { class: kind }, make("thead", {}, head), make("tbody", {}, ...body));
}

const scrolled = (one, label) => make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, one);
const runHead = (run, i) => ({ name: [swatch(i), " ", run.name], title: run.name });

// What of a run is the same in all of them stands once, below the table.
function showRuns() {
  const versions = (run) => ["trainhooks", "torch", "python"].filter((name) => run.versions[name]).map((name) => `${name} ${run.versions[name]}`);
  const facts = { Host: (run) => run.host, Device: (run) => run.device, Versions: (run) => versions(run).join(", ") };
  const shared = RUNS.length > 1 ? Object.entries(facts).filter(([, of]) => RUNS.every((run) => of(run) === of(RUNS[0]))) : [];
  const own = Object.entries(facts).filter(([name]) => !shared.some(([other]) => other === name));
  const columns = ["Run", "Outcome", "Steps", "Epochs", "Took", "Started", "Best", ...own.map(([name]) => name)].map((name) => ({ name }));
  const rows = RUNS.map((run, i) => ({
    cells: [
      [swatch(i), " ", run.name, run.parent ? make("div", { class: "quiet" }, `began with a checkpoint of ${RUNS.find((other) => other.id === run.parent)?.name ?? run.parent}`) : null],
      [make("span", { class: `outcome ${run.outcome in SIGNS ? run.outcome : "unknown"}` }, `${SIGNS[run.outcome] ?? "○"} ${run.outcome}`),
        run.reason ? make("div", { class: "quiet", title: run.reason }, run.reason.length > 200 ? `${run.reason.slice(0, 200)}…` : run.reason) : null,
        run.resumes.length ? make("div", { class: "quiet" }, `resumed at step ${run.resumes.slice(-5).join(", ")}`) : null],
      number(run.step), number(run.epoch), make("span", { class: "whole" }, duration(run.seconds)), make("span", { class: "whole" }, when(run.started)),
      run.best.slice(0, 3).map(([name, value, step]) => make("div", {}, `${name} ${number(value)}${step === null ? "" : ` at step ${step}`}`)),
      ...own.map(([, of]) => of(run)),
    ],
  }));
  const place = byId("runs-table");
  place.append(table(columns, rows, "stacked"));
  const alike = shared.map(([, of]) => of(RUNS[0])).filter(Boolean);
  if (alike.length) place.after(make("p", { class: "quiet" }, `All: ${alike.join(" · ")}`));
  const notes = [];
  for (const run of RUNS) {
    if (run.damaged) notes.push(`${run.name}: ${run.damaged} lines of ${run.source} are damaged and left out.`);
    if (!run.records) notes.push(`${run.name}: no metrics.`);
    if (run.outcome === "running") notes.push(`${run.name} was running when this page was made.`);
  }
  byId("notes").append(...notes.map((text) => make("p", { class: "note" }, text)));
}

function matrix(rows, what) {
  if (!rows.length) return make("p", { class: "quiet" }, `None of these runs has recorded its ${what}.`);
  const columns = [{ name: "" }, ...RUNS.map(runHead)];
  const cell = (value) => (value === null ? make("span", { class: "absent" }, "–") : value);
  const line = ([name, values]) => ({ cells: [name, ...values.map(cell)], differs: RUNS.length > 1 });
  if (RUNS.length === 1) return scrolled(table(columns, rows.map(line), "matrix"), what);
  const differing = rows.filter(([, values]) => values.length > 1), alike = rows.filter(([, values]) => values.length === 1);
  const found = [differing.length ? make("h3", {}, `Differs between the runs (${differing.length})`) : make("p", {}, `The same in all ${RUNS.length} runs.`)];
  if (differing.length) found.push(scrolled(table(columns, differing.map(line), "matrix"), `${what} that differ`));
  if (alike.length) {
    const inAll = table([{ name: "" }, { name: "in all runs" }], alike.map(([name, values]) => ({ cells: [name, cell(values[0])] })), "matrix");
    found.push(make("details", { open: !differing.length }, make("summary", {}, `The same in all (${alike.length})`), scrolled(inAll, `${what} that are the same`)));
  }
  return make("div", {}, ...found);
}

const STAGES = ["step", "data", "evaluate", "checkpoint"];
const stageColour = (stage) => (stage === "other" ? "var(--line)" : `var(--run-${STAGES.includes(stage) ? STAGES.indexOf(stage) : 4 + (stage.length % 3)})`);

function bar(parts, whole) {
  const one = make("div", { class: "bar", "aria-hidden": "true" });
  for (const [name, value] of parts) {
    const part = make("i", { title: `${name} ${duration(value)}` });
    part.style.width = `${(100 * value) / whole}%`;
    part.style.background = stageColour(name);
    one.append(part);
  }
  return one;
}

function showStages() {
  const stages = [...new Set([...STAGES, ...DATA.stages.flatMap(Object.keys)])].filter((stage) => DATA.stages.some((run) => run[stage]));
  const place = byId("stage-time");
  if (!stages.length) {
    place.append(make("p", { class: "quiet" }, "No time was measured: the plugin timer does it unless it is switched off."));
    return;
  }
  const totals = DATA.stages.map((run, i) => Math.max(Object.values(run).reduce((a, b) => a + b, 0), RUNS[i].seconds ?? 0));
  const longest = Math.max(...totals);
  const named = [...stages, "other"];
  const rows = RUNS.flatMap((run, i) => {
    const parts = stages.map((stage) => [stage, DATA.stages[i][stage] ?? 0]);
    parts.push(["other", Math.max(totals[i] - parts.reduce((a, [, b]) => a + b, 0), 0)]);
    const share = (value) => (totals[i] > 0 ? `${Math.round((100 * value) / totals[i])} %` : "");
    return totals[i] > 0 ? [{ cells: [[swatch(i), " ", run.name], bar(parts, longest), ...parts.map(([, value]) => (value ? `${duration(value)} (${share(value)})` : "–")), duration(totals[i])] }] : [];
  });
  place.append(make("h3", {}, "By stage"));
  place.append(make("div", { class: "legend" }, ...named.map((stage) => {
    const dot = make("span", { class: "dot" });
    dot.style.background = stageColour(stage);
    return make("span", {}, dot, stage);
  })));
  place.append(scrolled(table([{ name: "Run" }, { name: "" }, ...named.map((name) => ({ name, number: true })), { name: "whole run", number: true }], rows), "time by stage"));
  place.append(make("p", { class: "quiet" }, "From the metrics time/…; other is start, end and what happens between steps and stages."));
}

function showPluginTime() {
  const place = byId("plugin-time"), measured = RUNS.map((_, i) => i).filter((i) => DATA.plugin_time[i]);
  place.append(make("h3", {}, "By plugin"));
  if (!measured.length) {
    place.append(make("p", { class: "quiet" }, "Not measured in ", RUNS.length > 1 ? "these runs" : "this run", ": train with ", make("code", {}, "-p hook_time"), " to have the host time of each plugin here."));
    return;
  }
  const seconds = measured.map((i) => new Map(DATA.plugin_time[i].map(([plugin, value]) => [plugin, value])));
  const names = [...new Set(seconds.flatMap((map) => [...map.keys()]))];
  const most = new Map(names.map((name) => [name, Math.max(...seconds.map((map) => map.get(name) ?? 0))]));
  names.sort((a, b) => most.get(b) - most.get(a));
  const whole = Math.max(...most.values(), 1e-9);
  const columns = [{ name: "Plugin" }, { name: "" }, ...measured.map((i) => ({ ...runHead(RUNS[i], i), number: true }))];
  const hooks = (name) => measured.length > 1 ? null : make("div", { class: "quiet" }, DATA.plugin_time[measured[0]].find(([plugin]) => plugin === name)[3].slice(0, 3)
    .map(([hook, value, calls]) => `${hook} ${duration(value)}, ${calls} call${calls === 1 ? "" : "s"}`).join("; "));
  const rows = names.map((name) => ({ cells: [name, [bar([["step", most.get(name)]], whole), hooks(name)], ...seconds.map((map) => (map.has(name) ? duration(map.get(name)) : "–"))] }));
  place.append(scrolled(table(columns, rows), "time by plugin"));
  place.append(make("p", { class: "quiet" }, "Host time without what a hook calls, measured by hook_time; what wraps or replaces a stage is charged with its own part. Hooks of reporters (report_…) run on threads beside the training."));
}
