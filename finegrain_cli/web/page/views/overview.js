// The map of the cluster: groups of hosts. An open group shows each host with its NUMA nodes, slots and
// devices.

import { useCallback, useEffect, useRef, useState } from "../vendor/hooks.mjs";
import { get } from "../api.js";
import { cluster, groupOfJob, hosts, useCluster } from "../cluster.js";
import { bytes, count, cpu, memory, percent } from "../format.js";
import { Canvas, cellAt, drawCells, drawRows, gridHeight } from "../map_draw.js";
import { groupsOf, hostRows, labelsOf, ORDERS, severity, troubled } from "../map_model.js";
import { Choice, Legend, Link, Meter, Search, Shown, html } from "../parts.js";
import { executorPath, go, query, set, setting } from "../place.js";
import { ClusterPolicy } from "./policy.js";

const FEW = 12; // up to this number of hosts, all groups are open
const GROUPS_MAX = 150;
const TILES_MAX = 48;
const WORST_MAX = 12;
const ROW = 12;
const GAP = 3;

export function Overview() {
  useCluster();
  const found = { data: cluster.value && hosts.value, error: null };
  return html`<h1>Cluster</h1><${Shown} found=${found}>${(all) => html`
    <${Sums} cluster=${cluster.value} />
    ${all.length ? html`<${Map} all=${all} /><${ClusterPolicy} />` : html`<p class="quiet">No executor has joined yet.</p>`}`}<//>`;
}

