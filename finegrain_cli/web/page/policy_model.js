// The settings of a host for cpus that the page can change.

/** The settings whose value is a word: [name, words for people, allowed words as the HTTP interface writes them]. */
export const WORDS = [
  ["bind", "bind policy", ["FULL_PCPUS_ONLY", "SPREAD_BY_PCPUS", "NONE"]],
  ["numa_strategy", "NUMA strategy", ["MOST_ALLOCATED", "LEAST_ALLOCATED", "DISTRIBUTE_EVENLY"]],
  ["alignment", "alignment", ["NONE", "BEST_EFFORT", "RESTRICTED", "SINGLE_NUMA_NODE"]],
  ["default_bind", "default bind policy", ["FULL_PCPUS", "SPREAD_BY_PCPUS", "NONE"]],
  ["default_exclusive", "default exclusive policy", ["PCPU_LEVEL", "NUMA_NODE_LEVEL", "NONE"]],
];

/** Returns a word without case and signs, because the answers have "FullPCPUsOnly" and requests "FULL_PCPUS_ONLY". */
const plain = (word) => word.replaceAll("_", "").toLowerCase();

/** Returns the settings that administrators have made, as texts. An empty text means that the setting is not made. */
export function typedPolicy(set) {
  const words = WORDS.map(([name, , allowed]) => [name, allowed.find((word) => plain(word) === plain(set[name] ?? "")) ?? ""]);
  return { ...Object.fromEntries(words), reserved_cpus: set.reserved_cpus ?? "", reserved_strict: set.reserved_strict === null ? "" : String(set.reserved_strict) };
}

/** Returns the body of the request that makes the typed settings, or null if nothing has changed. */
export function policyChange(set, typed) {
  const before = typedPolicy(set);
  const policy = {};
  const clear = [];
  for (const [name, value] of Object.entries(typed)) {
    const text = value.trim();
    if (text === before[name]) continue;
    if (!text) clear.push(name);
    else policy[name] = name === "reserved_strict" ? text === "true" : text;
  }
  if (!clear.length && !Object.keys(policy).length) return null;
  return { ...(Object.keys(policy).length && { policy }), ...(clear.length && { clear }) };
}
