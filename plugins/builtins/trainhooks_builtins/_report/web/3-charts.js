// One chart for each metric; charts are made when they come into view.
const state = { axis: "step", smooth: 0, log: false, hidden: new Set(), zoom: null, focus: null };
const charts = [];
const MANY = 6; // more runs than this: no faint lines behind smoothed ones, and less text

const shownCurves = (metric) => metric.curves.filter((curve) => !state.hidden.has(curve.run) && hasAxis(RUNS[curve.run], state.axis));

// The whole of the x axis is the same in all charts, so that their cursors stand below each other.
function fullRange() {
  let low = Infinity, high = -Infinity;
  for (const metric of DATA.metrics) {
    for (const curve of shownCurves(metric)) {
      const steps = decoded(curve).steps, ends = onAxis(RUNS[curve.run], [steps[0], steps[steps.length - 1]], state.axis);
      low = Math.min(low, ends[0]);
      high = Math.max(high, ends[1]);
    }
  }
  if (!(low <= high)) return [0, 1];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

let whole = [0, 1];
const range = () => state.zoom ?? whole;

// Columns for uPlot, in which a gap (null) reaches from one value of a curve to the next (2), whatever others have between: of each curve the line, and behind it the points that it was smoothed or thinned from.
function prepare(metric) {
  const curves = shownCurves(metric), positive = (value) => (value !== null && value > 0 ? value : null);
  const any = curves.some((curve) => curve.max > 0);
  const log = state.log && any, fit = (values) => (log ? values.map(positive) : values);
  const tables = [], lines = [];
  for (const curve of curves) {
    const { steps, values, meanSteps, means } = decoded(curve), run = RUNS[curve.run];
    const behind = curves.length <= MANY && (state.smooth > 0 || means);
    const useMeans = means && (state.smooth > 0 || behind);
    const lineSteps = useMeans ? meanSteps : steps, line = smoothed(useMeans ? means : values, state.smooth);
    if (behind) {
      tables.push([onAxis(run, steps, state.axis), fit(values)]);
      lines.push({ curve, faint: true });
    }
    tables.push([onAxis(run, lineSteps, state.axis), fit(state.smooth > 0 ? line : useMeans ? means : values)]);
    lines.push({ curve, faint: false, about: Boolean(useMeans) || state.smooth > 0 });
  }
  return { lines, log, columns: tables.length ? uPlot.join(tables, tables.map(() => [1, 2])) : [[]], refused: state.log && !log && curves.length > 0 };
}

// Points are drawn where there are few, and where a value stands alone between gaps.
function lonely(u, index, show) {
  const values = u.data[index];
  const finite = [];
  for (let i = 0; i < values.length; i++) if (values[i] !== undefined) finite.push(i);
  if (show) return finite.filter((i) => values[i] !== null);
  return finite.filter((i, k) => values[i] !== null && values[finite[k - 1]] == null && values[finite[k + 1]] == null);
}

// The nearest sample of a series: runs do not have their samples at the same places.
function nearest(u, index, at, x) {
  const xs = u.data[0], values = u.data[index];
  if (values[at] != null) return at;
  let left = at, right = at;
  while (left >= 0 && values[left] == null) left--;
  while (right < values.length && values[right] == null) right++;
  if (left < 0) return right < values.length ? right : at;
  return right >= values.length || x - xs[left] <= xs[right] - x ? left : right;
}

function cursorPoint(run) {
  const point = make("div");
  Object.assign(point.style, { width: "7px", height: "7px", margin: "-3.5px 0 0 -3.5px", background: `var(--run-${run % COLOURS})` });
  return point;
}

function options(chart, prepared, width, height) {
  const { lines, log } = prepared, many = new Set(lines.map((line) => line.curve.run)).size > MANY;
  const ink = css("--quiet"), grid = css("--grid");
  const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 }, font: "11px system-ui, sans-serif" };
  return {
    width, height, legend: { show: false }, focus: { alpha: 0.18 },
    scales: { x: { time: false, range }, y: { distr: log ? 3 : 1, log: 10 } },
    axes: [
      { ...axis, size: 26, values: (_, splits) => splits.map((value) => axisText(value, state.axis)), ...(state.axis === "time" ? { space: 90 } : {}) },
      { ...axis, size: 58, values: (_, splits) => (log ? splits.map((value) => (value === null ? "" : number(value))) : tickTexts(splits)) },
    ],
    series: [{}, ...lines.map(({ curve, faint }) => {
      const colour = css(`--run-${curve.run % COLOURS}`), few = curve.points <= 60;
      return {
        label: String(curve.run), stroke: colour, width: faint ? 1 : many ? 1.5 : 2, alpha: faint ? 0.3 : 1, dash: faint ? [] : dash(curve.run),
        points: { show: few && !faint, size: few && curve.points > 1 ? 5 : 7, fill: colour, filter: lonely },
      };
    })],
    cursor: {
      y: false, dataIdx: nearest, focus: { prox: lines.length > 1 ? 30 : -1 }, drag: { x: true, y: false, setScale: false },
      points: { show: (u, i) => (i > 0 && !lines[i - 1].faint ? cursorPoint(lines[i - 1].curve.run) : null) },
      sync: { key: "report", scales: ["x", null], filters: { pub: (type) => type === "mousemove", sub: (type) => type === "mousemove" } },
      bind: { dblclick: () => () => zoomTo(null) },
    },
    hooks: {
      setSelect: [(u) => {
        if (u.select.width > 3) zoomTo([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
      setCursor: [() => chart.read()],
      setSeries: [(u, i, given) => { if ("focus" in given || given.focus !== undefined) chart.near = i ? lines[i - 1]?.curve.run ?? null : null; }],
      draw: [(u) => drawMarks(u, lines, many)],
    },
  };
}

// Where a run was resumed, and how it ended.
function drawMarks(u, lines, many) {
  const { ctx } = u, { left, top, width, height } = u.bbox, unit = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top - 6 * unit, width + 6 * unit, height + 12 * unit);
  ctx.clip();
  for (const [index, line] of lines.entries()) {
    if (line.faint) continue;
    const run = RUNS[line.curve.run];
    ctx.strokeStyle = ctx.fillStyle = css(`--run-${line.curve.run % COLOURS}`);
    ctx.lineWidth = 1 * unit;
    for (const x of onAxis(run, run.resumes, state.axis)) {
      const at = Math.floor(u.valToPos(x, "x", true)) + 0.5; // a sharp line
      if (at < left || at > left + width) continue;
      ctx.setLineDash([3 * unit, 4 * unit]);
      ctx.beginPath();
      ctx.moveTo(at, many ? top + height - 10 * unit : top);
      ctx.lineTo(at, top + height);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    const values = u.data[index + 1];
    let end = values.length - 1;
    while (end >= 0 && values[end] == null) end--;
    if (end < 0) continue;
    const x = u.valToPos(u.data[0][end], "x", true), y = u.valToPos(values[end], "y", true);
    if (!(x >= left && x <= left + width + 1)) continue;
    ctx.lineWidth = 2 * unit;
    ctx.beginPath();
    const r = 3.5 * unit, sign = SIGNS[run.outcome] ?? "○";
    if (sign === "✕") {
      ctx.moveTo(x - r, y - r); ctx.lineTo(x + r, y + r); ctx.moveTo(x + r, y - r); ctx.lineTo(x - r, y + r);
    } else ctx.arc(x, y, r, 0, 2 * Math.PI);
    if (sign === "●") ctx.fill();
    ctx.stroke();
  }
  ctx.restore();
}

class Chart {
  constructor(metric) {
    this.metric = metric;
    this.u = this.prepared = this.near = null;
    this.visible = this.waiting = false;
    this.readout = make("div", { class: "readout" });
    this.tip = make("div", { class: "tip", hidden: true });
    this.plot = make("div", { class: "plot", tabindex: 0, role: "img", "aria-label": this.summary(), onkeydown: (event) => this.key(event) });
    const grow = make("button", { type: "button", "aria-label": `Enlarge ${metric.name}`, "aria-pressed": "false", onclick: () => {
      grow.setAttribute("aria-pressed", String(this.card.classList.toggle("wide")));
      layOut();
      this.draw();
    } }, "⤢");
    this.card = make("article", { class: "card" }, make("div", { class: "head" }, make("h4", {}, metric.name), grow), this.readout, this.plot);
    this.plot.addEventListener("pointerenter", () => { this.hovered = true; });
    this.plot.addEventListener("pointerleave", () => { this.hovered = false; this.read(); });
    new IntersectionObserver((seen) => {
      this.visible = seen[seen.length - 1].isIntersecting;
      if (this.visible && !this.u) this.draw();
    }, { rootMargin: "300px" }).observe(this.card);
    new ResizeObserver(() => {
      if (this.u && this.plot.clientWidth > 0) this.u.setSize({ width: this.plot.clientWidth, height: this.plot.clientHeight });
    }).observe(this.plot);
  }

  summary() {
    const parts = this.metric.curves.slice(0, 8).map((curve) => `${RUNS[curve.run].name}: last ${number(curve.last)}, lowest ${number(curve.min)}, highest ${number(curve.max)}`);
    return `Curve of ${this.metric.name}. ${parts.join("; ")}`;
  }

  // Draw anew, or when it comes into view.
  draw() {
    this.u?.destroy();
    this.u = null;
    if (!this.visible) return;
    this.plot.replaceChildren();
    this.prepared = prepare(this.metric);
    const finite = this.prepared.lines.some((line) => line.curve.max !== null);
    if (!finite) {
      this.plot.append(make("p", { class: "quiet" }, this.prepared.lines.length ? "No value is finite." : "Nothing to draw on this axis."));
      this.readout.textContent = "";
      return;
    }
    this.u = new uPlot(options(this, this.prepared, Math.max(this.plot.clientWidth, 80), this.plot.clientHeight), this.prepared.columns, this.plot);
    this.u.over.append(this.tip);
    this.read();
  }

  // Say what stands at the cursor, once for each frame; without a cursor the last values.
  read() {
    if (this.waiting || !this.u) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (this.u && this.visible) this.say();
    });
  }

  values() {
    const { u, prepared } = this;
    return prepared.lines.flatMap((line, i) => {
      const at = u.cursor.idxs?.[i + 1];
      return line.faint || at == null || u.data[i + 1][at] == null ? [] : [{ run: line.curve.run, value: u.data[i + 1][at], about: line.about }];
    });
  }

  say() {
    const { u, prepared, metric } = this, at = u.cursor.left >= 0 && u.cursor.idx != null;
    if (!at) {
      const curves = shownCurves(metric), missing = curves.reduce((sum, curve) => sum + curve.not_finite, 0);
      const text = curves.length === 1
        ? [`last ${number(curves[0].last)}`, `min ${number(curves[0].min)}`, `max ${number(curves[0].max)}`]
        : curves.length <= 3 ? curves.map((curve) => [swatch(curve.run), ` ${number(curve.last)}`]) : [`${curves.length} runs, last ${spread(curves.map((curve) => curve.last))}`];
      if (missing) text.push(`${missing} not finite`);
      if (prepared.refused) text.push("no positive values: linear");
      this.readout.replaceChildren(...text.map((part) => make("span", {}, ...[part].flat())));
      this.tip.hidden = true;
      return;
    }
    const x = axisText(u.posToVal(u.cursor.left, "x"), state.axis), values = this.values();
    const picked = values.length <= 3 ? values : values.filter(({ run }) => run === (state.focus ?? lastNear)).slice(0, 1);
    const place = make("b", {}, `${state.axis === "time" ? "" : `${state.axis} `}${x}`);
    this.readout.replaceChildren(make("span", {}, place), ...picked.map(({ run, value, about }) => make("span", {}, ...(RUNS.length > 1 ? [swatch(run), " "] : []), `${about ? "≈ " : ""}${number(value)}`)),
      ...(picked.length ? [] : [make("span", {}, spread(values.map(({ value }) => value)))]));
    this.tip.hidden = !this.hovered || values.length < 2;
    if (this.hovered && this.near !== null) lastNear = this.near;
    if (!this.tip.hidden) this.showTip(place, values);
  }

  showTip(place, values) {
    const { u } = this;
    values.sort((a, b) => b.value - a.value);
    const lines = values.map(({ run, value, about }) => make("div", { class: run === this.near ? "now" : null }, swatch(run), make("span", {}, RUNS[run].name), `${about ? "≈ " : ""}${number(value)}`));
    this.tip.replaceChildren(make("div", {}, place.cloneNode(true)), ...lines);
    const right = u.cursor.left > u.over.clientWidth / 2;
    this.tip.style.left = right ? "" : `${u.cursor.left + 14}px`;
    this.tip.style.right = right ? `${u.over.clientWidth - u.cursor.left + 14}px` : "";
    this.tip.style.top = "4px";
  }

  key(event) {
    const { u } = this, jump = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!u) return;
    if (jump !== undefined) {
      const width = u.over.clientWidth, left = u.cursor.left >= 0 ? u.cursor.left : width / 2;
      u.setCursor({ left: Math.min(Math.max(left + jump * (event.shiftKey ? 25 : 5), 0), width), top: u.over.clientHeight / 2 }, true, true);
      this.say();
      byId("said").textContent = `${this.metric.name}, ${state.axis} ${axisText(u.posToVal(u.cursor.left, "x"), state.axis)}: ${this.values().slice(0, 8).map(({ run, value }) => `${RUNS[run].name} ${number(value)}`).join(", ")}`;
    } else if (event.key === "+" || event.key === "-") {
      const [low, high] = range(), middle = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : (low + high) / 2, factor = event.key === "+" ? 0.5 : 2;
      zoomTo([Math.max(middle - (middle - low) * factor, whole[0]), Math.min(middle + (high - middle) * factor, whole[1])]);
    } else if (event.key === "Escape") {
      zoomTo(null);
    } else return;
    event.preventDefault();
  }

  focus(run) {
    if (!this.u || !this.visible) return;
    const index = this.prepared.lines.findIndex((line) => !line.faint && line.curve.run === run);
    this.u.setSeries(index < 0 ? null : index + 1, { focus: true }, false);
  }
}

let lastNear = null;

function spread(values) {
  const finite = values.filter((value) => value !== null);
  return finite.length ? `${number(Math.min(...finite))} … ${number(Math.max(...finite))}` : "";
}

function zoomTo(zoom) {
  state.zoom = zoom && zoom[1] > zoom[0] && (zoom[0] > whole[0] || zoom[1] < whole[1]) ? zoom : null;
  byId("reset").disabled = state.zoom === null;
  const [min, max] = range();
  for (const chart of charts) chart.u?.setScale("x", { min, max });
}

function drawAll() {
  whole = fullRange();
  for (const chart of charts) chart.draw();
}
