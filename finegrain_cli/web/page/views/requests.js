// Requests in queue order, and the explanation of one request.

import { get, list } from "../api.js";
import { age, amount, amounts, dimension, short } from "../format.js";
import { Action, Link, Shown, Table, html, useData } from "../parts.js";

const COLUMNS = [
  ["request", (one) => html`<${Link} to=${`/requests/${encodeURIComponent(one.allocation_id)}`}>${short(one.allocation_id)}<//>`],
  ["job", (one) => one.job_name || short(one.job_id)],
  ["state", (one) => one.state],
  ["why", (one) => (one.reason ? html`<span class="chip">${one.reason}</span>` : "–")],
  ["size", (one) => amounts(one.profile)],
  ["count", (one) => one.count],
  ["age", (one) => age(one.create_time)],
];

export function Requests() {
  const found = useData(() => list("/v1/requests"), "requests");
  return html`<h1>Requests</h1><${Shown} found=${found}>${(rows) => html`
    <${Table} caption="Requests that have not ended, in queue order" columns=${COLUMNS} rows=${rows} empty="No request waits, and no slot exists." />`}<//>`;
}

export function Request({ id }) {
  const path = `/v1/requests/${encodeURIComponent(id)}/explanation`;
  const found = useData(() => get(path), path);
  return html`<h1>Request ${short(id)}</h1><${Shown} found=${found}>${(data) => html`
    <p class="summary">${data.summary}</p>
    <dl class="sums">
      <div><dt>id</dt><dd>${id}</dd></div>
      ${data.primary_reason && html`<div><dt>reason</dt><dd><span class="chip">${data.primary_reason}</span></dd></div>`}
    </dl>
    <p><${Action} label="Release" question="Release this slot or cancel this request? Its tasks are ended." method="POST" path="/v1/slots/release" body=${{ allocation_ids: [id] }} /></p>
    <${Verdicts} executors=${data.executors ?? []} />`}<//>`;
}

function Verdicts({ executors }) {
  const columns = [
    ["executor", (one) => html`<${Link} to=${`/executors/${encodeURIComponent(one.executor_id)}`}>${one.executor_id}<//>`],
    ["fits", (one) => (one.fits ? "yes" : "no")],
    ["missing", (one) => (one.dimensions ?? []).filter((each) => each.asked > each.free)
      .map((each) => `${dimension(each.dimension)}: asked ${amount(each.dimension, each.asked)}, free ${amount(each.dimension, each.free)}`).join("; ") || "–"],
    ["message", (one) => one.message],
  ];
  if (!executors.length) return null;
  return html`<${Table} caption="Hosts" columns=${columns} rows=${executors} empty="" />`;
}
