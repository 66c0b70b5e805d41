// One host: its map with the place of each slot, its cpus, its devices, and the chosen slot with the
// tasks of the slot and their output.

import { get, list } from "../api.js";
import { UsageCharts } from "../chart.js";
import { groupOfJob, useJobs } from "../cluster.js";
import { age, amounts, bytes, count, cpu, memory, short } from "../format.js";
import { Canvas, colorOf, drawRows, part, spans, theme } from "../map_draw.js";
import { hostRows, numbers, troubled } from "../map_model.js";
import { Tasks } from "../output.js";
import { Action, Choice, Legend, Link, Shown, Table, html, useData } from "../parts.js";
import { jobPath, query, requestPath, set, setting } from "../place.js";
import { EventTable } from "./events.js";
import { Policy } from "./policy.js";

const ROW = 24;
const GAP = 5;
const CELL = 26;
const write = { cpu, bytes };

export function Executor({ id }) {
  useJobs();
  const name = encodeURIComponent(id);
  const path = `/v1/executors/${name}`;
  const found = useData(async () => {
    const [executor, report, devices, usage] = await Promise.all([
      get(path), get(`${path}/topology`), list(`/v1/devices?executor_id=${name}`), get(`${path}/usage`),
    ]);
    return { executor, report, devices, samples: usage.samples };
  }, path);
  return html`<h1>Executor ${id}</h1><${Shown} found=${found}>${({ executor, report, devices, samples }) => html`
    <${Facts} executor=${executor} /><${Drain} executor=${executor} path=${path} />
    <${HostMap} report=${report} devices=${devices} />
    <${Chosen} slots=${executor.slot_list} />
    <${Cpus} report=${report} host=${executor.used.host} />
    <${Policy} id=${id} />
    <h2>Use in the last hour</h2><${UsageCharts} samples=${samples} write=${write} />
    <h2>Devices</h2>
    <${Table} caption="GPUs and other devices" rows=${devices} empty="This executor has no devices." columns=${DEVICES} />
    <h2>Slots</h2>
    <${Table} caption="Slots of this executor" rows=${executor.slot_list} empty="This executor has no slots." columns=${SLOTS} />
    <h2>Events</h2><${EventTable} subject=${id} />`}<//>`;
}

const choose = (slot) => {
  const id = query.value.get("slot") === slot.allocation_id ? "" : slot.allocation_id;
  set({ slot: id, task: "" }, true);
};

const SLOTS = [
  ["slot", (slot) => html`<button class="plain link" aria-pressed=${String(query.value.get("slot") === slot.allocation_id)} onClick=${() => choose(slot)}>${short(slot.allocation_id)}</button>`],
  ["job", (slot) => html`<${Link} to=${jobPath(slot.job_id)}>${short(slot.job_id)}<//>`],
  ["state", (slot) => slot.state],
  ["size", (slot) => `cpu ${cpu(slot.profile.cpu_milli ?? 0)}, memory ${bytes(slot.memory_bytes)}`],
  ["used", (slot) => (slot.used ? `cpu ${cpu(slot.used.cpu_milli)}, memory ${bytes(slot.used.memory_bytes)}` : "–")],
  ["cpus", (slot) => slot.cpus || "shared"],
  ["NUMA nodes", (slot) => slot.assignment?.numa.map((each) => each.node).join(", ") || "–"],
  ["devices", (slot) => slot.assignment?.devices.map((each) => `${each.type}${each.minor}`).join(", ") || "–"],
  ["isolation", (slot) => (slot.isolation ? `cpu ${slot.isolation.cpu || "–"}, memory ${slot.isolation.memory || "–"}` : "–")],
  ["age", (slot) => age(slot.allocated_time)],
];

