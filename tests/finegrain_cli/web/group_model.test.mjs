// Unit tests of the view of groups: node --test tests/finegrain_cli/web
import assert from "node:assert/strict";
import test from "node:test";
import { groupChange, typedSettings, useLines } from "../../../finegrain_cli/web/page/group_model.js";

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
  const group = { weight: 2, minimum: { slots: 3 }, maximum: { cpu_milli: 4500, memory_bytes: 2 ** 31 } };
  const typed = typedSettings(group);
  assert.deepEqual(typed, {
    weight: "2", minimum: { cpu_milli: "", memory_bytes: "", slots: "3" }, maximum: { cpu_milli: "4.5", memory_bytes: "2", slots: "" },
  });
  const change = (more) => groupChange(group, { ...typed, ...more });
  assert.equal(change({}), null);
  assert.deepEqual(change({ weight: "3" }), { weight: 3 });
  assert.equal(change({ weight: "2.0" }), null);
  assert.deepEqual(change({ maximum: { ...typed.maximum, cpu_milli: "" } }), { maximum: { cpu_milli: -1 } });
  assert.deepEqual(change({ maximum: { cpu_milli: "0.5", memory_bytes: "1.5", slots: "0" } }), {
    maximum: { cpu_milli: 500, memory_bytes: 1.5 * 2 ** 30, slots: 0 },
  });
  assert.deepEqual(change({ minimum: { ...typed.minimum, slots: "", cpu_milli: "2" } }), { minimum: { cpu_milli: 2000, slots: -1 } });
});

test("a wrong value is no change", () => {
  const group = { weight: 2, minimum: {}, maximum: {} };
  const typed = typedSettings(group);
  for (const weight of ["", "0", "-1", "x"]) assert.equal(groupChange(group, { ...typed, weight }), null);
  for (const slots of ["x", "-1"]) assert.equal(groupChange(group, { ...typed, maximum: { ...typed.maximum, slots } }), null);
});
