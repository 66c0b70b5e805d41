// Unit tests of the view of a job and of outputs: node --test tests/finegrain_cli/web
import assert from "node:assert/strict";
import test from "node:test";
import { amounts, visible } from "../../../finegrain_cli/web/page/format.js";
import { chains, groupChange, quotas, timeline } from "../../../finegrain_cli/web/page/job_model.js";
import { Tail } from "../../../finegrain_cli/web/page/tail.js";

const at = (second) => new Date(1000 * second).toISOString();

test("a request waits, then has its slot until it ends", () => {
  const { start, end, bars } = timeline([
    { allocation_id: "b", state: "PENDING", count: 1, create_time: at(30), end_time: null, slot: null },
    { allocation_id: "a", state: "RELEASED", count: 1, create_time: at(10), end_time: at(90), slot: { allocated_time: at(20) } },
    { allocation_id: "c", state: "PENDING", count: 1, create_time: null },
  ], 100_000);
  assert.deepEqual([start, end], [10_000, 100_000]);
  assert.deepEqual(bars.map((bar) => [bar.id, bar.from, bar.granted, bar.until]), [
    ["a", 10_000, 20_000, 90_000], ["b", 30_000, null, 100_000],
  ]);
});

test("tasks with the same operators are subtasks of one chain", () => {
  const operator = (id, quota) => ({ operator_id: id, quota_bytes: quota, used_bytes: 1 });
  const plan = chains([
    { operators: [operator("source", 4), operator("map", 5)], peer_operator_ids: ["sink"] },
    { operators: [operator("source", 6), operator("map", 7)], peer_operator_ids: [] },
    { operators: [operator("sink", 1)], peer_operator_ids: ["gone", "map"] },
    { operators: [], peer_operator_ids: [] },
  ]);
  assert.deepEqual(plan.map((chain) => chain.peers), [["sink"], ["source → map"]]);
  assert.deepEqual(plan.map((chain) => [chain.name, chain.subtasks.length]), [["source → map", 2], ["sink", 1]]);
  assert.deepEqual(quotas(plan[0]), [
    { id: "source", quota_bytes: 10, used_bytes: 2 }, { id: "map", quota_bytes: 12, used_bytes: 2 },
  ]);
});

test("only the last part of an output is kept", () => {
  const tail = new Tail(10);
  tail.add("stdout", "abc");
  tail.add("stdout", "def");
  tail.add("stderr", "ghijkl");
  assert.deepEqual(tail.pieces, [["stdout", "cdef"], ["stderr", "ghijkl"]]);
  assert.deepEqual([tail.length, tail.dropped], [10, 2]);
  tail.add("stdout", "x".repeat(25));
  assert.deepEqual([tail.pieces, tail.length, tail.dropped], [[["stdout", "x".repeat(10)]], 10, 27]);
});

test("hidden characters become visible, and nothing else changes", () => {
  assert.equal(visible("a\u001b[31m\u202eb\u007f"), "a\u241b[31m\ufffdb\u2421");
  assert.equal(visible("zeilé\n\t<b>&amp;"), "zeilé\n\t<b>&amp;");
});

test("amounts may be nested", () => {
  const profile = { cpu_milli: 500, extended: { licence: 2 }, devices: { gpu: 100 }, isolation: { cpu: "kernel" } };
  assert.equal(amounts(profile), "cpu 0.5, licence 2, gpu 100");
});

test("a change of a group has only what differs", () => {
  const group = { weight: 2, maximum: { cpu_milli: 4000 } };
  assert.equal(groupChange(group, { weight: "2", cpus: "4" }), null);
  assert.deepEqual(groupChange(group, { weight: "3", cpus: "4" }), { weight: 3 });
  assert.deepEqual(groupChange(group, { weight: "2", cpus: "" }), { maximum: { cpu_milli: -1 } });
  assert.deepEqual(groupChange({ weight: 1, maximum: {} }, { weight: "1", cpus: "0.5" }), { maximum: { cpu_milli: 500 } });
  assert.equal(groupChange(group, { weight: "", cpus: "4" }), null);
  assert.equal(groupChange(group, { weight: "3", cpus: "x" }), null);
});
