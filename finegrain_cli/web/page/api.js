// Calls of the page: one token in memory, JSON over HTTP, and one stream of events.

import { followLive } from "./live.js";
import { signal } from "./vendor/signals.mjs";

/** The identity with which the page acts, such as "user/alice". */
export const identity = signal("");
/** True in a session at the resource manager, false in a page of `finegrain web`. */
export const lasting = signal(false);
/** Counts events of the cluster. Views read their data again when this number changes. */
export const news = signal(0);
/** The last message of the live stream: a part of a snapshot, or a change. */
export const live = signal(null);
/** The time of the resource manager's last answer, or 0 if the resource manager has not answered. */
export const answered = signal(0);
/** The reason why the last call failed, or an empty text if the call succeeded. */
export const failure = signal("");
/** The present time, which is updated once a second. */
export const now = signal(Date.now());

const KEPT = "finegrain-token";
let token = "";

setInterval(() => {
  now.value = Date.now();
}, 1000);

/** An error that the resource manager has reported. It has a `code`, a `status`, and a sentence as its message. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || `the server answered ${status}`);
    this.status = status;
    this.code = body.code || "";
    this.details = body.details || {};
  }
}

/**
 * Begins a session with the code in the address, or continues a session of this browser. A session at
 * the resource manager lasts longer than this page, so the browser stores the token of the session.
 * Pages of other ports cannot read this token. The token of `finegrain web` stays in the memory of the
 * page.
 */
export async function begin() {
  const code = location.hash.slice(1);
  history.replaceState(null, "", location.pathname + location.search);
  token = code ? "" : localStorage.getItem(KEPT) ?? "";
  const response = code
    ? await fetch("/session", { method: "POST", body: code })
    : await fetch("/session", { headers: { "x-finegrain-token": token } });
  const body = await response.json();
  if (response.status === 401 && !code) localStorage.removeItem(KEPT);
  if (!response.ok) throw new Problem(response.status, body);
  if (code) token = body.token;
  lasting.value = Boolean(body.role);
  if (lasting.value) localStorage.setItem(KEPT, token);
  identity.value = body.identity;
  follow();
}

/** Ends the session of this browser. */
export async function leave() {
  await fetch("/session", { method: "DELETE", headers: { "x-finegrain-token": token } });
  localStorage.removeItem(KEPT);
  location.assign("/");
}

/** Calls a route, and returns its JSON. */
export async function call(method, path, body) {
  const headers = { "x-finegrain-token": token };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  } catch {
    failure.value = lasting.value
      ? "the resource manager does not answer"
      : "finegrain web does not answer; has it ended?";
    throw new Problem(0, { detail: failure.value });
  }
  const data = await response.json();
  if (response.status === 503) failure.value = data.detail;
  if (!response.ok) throw new Problem(response.status, data);
  answered.value = Date.now();
  failure.value = "";
  return data;
}

/** Yields the events of a stream as [name, data], until the stream ends or `signal` aborts the stream. */
export async function* stream(path, signal) {
  const response = await fetch(path, { headers: { "x-finegrain-token": token }, signal });
  const kind = response.headers.get("content-type") ?? "";
  if (!response.ok) throw new Problem(response.status, await response.json());
  if (!kind.startsWith("text/event-stream")) throw new Problem(404, { detail: "this page has no such stream" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = /^data: (.*)$/m.exec(part);
      if (data) yield [/^event: (.*)$/m.exec(part)?.[1] ?? "message", JSON.parse(data[1])];
    }
  }
}

/** Reads a route with GET, and returns its JSON. */
export const get = (path) => call("GET", path);

/** Reads all pages of a list. */
export async function list(path) {
  const items = [];
  let page = "";
  do {
    const query = `${path.includes("?") ? "&" : "?"}page_size=1000${page && `&page_token=${encodeURIComponent(page)}`}`;
    const data = await get(path + query);
    items.push(...data.items);
    page = data.next_page_token;
  } while (page);
  return items;
}

/** Follows the live stream as long as the page is open. `news` increases with each message, so that the views read again. */
function follow() {
  followLive(token, (message) => {
    if (message.kind === "lost") {
      failure.value = message.detail;
      return;
    }
    answered.value = Date.now();
    failure.value = "";
    if (message.kind === "alive") return;
    live.value = message;
    if (!message.more) news.value += 1;
  });
}
