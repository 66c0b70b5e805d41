// The map of the cluster: each host with what is reserved, allocated and used.

import { list, get } from "../api.js";
import { amounts, bytes, count, cpu, memory } from "../format.js";
import { Bar, Link, Shown, html, useData } from "../parts.js";

const LABEL = "rack";
const SHOWN_MAX = 300;

const read = async () => ({ cluster: await get("/v1/cluster"), executors: await list("/v1/executors") });

export function Overview() {
  const found = useData(read, "overview");
  return html`<h1>Cluster</h1><${Shown} found=${found}>${(data) => html`
    <${Sums} cluster=${data.cluster} /><${Hosts} executors=${data.executors} />`}<//>`;
}

function Sums({ cluster }) {
  const waiting = Object.entries(cluster.pending_requests).filter(([, count]) => count);
  const state = Object.entries(cluster.executors).filter(([, count]) => count);
  return html`<dl class="sums">
    <div><dt>cpu</dt><dd>${cpu(cluster.allocated.cpu_milli ?? 0)} allocated, ${cpu(cluster.used.cpu_milli)} used, ${cpu(cluster.total.cpu_milli ?? 0)} total</dd></div>
    <div><dt>memory</dt><dd>${bytes(memory(cluster.allocated))} allocated, ${bytes(cluster.used.memory_bytes)} used, ${bytes(memory(cluster.total))} total</dd></div>
    <div><dt>slots, jobs</dt><dd>${count(cluster.slots, "slot")} of ${count(cluster.jobs, "job")}, ${count(cluster.used.tasks, "task")}</dd></div>
    <div><dt>executors</dt><dd>${state.map(([name, count]) => `${count} ${name}`).join(", ") || "none"}</dd></div>
    <div><dt>waiting</dt><dd>${waiting.length
      ? html`<${Link} to="/requests">${waiting.map(([name, count]) => `${count} ${name}`).join(", ")}<//>`
      : "no request waits"}</dd></div>
  </dl>`;
}

function Hosts({ executors }) {
  if (!executors.length) return html`<p class="quiet">No executor has joined yet.</p>`;
  const racks = Map.groupBy(executors, (each) => each.labels[LABEL] ?? "");
  const names = [...racks.keys()].sort();
  const shown = executors.length > SHOWN_MAX ? trouble(executors) : null;
  if (shown) {
    return html`<p>${executors.length} executors. These need attention, or are the fullest:</p>
      <ul class="hosts">${shown.map((each) => html`<${Host} key=${each.executor_id} executor=${each} />`)}</ul>`;
  }
  return names.map((name) => html`<section key=${name}>${name && html`<h2>${LABEL} ${name}</h2>`}
    <ul class="hosts">${racks.get(name).map((each) => html`<${Host} key=${each.executor_id} executor=${each} />`)}</ul></section>`);
}

/** The executors that are worst, drained or fullest, at most SHOWN_MAX. */
export function trouble(executors) {
  const rank = (each) =>
    (each.state === "ACTIVE" ? 0 : 4) + (each.unreachable_reason ? 3 : 0) + (each.draining ? 2 : 0) +
    (each.allocated.cpu_milli ?? 0) / (each.total.cpu_milli || 1);
  return [...executors].sort((a, b) => rank(b) - rank(a)).slice(0, SHOWN_MAX);
}

function Host({ executor }) {
  const { total, allocated, used } = executor;
  const state = executor.draining ? `${executor.state} draining` : executor.state;
  const troubled = executor.state !== "ACTIVE" || executor.draining || executor.unreachable_reason;
  return html`<li class=${troubled ? "host troubled" : "host"}>
    <${Link} to=${`/executors/${encodeURIComponent(executor.executor_id)}`}>${executor.executor_id}<//>
    <span class="state">${state}${executor.unreachable_reason && " unreachable"}, ${count(executor.slots, "slot")}</span>
    <${Bar} label="cpu" allocated=${allocated.cpu_milli ?? 0} used=${used.cpu_milli} total=${total.cpu_milli}
      text=${`${cpu(allocated.cpu_milli ?? 0)} allocated, ${cpu(used.cpu_milli)} used of ${cpu(total.cpu_milli ?? 0)}`} />
    <${Bar} label="memory" allocated=${memory(allocated)} used=${used.memory_bytes} total=${memory(total)}
      text=${`${bytes(memory(allocated))} allocated, ${bytes(used.memory_bytes)} used of ${bytes(memory(total))}`} />
    <span class="quiet">${amounts(executor.available)} free</span>
  </li>`;
}
