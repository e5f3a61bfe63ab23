// SPDX-License-Identifier: Apache-2.0
// The page: draws what the server tells once a second, and asks before it changes anything.
// Everything that comes from an event is put in as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const HISTORY = 120;
const history = { waiting: [], age: [], published: [], done: [] };
let last = null;

// ---- talking to the server --------------------------------------------------------------------

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
    const answer = await fetch(path, { method, headers: headers() });
    if (answer.status === 401) { await askForToken(); continue; }
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.detail || body.title || `status ${answer.status}`);
    if (Array.isArray(body)) body.more = answer.headers.has("Link");  // the list goes on
    return body;
  }
}

function say(text) {
  $("said").textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { $("said").textContent = ""; }, 6000);
}

async function attempt(work) {
  try { return await work(); } catch (error) { say(error.message); return null; }
}

// ---- small helpers ----------------------------------------------------------------------------

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

function many(count, one, more) {
  return `${number(count)} ${count === 1 ? one : more}`;
}

// A moment as it stands in the logs, and how long ago that was.
function moment(time) {
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

// What a person should know first, the worst on top, each with where to go on.
function findings(sight) {
  const found = sight.reasons.map((reason) => ["bad", reason]);
  for (const one of sight.subscriptions) {
    const dead = one.deadLetters;
    if (dead) found.push(["bad", `${one.scope}: ${many(dead, "dead letter waits", "dead letters wait")} for a decision${one.parked ? `, and ${number(one.parked)} behind` : ""}`, `#dead/${encodeURIComponent(one.scope)}`, "look"]);
    if (one.breaker === 2) found.push(["bad", `${one.scope}: the breaker is open; what its handler depends on is down`]);
    if (one.paused) found.push(["warn", `${one.scope} is paused${one.lag ? `, and ${many(one.lag, "event waits", "events wait")} for it` : ""}`]);
    if (one.lag === null) found.push(["warn", `${one.scope}: the broker cannot be asked how much waits`]);
    if (one.retrying) found.push(["warn", `${one.scope}: ${many(one.retrying, "event is", "events are")} tried again`]);
  }
  const relay = sight.pending - sum(sight.subscriptions, "deadLetters");
  if (relay > 0) found.push(["bad", `relay: ${many(relay, "event was", "events were")} given up by the broker or by hand`, "#dead", "look"]);
  if (sight.outbox.retrying) found.push(["warn", `relay: the broker refuses ${many(sight.outbox.retrying, "event", "events")}${sight.outbox.lastError ? `: ${sight.outbox.lastError}` : ""}`]);
  return found.sort((one, other) => (one[0] === "bad" ? 0 : 1) - (other[0] === "bad" ? 0 : 1));
}

function showFindings(sight) {
  const found = findings(sight);
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

function showWay(sight) {
  const { outbox, subscriptions, process } = sight;
  const lag = subscriptions.some((one) => one.lag === null) ? null : sum(subscriptions, "lag");
  const dead = sight.pending;
  $("way").replaceChildren(
    station("waiting", outbox.waiting, outbox.oldest ? `oldest ${duration(sight.ageSeconds)}` : "nothing waits", sight.ageSeconds > 60 ? "bad" : ""),
    station("in flight", process.outstanding, "not answered yet"),
    station("confirmed", process.published, "by the broker"),
    station("at the broker", lag, "not settled yet"),
    station("processed", process.done, "effects"),
  );
  $("aside").replaceChildren(
    station("refused", outbox.retrying, outbox.lastError || "by the broker, tried again", outbox.retrying ? "warn" : ""),
    station("retrying", sum(subscriptions, "retrying"), "at subscriptions", sum(subscriptions, "retrying") ? "warn" : ""),
    station("parked", sum(subscriptions, "parked") + sum(subscriptions, "blocked") + outbox.parked + outbox.blocked, "behind dead letters"),
    station("dead", dead, dead ? "wait for a person" : "none", dead ? "bad" : "", "#dead"),
  );
}

function showRates(sight) {
  const seconds = last ? (Date.parse(sight.time) - Date.parse(last.time)) / 1000 : 0;
  const rate = (key) => (seconds > 0 ? Math.max(0, (sight.process[key] - last.process[key]) / seconds) : 0);
  draw("waiting", sight.outbox.waiting, number(sight.outbox.waiting));
  draw("age", sight.ageSeconds, duration(sight.ageSeconds));
  draw("published", rate("published"), `${number(Math.round(rate("published")))}/s`);
  draw("done", rate("done"), `${number(Math.round(rate("done")))}/s`);
  $("rates-hint").hidden = sight.process.works;
}

const breakers = ["closed", "half open", "open"];

function standing(one) {
  if (one.consumers === 0) return "no consumer";
  return one.waitsFor ? "waiting" : "taking";
}

function subscriptionRow(one) {
  const button = element("button", { type: "button", onclick: () => pause(one) }, one.paused ? "Resume" : "Pause");
  button.setAttribute("aria-label", `${one.paused ? "Resume" : "Pause"} ${one.scope}`);
  const row = element("tr", { "data-scope": one.scope },
    element("td", {}, one.scope), element("td", {}, one.topics.join(", ")),
    ...["lag", "retrying", "parked", "deadLetters"].map((key) => element("td", { class: "number" }, number(one[key]))),
    element("td", {}, one.breaker === null ? "–" : breakers[one.breaker]),
    element("td", {}, one.paused ? "paused" : standing(one)), element("td", {}, button));
  return row;
}

// A row that has not changed stays, so that the focus does too.
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
  const stuck = reasons.length > 0;
  document.body.className = stuck ? "stuck" : "ready";
  const text = stuck ? reasons.join("; ") : "ready";
  if ($("state-text").textContent !== text) $("state-text").textContent = text;
}

function show(sight) {
  showFindings(sight);
  showWay(sight);
  showRates(sight);
  showSubscriptions(sight.subscriptions);
  showState(sight.reasons);
  $("dead-badge").hidden = sight.pending === 0;
  $("dead-badge").textContent = number(sight.pending);
  const letters = [sight.pending, sum(sight.subscriptions, "parked"), sight.outbox.parked].join();
  if (show.letters !== letters && !$("view-dead").hidden) loadLetters();
  show.letters = letters;
  last = sight;
}

async function pause(one) {
  const word = one.paused ? "resume" : "pause";
  if (!one.paused && !(await confirmed("Pause the subscription?", `${one.scope} takes nothing until it is resumed. Nothing is lost.`, "Pause"))) return;
  await attempt(async () => { await call(`/api/admin/subscriptions/${encodeURIComponent(one.scope)}/${word}`, "POST"); say(`${one.scope}: ${word}d`); });
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
    element("button", { type: "button", onclick: () => trace(entry.originalEventId) }, "Its life"));
  if (pending) {
    buttons.append(element("button", { type: "button", class: "replay", onclick: () => replay(entry) }, "Replay…"),
      element("button", { type: "button", class: "danger", onclick: () => discard(entry) }, "Discard…"));
  }
  return element("li", { class: entry.status, "data-entry": entry.dlqEntryId },
    element("h3", {}, `${entry.eventType || "unknown type"} · ${entry.sourceService || ""}`),
    element("p", { class: "meta" }, `${entry.originalEventId || "no id"} · ${entry.topicName || ""} · ${entry.status.toLowerCase()} · `, moment(entry.failureTimestamp)),
    element("p", { class: "why" }, entry.failureReason || ""),
    element("p", { class: "meta" }, `${many(entry.attempts, "attempt", "attempts")}, replayed ${entry.replayCount} of 3${entry.parked ? `, ${entry.parked} wait behind it` : ""}${entry.discardReason ? `, discarded: ${entry.discardReason}` : ""}`),
    buttons, details);
}