const DEVICES = [
  ["device", ({ device, fake }) => `${device.type}${device.minor}${fake ? " (fake)" : ""}`],
  ["model", ({ device }) => device.model || "–"],
  ["NUMA node", ({ device }) => device.numa_node ?? "–"],
  ["health", (each) => html`<span class=${each.problem ? "bad" : ""}>${health(each)}</span>`],
  ["allocated", ({ device, allocated }) => Object.keys(device.capacity).map((name) => `${name} ${deviceAmount(name, allocated[name] ?? 0)} of ${deviceAmount(name, device.capacity[name])}`).join(", ") || "–"],
  ["used", ({ usage }) => (usage ? `${bytes(usage.memory_bytes)}, ${usage.busy_percent} % busy` : "–")],
  ["slots", ({ uses }) => uses.map((use) => html`<${Link} key=${use.allocation_id} to=${requestPath(use.allocation_id)}>${short(use.allocation_id)}<//> `)],
  ["links", ({ links }) => links.map((each) => `${each.lanes ? `NV${each.lanes}` : each.path || "?"} ${each.device || each.uuid}`).join(", ") || "–"],
  ["action", (each) => cordon(each)],
];

function cordon({ executor_id: executor, device, cordoned }) {
  const name = `${device.type}${device.minor}`;
  const path = `/v1/executors/${encodeURIComponent(executor)}/devices/${encodeURIComponent(name)}`;
  if (cordoned) return html`<${Action} label="Uncordon" question=${`Let new slots get ${name}?`} method="POST" path=${`${path}/uncordon`} />`;
  return html`<${Action} label="Cordon" question=${`Let no new slot get ${name}?`} method="POST" path=${`${path}/cordon`}
    body=${{ reason: "cordoned on the web page" }} preview=${{ action: "CORDON", executor_id: executor, device: name }} />`;
}

const deviceAmount = (name, value) => (name === "gpu-memory" ? bytes(value) : String(value));

function health({ problem, condition }) {
  const state = condition?.health ?? "healthy";
  return problem ? `${state}: ${problem}` : state;
}

function Facts({ executor }) {
  const host = executor.used.host;
  return html`<dl class="sums">
    <div><dt>state</dt><dd class=${troubled(executor) ? "bad" : ""}>${executor.state}${executor.draining ? `, draining: ${executor.drain_reason || "no reason given"}` : ""}</dd></div>
    ${executor.unreachable_reason && html`<div><dt>unreachable</dt><dd class="bad">${executor.unreachable_reason}</dd></div>`}
    <div><dt>total</dt><dd>${amounts(executor.total)}</dd></div>
    <div><dt>reserved</dt><dd>${amounts(executor.reserved)}</dd></div>
    <div><dt>allocated</dt><dd>${amounts(executor.allocated)}</dd></div>
    <div><dt>free</dt><dd>${amounts(executor.available)}</dd></div>
    <div><dt>used by slots</dt><dd>cpu ${cpu(executor.used.cpu_milli)}, memory ${bytes(executor.used.memory_bytes)}, ${count(executor.used.tasks, "task")}</dd></div>
    ${host && html`<div><dt>used on host</dt><dd>cpu ${cpu(host.cpu_milli)}, memory ${bytes(host.memory_used_bytes)} of ${bytes(host.memory_total_bytes)}, load ${host.load_1m}</dd></div>`}
    ${host?.temperatures.length > 0 && html`<div><dt>temperatures</dt><dd>${host.temperatures.map((each) => `${each.sensor} ${each.celsius} °C`).join(", ")}</dd></div>`}
    <div><dt>labels</dt><dd>${Object.entries(executor.labels).map(([name, value]) => `${name}=${value}`).join(", ") || "none"}</dd></div>
    <div><dt>address</dt><dd>${executor.address}, version ${executor.software_version}</dd></div>
  </dl>`;
}

function Drain({ executor, path }) {
  if (executor.draining) {
    return html`<p><${Action} label="Undrain" question="Allow new slots on this executor?" method="POST" path=${`${path}/undrain`} /></p>`;
  }
  const question = `Place no new slots on ${executor.executor_id}? ${count(executor.slots, "slot")} on it stay until their jobs end them.`;
  return html`<p><${Action} label="Drain" question=${question} method="POST" path=${`${path}/drain`} body=${{ reason: "drained on the web page" }} preview=${{ action: "DRAIN", executor_id: executor.executor_id }} /></p>`;
}

