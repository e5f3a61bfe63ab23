// SPDX-License-Identifier: Apache-2.0
// The page: shows the dashboard that the server streams once a second, and confirms every change.
// Whatever comes from an event is inserted as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const HISTORY = 120;
const history = { waiting: [], age: [], published: [], done: [] };
let last = null;

// ---- requests ----------------------------------------------------------------------------------

function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function askForToken() {
  sessionStorage.removeItem("token");
  const dialog = $("login");
  if (!dialog.open) dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  sessionStorage.setItem("token", $("login-token").value.trim());
  $("login-token").value = "";
}

async function call(path, method = "GET") {
  for (;;) {
    const response = await fetch(path, { method, headers: headers() });
    if (response.status === 401) { await askForToken(); continue; }
    const body = await response.json();
    if (!response.ok) throw new Error(body.detail || body.title || `HTTP status ${response.status}`);
    if (Array.isArray(body)) body.more = response.headers.has("Link");  // there is a next page
    return body;
  }
}

function notify(text) {
  $("message").textContent = text;
  clearTimeout(notify.timer);
  notify.timer = setTimeout(() => { $("message").textContent = ""; }, 6000);
}

async function attempt(work) {
  try { return await work(); } catch (error) { notify(error.message); return null; }
}

// ---- formatting --------------------------------------------------------------------------------

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) made.append(child);
  return made;
}

function number(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en");
}

