// The events of the cluster, or of one executor, job or request.

import { get } from "../api.js";
import { short } from "../format.js";
import { Choice, Link, Search, Shown, Table, html, useData } from "../parts.js";
import { executorPath, jobPath, requestPath, setting } from "../place.js";

const SHOWN_MAX = 200;

const COLUMNS = [
  ["time (UTC)", (event) => event.event_time.replace("T", " ").slice(0, 19)],
  ["event", (event) => event.kind],
  ["executor", (event) => (event.executor_id ? html`<${Link} to=${executorPath(event.executor_id)}>${event.executor_id}<//>` : "–")],
  ["job", (event) => (event.job_id ? html`<${Link} to=${jobPath(event.job_id)}>${short(event.job_id)}<//>` : "–")],
  ["request", (event) => (event.allocation_id ? html`<${Link} to=${requestPath(event.allocation_id)}>${short(event.allocation_id)}<//>` : "–")],
  ["reason", (event) => (event.reason ? html`<span class="chip">${event.reason}</span>` : "–")],
  ["message", (event) => event.message],
  ["by", (event) => event.actor || "resource manager"],
];

const read = async (subject) => {
  const query = subject ? `&subject_id=${encodeURIComponent(subject)}` : "";
  return (await get(`/v1/events?page_size=${SHOWN_MAX}${query}`)).items.reverse();
};

/** The last events about one subject. */
export function EventTable({ subject }) {
  const found = useData(() => read(subject), `events ${subject}`, 15_000);
  return html`<${Shown} found=${found}>${(rows) => html`
    <${Table} caption="The last events, the newest first" columns=${COLUMNS} rows=${rows} empty="No event is kept." />`}<//>`;
}

export function Events() {
  const subject = setting("subject");
  const found = useData(() => read(subject), `events ${subject}`, 15_000);
  return html`<h1>Events</h1><${Shown} found=${found}>${(rows) => {
    const kinds = ["all", ...new Set(rows.map((event) => event.kind))].sort((a, b) => (b === "all") - (a === "all") || (a < b ? -1 : 1));
    const kind = setting("kind", kinds);
    const text = setting("find").toLowerCase();
    const chosen = rows.filter((event) =>
      (kind === "all" || event.kind === kind) &&
      (!text || Object.values(event).some((value) => String(value).toLowerCase().includes(text))));
    return html`<div class="controls"><${Choice} name="kind" label="Event" values=${kinds} /><${Search} name="find" label="Find" />
      <${Search} name="subject" label="Executor, job or request (whole id)" /></div>
      <${Table} caption=${`${chosen.length} of the last ${rows.length} events, the newest first`} columns=${COLUMNS} rows=${chosen} empty="No event." />`;
  }}<//>`;
}
