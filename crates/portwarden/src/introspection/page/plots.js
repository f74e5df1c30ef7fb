// The four plots. uPlot draws them; this file chooses what and in which colours.

import { bytes, h, number, seconds } from "./dom.js";

const MILLIS = (value) => (value === null || value === undefined ? "–" : value === 0 ? "0" : seconds(value / 1000));

/** Steps between ticks: round numbers of MiB, not of bytes. */
const MEBIBYTES = Array.from({ length: 16 }, (_, power) => 2 ** (20 + power - 2));

const PLOTS = [
  { key: "sync", title: "Sync time", shown: MILLIS, colour: "--blue", points: true, about: "how long writing to the kernel took" },
  { key: "changeToKernel", title: "Change to kernel", shown: MILLIS, colour: "--violet", points: true, about: "from the arrival of a change to the kernel's acknowledgement" },
  { key: "changes", title: "Changes per second", shown: (value) => number(Math.round((value ?? 0) * 10) / 10), colour: "--green", about: "objects that arrived from the source" },
  { key: "memory", title: "Memory", shown: (value) => bytes(value ?? 0), colour: "--amber", steps: MEBIBYTES, about: "resident memory of the process" },
];

const HEIGHT = 150;

/** A grid of plots with `update(series)` and `leave()`. */
export function plots() {
  const panels = PLOTS.map(panel);
  const element = h("div", { class: "plots" }, panels.map((one) => one.element));
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  let last = null;
  const redraw = () => {
    panels.forEach((one) => one.reset());
    if (last) update(last);
  };
  const resize = new ResizeObserver(() => panels.forEach((one) => one.resize()));
  resize.observe(element);
  scheme.addEventListener("change", redraw);
  function update(series) {
    last = series;
    panels.forEach((one) => one.update(series));
  }
  return {
    element,
    update,
    leave() {
      resize.disconnect();
      scheme.removeEventListener("change", redraw);
      panels.forEach((one) => one.reset());
    },
  };
}

function panel({ key, title, shown, colour, points, steps, about }) {
  const value = h("span", { class: "now" }, "–");
  const canvas = h("div", { class: "canvas" });
  const element = h("figure", { class: "panel plot", title: about },
    h("figcaption", null, h("span", null, title), value), canvas);
  let plot = null;
  return {
    element,
    update(series) {
      const values = series[key];
      const latest = values.findLast((one) => one !== null && one !== undefined);
      value.textContent = shown(latest);
      element.setAttribute("aria-label", `${title}, ${about}: last ${shown(latest)}, highest ${shown(highest(values))}`);
      if (!series.time.length || !canvas.clientWidth) return;
      const data = [series.time, values];
      if (plot) plot.setData(data);
      else plot = new window.uPlot(options(canvas, { colour, points, shown, steps }), data, canvas);
    },
    resize() {
      if (plot && canvas.clientWidth) plot.setSize({ width: canvas.clientWidth, height: HEIGHT });
    },
    reset() {
      plot?.destroy();
      plot = null;
    },
  };
}

function highest(values) {
  return values.reduce((most, one) => (one !== null && one > (most ?? -1) ? one : most), null);
}

function options(canvas, { colour, points, shown, steps }) {
  const style = getComputedStyle(document.documentElement);
  const ink = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: ink("--quiet"), grid: { stroke: ink("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width: canvas.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
    padding: [8, 8, 0, 0],
    scales: {
      x: { time: true, range: (_, from, to) => [Math.min(from, to - 60), Math.max(to, from + 1)] },
      y: { range: (_, least, most) => [points || most < 1e6 ? 0 : Math.max(0, least - (most - least || most * 0.1)), (most || 1) * (most < 1e6 ? 1.15 : 1.02)] },
    },
    axes: [
      { ...axis, size: 26, space: 80, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("en-GB")) },
      { ...axis, size: 62, space: 34, values: (_, ticks) => ticks.map(shown), ...(steps && { incrs: steps }) },
    ],
    series: [
      {},
      {
        stroke: ink(colour),
        fill: points ? ink(colour) : `${ink(colour)}22`,
        width: points ? 0 : 1.6,
        // Syncs are single events: a line between them would show values that never were.
        paths: points ? window.uPlot.paths.bars({ size: [0.9, 6, 2], radius: 0.3 }) : undefined,
        points: { show: false },
      },
    ],
  };
}
