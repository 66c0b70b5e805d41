// Unit tests of the view of a job and of outputs: node --test tests/finegrain_cli/web
import assert from "node:assert/strict";
import test from "node:test";
import { amounts, visible } from "../../../finegrain_cli/web/page/format.js";
import { jobGraph, quotas, timeline } from "../../../finegrain_cli/web/page/job_model.js";
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

const operator = (id, quota = 0) => ({ operator_id: id, quota_bytes: quota, used_bytes: 1 });
const edge = (chain, parallelism, isInput, isBlocking = false) => ({ chain, parallelism, is_input: isInput, is_blocking: isBlocking });
const place = (chain, ...edges) => ({ chain, slot_sharing_group: "default", region: 1, edges });
const task = (index, state, name, parallelism, where, more = {}) => ({
  operators: name.split("+").map((each, at) => operator(each, 4 + at)), subtask_index: index, parallelism, state, place: where, result: null, ...more,
});

test("tasks of one chain are its subtasks, and edges name chains without tasks", () => {
  const first = place("source+map", edge("sink", 3, false));
  const { chains, edges } = jobGraph([
    task(1, "RUNNING", "source+map", 2, first),
    task(0, "STARTING", "source+map", 2, first),
    task(0, "RUNNING", "sink", 3, place("sink", edge("source+map", 2, true), edge("report", 1, false, true))),
    { operators: [] },
  ]);
  assert.deepEqual([...chains.values()].map((each) => [each.name, each.state, each.running, each.parallelism, each.group]), [
    ["source+map", "running", 1, 2, "default"], ["sink", "running", 1, 3, "default"], ["report", "planned", 0, 1, ""],
  ]);
  assert.deepEqual(edges, [
    { from: "source+map", to: "sink", isBlocking: false }, { from: "sink", to: "report", isBlocking: true },
  ]);
  const source = chains.get("source+map");
  assert.deepEqual(source.subtasks.map((each) => each.subtask_index), [0, 1]);
  assert.deepEqual(quotas(source), [
    { id: "source", quota_bytes: 8, used_bytes: 2 }, { id: "map", quota_bytes: 10, used_bytes: 2 },
  ]);
});

test("the last attempt of each subtask gives the state of a chain", () => {
  const well = { exit_code: 0, signal: 0 };
  const state = (...tasks) => jobGraph(tasks).chains.get("a").state;
  const ended = (index, result, start) => task(index, "EXITED", "a", 2, null, { result, start_time: start });
  assert.equal(state(ended(0, well), ended(1, well)), "finished");
  assert.equal(state(ended(0, well)), "ended in part");
  assert.equal(state(ended(0, well), ended(1, { exit_code: 0, oom_killed: true })), "failed");
  assert.equal(state(ended(0, { exit_code: 1 }, "2026-01-01T00:00:00Z"), task(0, "RUNNING", "a", 2, null, { start_time: "2026-01-01T00:00:01Z" })), "running");
  assert.equal(state(task(0, "FAILED", "a", 2, null), task(1, "RUNNING", "a", 2, null)), "failed");
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
