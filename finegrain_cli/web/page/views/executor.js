// One host: its facts, its slots, and draining.

import { get } from "../api.js";
import { age, amounts, bytes, count, cpu, short } from "../format.js";
import { Action, Link, Shown, Table, html, useData } from "../parts.js";

export function Executor({ id }) {
  const path = `/v1/executors/${encodeURIComponent(id)}`;
  const found = useData(() => get(path), path);
  return html`<h1>Executor ${id}</h1><${Shown} found=${found}>${(executor) => html`
    <${Facts} executor=${executor} /><${Drain} executor=${executor} path=${path} />
    <${Table} caption="Slots" rows=${executor.slot_list} empty="This executor has no slots." columns=${SLOTS} />`}<//>`;
}

const SLOTS = [
  ["slot", (slot) => html`<${Link} to=${`/requests/${encodeURIComponent(slot.allocation_id)}`}>${short(slot.allocation_id)}<//>`],
  ["job", (slot) => short(slot.job_id)],
  ["state", (slot) => slot.state],
  ["size", (slot) => `cpu ${cpu(slot.profile.cpu_milli ?? 0)}, memory ${bytes(slot.memory_bytes)}`],
  ["used", (slot) => (slot.used ? `cpu ${cpu(slot.used.cpu_milli)}, memory ${bytes(slot.used.memory_bytes)}` : "–")],
  ["cpus", (slot) => slot.cpus || "shared"],
  ["limits", (slot) => slot.isolation?.driver ?? "–"],
  ["age", (slot) => age(slot.allocated_time)],
];

function Facts({ executor }) {
  const host = executor.used.host;
  return html`<dl class="sums">
    <div><dt>state</dt><dd>${executor.state}${executor.draining ? `, draining: ${executor.drain_reason || "no reason given"}` : ""}</dd></div>
    ${executor.unreachable_reason && html`<div><dt>unreachable</dt><dd class="bad">${executor.unreachable_reason}</dd></div>`}
    <div><dt>total</dt><dd>${amounts(executor.total)}</dd></div>
    <div><dt>reserved</dt><dd>${amounts(executor.reserved)}</dd></div>
    <div><dt>allocated</dt><dd>${amounts(executor.allocated)}</dd></div>
    <div><dt>free</dt><dd>${amounts(executor.available)}</dd></div>
    <div><dt>used by slots</dt><dd>cpu ${cpu(executor.used.cpu_milli)}, memory ${bytes(executor.used.memory_bytes)}, ${count(executor.used.tasks, "task")}</dd></div>
    ${host && html`<div><dt>used on host</dt><dd>cpu ${cpu(host.cpu_milli)}, memory ${bytes(host.memory_used_bytes)} of ${bytes(host.memory_total_bytes)}, load ${host.load_1m}</dd></div>`}
    <div><dt>labels</dt><dd>${Object.entries(executor.labels).map(([name, value]) => `${name}=${value}`).join(", ") || "none"}</dd></div>
    <div><dt>address</dt><dd>${executor.address}, version ${executor.software_version}</dd></div>
  </dl>`;
}

function Drain({ executor, path }) {
  if (executor.draining) {
    return html`<p><${Action} label="Undrain" question="Allow new slots on this executor?" method="POST" path=${`${path}/undrain`} /></p>`;
  }
  const question = `Place no new slots on ${executor.executor_id}? ${count(executor.slots, "slot")} on it stay until their jobs end them.`;
  return html`<p><${Action} label="Drain" question=${question} method="POST" path=${`${path}/drain`} body=${{ reason: "drained on the web page" }} /></p>`;
}
