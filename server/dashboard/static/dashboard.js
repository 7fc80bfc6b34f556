// The page: keeps what the server told of each model, and shows the one that is chosen.

import { drawChain } from "./chain.js";
import { LagChart, LatencyChart, RateChart, SizeChart } from "./charts.js";
import { NOTHING, bytes, clock, count, milliseconds, seconds, share, short } from "./format.js";
import { Orders } from "./orders.js";
import { Stream } from "./stream.js";

const KEPT_UPDATES = 512;
const KEPT_SAMPLES = 450;
const SHOWN_UPDATES = 12;

const find = (id) => document.getElementById(id);
const models = new Map();
const charts = {
  lag: new LagChart(find("lag-chart")),
  size: new SizeChart(find("size-chart")),
  latency: new LatencyChart(find("latency-chart")),
  rate: new RateChart(find("rate-chart")),
};
const orders = new Orders();
let newest = null;

function write(id, text, kind = "") {
  const element = find(id);
  if (element.textContent !== text) element.textContent = text;
  element.classList.remove("good", "warn", "bad");
  if (kind) element.classList.add(kind);
}

function row(cells) {
  const line = document.createElement("tr");
  for (const cell of cells) {
    const element = document.createElement("td");
    if (cell instanceof Node) element.append(cell);
    else if (typeof cell === "object") {
      element.className = cell.kind;
      element.textContent = cell.text;
    } else element.textContent = cell;
    line.append(element);
  }
  return line;
}

const number = (text) => ({ kind: "number", text });

function fill(id, rows) {
  find(id).tBodies[0].replaceChildren(...rows.map(row));
}

function take(document_, isFirst) {
  if (isFirst) models.clear();
  newest = document_;
  const names = new Set(document_.models.map((model) => model.name));
  for (const name of models.keys()) if (!names.has(name)) models.delete(name);
  for (const told of document_.models) keep(told);
  choose(document_.models);
  show();
}

function keep(told) {
  const known = models.get(told.name) ?? { updates: [], samples: [], commits: [] };
  const later = new Set(told.updates.map((update) => `${update.position} ${update.at}`));
  const updates = [...known.updates.filter((update) => !later.has(`${update.position} ${update.at}`)), ...told.updates];
  models.set(told.name, {
    ...told,
    hasNewUpdates: told.updates.length > 0 || !models.has(told.name),
    hasNewCommits: told.commits !== undefined,
    updates: updates.sort((one, other) => one.at - other.at).slice(-KEPT_UPDATES),
    samples: [...known.samples, ...told.samples].slice(-KEPT_SAMPLES),
    commits: told.commits ?? known.commits,
  });
}

function choose(told) {
  const select = find("model");
  const names = told.map((model) => model.name);
  const wanted = names.map((name) => new Option(name || "(no name yet)", name));
  const before = select.value;
  // The only model of a server is whatever its export calls it; one of several that is gone is said to be.
  const isOnlyOne = told.length === 1 && told[0].orders === "/model";
  if (before && !names.includes(before) && !isOnlyOne) wanted.push(new Option(`${before} (not served any more)`, before));
  const texts = (options) => [...options].map((option) => option.text).join("\n");
  if (texts(wanted) !== texts(select.options)) {
    select.replaceChildren(...wanted);
    if (wanted.some((option) => option.value === before)) select.value = before;
  }
  find("choice").hidden = wanted.length < 2;
  write("name", wanted.length === 1 ? wanted[0].value : "");
}

function chosen() {
  return models.get(find("model").value);
}

function show(isAnother = false) {
  const model = chosen();
  write("version", newest.version);
  if (!model) {
    showGone(find("model").value);
    return;
  }
  showNow(model);
  showOrders(model);
  const marks = model.updates.map((update) => update.at);
  charts.latency.set(model.samples, marks);
  charts.rate.set(model.samples, marks);
  if (isAnother || model.hasNewUpdates) {
    charts.lag.set(model.updates);
    charts.size.set(model.updates);
    showApplied(model.updates);
  }
  if (isAnother || model.hasNewCommits) drawChain(find("chain"), model.commits);
  showFleet(model.fleet);
  showRefused(model);
  showTables(model.tables);
  const answers = Object.entries(newest.requests).map(([protocol, statuses]) => [
    protocol,
    Object.entries(statuses).map(([status, times]) => `${status}: ${count(times)}`).join(", "),
  ]);
  fill("answers", answers);
}

