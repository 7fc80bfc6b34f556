// The chain as a picture: fulls are squares, deltas circles, one lane for each fork.

import { bytes, clock, count } from "./format.js";

const STEP = 34;
const LANE = 44;
const SIZE = 8;
const NAMESPACE = "http://www.w3.org/2000/svg";
const REFUSED = new Set(["values", "files", "schema", "hole", "apply", "other", "rolled_back"]);
const WORDS = { live: "live", served: "on the way to what is live", waiting: "waits to be applied", skipped: "not taken", rolled_back: "rolled back" };

function shape(name, attributes, parent) {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

// Where each commit stands: in the order of positions, a child of the newest of its lane in that lane.
function place(commits) {
  const places = [];
  const ends = [];
  const byId = new Map();
  for (const [at, commit] of commits.entries()) {
    const parent = byId.get(commit.parent);
    // A full has the state of a delta: it stands below it, and the next delta follows the delta.
    const twin = byId.get(commit.id);
    let lane = twin ? twin.lane : ends.findIndex((end) => parent !== undefined && end === parent.commit.id);
    if (lane < 0) lane = parent === undefined && ends.length === 0 ? 0 : ends.length;
    ends[lane] = commit.id;
    const found = { commit, lane, at, parent, twin };
    places.push(found);
    if (!twin || commit.kind === "delta") byId.set(commit.id, found);
  }
  return { places, lanes: Math.max(1, ends.length) };
}

function kind(commit) {
  return REFUSED.has(commit.state) ? "refused" : commit.state;
}

function words(commit) {
  return WORDS[commit.state] ?? `refused: ${commit.state}`;
}

export function drawChain(element, commits) {
  if (!commits.length) {
    element.replaceChildren("No commit is known.");
    return;
  }
  const wasAtEnd = element.scrollLeft + element.clientWidth >= element.scrollWidth - STEP;
  const { places, lanes } = place(commits);
  const width = commits.length * STEP + 2 * STEP;
  const height = lanes * LANE + 34;
  const live = commits.findLast((commit) => commit.state === "live");
  const svg = document.createElementNS(NAMESPACE, "svg");
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `The newest ${commits.length} commits in ${lanes} lanes; live is ${live ? live.position : "none of them"}`);
  const x = (found) => STEP + found.at * STEP;
  const y = (found) => 24 + found.lane * LANE;
  for (const found of places) {
    const from = found.twin ?? found.parent;
    if (from) shape("path", { class: "link", d: `M${x(from)} ${y(from)}C${x(from) + STEP} ${y(from)} ${x(found) - STEP} ${y(found)} ${x(found)} ${y(found)}` }, svg);
  }
  for (const found of places) draw(svg, found, x(found), y(found));
  element.replaceChildren(svg);
  if (wasAtEnd || !element.dataset.isShown) element.scrollLeft = element.scrollWidth;
  element.dataset.isShown = "yes";
}

function draw(svg, { commit, at }, x, y) {
  const group = shape("g", { "data-position": commit.position, "data-state": commit.state, "data-kind": commit.kind }, svg);
  if (commit.state === "live") shape("circle", { class: "ring", cx: x, cy: y, r: SIZE + 4 }, group);
  const style = `commit ${kind(commit)}`;
  if (commit.kind === "full") shape("rect", { class: style, x: x - SIZE, y: y - SIZE, width: 2 * SIZE, height: 2 * SIZE }, group);
  else shape("circle", { class: style, cx: x, cy: y, r: SIZE - 1 }, group);
  if (at % 3 === 0 || commit.state === "live") shape("text", { x, y: y + SIZE + 16, "text-anchor": "middle" }, group).textContent = commit.position;
  const title = document.createElementNS(NAMESPACE, "title");
  title.textContent = `${commit.kind} ${commit.position}, step ${count(commit.step)}, ${clock(commit.at)}: ${count(commit.rows)} rows, ${bytes(commit.bytes)}; ${words(commit)}`;
  group.prepend(title);
}
