// How numbers and times are written.

const DIGITS = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const NOTHING = "–";

export function count(value) {
  return value == null ? NOTHING : DIGITS.format(value);
}

export function short(value) {
  return value == null ? NOTHING : SHORT.format(value);
}

export function bytes(value) {
  if (value == null) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at ? value.toPrecision(3) : value} ${units[at]}`;
}

export function milliseconds(value) {
  if (value == null) return NOTHING;
  if (value < 1) return `${value.toFixed(2)} ms`;
  if (value < 100) return `${value.toFixed(1)} ms`;
  return value < 10_000 ? `${value.toFixed(0)} ms` : seconds(value / 1000);
}

export function seconds(value) {
  if (value == null) return NOTHING;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${value.toFixed(0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return value < 172_800 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86_400).toFixed(0)} days`;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

export function share(part, whole) {
  if (part == null || !whole) return NOTHING;
  const percent = (100 * part) / whole;
  return `${percent < 10 ? percent.toPrecision(2) : percent.toFixed(0)} %`;
}