async function loadLetters(after = null) {
  const limit = after ? 50 : Math.min(1000, Math.max(50, $("letters").children.length));
  const turn = loadLetters.turn = (loadLetters.turn || 0) + 1;
  const entries = await attempt(() => call(`/api/admin/dlq?${filterQuery(after ? { limit, after } : { limit })}`));
  if (!entries || turn !== loadLetters.turn) return;  // a later question has a newer answer
  // One that has not changed stays, with what was opened in it, and the focus.
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
  const behind = entry.parked ? ` The ${entry.parked} behind it come after it, in order.` : "";
  if (!(await confirmed("Replay this event?", `It goes to ${entry.sourceService} again, with the same id.${behind}`, "Replay"))) return;
  await attempt(async () => { await call(`/api/admin/dlq/${entry.dlqEntryId}/replay`, "POST"); say("replayed"); await loadLetters(); });
}

async function discard(entry) {
  const reason = await confirmed("Give this event up for good?", `${entry.eventType || "It"} will not be processed by ${entry.sourceService}.`, "Discard", true);
  if (reason === false) return;
  await attempt(async () => {
    await call(`/api/admin/dlq/${entry.dlqEntryId}${reason ? `?reason=${encodeURIComponent(reason)}` : ""}`, "DELETE");
    say("discarded");
    await loadLetters();
  });
}

