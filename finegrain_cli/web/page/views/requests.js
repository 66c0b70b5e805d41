// Requests in queue order. A chip with the reason opens the whole explanation.

import { get } from "../api.js";
import { age, amounts, short } from "../format.js";
import { Choice, Dialog, Link, Search, Shown, Table, html, useData } from "../parts.js";
import { jobPath, query, requestPath, set, setting } from "../place.js";
import { Explanation } from "./explanation.js";

const READ_MAX = 1000;
const SHOWN_MAX = 200;
const STATES = ["all", "PENDING", "ALLOCATING", "GRANTED"];

const COLUMNS = [
  ["request", (one) => html`<${Link} to=${requestPath(one.allocation_id)}>${short(one.allocation_id)}<//>`],
  ["job", (one) => html`<${Link} to=${jobPath(one.job_id)}>${one.job_name || short(one.job_id)}<//>`],
  ["state", (one) => one.state],
  ["why", (one) => (one.reason ? html`<${Why} id=${one.allocation_id}>${one.reason}<//>` : "–")],
  ["size", (one) => (one.profile ? amounts(one.profile) : "default")],
  ["count", (one) => one.count],
  ["age", (one) => age(one.create_time)],
];

/** A chip with a reason. It opens the explanation of its request. */
export function Why({ id, children }) {
  return html`<button class="chip" aria-haspopup="dialog" onClick=${() => set({ explain: id }, true)}>${children}</button>`;
}

/** A dialog with the explanation of the request that the address of the page names. */
export function ExplainDialog() {
  const id = setting("explain");
  if (!id) return null;
  return html`<${Dialog} key=${id} title=${`Why request ${short(id)} waits`} close=${() => set({ explain: "" })}><${Explanation} id=${id} /><//>`;
}

export function Requests() {
  const state = setting("state", STATES);
  const job = setting("job");
  const path = `/v1/requests?page_size=${READ_MAX}${state === "all" ? "" : `&states=${state}`}${job && `&job_id=${encodeURIComponent(job)}`}`;
  const found = useData(() => get(path), path);
  return html`<h1>Requests</h1>
    <div class="controls"><${Choice} name="state" label="State" values=${STATES} /><${Search} name="job" label="Job (whole id)" /><${Search} name="find" label="Find" /></div>
    <${Shown} found=${found}>${(data) => html`<${Found} data=${data} />`}<//><${ExplainDialog} />`;
}

function Found({ data }) {
  const reason = setting("reason");
  const text = setting("find").toLowerCase();
  const counts = new Map();
  for (const one of data.items) if (one.reason) counts.set(one.reason, (counts.get(one.reason) ?? 0) + one.count);
  const rows = data.items.filter((one) => (!reason || one.reason === reason) &&
    (!text || `${one.allocation_id} ${one.job_name} ${one.job_id}`.toLowerCase().includes(text)));
  const more = data.next_page_token ? `, of the first ${READ_MAX} entries in queue order` : "";
  return html`<p class="chips" role="group" aria-label="Reasons">${[...counts].map(([name, number]) => html`<button key=${name} class="chip" aria-pressed=${String(reason === name)}
      onClick=${() => set({ reason: reason === name ? "" : name })}>${number} ${name}</button>`)}
      ${reason && !counts.has(reason) && html`<button class="chip" aria-pressed="true" onClick=${() => set({ reason: "" })}>0 ${reason}</button>`}</p>
    <${Table} caption=${`${rows.length > SHOWN_MAX ? `The first ${SHOWN_MAX} of ${rows.length}` : rows.length} requests that have not ended${more}`}
      columns=${COLUMNS} rows=${rows.slice(0, SHOWN_MAX)} empty=${query.value.size ? "No request matches." : "No request waits, and no slot exists."} />`;
}

export function Request({ id }) {
  return html`<h1>Request ${short(id)}</h1><${Explanation} id=${id} />`;
}