function duration(seconds) {
  if (!seconds) return "0 s";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

function plural(count, one, more) {
  return `${number(count)} ${count === 1 ? one : more}`;
}

// A time as the logs write it, and its age.
function timestamp(time) {
  const seconds = (Date.now() - Date.parse(time)) / 1000;
  return element("time", { datetime: time }, `${time.replace("T", " ").replace(/\.\d+Z$/, " UTC")} (${duration(Math.max(0, seconds))} ago)`);
}

function draw(name, value, shown) {
  const series = history[name];
  series.push(value);
  if (series.length > HISTORY) series.shift();
  const top = Math.max(1, ...series);
  const points = series.map((one, at) => `${(300 * (HISTORY - series.length + at)) / (HISTORY - 1)},${57 - (54 * one) / top}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  $(`c-${name}`).replaceChildren(line);
  $(`c-${name}-now`).textContent = shown;
}

// ---- the overview -----------------------------------------------------------------------------

function station(label, value, note, kind = "", href = null) {
  const parts = [element("small", {}, label), element("b", {}, number(value)), element("small", {}, note)];
  return element("li", { class: kind }, ...(href ? [element("a", { href }, ...parts)] : parts));
}

// waitsFor is a reason of the breaker only while consumers are running and none of them is paused.
function breakerText(one) {
  return one.waitsFor && one.consumers > 0 && !one.paused ? `breaker open: ${one.waitsFor}` : "breaker open";
}

// What an operator has to know first, problems before warnings, each with a link to the details.
function findings(dashboard) {
  const found = dashboard.reasons.map((reason) => ["bad", reason]);
  for (const one of dashboard.subscriptions) {
    const dead = one.deadLetters;
    if (dead) found.push(["bad", `${one.scope}: ${plural(dead, "dead letter pending", "dead letters pending")}${one.parked ? `, ${plural(one.parked, "event", "events")} parked behind` : ""}`, `#dead/${encodeURIComponent(one.scope)}`, "Show"]);
    if (one.breaker === 2) found.push(["bad", `${one.scope}: ${breakerText(one)}`]);
    if (one.paused) found.push(["warn", `${one.scope}: paused${one.lag ? `, ${plural(one.lag, "event", "events")} waiting` : ""}`]);
    if (one.lag === null) found.push(["warn", `${one.scope}: lag unknown, the broker is not reachable`]);
    if (one.retrying) found.push(["warn", `${one.scope}: ${plural(one.retrying, "event", "events")} held behind a retry, a gap or earlier events`]);
  }
  const other = dashboard.pending - sum(dashboard.subscriptions, "deadLetters");
  if (other > 0) found.push(["bad", `${plural(other, "dead letter", "dead letters")} pending in other scopes (relay, applications)`, "#dead", "Show"]);
  if (dashboard.outbox.retrying) found.push(["warn", `relay: ${plural(dashboard.outbox.retrying, "event", "events")} in backoff after a refusal, or behind one${dashboard.outbox.lastError ? `: ${dashboard.outbox.lastError}` : ""}`]);
  return found.sort((one, other) => (one[0] === "bad" ? 0 : 1) - (other[0] === "bad" ? 0 : 1));
}

function showFindings(dashboard) {
  const found = findings(dashboard);
  const key = JSON.stringify(found);
  if (showFindings.key === key) return;
  showFindings.key = key;
  $("findings").replaceChildren(...found.map(([kind, text, href, word]) => element("li", { class: kind }, text, ...(href ? [" ", element("a", { href, "aria-label": `${word}: ${text}` }, word)] : []))));
  $("no-findings").hidden = found.length > 0;
  const bad = found.filter(([kind]) => kind === "bad").length;
  document.title = bad ? `(${bad}) Semel` : "Semel";
}

function sum(list, key) {
  return list.reduce((total, one) => total + (one[key] || 0), 0);
}

function showFlow(dashboard) {
  const { outbox, subscriptions, process } = dashboard;
  const lag = subscriptions.some((one) => one.lag === null) ? null : sum(subscriptions, "lag");
  const dead = dashboard.pending;
  $("flow").replaceChildren(
    station("waiting", outbox.waiting, outbox.oldest ? `oldest ${duration(dashboard.ageSeconds)}` : "none", dashboard.ageSeconds > 60 ? "bad" : ""),
    station("in flight", process.outstanding, "not confirmed yet"),
    station("published", process.published, "confirmed by the broker"),
    station("at the broker", lag, "not processed yet"),
    station("processed", process.done, "by handlers"),
  );
  $("aside").replaceChildren(
    station("retrying", outbox.retrying, outbox.lastError || "refused by the broker, or behind one", outbox.retrying ? "warn" : ""),
    station("held", sum(subscriptions, "retrying"), "behind a retry, a gap or earlier events", sum(subscriptions, "retrying") ? "warn" : ""),
    station("parked", sum(subscriptions, "parked") + sum(subscriptions, "blocked") + outbox.parked + outbox.blocked, "behind dead letters"),
    station("dead", dead, dead ? "pending" : "none", dead ? "bad" : "", "#dead"),
  );
}

function showRates(dashboard) {
  const seconds = last ? (Date.parse(dashboard.time) - Date.parse(last.time)) / 1000 : 0;
  const rate = (key) => (seconds > 0 ? Math.max(0, (dashboard.process[key] - last.process[key]) / seconds) : 0);
  draw("waiting", dashboard.outbox.waiting, number(dashboard.outbox.waiting));
  draw("age", dashboard.ageSeconds, duration(dashboard.ageSeconds));
  draw("published", rate("published"), `${number(Math.round(rate("published")))}/s`);
  draw("done", rate("done"), `${number(Math.round(rate("done")))}/s`);
  $("rates-hint").hidden = dashboard.process.works;
}

const breakers = ["closed", "half-open", "open"];

function subscriptionState(one) {
  if (one.paused) return "paused";
  if (one.consumers === 0) return "no consumer";
  return one.waitsFor ? "waiting" : "consuming";
}

function subscriptionRow(one) {
  const button = element("button", { type: "button", onclick: () => pause(one) }, one.paused ? "Resume" : "Pause");
  button.setAttribute("aria-label", `${one.paused ? "Resume" : "Pause"} subscription ${one.scope}`);
  const row = element("tr", { "data-scope": one.scope },
    element("td", {}, one.scope), element("td", {}, one.topics.join(", ")),
    ...["lag", "retrying", "parked", "deadLetters"].map((key) => element("td", { class: "number" }, number(one[key]))),
    element("td", {}, one.breaker === null ? "–" : breakers[one.breaker]),
    element("td", {}, subscriptionState(one)), element("td", {}, button));
  return row;
}

// Rows are replaced only when they changed, so that the focus stays.
function showSubscriptions(list) {
  const body = document.querySelector("#subscriptions tbody");
  const key = JSON.stringify(list);
  $("no-subscriptions").hidden = list.length > 0;
  if (showSubscriptions.key === key) return;
  const focused = document.activeElement && document.activeElement.closest("tr");
  const scope = focused ? focused.dataset.scope : null;
  body.replaceChildren(...list.map(subscriptionRow));
  if (scope) {
    const again = [...body.rows].find((row) => row.dataset.scope === scope);
    if (again) again.querySelector("button").focus();
  }
  showSubscriptions.key = key;
}

function showState(reasons) {
  const notReady = reasons.length > 0;
  document.body.className = notReady ? "not-ready" : "ready";
  const text = notReady ? reasons.join("; ") : "ready";
  if ($("state-text").textContent !== text) $("state-text").textContent = text;
}

function show(dashboard) {
  showFindings(dashboard);
  showFlow(dashboard);
  showRates(dashboard);
  showSubscriptions(dashboard.subscriptions);
  showState(dashboard.reasons);
  $("dead-badge").hidden = dashboard.pending === 0;
  $("dead-badge").textContent = number(dashboard.pending);
  const letters = [dashboard.pending, sum(dashboard.subscriptions, "parked"), dashboard.outbox.parked].join();
  if (show.letters !== letters && !$("view-dead").hidden) loadLetters();
  show.letters = letters;
  last = dashboard;
}

async function pause(one) {
  const word = one.paused ? "resume" : "pause";
  if (!one.paused && !(await confirmed("Pause subscription?", `${one.scope} consumes nothing until it is resumed. No event is lost.`, "Pause"))) return;
  await attempt(async () => { await call(`/api/admin/subscriptions/${encodeURIComponent(one.scope)}/${word}`, "POST"); notify(`Subscription ${one.scope} ${word}d`); });
}

// ---- dead letters -----------------------------------------------------------------------------

function filterQuery(more = {}) {
  const form = new FormData($("filter"));
  const query = new URLSearchParams();
  for (const key of ["status", "scope", "type"]) if (form.get(key)) query.set(key, form.get(key).trim());
  if (form.get("since")) query.set("since", new Date(form.get("since")).toISOString());
  for (const [key, value] of Object.entries(more)) query.set(key, value);
  return query;
}

function letterCard(entry) {
  const pending = entry.status === "PENDING";
  const details = element("pre", { hidden: true });
  const toggle = element("button", { type: "button", "aria-expanded": "false", onclick: async () => {
    if (details.hidden && !details.textContent) {  // the list has no payloads
      if (toggle.dataset.asks) return;
      toggle.dataset.asks = "1";
      const whole = await attempt(() => call(`/api/admin/dlq/${entry.dlqEntryId}`));
      delete toggle.dataset.asks;
      if (!whole) return;
      details.textContent = JSON.stringify(whole.eventRecord, null, 2);
    }
    details.hidden = !details.hidden;
    toggle.setAttribute("aria-expanded", String(!details.hidden));
  } }, "Event");
  const buttons = element("p", { class: "buttons" }, toggle,
    element("button", { type: "button", onclick: () => trace(entry.originalEventId) }, "Trace"));
  if (pending) {
    buttons.append(element("button", { type: "button", class: "replay", onclick: () => replay(entry) }, "Replay…"),
      element("button", { type: "button", class: "danger", onclick: () => discard(entry) }, "Discard…"));
  }
  return element("li", { class: entry.status, "data-entry": entry.dlqEntryId },
    element("h3", {}, `${entry.eventType || "type unknown"} · ${entry.sourceService || ""}`),
    element("p", { class: "meta" }, `${entry.originalEventId || "id unknown"} · ${entry.topicName || ""} · ${entry.status.toLowerCase()} · `, timestamp(entry.failureTimestamp)),
    element("p", { class: "why" }, entry.failureReason || ""),
    element("p", { class: "meta" }, `${plural(entry.attempts, "attempt", "attempts")}, replayed ${entry.replayCount} of 3 times${entry.parked ? `, ${entry.parked} parked behind it` : ""}${entry.discardReason ? `, discarded: ${entry.discardReason}` : ""}`),
    buttons, details);
}

async function loadLetters(after = null) {
  const limit = after ? 50 : Math.min(1000, Math.max(50, $("letters").children.length));
  const request = loadLetters.request = (loadLetters.request || 0) + 1;
  const entries = await attempt(() => call(`/api/admin/dlq?${filterQuery(after ? { limit, after } : { limit })}`));
  if (!entries || request !== loadLetters.request) return;  // a later request has a newer response
  // A card that has not changed stays, with its open details and the focus.
  const before = new Map([...$("letters").children].map((card) => [card.dataset.entry, card]));
  const cards = entries.map((entry) => {
    const key = JSON.stringify(entry);
    const old = before.get(entry.dlqEntryId);
    if (old && old.dataset.key === key) return old;
    const card = letterCard(entry);
    card.dataset.key = key;
    return card;
  });
  const focused = document.activeElement;
  if (after) $("letters").append(...cards); else $("letters").replaceChildren(...cards);
  if ($("letters").contains(focused)) focused.focus();
  $("no-letters").hidden = $("letters").children.length > 0;
  $("more").hidden = !entries.more;
}

async function replay(entry) {
  const behind = entry.parked ? ` ${plural(entry.parked, "event", "events")} parked behind it will follow in order.` : "";
  const how = entry.sourceService === "relay" ? "It returns to the outbox, and the relay publishes it again with the same id." : `It is sent to ${entry.sourceService} again with the same id.`;
  if (!(await confirmed("Replay dead letter?", how + behind, "Replay"))) return;
  await attempt(async () => { await call(`/api/admin/dlq/${entry.dlqEntryId}/replay`, "POST"); notify("Dead letter replayed"); await loadLetters(); });
}

async function discard(entry) {
  const reason = await confirmed("Discard dead letter?", `${entry.sourceService === "relay" ? "It will never be published." : `${entry.sourceService} will never process it.`} This cannot be undone.`, "Discard", true);
  if (reason === false) return;
  await attempt(async () => {
    await call(`/api/admin/dlq/${entry.dlqEntryId}${reason ? `?reason=${encodeURIComponent(reason)}` : ""}`, "DELETE");
    notify("Dead letter discarded");
    await loadLetters();
  });
}

async function allMatches(word) {
  const query = filterQuery({ preview: 1 });
  query.delete("status");
  const preview = await attempt(() => call(`/api/admin/dlq/${word}?${query}`, "POST"));
  if (!preview) return;
  if (preview.chosen === 0) { notify("No pending dead letter matches the filter"); return; }
  const reason = await confirmed(`${word === "replay" ? "Replay" : "Discard"} ${plural(preview.chosen, "dead letter", "dead letters")}?`,
    word === "replay" ? "Each event is sent to its subscription again with the same id." : "They will never be processed. This cannot be undone.", word === "replay" ? "Replay" : "Discard", word === "discard");
  if (reason === false) return;
  query.delete("preview");
  if (word === "discard" && reason) query.set("reason", reason);
  await attempt(async () => {
    const done = await call(`/api/admin/dlq/${word}?${query}`, "POST");
    notify(`${done.done} of ${done.chosen} ${word === "replay" ? "replayed" : "discarded"}${done.failures.length ? `; first failure: ${done.failures[0].reason}` : ""}`);
    await loadLetters();
  });
}

// Resolves to false when cancelled, else to the reason, or true where none is asked for.
function confirmed(title, text, word, wantsReason = false) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = text;
  $("confirm-yes").textContent = word;
  $("confirm-reason-label").hidden = !wantsReason;
  $("confirm-reason").value = "";
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => {
    done(dialog.returnValue === "yes" ? (wantsReason ? $("confirm-reason").value.trim() : true) : false);
  }, { once: true }));
}