async function allFound(word) {
  const query = filterQuery({ preview: 1 });
  query.delete("status");
  const preview = await attempt(() => call(`/api/admin/dlq/${word}?${query}`, "POST"));
  if (!preview) return;
  if (preview.chosen === 0) { say("no pending dead letter fits"); return; }
  const reason = await confirmed(`${word === "replay" ? "Replay" : "Discard"} ${preview.chosen} dead letters?`,
    word === "replay" ? "Each goes to its own subscription again, with the same id." : "They will not be processed.", word === "replay" ? "Replay" : "Discard", word === "discard");
  if (reason === false) return;
  query.delete("preview");
  if (word === "discard" && reason) query.set("reason", reason);
  await attempt(async () => {
    const done = await call(`/api/admin/dlq/${word}?${query}`, "POST");
    say(`${done.done} of ${done.chosen} done${done.failures.length ? `; ${done.failures[0].reason}` : ""}`);
    await loadLetters();
  });
}

// false: no. Otherwise the reason, or true.
function confirmed(title, text, word, wantsReason = false) {
  const dialog = $("ask");
  $("ask-title").textContent = title;
  $("ask-text").textContent = text;
  $("ask-yes").textContent = word;
  $("ask-reason-label").hidden = !wantsReason;
  $("ask-reason").value = "";
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => {
    done(dialog.returnValue === "yes" ? (wantsReason ? $("ask-reason").value.trim() : true) : false);
  }, { once: true }));
}

// ---- one event --------------------------------------------------------------------------------

function trace(id) {
  location.hash = `#event/${encodeURIComponent(id || "")}`;
}

async function showLife(id) {
  $("search").elements.id.value = id;
  $("life").replaceChildren();
  $("no-life").textContent = "";
  if (!id) return;
  try {
    const life = await call(`/api/admin/trace/${encodeURIComponent(id)}`);
    $("life").replaceChildren(...life.facts.map((fact) => element("li", { class: /dead|refused|failed/.test(fact.what) ? "bad" : "" },
      moment(fact.time), ` ${fact.scope || "producer"}: `, element("strong", {}, fact.what), fact.detail ? ` — ${fact.detail}` : "")));
  } catch (error) { $("no-life").textContent = error.message; }
}

// ---- the audit --------------------------------------------------------------------------------

async function loadAudit() {
  const rows = await attempt(() => call("/api/admin/audit?limit=200"));
  if (!rows) return;
  $("audit-rows").replaceChildren(...rows.map((row) => element("tr", {}, element("td", {}, moment(row.at)), ...[row.who, row.what, row.target, row.detail, row.outcome].map((text) => element("td", {}, text || "–")))));
  $("no-audit").hidden = rows.length > 0;
}

// ---- views and the stream ---------------------------------------------------------------------

function decoded(text) {
  try { return decodeURIComponent(text || ""); } catch { return ""; }
}

function route() {
  const [view, rest] = (location.hash.slice(1) || "overview").split("/");
  if (!$(`view-${view}`)) {  // a place on the page, or a mistake
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
  if (view === "event") showLife(decoded(rest));
}

// A browser has six connections to one server, and the server has so many streams: a page that nobody looks at holds neither.
// It still looks now and then, for the number in its title.
const PATIENCE = 2000, OUT_OF_SIGHT = 15000;

function pauseFor(time) {
  return new Promise((done) => {
    const end = () => { clearTimeout(timer); document.removeEventListener("visibilitychange", end); done(); };
    const timer = setTimeout(end, time);
    document.addEventListener("visibilitychange", end);
  });
}

// Shows what comes until the stream ends, or nobody looks.
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
    let reason = "the admin server does not answer";
    try {
      const answer = await fetch("/api/admin/stream", { headers: headers(), signal: stream.signal });
      if (answer.status === 401) { await askForToken(); continue; }
      if (answer.status === 503) reason = "too many pages are open; this one tries again";
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      if (await follow(answer.body.pipeThrough(new TextDecoderStream()).getReader())) reason = null;
    } catch (error) { console.debug(error); }
    stream.abort();
    if (reason) showState([reason]);
    await pauseFor(reason ? PATIENCE : OUT_OF_SIGHT);
  }
}

$("ask-no").addEventListener("click", () => $("ask").close("no"));
addEventListener("hashchange", route);
$("filter").addEventListener("submit", (event) => { event.preventDefault(); loadLetters(); });
$("search").addEventListener("submit", (event) => { event.preventDefault(); trace(event.target.elements.id.value.trim()); });
$("more").addEventListener("click", () => loadLetters($("letters").lastElementChild.dataset.entry));
$("replay-all").addEventListener("click", () => allFound("replay"));
$("discard-all").addEventListener("click", () => allFound("discard"));
route();
listen();
