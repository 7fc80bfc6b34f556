// Charts by uPlot, in the colors of the page; each says in words what it shows.

import { bytes, clock, milliseconds, short } from "./format.js";

const HEIGHT = 220;
const BARS = 60;

// What follows each other in an update, as few groups as one can tell apart, and their colors (Okabe and Ito).
export const GROUPS = [
  { label: "write", stages: ["trained_to_committed"], color: "#0072b2" },
  { label: "notice", stages: ["fetch", "committed_to_seen"], color: "#56b4e9" },
  { label: "check", stages: ["verify", "sanity", "probe"], color: "#009e73" },
  { label: "prepare", stages: ["stage", "preimage"], color: "#e69f00" },
  { label: "gate and apply", stages: ["gate_wait", "apply"], color: "#d55e00" },
  { label: "first answer", stages: ["first_served"], color: "#cc79a7" },
];

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// One uPlot that follows the width of its element and the colors of the page.
class Chart {
  constructor(element, options) {
    this.element = element;
    this.options = options;
    this.plot = null;
    this.data = null;
    new ResizeObserver(() => this.resize()).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild());
  }

  show(data, label) {
    this.data = data;
    this.element.setAttribute("aria-label", label);
    if (this.plot) this.plot.setData(data);
    else this.rebuild();
  }

  rebuild() {
    if (!this.data || !this.element.clientWidth) return;
    if (this.plot) this.plot.destroy();
    const options = { width: this.element.clientWidth, height: HEIGHT, ...this.options() };
    this.plot = new uPlot(options, this.data, this.element);
  }

  resize() {
    if (!this.plot) this.rebuild();
    else if (this.plot.width !== this.element.clientWidth) {
      this.plot.setSize({ width: this.element.clientWidth, height: HEIGHT });
    }
  }
}

function axis(options = {}) {
  const grid = { stroke: color("--line"), width: 1 };
  return { stroke: color("--muted"), grid, ticks: grid, font: "11px system-ui, sans-serif", ...options };
}

const bars = () => uPlot.paths.bars({ size: [0.8, 28] });

// Bars beside each other, one for each update; below them the time at which it was applied.
class UpdateChart extends Chart {
  constructor(element, options) {
    super(element, () => {
      const values = (_plot, splits) => splits.map((at) => (this.updates[at] ? clock(this.updates[at].at) : ""));
      const x = axis({ values, space: 80, incrs: [1, 2, 5, 10, 20, 50] });
      const told = (_plot, at) => (this.updates[at] ? `${this.updates[at].position} at ${clock(this.updates[at].at)}` : "");
      const { series, axes, scales } = options(this);
      return {
        scales: { x: { time: false, range: (_plot, low, high) => [low - 0.6, Math.max(high, 7) + 0.6] }, ...scales },
        series: [{ label: "update", value: told }, ...series],
        axes: [x, ...axes],
      };
    });
    this.updates = [];
  }

  numbers() {
    return this.updates.map((_update, at) => at);
  }
}

function ofGroup(update, group) {
  return group.stages.reduce((sum, stage) => sum + Math.max(0, update.stages_ms[stage] ?? 0), 0);
}

export class LagChart extends UpdateChart {
  constructor(element) {
    super(element, (chart) => ({
      scales: { y: { range: (_plot, _low, high) => [0, (high || 1) * 1.05] } },
      // The tallest first: those before it are drawn over it.
      series: [...GROUPS].reverse().map((group) => ({
        label: group.label,
        stroke: group.color,
        fill: group.color,
        width: 0,
        paths: bars(),
        points: { show: false },
        value: (_plot, _value, _series, at) => (chart.updates[at] ? milliseconds(ofGroup(chart.updates[at], group)) : ""),
      })),
      axes: [axis({ size: 66, values: (_plot, splits) => splits.map(milliseconds) })],
    }));
  }

