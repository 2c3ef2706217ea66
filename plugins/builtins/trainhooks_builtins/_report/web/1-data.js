"use strict";
// What the page knows, and how numbers are written. All files of this folder are one script.
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const COLOURS = 7, DASHES = [[], [7, 4], [2, 3]];

function column(text) {
  const binary = atob(text.slice(1)), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return new { I: Uint32Array, f: Float32Array, d: Float64Array }[text[0]](bytes.buffer);
}

for (const run of RUNS) for (const name of Object.keys(run.clock)) run.clock[name] = column(run.clock[name]);

// Steps as what the x axis shows: steps rise, so one pass reads a run's clock, straight between its knots.
function onAxis(run, steps, axis) {
  if (axis === "step") return Array.from(steps);
  if (axis === "epoch") return Array.from(steps, (step) => step / run.per_epoch);
  const knots = run.clock.step, values = run.clock[axis], found = new Array(steps.length);
  for (let i = 0, k = 0; i < steps.length; i++) {
    while (k < knots.length - 2 && knots[k + 1] < steps[i]) k++;
    const wide = knots[k + 1] - knots[k];
    const share = wide > 0 ? Math.min(Math.max((steps[i] - knots[k]) / wide, 0), 1) : 0;
    found[i] = knots.length < 2 ? values[0] : values[k] + share * (values[k + 1] - values[k]);
  }
  return found;
}

const hasAxis = (run, axis) => run.clock.step.length > 0 && (axis !== "epoch" || run.per_epoch !== null);

// An average that forgets by the factor `weight` with each point, without the pull of its start; gaps stay.
function smoothed(values, weight) {
  let sum = 0, mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

const orNull = (values) => Array.from(values, (value) => (Number.isNaN(value) ? null : value));

function decoded(curve) {
  if (!curve.steps) {
    curve.steps = column(curve.x);
    curve.values = orNull(column(curve.y));
    if (curve.mx) {
      curve.meanSteps = column(curve.mx);
      curve.means = orNull(column(curve.my));
    }
  }
  return curve;
}

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(3).replace(/\.?0+e/, "e");
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${number(seconds * 1000)} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const s = Math.round(seconds), days = Math.floor(s / 86400), hours = Math.floor(s / 3600) % 24, minutes = Math.floor(s / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return `${minutes} min ${s % 60} s`;
}

// Numbers of the ticks of an axis, with as many decimals as it takes to tell them apart.
function tickTexts(ticks) {
  const shown = ticks.filter((tick) => tick !== null);
  const gap = shown.length > 1 ? Math.min(...shown.slice(1).map((tick, i) => Math.abs(tick - shown[i]))) : 0;
  const size = Math.max(...shown.map(Math.abs), 0), decimals = gap > 0 ? Math.max(0, Math.ceil(-Math.log10(gap) - 1e-9)) : 0;
  const plain = gap > 0 && size >= 1e-3 && size < 1e7 && decimals <= 6;
  return ticks.map((tick) => (tick === null ? "" : plain ? String(Number(tick.toFixed(decimals + (gap.toFixed(decimals) * 1 === gap ? 0 : 1)))) : number(tick)));
}

function axisText(value, axis) {
  return axis === "time" ? duration(Math.abs(value)) : number(axis === "epoch" ? Number(value.toFixed(3)) : Math.round(value));
}

function when(text) {
  const time = new Date(text);
  return text && !Number.isNaN(time.getTime()) ? time.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }) : "";
}

// An element; strings become text and never markup.
function make(tag, attributes = {}, ...children) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) one.addEventListener(name.slice(2), value);
    else if (value === true) one.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) one.setAttribute(name, value);
  }
  one.append(...children.filter((child) => child !== null && child !== undefined));
  return one;
}

const byId = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dash = (run) => DASHES[Math.floor(run / COLOURS) % DASHES.length];

// The line of a run as it is drawn in the curves.
function swatch(run) {
  const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg"), line = document.createElementNS(space, "line");
  for (const [name, value] of Object.entries({ width: 26, height: 8, class: "swatch", "aria-hidden": "true" })) svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({ x1: 0, x2: 26, y1: 4, y2: 4, "stroke-width": 3, "stroke-dasharray": dash(run).join(" ") })) line.setAttribute(name, value);
  line.style.stroke = `var(--run-${run % COLOURS})`;
  svg.append(line);
  return svg;
}
