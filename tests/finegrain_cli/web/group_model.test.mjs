// Unit tests of the view of groups: node --test tests/finegrain_cli/web
import assert from "node:assert/strict";
import test from "node:test";
import { groupChange, useLines } from "../../../finegrain_cli/web/page/group_model.js";

const NAMES = { used: "measured_cpu_milli", allocated: "cpu_milli" };
const SAMPLES = [
  { measured_cpu_milli: 500, cpu_milli: 2000, share_entitled: 0.25 },
  { measured_cpu_milli: 900, cpu_milli: 3000, share_entitled: 0.5 },
];

test("the use of a group has guide lines at its share and its limits", () => {
  assert.deepEqual(useLines(SAMPLES, { ...NAMES, total: 8000, minimum: 1000, maximum: 6000 }), [
    ["used", [500, 900]], ["allocated", [2000, 3000]], ["share by weight", [2000, 4000], true],
    ["minimum (reserved)", [1000, 1000], true], ["maximum", [6000, 6000], true],
  ]);
});

test("a far limit and an unknown total have no line", () => {
  const names = (more) => useLines(SAMPLES, { ...NAMES, ...more }).map(([name]) => name);
  assert.deepEqual(names({ total: 0, maximum: 9001 }), ["used", "allocated"]);
  assert.deepEqual(names({ minimum: undefined, maximum: 0 }), ["used", "allocated", "maximum"]);
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