function Sums({ cluster }) {
  const waiting = Object.entries(cluster.pending_requests).filter(([, number]) => number);
  const state = Object.entries(cluster.executors).filter(([, number]) => number);
  const reserved = cluster.reserved;
  return html`<dl class="sums">
    <div><dt>cpu</dt><dd>${cpu(cluster.allocated.cpu_milli ?? 0)} allocated, ${cpu(cluster.used.cpu_milli)} used, ${cpu(cluster.total.cpu_milli ?? 0)} total
      <${Meter} label="cpu" total=${cluster.total.cpu_milli ?? 0} reserved=${reserved.cpu_milli ?? 0} allocated=${cluster.allocated.cpu_milli ?? 0} used=${cluster.used.cpu_milli} write=${cpu} /></dd></div>
    <div><dt>memory</dt><dd>${bytes(memory(cluster.allocated))} allocated, ${bytes(cluster.used.memory_bytes)} used, ${bytes(memory(cluster.total))} total
      <${Meter} label="memory" total=${memory(cluster.total)} reserved=${memory(reserved)} allocated=${memory(cluster.allocated)} used=${cluster.used.memory_bytes} write=${bytes} /></dd></div>
    <div><dt>slots, jobs</dt><dd>${count(cluster.slots, "slot")} of ${count(cluster.jobs, "job")}, ${count(cluster.used.tasks, "task")}</dd></div>
    <div><dt>executors</dt><dd>${state.map(([name, number]) => `${number} ${name}`).join(", ") || "none"}</dd></div>
    <div><dt>waiting</dt><dd>${waiting.length
      ? waiting.map(([name, number]) => html`<${Link} key=${name} to=${`/requests?reason=${name}`} class="chip">${number} ${name}<//> `)
      : "no request waits"}</dd></div>
  </dl>`;
}

function Map({ all }) {
  const labels = labelsOf(all);
  const by = setting("by", labels.length ? labels : ["rack"]);
  const order = setting("order", ORDERS);
  const text = setting("find").toLowerCase();
  const shown = text ? all.filter((host) => matches(host, text)) : all;
  const last = useRef({ nodes: new globalThis.Map() });
  const settings = `${by} ${order}`;
  const groups = groupsOf(shown, by, order, last.current.settings === settings ? last.current.groups : []);
  Object.assign(last.current, { settings, groups });
  const chosen = query.value.getAll("open");
  const few = shown.length <= FEW;
  const nodeOf = (group) => {
    const open = chosen.includes(few ? `-${group.name}` : group.name) !== few;
    const old = last.current.nodes.get(group.name);
    if (old?.group === group && old.open === open && old.few === few && old.by === by) return old.node;
    const node = html`<${Group} key=${group.name} group=${group} label=${by} open=${open} toggle=${() => toggle(few ? `-${group.name}` : group.name)} />`;
    last.current.nodes.set(group.name, { group, open, few, by, node });
    return node; // a group that has not changed keeps its node, so that it is not rendered again
  };
  const most = Number(setting("groups")) || GROUPS_MAX;
  return html`<div class="controls">
      <${Choice} name="by" label="Group hosts by" values=${labels.length ? labels : ["rack"]} />
      <${Choice} name="order" label="Show first" values=${ORDERS} />
      <${Choice} name="color" label="Color slots by" values=${["job", "group"]} />
      <${Search} name="find" label="Find a host or label" />
    </div>
    <${Legend} />
    <${Attention} hosts=${shown} />
    ${!groups.length && html`<p class="quiet">No host matches.</p>`}
    <div class="groups">${groups.slice(0, most).map(nodeOf)}</div>
    ${groups.length > most && html`<p><button onClick=${() => set({ groups: String(most + GROUPS_MAX) })}>
      Show more of ${groups.length} groups</button></p>`}`;
}

/** Opens or closes a group. `word` stands for the group in the address. */
function toggle(word) {
  const chosen = query.value.getAll("open");
  set({ open: chosen.includes(word) ? chosen.filter((each) => each !== word) : [...chosen, word] }, true);
}

const matches = (host, text) =>
  host.executor_id.toLowerCase().includes(text) ||
  Object.entries(host.labels).some(([name, value]) => `${name}=${value}`.toLowerCase().includes(text));

/** The hosts that are lost, unreachable or drained, the worst first. */
function Attention({ hosts: all }) {
  const bad = all.filter(troubled).sort((a, b) => severity(b) - severity(a));
  if (!bad.length) return null;
  return html`<p class="attention">${count(bad.length, "host")} ${bad.length === 1 ? "needs" : "need"} attention:
    ${bad.slice(0, WORST_MAX).map((host) => html` <${Link} key=${host.executor_id} class="chip bad" to=${executorPath(host.executor_id)}>${host.executor_id} ${word(host)}<//>`)}
    ${bad.length > WORST_MAX && html` and ${bad.length - WORST_MAX} more`}</p>`;
}

const word = (host) =>
  host.state !== "ACTIVE" ? host.state.toLowerCase() : host.unreachable_reason ? "unreachable" : "draining";

function Group({ group, label, open, toggle }) {
  const facts = [
    count(group.hosts.length, "host"), count(group.slots, "slot"),
    group.lost && `${group.lost} lost`, group.draining && `${group.draining} draining`,
    `cpu ${Math.round(percent(group.cpu.allocated, group.cpu.total))} % allocated`,
    `${Math.round(percent(group.cpu.used, group.cpu.total))} % used`,
  ].filter(Boolean).join(", ");
  return html`<section class=${`group${open ? " open" : ""}${group.troubled ? " troubled" : ""}`}>
    <h2><button class="plain" aria-expanded=${String(open)} onClick=${toggle}>
      <span aria-hidden="true">${open ? "▾" : "▸"}</span> ${group.name === "other hosts" ? "" : `${label} `}${group.name}</button></h2>
    <p class="quiet">${facts}</p>
    <${Meter} label="cpu" ...${group.cpu} write=${cpu} />
    <${Meter} label="memory" ...${group.memory} write=${bytes} />
    ${open ? html`<${Tiles} group=${group} />` : html`<${Cells} hosts=${group.hosts} />`}
  </section>`;
}

function Cells({ hosts }) {
  // draw the canvas again only if one of its hosts has changed
  const latest = useRef(hosts);
  if (hosts.length !== latest.current.length || hosts.some((host, at) => host !== latest.current[at])) latest.current = hosts;
  const members = latest.current;
  const draw = useCallback((context, width) => drawCells(context, width, members), [members]);
  const height = useCallback(gridHeight(members.length), [members.length]);
  const click = (x, y, canvas) => {
    const host = cellAt(members, canvas.clientWidth, x, y);
    if (host) go(executorPath(host.executor_id));
  };
  const move = (x, y, canvas) => {
    const host = cellAt(members, canvas.clientWidth, x, y);
    canvas.title = host ? describe(host) : "";
    canvas.style.cursor = host ? "pointer" : "";
  };
  const label = `${count(members.length, "host")}; open the group to see them with their names`;
  return html`<${Canvas} height=${height} draw=${draw} label=${label} onClick=${click} onMove=${move} />`;
}

/** Describes one host in a sentence, which is the text alternative of the map of the host. */
export function describe(host) {
  const { total, allocated, used } = host;
  const state = troubled(host) ? `, ${word(host)}` : "";
  return `${host.executor_id}${state}: ${count(host.slots, "slot")}, cpu ${cpu(allocated.cpu_milli ?? 0)} allocated and ` +
    `${cpu(used.cpu_milli)} used of ${cpu(total.cpu_milli ?? 0)}, memory ${bytes(memory(allocated))} allocated and ` +
    `${bytes(used.memory_bytes)} used of ${bytes(memory(total))}`;
}

function Tiles({ group }) {
  const [most, more] = useState(TILES_MAX);
  return html`<ul class="hosts">${group.hosts.slice(0, most).map((host) => html`<${Tile} key=${host.executor_id} host=${host} />`)}</ul>
    ${group.hosts.length > most && html`<p><button onClick=${() => more(most + TILES_MAX)}>Show more of ${group.hosts.length} hosts</button></p>`}`;
}

/** The map of one host. The map reads the slots when it becomes visible. */
function Tile({ host }) {
  const ref = useRef(null);
  const [visible, see] = useState(false);
  const [rows, keep] = useState(null);
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => see(entry.isIntersecting));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  const id = encodeURIComponent(host.executor_id);
  const version = `${host.slots} ${host.used.cpu_milli} ${host.used.memory_bytes} ${host.allocated.cpu_milli} ${host.draining}`;
  useEffect(() => {
    if (!visible) return undefined;
    let gone = false;
    Promise.all([get(`/v1/executors/${id}/topology`), get(`/v1/devices?executor_id=${id}`)]).then(
      ([report, devices]) => gone || keep(hostRows(report, devices.items)),
      () => gone || keep((old) => old ?? []),
    );
    return () => {
      gone = true;
    };
  }, [visible, version]);
  const byGroup = setting("color", ["job", "group"]) === "group";
  const names = byGroup ? groupOfJob.value : null;
  const draw = useCallback((context, width) => {
    drawRows(context, width, rows, ROW, GAP, (slot) => (names ? names.get(slot.job_id) ?? "" : slot.job_id));
  }, [rows, names]);
  return html`<li ref=${ref} class=${troubled(host) ? "host troubled" : "host"}>
    <${Link} to=${executorPath(host.executor_id)} aria-label=${describe(host)}>${host.executor_id}<//>
    <span class="state">${troubled(host) ? `${word(host)}, ` : ""}${count(host.slots, "slot")}</span>
    ${rows?.length
      ? html`<div class="rows"><div class="names" aria-hidden="true">${rows.map((row) => html`<span>${row.label}</span>`)}</div>
        <${Canvas} height=${rows.length * (ROW + GAP)} label=${describe(host)} draw=${draw} /></div>`
      : html`<${Meter} label="cpu" total=${host.total.cpu_milli ?? 0} reserved=${host.reserved.cpu_milli ?? 0} allocated=${host.allocated.cpu_milli ?? 0} used=${host.used.cpu_milli} write=${cpu} />
        <${Meter} label="memory" total=${memory(host.total)} reserved=${memory(host.reserved)} allocated=${memory(host.allocated)} used=${host.used.memory_bytes} write=${bytes} />`}
    <span class="quiet">cpu ${cpu(host.available.cpu_milli ?? 0)}, memory ${bytes(memory(host.available))} free</span>
  </li>`;
}
