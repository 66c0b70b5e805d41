// Jobs, and one job with its slots, tasks, graph and timeline.

import { get, list, now } from "../api.js";
import { age, amounts, bytes, count, cpu, percent, short } from "../format.js";
import { timeline } from "../job_model.js";
import { Action, Choice, Link, Search, Shown, Table, html, useData } from "../parts.js";
import { executorPath, jobPath, requestPath, setting } from "../place.js";
import { EventTable } from "./events.js";
import { Graph } from "./job_graph.js";
import { ExplainDialog, Why } from "./requests.js";

const BARS_MAX = 60;
const SLOTS_MAX = 200;
const STATES = ["PENDING", "ALLOCATING", "GRANTED", "CANCELLED", "REJECTED", "RELEASED", "LOST"];

const end = (job) => html`<${Action} label="End" question=${`End ${job.name} with ${count(job.slots, "slot")}?`} method="POST" path=${`/v1/jobs/${encodeURIComponent(job.job_id)}/terminate`} preview=${{ action: "END_JOB", job_id: job.job_id }} />`;

const JOBS = [
  ["name", (job) => html`<${Link} to=${jobPath(job.job_id)}>${job.name || short(job.job_id)}<//>`],
  ["id", (job) => short(job.job_id)],
  ["state", (job) => (job.ended ? `ended: ${job.outcome ?? job.end_reason}` : job.awaited_job_ids.length ? "waits for jobs" : "active")],
  ["group", (job) => job.group],
  ["owner", (job) => job.owner],
  ["waiting", (job) => job.pending_requests],
  ["slots", (job) => job.slots],
  ["allocated", (job) => amounts(job.allocated)],
  ["share", (job) => `${(100 * job.share_now).toFixed(1)} %`],
  ["age", (job) => age(job.create_time)],
  ["action", (job) => !job.ended && end(job)],
];

export function Jobs() {
  const ended = setting("ended", ["no", "yes"]) === "yes";
  const found = useData(() => list(`/v1/jobs${ended ? "?include_ended=true" : ""}`), `jobs ${ended}`);
  return html`<h1>Jobs</h1>
    <div class="controls"><${Choice} name="ended" label="Ended jobs" values=${["no", "yes"]} /><${Search} name="group" label="Group" /><${Search} name="find" label="Find" /></div>
    <${Shown} found=${found}>${(rows) => {
      const group = setting("group");
      const text = setting("find").toLowerCase();
      const shown = rows.filter((job) => (!group || job.group === group) &&
        (!text || `${job.name} ${job.job_id} ${job.owner}`.toLowerCase().includes(text)));
      return html`<${Table} caption=${count(shown.length, "job")} columns=${JOBS} rows=${shown.slice(0, SLOTS_MAX)} empty="No job." id="job_id" />`;
    }}<//>`;
}

export function Job({ id }) {
  const name = encodeURIComponent(id);
  const found = useData(async () => {
    const states = STATES.map((state) => `&states=${state}`).join("");
    const [jobs, slots, requests] = await Promise.all([
      get(`/v1/jobs?include_ended=true&matching=${name}`), get(`/v1/slots?job_id=${name}&page_size=1000`),
      get(`/v1/requests?job_id=${name}&page_size=1000${states}`),
    ]);
    const job = jobs.items.find((each) => each.job_id === id);
    if (!job) throw new Error(`there is no job ${id}`);
    return { job, slots: slots.items, requests: requests.items };
  }, id);
  return html`<${Shown} found=${found}>${({ job, slots, requests }) => html`<h1>Job ${job.name || short(id)}</h1>
    <${Facts} job=${job} /><p>${!job.ended && end(job)}</p>
    <h2>Timeline</h2><${Timeline} requests=${requests} />
    <h2>Graph</h2><${Graph} id=${id} slots=${slots} />
    <h2>Slots</h2><${Table} caption=${slots.length > SLOTS_MAX ? `The first ${SLOTS_MAX} of ${slots.length} slots` : count(slots.length, "slot")} columns=${SLOTS} rows=${slots.slice(0, SLOTS_MAX)} empty="The job has no slot." />
    <h2>Requests that wait</h2><${Table} caption="In queue order" columns=${WAITING} rows=${requests.filter((one) => one.state === "PENDING").slice(0, SLOTS_MAX)} empty="No request waits." />
    <h2>Events</h2><${EventTable} subject=${id} />`}<//><${ExplainDialog} />`;
}

