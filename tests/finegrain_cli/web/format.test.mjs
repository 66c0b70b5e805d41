// Unit tests of the page's texts: node --test tests/finegrain_cli/web
import assert from "node:assert/strict";
import test from "node:test";
import {
  age, amount, amounts, bytes, count, cpu, dimension, memory, percent, short,
} from "../../../finegrain_cli/web/page/format.js";

test("amounts have the units of the command line", () => {
  assert.equal(cpu(1500), "1.5");
  assert.equal(cpu(2000), "2");
  assert.equal(bytes(0), "0");
  assert.equal(bytes(1536), "1.5Ki");
  assert.equal(bytes(64 * 2 ** 20), "64Mi");
  assert.equal(bytes(200 * 2 ** 30), "200Gi");
  assert.equal(amount("cpu_milli", 250), "0.25");
  assert.equal(amount("extended.licence", 3), "3");
  assert.equal(dimension("extended.ports"), "ports");
  assert.equal(amounts({ cpu_milli: 500, memory_bytes: 2 ** 30 }), "cpu 0.5, memory 1Gi");
  assert.equal(amounts({}), "nothing");
});

test("memory is the sum of its parts, and nothing else", () => {
  assert.equal(memory({ memory_bytes: 5, managed_memory_bytes: 7, cpu_milli: 9 }), 12);
  assert.equal(memory({ "device.gpu-memory": 3 }), 0);
});

test("ages, parts and short forms", () => {
  const now = Date.parse("2026-11-28T12:00:00Z");
  assert.equal(age("2026-11-28T11:59:30Z", now), "30 s");
  assert.equal(age("2026-11-28T11:30:00Z", now), "30 min");
  assert.equal(age("2026-11-27T12:00:00Z", now), "24 h");
  assert.equal(age("2026-11-20T12:00:00Z", now), "8 d");
  assert.equal(age(null, now), "–");
  assert.equal(percent(1, 4), 25);
  assert.equal(percent(9, 4), 100);
  assert.equal(percent(1, 0), 0);
  assert.equal(short("01a223dd-a4e6-7e02-ace4-89700a3df2f25"), "0a3df2f25".slice(-8));
  assert.equal(short("batch-7"), "batch-7");
  assert.equal(count(1, "slot"), "1 slot");
  assert.equal(count(0, "slot"), "0 slots");
});