  set(updates) {
    this.updates = updates.slice(-BARS);
    let below = this.updates.map(() => 0);
    const stacked = GROUPS.map((group) => {
      below = this.updates.map((update, at) => below[at] + ofGroup(update, group));
      return below;
    });
    const last = this.updates.at(-1);
    const told = GROUPS.map((group) => `${group.label} ${milliseconds(last && ofGroup(last, group))}`).join(", ");
    const label = last ? `The newest of ${this.updates.length} updates, ${last.position}: ${told}` : "No update yet";
    this.show([this.numbers(), ...stacked.reverse()], label);
  }
}

export class SizeChart extends UpdateChart {
  constructor(element) {
    super(element, () => ({
      scales: {
        rows: { range: (_plot, _low, high) => [0, (high || 1) * 1.05] },
        bytes: { range: (_plot, _low, high) => [0, (high || 1) * 1.05] },
      },
      series: [
        { label: "rows", scale: "rows", stroke: "#0072b2", fill: "#0072b2", width: 0, paths: bars(), points: { show: false }, value: (_plot, value) => short(value) },
        { label: "bytes", scale: "bytes", stroke: "#d55e00", width: 2, points: { size: 5, fill: "#d55e00" }, value: (_plot, value) => bytes(value) },
      ],
      axes: [
        axis({ scale: "rows", size: 50, values: (_plot, splits) => splits.map(short) }),
        axis({ scale: "bytes", side: 1, size: 66, grid: { show: false }, values: (_plot, splits) => splits.map(bytes) }),
      ],
    }));
  }

  set(updates) {
    this.updates = updates.slice(-BARS);
    const last = this.updates.at(-1);
    const label = last
      ? `The newest of ${this.updates.length} updates, ${last.position}: ${short(last.rows)} rows, ${bytes(last.bytes)}`
      : "No update yet";
    const rows = this.updates.map((update) => update.rows);
    this.show([this.numbers(), rows, this.updates.map((update) => update.bytes)], label);
  }
}

// Over time, with a line wherever an update was applied.
class TimeChart extends Chart {
  constructor(element, { series, values }) {
    super(element, () => ({
      scales: { y: { range: (_plot, _low, high) => [0, (high || 1) * 1.1] } },
      series: [{ label: "time", value: (_plot, at) => (at ? clock(at) : "") }, ...series],
      axes: [axis({ space: 70 }), axis({ size: 66, values })],
      hooks: { drawClear: [(plot) => this.mark(plot)] },
    }));
    this.marks = [];
  }

  mark(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = color("--live");
    ctx.globalAlpha = 0.45;
    ctx.setLineDash([3, 3]);
    for (const at of this.marks) {
      if (at < plot.scales.x.min || at > plot.scales.x.max) continue;
      const x = Math.round(plot.valToPos(at, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }
}

export class LatencyChart extends TimeChart {
  constructor(element) {
    const value = (_plot, found) => milliseconds(found);
    super(element, {
      series: [
        { label: "median", stroke: "#0072b2", width: 2, points: { fill: "#0072b2" }, value },
        { label: "p95", stroke: "#e69f00", width: 1.5, points: { fill: "#e69f00" }, value },
        { label: "p99", stroke: "#d55e00", width: 1.5, points: { fill: "#d55e00" }, value },
      ],
      values: (_plot, splits) => splits.map(milliseconds),
    });
  }

  set(samples, marks) {
    this.marks = marks;
    const last = samples.findLast((sample) => sample[2] != null);
    const label = last
      ? `The newest: median ${milliseconds(last[2])}, p95 ${milliseconds(last[3])}, p99 ${milliseconds(last[4])}`
      : "No prediction yet";
    this.show([0, 2, 3, 4].map((column) => samples.map((sample) => sample[column])), label);
  }
}

export class RateChart extends TimeChart {
  constructor(element) {
    super(element, {
      series: [{ label: "a second", stroke: "#009e73", fill: "#009e7333", width: 2, points: { fill: "#009e73" }, value: (_plot, value) => short(value) }],
      values: (_plot, splits) => splits.map(short),
    });
  }

  set(samples, marks) {
    this.marks = marks;
    const last = samples.at(-1);
    this.show([0, 1].map((column) => samples.map((sample) => sample[column])), last ? `The newest: ${short(last[1])} a second` : "No prediction yet");
  }
}
