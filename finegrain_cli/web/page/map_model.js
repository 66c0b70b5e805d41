// The map of the cluster as plain data: groups of hosts, their order, and the parts of one host.

import { memory, percent } from "./format.js";

export const ORDERS = ["worst", "fullest", "drained", "name"];
/** Hosts without the label are shown in groups of this size. */
export const CHUNK = 100;

/** True if a host needs attention. */
export const troubled = (host) => host.state !== "ACTIVE" || host.draining || Boolean(host.unreachable_reason);

/** Returns how bad the state of a host is. 0 means that the host has no problem. */
export function severity(host) {
  return (host.state === "LOST" ? 8 : 0) + (host.unreachable_reason ? 4 : 0) +
    (host.state === "UNCONFIRMED" ? 2 : 0) + (host.draining ? 1 : 0);
}

/** Returns the allocated part of a host's cpu or memory, 0 to 1, whichever is larger. */
export function fullness(host) {
  const cpu = percent(host.allocated.cpu_milli ?? 0, host.total.cpu_milli);
  return Math.max(cpu, percent(memory(host.allocated), memory(host.total))) / 100;
}

const byName = (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);

const RANKS = {
  worst: (host) => severity(host) * 2 + fullness(host),
  fullest: fullness,
  drained: (host) => (host.draining ? 2 : 0) + fullness(host),
  name: () => 0,
};

/** Sorts hosts by `order`: the hosts with the worst state first, or the fullest or drained hosts first. */
export function ordered(hosts, order) {
  const rank = RANKS[order] ?? RANKS.worst;
  return hosts
    .map((host) => ({ host, name: host.executor_id, rank: rank(host) }))
    .sort((a, b) => b.rank - a.rank || byName(a, b))
    .map(({ host }) => host);
}

/** Returns the names of all labels of the hosts. The name "rack" comes first. */
export function labelsOf(hosts) {
  const names = new Set(hosts.flatMap((host) => Object.keys(host.labels)));
  return [...names].sort((a, b) => (b === "rack") - (a === "rack") || (a < b ? -1 : 1));
}

/**
 * Groups hosts by a label. Each group has a name, its hosts in order, and sums. `before` is the result
 * for the same label and order before a change: groups whose hosts have not changed are reused, so that
 * a change of one host costs little in a large cluster.
 */
export function groupsOf(hosts, label, order, before = []) {
  const known = new Map(before.map((group) => [group.name, group]));
  const found = new Map();
  const without = [];
  for (const host of hosts) {
    const value = host.labels[label];
    if (value === undefined) without.push(host);
    else if (found.has(value)) found.get(value).push(host);
    else found.set(value, [host]);
  }
  without.sort((a, b) => (a.executor_id < b.executor_id ? -1 : 1));
  for (let at = 0; at < without.length; at += CHUNK) {
    const part = without.slice(at, at + CHUNK);
    const last = part.at(-1).executor_id;
    found.set(without.length > CHUNK ? `${part[0].executor_id} – ${last}` : "other hosts", part);
  }
  const groups = [...found].map(([name, members]) => {
    const old = known.get(name);
    const isSame = old?.members.length === members.length && members.every((host, at) => host === old.members[at]);
    return isSame ? old : summed(name, members, order);
  });
  const rank = {
    worst: (group) => group.troubled * 1000 + group.fullness,
    fullest: (group) => group.fullness,
    drained: (group) => group.draining * 1000 + group.fullness,
    name: () => 0,
  }[order];
  return groups.sort((a, b) => rank(b) - rank(a) || byName(a, b));
}

/** The sums of cpu and memory over hosts. */
export function sums(hosts) {
  const cpu = { reserved: 0, allocated: 0, used: 0, total: 0 };
  const mem = { reserved: 0, allocated: 0, used: 0, total: 0 };
  for (const host of hosts) {
    for (const name of ["reserved", "allocated", "total"]) {
      cpu[name] += host[name].cpu_milli ?? 0;
      mem[name] += memory(host[name]);
    }
    cpu.used += host.used.cpu_milli;
    mem.used += host.used.memory_bytes;
  }
  return { cpu, memory: mem };
}

function summed(name, members, order) {
  const hosts = ordered(members, order);
  const found = sums(hosts);
  return {
    name, members, hosts, ...found,
    slots: hosts.reduce((sum, host) => sum + host.slots, 0),
    troubled: hosts.filter(troubled).length,
    draining: hosts.filter((host) => host.draining).length,
    lost: hosts.filter((host) => host.state === "LOST").length,
    fullness: percent(found.cpu.allocated, found.cpu.total) / 100,
  };
}