// ---- one event --------------------------------------------------------------------------------

function trace(id) {
  location.hash = `#event/${encodeURIComponent(id || "")}`;
}

async function showTrace(id) {
  $("search").elements.id.value = id;
  $("timeline").replaceChildren();
  $("no-timeline").textContent = "";
  if (!id) return;
  try {
    const trace = await call(`/api/admin/trace/${encodeURIComponent(id)}`);
    $("timeline").replaceChildren(...trace.facts.map((fact) => element("li", { class: /dead|refused|failed/.test(fact.what) ? "bad" : "" },
      timestamp(fact.time), ` ${fact.scope || "producer"}: `, element("strong", {}, fact.what), fact.detail ? ` — ${fact.detail}` : "")));
  } catch (error) { $("no-timeline").textContent = error.message; }
}

// ---- the audit log -----------------------------------------------------------------------------

async function loadAudit() {
  const rows = await attempt(() => call("/api/admin/audit?limit=200"));
  if (!rows) return;
  $("audit-rows").replaceChildren(...rows.map((row) => element("tr", {}, element("td", {}, timestamp(row.at)), ...[row.who, row.what, row.target, row.detail, row.outcome].map((text) => element("td", {}, text || "–")))));
  $("no-audit").hidden = rows.length > 0;
}

