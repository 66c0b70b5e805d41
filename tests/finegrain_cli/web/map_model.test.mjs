// Unit tests of the map of the cluster: node --test tests/finegrain_cli/web
import assert from "node:assert/strict";
import test from "node:test";
import {
  fullness, groupsOf, hostRows, hue, labelsOf, numbers, ordered, severity, troubled,
} from "../../../finegrain_cli/web/page/map_model.js";
import { changed } from "../../../finegrain_cli/web/page/place.js";

const GIB = 2 ** 30;

function host(name, { cpu = 0, state = "ACTIVE", draining = false, labels = { rack: "r1" } } = {}) {
  return {
    executor_id: name, state, draining, labels, slots: 1,
    total: { cpu_milli: 10_000, memory_bytes: 10 * GIB }, reserved: { cpu_milli: 1000 },
    allocated: { cpu_milli: cpu, memory_bytes: GIB }, used: { cpu_milli: cpu / 2, memory_bytes: 0 },
  };
}

const names = (hosts) => hosts.map((each) => each.executor_id).join(" ");

test("after a change, only the group of the changed host is computed again", () => {
  const all = [host("a"), host("b", { labels: { rack: "r2" } }), host("c"), host("x", { labels: {} })];
  const before = groupsOf(all, "rack", "name");
  const newer = [all[0], { ...all[1], draining: true }, all[2], all[3]];
  const after = groupsOf(newer, "rack", "name", before);
  assert.deepEqual(after, groupsOf(newer, "rack", "name"));
  assert.deepEqual(after.map((group, at) => [group.name, group === before[at]]), [["other hosts", true], ["r1", true], ["r2", false]]);
  const fewer = groupsOf(newer.slice(0, 2), "rack", "name", after);
  assert.deepEqual(fewer, groupsOf(newer.slice(0, 2), "rack", "name"));
});

test("lost hosts come before drained ones, and full ones before empty ones", () => {
  const all = [host("a"), host("b", { cpu: 9000 }), host("c", { draining: true }), host("d", { state: "LOST" })];
  assert.equal(names(ordered(all, "worst")), "d c b a");
  assert.equal(names(ordered(all, "fullest")), "b a c d");
  assert.equal(names(ordered(all, "drained")), "c b a d");
  assert.equal(names(ordered(all, "name")), "a b c d");
  assert.equal(fullness(all[1]), 0.9);
  assert.ok(severity(all[3]) > severity(all[2]));
  assert.ok(!troubled(all[0]) && troubled(all[2]));
});

test("groups are hosts with the same label, with sums", () => {
  const all = [host("a"), host("b", { labels: { rack: "r2" }, cpu: 5000 }), host("c", { cpu: 4000 })];
  const [first, second] = groupsOf(all, "rack", "fullest");
  assert.deepEqual([first.name, first.slots, first.cpu.allocated], ["r2", 1, 5000]);
  assert.deepEqual([second.name, names(second.hosts), second.cpu.total], ["r1", "c a", 20_000]);
  assert.deepEqual(labelsOf([host("a", { labels: { zone: "z", rack: "r" } })]), ["rack", "zone"]);
});

test("many hosts without the label are divided by name", () => {
  const all = Array.from({ length: 250 }, (_, at) => host(`h${String(at).padStart(3, "0")}`, { labels: {} }));
  const found = groupsOf(all, "rack", "name");
  assert.deepEqual(found.map((each) => each.name), ["h000 – h099", "h100 – h199", "h200 – h249"]);
  assert.equal(groupsOf(all.slice(0, 3), "rack", "name")[0].name, "other hosts");
});

const slot = (id, cpu, more = {}) => ({
  allocation_id: id, job_id: "j", profile: { cpu_milli: cpu }, memory_bytes: GIB, used: { cpu_milli: cpu / 4, memory_bytes: 0 }, ...more,
});

function report(slots, nodes = 2) {
  const cpus = [0, 1, 2, 3].map((cpu) => ({ cpu, node: nodes === 1 ? 0 : cpu >> 1 }));
  const zones = [...new Set(cpus.map((cpu) => cpu.node))].map((node) => ({ node, total: { cpu_milli: 2000, memory_bytes: 3 * GIB } }));
  return {
    cpus, zones, slots, announced: { reserved_cpus: "0" },
    topology: { memory_bytes: 8 * GIB, numa_nodes: zones.map(({ node }) => ({ numa_node_id: node, memory_bytes: 4 * GIB })) },
  };
}

test("slots stand at their nodes, reserved parts come first", () => {
  const bound = slot("a", 1000, { assignment: { numa: [{ node: 1, amounts: { cpu_milli: 1000, memory_bytes: GIB } }] } });
  const pooled = slot("b", 500, { assignment: { numa: [], pools: [{ package: 0, node: 0 }] } });
  const loose = slot("c", 250, { assignment: { numa: [], pools: [] } });
  const rows = hostRows(report([bound, pooled, loose]));
  assert.deepEqual(rows.map((row) => row.label), [
    "node 0 cpu", "node 0 memory", "node 1 cpu", "node 1 memory", "any node cpu", "any node memory",
  ]);
  assert.deepEqual(rows[0].parts.map((part) => [part.kind, part.amount]), [["reserved", 1000], ["slot", 500]]);
  assert.deepEqual(rows[1].parts.map((part) => part.kind), ["reserved", "slot"]);
  assert.deepEqual([rows[2].parts[0].slot, rows[2].parts[0].used, rows[2].total], [bound, 0.25, 2000]);
  assert.equal(rows[4].parts[0].slot, loose);
});

test("a host with one node has one row of cpu and one of memory", () => {
  const rows = hostRows(report([slot("a", 9000)], 1));
  assert.deepEqual(rows.map((row) => [row.label, row.total]), [["cpu", 10_000], ["memory", 4 * GIB]]);
});

test("a device shows the shares of its slots", () => {
  const device = {
    device: { type: "gpu", minor: 0, numa_node: 0, capacity: { "gpu-core": 100, "gpu-memory": 80 } },
    problem: "hot", uses: [{ allocation_id: "a", amounts: { "gpu-core": 25 } }], usage: { busy_percent: 50 },
  };
  const { label, total, parts, problem } = hostRows(report([slot("a", 1)]), [device]).at(-1);
  assert.deepEqual([label, total, parts[0].amount, parts[0].used, problem], ["gpu0", 100, 25, 0.5, "hot"]);
  assert.equal(parts[0].slot.memory_bytes, GIB);
});

test("lists of cpus, colors and settings of a view", () => {
  assert.deepEqual(numbers("0-2,5"), [0, 1, 2, 5]);
  assert.deepEqual(numbers(""), []);
  assert.equal(hue("job-1"), hue("job-1"));
  assert.notEqual(hue("job-1"), hue("job-2"));
  const before = new URLSearchParams("by=rack&open=r1&find=x");
  assert.equal(String(changed(before, { find: "", open: ["r1", "r2"] })), "by=rack&open=r1&open=r2");
});