/** Returns the numbers in a list of cpus or nodes, such as "0-3,8". */
export function numbers(list) {
  return (list || "").split(",").filter(Boolean).flatMap((part) => {
    const [first, last] = part.split("-").map(Number);
    return Array.from({ length: (last ?? first) - first + 1 }, (_, at) => first + at);
  });
}

/** Returns the amounts of a slot at its nodes as [node, cpu, memory]. The node is null if the slot is bound to no node. */
function placesOf(slot) {
  const cpu = slot.profile.cpu_milli ?? 0;
  const shares = slot.assignment?.numa ?? [];
  if (shares.length) {
    return shares.map(({ node, amounts }) => [
      node, amounts.cpu_milli ?? amounts.best_effort_cpu_milli ?? 0, amounts.memory_bytes ?? 0,
    ]);
  }
  const known = [...new Set((slot.assignment?.pools ?? []).map((pool) => pool.node))].filter((node) => node >= 0);
  if (!known.length) return [[null, cpu, slot.memory_bytes]];
  return known.map((node) => [node, cpu / known.length, slot.memory_bytes / known.length]);
}

/**
 * Returns the rows of a host's map. A row has a label, a total, and parts. Each part has a kind ("slot"
 * or "reserved") and an amount. A part of the kind "slot" also has the slot, and the used fraction of
 * the amount, 0 to 1.
 */
export function hostRows(report, devices = []) {
  const nodes = [...new Set(report.cpus.map((cpu) => cpu.node))];
  const single = nodes.length < 2;
  const rows = [];
  const loose = { cpu: [], memory: [] };
  const perNode = new Map(nodes.map((node) => [node, { cpu: [], memory: [] }]));
  for (const slot of report.slots) {
    const whole = slot.profile.cpu_milli ?? 0;
    for (const [node, cpu, bytes] of placesOf(slot)) {
      const target = perNode.get(single ? nodes[0] : node) ?? loose;
      target.cpu.push({ kind: "slot", slot, amount: cpu, used: used(slot.used?.cpu_milli, whole) });
      target.memory.push({ kind: "slot", slot, amount: bytes, used: used(slot.used?.memory_bytes, slot.memory_bytes) });
    }
  }
  const reserved = new Set(numbers(report.announced?.reserved_cpus));
  for (const node of nodes) {
    const cpus = report.cpus.filter((cpu) => cpu.node === node);
    const zone = report.zones.find((each) => each.node === node);
    const kept = 1000 * cpus.filter((cpu) => reserved.has(cpu.cpu)).length;
    const place = single ? "" : `node ${node} `;
    const { cpu, memory: mem } = perNode.get(node);
    rows.push(row(`${place}cpu`, "cpu", cpus.length * 1000, kept ? [{ kind: "reserved", amount: kept }, ...cpu] : cpu, node));
    const capacity = (report.topology.numa_nodes ?? []).find((each) => each.numa_node_id === node)?.memory_bytes;
    const zoned = zone ? memory(zone.total) : 0;
    const total = Math.max(capacity ?? 0, zoned);
    const held = zoned && total > zoned ? [{ kind: "reserved", amount: total - zoned }] : [];
    rows.push(row(`${place}memory`, "memory", total, [...held, ...mem], node));
  }
  if (loose.cpu.length) {
    rows.push(row("any node cpu", "cpu", report.cpus.length * 1000, loose.cpu, null));
    rows.push(row("any node memory", "memory", report.topology.memory_bytes ?? 0, loose.memory, null));
  }
  return [...rows, ...devices.map((device) => deviceRow(device, report.slots))];
}

const used = (part, whole) => (whole > 0 && part !== undefined ? Math.min(1, part / whole) : 0);

function row(label, kind, total, parts, node) {
  const sum = parts.reduce((all, part) => all + part.amount, 0);
  return { label, kind, node, total: Math.max(total, sum), parts };
}

function deviceRow(status, slots) {
  const { capacity } = status.device;
  const name = ["gpu-core", ...Object.keys(capacity)].find((each) => capacity[each]) ?? "";
  const parts = status.uses.map((use) => ({
    kind: "slot",
    slot: slots.find((slot) => slot.allocation_id === use.allocation_id) ?? use,
    amount: use.amounts[name] ?? 0,
    used: (status.usage?.busy_percent ?? 0) / 100,
  }));
  const label = `${status.device.type}${status.device.minor}`;
  return { ...row(label, "device", capacity[name] ?? 0, parts, status.device.numa_node), problem: status.problem };
}

/** Returns the hue of the color for a name, 0 to 359. Equal names have equal colors. */
export function hue(name) {
  let hash = 7;
  for (let at = 0; at < name.length; at += 1) hash = (hash * 31 + name.charCodeAt(at)) >>> 0;
  return (hash * 137) % 360;
}