// ---- views and the stream ---------------------------------------------------------------------

function decoded(text) {
  try { return decodeURIComponent(text || ""); } catch { return ""; }
}

function route() {
  const [view, rest] = (location.hash.slice(1) || "overview").split("/");
  if (!$(`view-${view}`)) {  // an anchor on the page, or a typo
    if (!document.querySelector("nav a[aria-current]")) location.hash = "#overview";
    return;
  }
  for (const link of document.querySelectorAll("nav a")) {
    const current = link.dataset.view === view;
    if (current) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    $(`view-${link.dataset.view}`).hidden = !current;
  }
  if (view === "dead" && rest) $("filter").elements.scope.value = decoded(rest);
  if (view === "dead") loadLetters();
  if (view === "audit") loadAudit();
  if (view === "event") showTrace(decoded(rest));
}

// A browser opens at most six connections to one server, and the server bounds its streams: a hidden page holds neither. It still
// reads one dashboard now and then, for the number in its title.
const RETRY_MS = 2000, HIDDEN_MS = 15000;

function sleep(time) {
  return new Promise((done) => {
    const end = () => { clearTimeout(timer); document.removeEventListener("visibilitychange", end); done(); };
    const timer = setTimeout(end, time);
    document.addEventListener("visibilitychange", end);
  });
}