const Facts = ({ job }) => html`<dl class="sums">
  <div><dt>id</dt><dd>${job.job_id}</dd></div>
  <div><dt>state</dt><dd>${job.ended ? `ended: ${job.outcome ?? ""} ${job.end_reason}` : "active"}${job.detached ? ", detached" : ""}</dd></div>
  <div><dt>owner</dt><dd>${job.owner}</dd></div>
  <div><dt>group</dt><dd><${Link} to=${`/groups?group=${encodeURIComponent(job.group)}`}>${job.group}<//></dd></div>
  <div><dt>slots</dt><dd>${job.slots}, ${job.pending_requests} waiting</dd></div>
  <div><dt>allocated</dt><dd>${amounts(job.allocated)}</dd></div>
  <div><dt>share</dt><dd>${(100 * job.share_now).toFixed(1)} % of all use</dd></div>
  <div><dt>age</dt><dd>${age(job.create_time)}</dd></div>
  ${job.depends_on.length > 0 && html`<div><dt>runs after</dt><dd>${job.depends_on.map((each) => html`<${Link} key=${each.job_id} to=${jobPath(each.job_id)}>${short(each.job_id)}<//> `)}${job.awaited_job_ids.length ? `(${job.awaited_job_ids.length} not ended)` : ""}</dd></div>`}
</dl>`;

const SLOTS = [
  ["slot", (slot) => html`<${Link} to=${`${executorPath(slot.executor_id)}?slot=${encodeURIComponent(slot.allocation_id)}`}>${short(slot.allocation_id)}<//>`],
  ["executor", (slot) => html`<${Link} to=${executorPath(slot.executor_id)}>${slot.executor_id}<//>`],
  ["state", (slot) => slot.state],
  ["size", (slot) => `cpu ${cpu(slot.profile.cpu_milli ?? 0)}, memory ${bytes(slot.memory_bytes)}`],
  ["used", (slot) => (slot.used ? `cpu ${cpu(slot.used.cpu_milli)}, memory ${bytes(slot.used.memory_bytes)}` : "–")],
  ["cpus", (slot) => slot.cpus || "shared"],
  ["age", (slot) => age(slot.allocated_time)],
];

const WAITING = [
  ["request", (one) => html`<${Link} to=${requestPath(one.allocation_id)}>${short(one.allocation_id)}<//>`],
  ["why", (one) => (one.reason ? html`<${Why} id=${one.allocation_id}>${one.reason}<//>` : "–")],
  ["size", (one) => (one.profile ? amounts(one.profile) : "default")],
  ["count", (one) => one.count],
  ["age", (one) => age(one.create_time)],
];

/** A bar for each request: dots while it waits, solid while it has a slot. */
function Timeline({ requests }) {
  if (!requests.length) return html`<p class="quiet">No request is kept.</p>`;
  const { start, end: last, bars } = timeline(requests, now.value);
  const at = (time) => `${percent(time - start, last - start)}%`;
  const part = (from, until) => `${percent(until - from, last - start)}%`;
  const clock = (time) => new Date(time).toLocaleTimeString();
  return html`<p class="quiet">From ${clock(start)} to ${clock(last)}. Dots: waits. Solid: has a slot.${bars.length > BARS_MAX ? ` The first ${BARS_MAX} of ${bars.length} requests.` : ""}</p>
    <ul class="timeline">${bars.slice(0, BARS_MAX).map((bar) => {
      const wait = bar.granted ?? bar.until;
      const text = `${short(bar.id)}${bar.count > 1 ? ` and ${bar.count - 1} more` : ""}: ${bar.state}, waited ${Math.round((wait - bar.from) / 1000)} s${bar.granted ? `, slot for ${Math.round((bar.until - bar.granted) / 1000)} s` : ""}`;
      return html`<li key=${bar.id} title=${text}><${Link} to=${requestPath(bar.id)} aria-label=${text}>${short(bar.id)}<//>
        <svg aria-hidden="true"><rect fill="url(#dots)" x=${at(bar.from)} width=${part(bar.from, wait)} height="100%" />
          ${bar.granted && html`<rect class="allocated" x=${at(bar.granted)} width=${part(bar.granted, bar.until)} height="100%" />`}</svg></li>`;
    })}</ul>`;
}