function showNow({ state, samples, updates, undo_budget: budget }) {
  const ago = (time) => seconds(Math.max(0, newest.now - Date.parse(time) / 1000));
  write("position", state.position ?? NOTHING);
  write("step", state.step == null ? "" : `step ${count(state.step)}`);
  const behind = state.seconds_behind;
  write("behind", state.position ? seconds(behind) : NOTHING, behind > 60 ? "bad" : behind > 10 ? "warn" : "good");
  const commits = state.commits_behind === 1 ? "1 commit" : `${count(state.commits_behind)} commits`;
  write("newest", state.newest_on_disk ? `${commits}; on disk ${state.newest_on_disk}` : "");
  const kinds = { following: "good", static: "good", degraded: "bad", pinned: "warn", waiting: "warn" };
  write("state", state.update_state, kinds[state.update_state]);
  write("since", state.applied_at ? `applied ${ago(state.applied_at)} ago` : "");
  const served = updates.findLast((update) => update.served_ms != null);
  write("lag", milliseconds(served?.served_ms));
  write("last", served ? `${served.position}, ${short(served.rows)} rows` : "");
  write("updates", count(state.updates));
  write("undo", `${count(state.undo.deltas)} can be undone: ${bytes(state.undo.bytes)} of ${bytes(budget)}`);
  const last = samples.at(-1);
  write("rate", last ? `${short(last[1])}/s` : NOTHING);
  write("p99", last && last[4] != null ? `p99 ${milliseconds(last[4])}, ${count(last[5])} wait` : "");
  write("reason", state.reason ?? "");
  find("reason").hidden = !state.reason;
}

// What was drawn of it stays, as its past.
function showGone(name) {
  const figures = ["position", "step", "behind", "newest", "since", "lag", "last", "updates", "undo", "rate", "p99"];
  for (const id of figures) write(id, "");
  write("state", "gone", "bad");
  write("reason", name ? `${name} is not served here any more: choose another model.` : "No model is served here.");
  find("reason").hidden = false;
  for (const button of document.querySelectorAll("[data-order]")) button.disabled = true;
}

function showOrders({ state }) {
  // It follows no chain: there is nothing to go back to, or to hold.
  const isStatic = state.update_state === "static";
  for (const button of document.querySelectorAll("[data-order]")) {
    button.disabled = !newest.takes_orders;
    button.hidden = isStatic;
  }
  find("no-orders").hidden = newest.takes_orders || isStatic;
}

function showApplied(updates) {
  const shown = updates.slice(-SHOWN_UPDATES).reverse();
  fill("applied", shown.map((update) => [
    update.position,
    update.kind,
    clock(update.at),
    number(count(update.rows)),
    number(bytes(update.bytes)),
    number(milliseconds(update.served_ms)),
    number(milliseconds(update.stages_ms.apply)),
  ]));
}

const STANDINGS = { newest: "good", behind: "warn", pinned: "warn" };

function showFleet(servers) {
  find("fleet-section").hidden = !servers.length;
  fill("fleet", servers.map((server) => [
    server.url ? link(server.url) : "this server",
    { kind: STANDINGS[server.standing] ?? "bad", text: server.standing },
    server.position ?? NOTHING,
    number(server.position ? seconds(server.behind) : NOTHING),
    server.state_id?.slice(0, 12) ?? NOTHING,
    { kind: "why", text: server.state },
  ]));
}

// To the page of that server.
function link(url) {
  const element = document.createElement("a");
  element.href = url;
  element.textContent = url.replace(/^https?:\/\//, "");
  return element;
}

function showRefused(model) {
  const { quarantined, refused } = model.state;
  // As it is: a button that is made anew each second could not be pressed.
  const told = JSON.stringify([model.name, quarantined, refused, newest.takes_orders]);
  const table = find("refused");
  if (table.dataset.told === told) return;
  table.dataset.told = told;
  const states = quarantined.map((item) => [item.position, { kind: "why", text: item.reason }, release(model, item)]);
  const files = refused.map((item) => [item.file, { kind: "why", text: item.reason }, ""]);
  fill("refused", [...states, ...files]);
  table.hidden = !states.length && !files.length;
  find("nothing-refused").hidden = !table.hidden;
}

function release(model, item) {
  if (item.cause !== "values") return "";
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = `Release ${item.position}…`;
  button.dataset.order = "release";
  button.disabled = !newest.takes_orders;
  button.addEventListener("click", () => orders.ask("release", model, item.position));
  return button;
}

function showTables(tables) {
  fill("tables", tables.map((table) => [
    table.key,
    number(count(table.rows)),
    number(table.max_rows == null ? NOTHING : share(table.rows, table.max_rows)),
    number(table.touched == null ? NOTHING : `${count(table.touched)} (${share(table.touched, table.rows)})`),
    number(table.keys_new == null ? NOTHING : `+${count(table.keys_new)}, −${count(table.keys_deleted)}`),
    number(count(table.unknown_keys)),
  ]));
}

for (const button of document.querySelectorAll("[data-order]")) {
  button.addEventListener("click", () => {
    const model = chosen();
    const before = model.updates.filter((update) => update.position !== model.state.position).at(-1);
    const place = button.dataset.order === "rollback" ? before?.position : undefined;
    orders.ask(button.dataset.order, model, place ?? "");
  });
}
find("model").addEventListener("change", () => show(true));

const WORDS = { live: "live", lost: "connection lost, trying again", refused: "a token is needed" };
const stream = new Stream({
  document: take,
  state(state) {
    write("connection", WORDS[state]);
    find("connection").className = state === "live" ? "live" : "lost";
    find("access").hidden = state !== "refused";
    if (state === "refused" && stream.token) write("access-error", "This token is not known here.");
  },
});
find("access").addEventListener("submit", (event) => {
  event.preventDefault();
  stream.token = find("access-token").value;
  stream.run();
});
stream.run();
