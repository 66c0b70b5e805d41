// Jobs, groups and events.

import { get, list } from "../api.js";
import { age, amounts, count, percent, short } from "../format.js";
import { Action, Shown, Table, html, useData } from "../parts.js";

const JOBS = [
  ["name", (job) => job.name],
  ["id", (job) => short(job.job_id)],
  ["group", (job) => job.group],
  ["owner", (job) => job.owner],
  ["waiting", (job) => job.pending_requests],
  ["slots", (job) => job.slots],
  ["allocated", (job) => amounts(job.allocated)],
  ["share", (job) => `${(100 * job.share_now).toFixed(1)} %`],
  ["age", (job) => age(job.create_time)],
  ["", (job) => html`<${Action} label="End" question=${`End ${job.name} with ${count(job.slots, "slot")}?`} method="POST" path=${`/v1/jobs/${encodeURIComponent(job.job_id)}/terminate`} />`],
];

export function Jobs() {
  const found = useData(() => list("/v1/jobs"), "jobs");
  return html`<h1>Jobs</h1><${Shown} found=${found}>${(rows) => html`
    <${Table} caption="Jobs that have not ended" columns=${JOBS} rows=${rows} empty="No job runs." />`}<//>`;
}

export function Groups() {
  const found = useData(() => get("/v1/groups"), "groups");
  return html`<h1>Groups</h1><${Shown} found=${found}>${(data) => html`
    <ul class="tree">${branch(data.groups, "")}</ul>`}<//>`;
}

function branch(groups, parent) {
  return groups.filter((group) => group.parent === parent).map((group) => html`<li key=${group.name}>
    <strong>${group.name}</strong> weight ${group.weight}, ${count(group.running, "slot")}, ${group.waiting} waiting, ${count(group.jobs, "job")}
    <div class="share" role="img" aria-label=${`share ${(100 * group.share_now).toFixed(1)} %, entitled to ${(100 * group.share_entitled).toFixed(1)} %`}>
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="free" width="100" height="8" />
        <rect class="allocated" width=${percent(group.share_now, 1)} height="8" />
        <rect class="ideal" x=${percent(group.share_entitled, 1)} width="0.6" height="8" /></svg></div>
    <span class="quiet">share ${(100 * group.share_now).toFixed(1)} % of use, entitled to ${(100 * group.share_entitled).toFixed(1)} %; uses ${amounts(group.used)}</span>
    ${groups.some((each) => each.parent === group.name) && html`<ul>${branch(groups, group.name)}</ul>`}
  </li>`);
}

const EVENTS = [
  ["time", (event) => event.event_time.replace("T", " ").slice(0, 19)],
  ["event", (event) => event.kind],
  ["executor", (event) => event.executor_id || "–"],
  ["job", (event) => (event.job_id ? short(event.job_id) : "–")],
  ["message", (event) => event.message],
  ["by", (event) => event.actor || "resource manager"],
];

export function Events() {
  const found = useData(async () => (await get("/v1/events?page_size=200")).items.reverse(), "events");
  return html`<h1>Events</h1><${Shown} found=${found}>${(rows) => html`
    <${Table} caption="The last 200 events (UTC), the newest first" columns=${EVENTS} rows=${rows} empty="No event yet." />`}<//>`;
}
