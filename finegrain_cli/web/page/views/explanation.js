// The whole explanation of a request: the reasons why the request waits, the changes that would help,
// and the requests before it in the queue.

import { get } from "../api.js";
import { age, amount, amounts, bytes, count, cpu, dimension, short } from "../format.js";
import { Action, Link, Shown, Table, html, useData } from "../parts.js";
import { executorPath, jobPath, requestPath } from "../place.js";

const HOSTS_MAX = 100;
const CANCEL = { label: "Cancel request", question: "Cancel this request? It has no slot yet." };
const RELEASE = { label: "Release", question: "Release this slot? Its tasks are ended." };

/** Returns a sentence that says how many more slots of this size fit now, and whether executors were not counted. */
export function moreFit(data) {
  const number = data.more_fit ? `${count(data.more_fit, "more slot")} of this size ${data.more_fit === 1 ? "fits" : "fit"} now` : "no more slot of this size fits now";
  return `${number}, if no other request were queued${data.more_may_fit ? "; not all executors are counted" : ""}`;
}

/** The explanation of a request. The page reads it from the route of the request. */
export function Explanation({ id }) {
  const path = `/v1/requests/${encodeURIComponent(id)}/explanation`;
  const found = useData(() => get(path), path);
  return html`<${Shown} found=${found}>${(data) => html`<${Whole} id=${id} data=${data} />`}<//>`;
}

function Whole({ id, data }) {
  const { request } = data;
  return html`
    <p class="summary">${data.summary}</p>
    <dl class="sums">
      <div><dt>id</dt><dd>${id}</dd></div>
      <div><dt>job</dt><dd><${Link} to=${jobPath(request.job_id)}>${request.job_name || short(request.job_id)}<//></dd></div>
      <div><dt>state</dt><dd>${request.state}, since ${age(request.create_time)}</dd></div>
      ${data.primary_reason && html`<div><dt>reason</dt><dd><span class="chip">${data.primary_reason}</span></dd></div>`}
      <div><dt>size</dt><dd>${request.profile ? amounts(request.profile) : "the default slot of the executor"}</dd></div>
      ${labels(request.required_labels) && html`<div><dt>labels</dt><dd>${labels(request.required_labels)}</dd></div>`}
      <div><dt>this class</dt><dd>${moreFit(data)}</dd></div>
      ${request.state === "PENDING" && !data.steps.length && html`<div><dt>requests before it</dt><dd>${data.requests_ahead}</dd></div>`}
      <div><dt>executors</dt><dd>${data.executors_fitting} of ${data.executors_considered} fit</dd></div>
      ${data.planned_on && html`<div><dt>planned on</dt><dd>${data.planned_on}</dd></div>`}
      ${request.slot && html`<div><dt>slot</dt><dd><${Link} to=${`${executorPath(request.slot.executor_id)}?slot=${encodeURIComponent(id)}`}>on ${request.slot.executor_id}<//></dd></div>`}
    </dl>
    <p><${Action} ...${request.state === "PENDING" ? CANCEL : RELEASE} method="POST" path="/v1/slots/release" body=${{ allocation_ids: [id] }} preview=${{ action: "RELEASE", allocation_ids: [id] }} /></p>
    <${Sentences} title="Order of service" items=${data.steps.map((step) => step.summary || `${step.flow.job_name || step.flow.name}: number ${step.position} of ${step.backlogged}`)} />
    <${Sentences} title="Limits that block it" items=${data.limits.map(limit)} />
    <${Sentences} title="Gang" items=${data.gang ? [data.gang.summary] : []} />
    <${Sentences} title="Changes of size" items=${data.resizes.map((each) => each.summary)} />
    <${Sentences} title="Reserved for it" items=${data.reservation ? [data.reservation.summary] : []} />
    <${Sentences} title="Reserved for others" items=${data.held_for_others.map((each) => each.summary)} />
    <${Sentences} title="It would fit if" items=${data.would_fit_if.map((each) => (each.executor_id ? `${each.message} (${each.executor_id})` : each.message))} />
    <${Table} caption="All executors together" columns=${DIMENSIONS} rows=${data.dimensions} empty="" />
    <${Table} caption="Slots that have what it needs" columns=${BLOCKERS} rows=${data.blocked_by} empty="" />
    <${Table} caption=${data.executors.length > HOSTS_MAX ? `The first ${HOSTS_MAX} of ${data.executors.length} hosts` : "Hosts"} columns=${VERDICTS} rows=${data.executors.slice(0, HOSTS_MAX)} empty="" />`;
}

const labels = (map) => Object.entries(map ?? {}).map(([name, value]) => `${name}=${value}`).join(", ");

const limit = (each) =>
  `${each.group ? `group ${each.group}` : each.user ? `user ${each.user}` : "the cluster"} may have ${dimension(each.dimension)} ` +
  `${amount(each.dimension, each.maximum)}; it has ${amount(each.dimension, each.used)}, and this request asks for ${amount(each.dimension, each.asked)}`;

function Sentences({ title, items }) {
  if (!items.length) return null;
  return html`<h2 class="minor">${title}</h2><ul>${items.map((each, at) => html`<li key=${at}>${each}</li>`)}</ul>`;
}

const DIMENSIONS = [
  ["resource", (one) => dimension(one.dimension)],
  ["asked", (one) => amount(one.dimension, one.asked)],
  ["free", (one) => amount(one.dimension, one.free)],
  ["largest hole", (one) => amount(one.dimension, one.largest_hole)],
  ["total", (one) => amount(one.dimension, one.total)],
];

const BLOCKERS = [
  ["slot", (slot) => html`<${Link} to=${requestPath(slot.allocation_id)}>${short(slot.allocation_id)}<//>`],
  ["job", (slot) => html`<${Link} to=${jobPath(slot.job_id)}>${short(slot.job_id)}<//>`],
  ["executor", (slot) => slot.executor_id],
  ["size", (slot) => `cpu ${cpu(slot.profile.cpu_milli ?? 0)}, memory ${bytes(slot.memory_bytes)}`],
  ["age", (slot) => age(slot.allocated_time)],
];

const VERDICTS = [
  ["executor", (one) => html`<${Link} to=${executorPath(one.executor_id)}>${one.executor_id}<//>`],
  ["fits", (one) => (one.fits ? "yes" : "no")],
  ["missing", (one) => one.dimensions.filter((each) => each.asked > each.free)
    .map((each) => `${dimension(each.dimension)}: asked ${amount(each.dimension, each.asked)}, free ${amount(each.dimension, each.free)}`).join("; ") || "–"],
  ["message", (one) => one.message],
  ["more fit", (one) => one.more_fit],
];
