// Unit tests of the layout of graphs: node --test tests/finegrain_cli/web
import assert from "node:assert/strict";
import test from "node:test";
import { crossings, layersOf, layout } from "../../../finegrain_cli/web/page/graph_layout.js";

const SIZE = { width: 100, height: 40, across: 50, between: 10 };
const edges = (...pairs) => pairs.map(([from, to]) => ({ from, to }));

/** Counts the pairs of lines between neighboring layers that cross. */
function crossed(plan) {
  const parts = plan.lines.flatMap(({ points }) => points.slice(1).map((end, at) => [points[at], end]));
  const gaps = new Map();
  for (const [start, end] of parts) {
    if (start.x + SIZE.across !== end.x) continue; // the part of a long line within a layer
    if (!gaps.has(start.x)) gaps.set(start.x, []);
    gaps.get(start.x).push([start.y, end.y]);
  }
  return [...gaps.values()].reduce((sum, pairs) => sum + crossings(pairs), 0);
}

test("the layer of a box is the longest path to it", () => {
  const layers = layersOf(["a", "b", "c", "d", "e"], edges(["a", "b"], ["b", "c"], ["a", "c"], ["d", "c"]));
  assert.deepEqual(Object.fromEntries(layers), { a: 0, b: 1, c: 2, d: 0, e: 0 });
});

test("a graph with circles has layers, too", () => {
  const layers = layersOf(["a", "b", "c"], edges(["a", "b"], ["b", "c"], ["c", "a"]));
  assert.deepEqual(Object.fromEntries(layers), { a: 0, b: 1, c: 2 });
  const plan = layout(["a", "b", "c"], edges(["a", "b"], ["b", "c"], ["c", "a"], ["a", "a"], ["a", "unknown"]), SIZE);
  assert.equal(plan.lines.length, 3);
  const back = plan.lines.find((line) => line.from === "c");
  assert.ok(back.points[0].x > back.points.at(-1).x);
});

test("data flows from left to right, and boxes do not overlap", () => {
  const plan = layout(["a", "b", "c"], edges(["a", "b"], ["a", "c"]), SIZE);
  assert.deepEqual(Object.fromEntries(plan.boxes), { a: { x: 0, y: 25 }, b: { x: 150, y: 0 }, c: { x: 150, y: 50 } });
  assert.deepEqual([plan.width, plan.height], [250, 90]);
  assert.deepEqual(plan.lines[0].points, [{ x: 100, y: 45 }, { x: 150, y: 20 }]);
});

test("edges do not cross if this can be avoided", () => {
  const plan = layout(["a", "b", "c", "d", "e", "f"], edges(["a", "f"], ["b", "e"], ["c", "d"]), SIZE);
  assert.equal(crossed(plan), 0);
});

test("an edge over several layers passes between the boxes", () => {
  const plan = layout(["a", "b", "c"], edges(["a", "b"], ["b", "c"], ["a", "c"]), SIZE);
  const long = plan.lines[2].points;
  assert.equal(long.length, 4);
  const { y } = plan.boxes.get("b");
  assert.ok(long[1].y < y || long[1].y > y + SIZE.height);
});

test("200 boxes have places, without an overlap, and with fewer crossings than unordered layers", () => {
  const names = [...Array(200).keys()].map(String);
  let seed = 1;
  const random = (most) => {
    seed = (seed * 48271) % 2147483647;
    return seed % most;
  };
  const all = names.slice(20).flatMap((name, at) => [0, 1].map(() => ({ from: String(Math.floor(at / 20) * 20 + random(20)), to: name })));
  const plan = layout(names, all, SIZE);
  const places = [...plan.boxes.values()];
  for (const [at, one] of places.entries()) {
    for (const other of places.slice(at + 1)) assert.ok(one.x !== other.x || Math.abs(one.y - other.y) >= SIZE.height);
  }
  const unordered = new Map();
  for (const { from, to } of all) {
    const layer = Math.floor(from / 20);
    if (!unordered.has(layer)) unordered.set(layer, []);
    unordered.get(layer).push([from % 20, to % 20]);
  }
  const before = [...unordered.values()].reduce((sum, pairs) => sum + crossings(pairs), 0);
  assert.ok(crossed(plan) < before / 2, `${crossed(plan)} of ${before}`);
});

test("a graph without boxes is empty", () => {
  assert.deepEqual(layout([], [], SIZE), { boxes: new Map(), lines: [], width: 0, height: 0 });
});