/** The rows of the host: its NUMA nodes and devices, with each slot in its place. */
function HostMap({ report, devices }) {
  const rows = hostRows(report, devices);
  const byGroup = setting("color", ["job", "group"]) === "group";
  const nameOf = (slot) => (byGroup ? groupOfJob.value.get(slot.job_id) ?? "" : slot.job_id);
  const chosen = query.value.get("slot");
  const at = (x, y, width) => {
    const row = rows[Math.floor(y / (ROW + GAP))];
    const hit = row && spans(row, width).find(([, from, wide]) => x >= from && x <= from + wide);
    return hit?.[0];
  };
  const move = (x, y, canvas) => {
    const hit = at(x, y, canvas.clientWidth);
    canvas.title = hit ? (hit.slot ? slotText(hit.slot) : "reserved for the system") : "";
    canvas.style.cursor = hit?.slot ? "pointer" : "";
  };
  const click = (x, y, canvas) => {
    const hit = at(x, y, canvas.clientWidth);
    if (hit?.slot) choose(hit.slot);
  };
  return html`<h2>Map</h2><div class="controls"><${Choice} name="color" label="Color slots by" values=${["job", "group"]} /></div><${Legend} />
    <div class="rows wide"><div class="names" aria-hidden="true">${rows.map((row) => html`<span>${row.label}</span>`)}</div>
      <${Canvas} height=${rows.length * (ROW + GAP)} label=${rows.map(rowText).join("; ")} onClick=${click} onMove=${move}
        draw=${(context, width) => drawRows(context, width, rows, ROW, GAP, nameOf, chosen)} /></div>
    <p class="quiet">The table of slots has the same facts as the map.</p>`;
}

const slotText = (slot) =>
  `slot ${slot.allocation_id} of job ${slot.job_id}` +
  (slot.profile ? `: cpu ${cpu(slot.profile.cpu_milli ?? 0)}, memory ${bytes(slot.memory_bytes)}` : "") +
  (slot.used ? `; used cpu ${cpu(slot.used.cpu_milli)}, memory ${bytes(slot.used.memory_bytes)}` : "");

function rowText(row) {
  const booked = row.parts.filter((each) => each.slot);
  const sum = booked.reduce((all, each) => all + each.amount, 0);
  const part = row.total ? Math.round((100 * sum) / row.total) : 0;
  return `${row.label}: ${count(booked.length, "slot")}, ${part} % allocated${row.problem ? `, ${row.problem}` : ""}`;
}

/** One cell for each cpu. A cell is striped if the cpu is dedicated to a slot, and filled up to the measured use. */
function Cpus({ report, host }) {
  const nodes = [...new Set(report.cpus.map((each) => each.node))];
  const owner = new Map(report.slots.flatMap((slot) => numbers(slot.cpus).map((number) => [number, slot])));
  const busy = new Map(numbers(host?.cpus).map((number, at) => [number, host.cpu_busy_percent[at] ?? 0]));
  const reserved = new Set(numbers(report.announced?.reserved_cpus));
  const offline = new Set(numbers(report.now?.offline_cpus));
  const draw = (cpus) => (context, width) => {
    const colors = theme();
    const columns = Math.max(1, Math.floor(width / CELL));
    context.font = "9px system-ui, sans-serif";
    cpus.forEach((each, number) => {
      const x = (number % columns) * CELL;
      const y = Math.floor(number / columns) * CELL;
      const size = CELL - 3;
      const slot = owner.get(each.cpu);
      const used = (busy.get(each.cpu) ?? 0) / 100;
      context.fillStyle = colors.ground;
      context.fillRect(x, y, size, size);
      if (slot) part(context, x, y, size, size, colorOf(slot.job_id), used);
      else {
        context.fillStyle = colors.plain;
        context.globalAlpha = reserved.has(each.cpu) ? 0.3 : 0.6;
        context.fillRect(x, y + size * (1 - used), size, size * used);
        context.globalAlpha = 1;
      }
      context.strokeStyle = slot ? colors.text : colors.line;
      context.setLineDash(reserved.has(each.cpu) || offline.has(each.cpu) ? [2, 2] : []);
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
      context.setLineDash([]);
      context.fillStyle = colors.text;
      context.fillText(String(each.cpu), x + 3, y + 10);
    });
  };
  const height = (cpus) => (width) => Math.ceil(cpus.length / Math.max(1, Math.floor(width / CELL))) * CELL;
  return html`<h2>Cpus</h2><p class="quiet">Filled: busy now. Striped with a dark frame: only one slot has the cpu. Dashed: reserved or offline.</p>
    ${nodes.map((node) => {
      const cpus = report.cpus.filter((each) => each.node === node);
      const own = cpus.filter((each) => owner.has(each.cpu)).length;
      const pool = report.pools.filter((each) => each.node === node).map((each) => each.shared_cpus).join(",");
      const text = `node ${node}: ${count(cpus.length, "cpu")}, ${own} of single slots, shared pool ${pool || "none"}`;
      return html`<div key=${node}><h3>${text}</h3><${Canvas} height=${height(cpus)} draw=${draw(cpus)} label=${text} /></div>`;
    })}`;
}

