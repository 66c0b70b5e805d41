// Unit tests of the cpu policy of a host: node --test tests/finegrain_cli/web
import assert from "node:assert/strict";
import test from "node:test";
import { policyChange, typedPolicy } from "../../../finegrain_cli/web/page/policy_model.js";

const SET = {
  bind: "FullPCPUsOnly", numa_strategy: null, alignment: "SingleNUMANode", reserved_cpus: "0-1", reserved_strict: false, default_bind: "None", default_exclusive: null,
};

test("settings are shown in the words of requests", () => {
  assert.deepEqual(typedPolicy(SET), {
    bind: "FULL_PCPUS_ONLY", numa_strategy: "", alignment: "SINGLE_NUMA_NODE", default_bind: "NONE", default_exclusive: "", reserved_cpus: "0-1", reserved_strict: "false",
  });
});

test("a change has only what differs", () => {
  const change = (more) => policyChange(SET, { ...typedPolicy(SET), ...more });
  assert.equal(change({}), null);
  assert.deepEqual(change({ bind: "NONE", reserved_strict: "true" }), { policy: { bind: "NONE", reserved_strict: true } });
  assert.deepEqual(change({ alignment: "", reserved_cpus: " " }), { clear: ["alignment", "reserved_cpus"] });
  assert.deepEqual(change({ alignment: "", reserved_cpus: "2 " }), { policy: { reserved_cpus: "2" }, clear: ["alignment"] });
});