// Shows each dashboard until the stream ends (false), or the page is hidden (true).
async function follow(reader) {
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return false;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (!data) continue;
      show(JSON.parse(data));
      if (document.hidden) return true;
    }
  }
}

// Server-sent events by fetch, because an EventSource cannot carry a token.
async function listen() {
  for (;;) {
    const stream = new AbortController();
    let reason = "admin server not reachable, retrying";
    try {
      const response = await fetch("/api/admin/stream", { headers: headers(), signal: stream.signal });
      if (response.status === 401) { await askForToken(); continue; }
      if (response.status === 503) reason = "too many pages are open, retrying";
      if (!response.ok) throw new Error(`HTTP status ${response.status}`);
      if (await follow(response.body.pipeThrough(new TextDecoderStream()).getReader())) reason = null;
    } catch (error) { console.debug(error); }
    stream.abort();
    if (reason) showState([reason]);
    await sleep(reason ? RETRY_MS : HIDDEN_MS);
  }
}

$("confirm-no").addEventListener("click", () => $("confirm").close("no"));
addEventListener("hashchange", route);
$("filter").addEventListener("submit", (event) => { event.preventDefault(); loadLetters(); });
$("search").addEventListener("submit", (event) => { event.preventDefault(); trace(event.target.elements.id.value.trim()); });
$("more").addEventListener("click", () => loadLetters($("letters").lastElementChild.dataset.entry));
$("replay-all").addEventListener("click", () => allMatches("replay"));
$("discard-all").addEventListener("click", () => allMatches("discard"));
route();
listen();