const WORDS = ["cpu", "cpuset", "memory", "pids", "kill", "countable", "gpu_core", "gpu_memory", "devices", "device_access"];

/** The slot that the address of the page names, if the address names a slot. */
function Chosen({ slots }) {
  const slot = slots.find((each) => each.allocation_id === query.value.get("slot"));
  if (!slot) return null;
  return html`<${SlotPanel} key=${slot.allocation_id} slot=${slot} />`;
}

/** One slot: its size, the enforcement of its limits, its use and its tasks. */
export function SlotPanel({ slot }) {
  const path = `/v1/slots/${encodeURIComponent(slot.allocation_id)}/usage`;
  const usage = useData(() => get(path), path, 30_000);
  const { isolation, assignment } = slot;
  return html`<section class="panel" aria-label=${`Slot ${slot.allocation_id}`}>
    <h2>Slot ${slot.allocation_id} <button onClick=${() => choose(slot)}>Close</button></h2>
    <dl class="sums">
      <div><dt>job</dt><dd><${Link} to=${jobPath(slot.job_id)}>${slot.job_id}<//></dd></div>
      <div><dt>state</dt><dd>${slot.state}, for ${age(slot.allocated_time)}, generation ${slot.generation}</dd></div>
      <div><dt>size</dt><dd>${amounts(slot.profile)}; at most cpu ${cpu(slot.cpu_limit_milli)}, memory ${bytes(slot.memory_bytes)}, ${slot.pids_max} processes</dd></div>
      <div><dt>used</dt><dd>${slot.used ? `cpu ${cpu(slot.used.cpu_milli)}, memory ${bytes(slot.used.memory_bytes)}, ${slot.used.pids} processes` : "not measured"}</dd></div>
      <div><dt>cpus</dt><dd>${slot.cpus || "shared"}${assignment ? `, class ${assignment.qos}` : ""}</dd></div>
      <div><dt>NUMA nodes</dt><dd>${assignment?.numa.map((each) => `${each.node} (${amounts(each.amounts)})`).join("; ") || "any"}</dd></div>
      <div><dt>enforced by</dt><dd>${isolation ? WORDS.filter((word) => isolation[word]).map((word) => `${word.replace("_", " ")} ${isolation[word]}`).join(", ") : "not known yet"}</dd></div>
      ${isolation?.notes.length > 0 && html`<div><dt>notes</dt><dd>${isolation.notes.join("; ")}</dd></div>`}
      ${isolation?.ports.length > 0 && html`<div><dt>ports</dt><dd>${isolation.ports.join(", ")}</dd></div>`}
      ${slot.resizes.map((each) => html`<div key=${each.resize_number}><dt>resize</dt><dd>${each.state}: ${amounts(each.profile)} ${each.message}</dd></div>`)}
    </dl>
    <p><${Link} to=${requestPath(slot.allocation_id)}>Request of this slot<//></p>
    <${Tasks} slot=${slot} />
    <${Shown} found=${usage}>${({ samples }) => html`<${UsageCharts} samples=${samples} write=${write} isSlot=${true} />`}<//>
  </section>`;
}
