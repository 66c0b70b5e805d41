// Converts jobs and groups to plain data: timelines, plans of graphs, and changes of groups.

/** Returns the bars of a timeline. A bar has the time for which a request waits, and the time for which it has a slot. Times are in ms. */
export function timeline(requests, now) {
  const bars = requests.filter((one) => one.create_time).map((one) => {
    const from = Date.parse(one.create_time);
    const until = one.end_time ? Date.parse(one.end_time) : now;
    const granted = one.slot?.allocated_time ? Date.parse(one.slot.allocated_time) : null;
    return { id: one.allocation_id, state: one.state, count: one.count, from, granted: granted && Math.max(granted, from), until: Math.max(until, from) };
  });
  const start = Math.min(...bars.map((bar) => bar.from));
  const end = Math.max(...bars.map((bar) => bar.until), start + 1);
  return { start, end, bars: bars.sort((a, b) => a.from - b.from) };
}

/** Returns the chains of a job graph, computed from its tasks. Tasks with the same operators are subtasks of one chain. */
export function chains(tasks) {
  const found = new Map();
  for (const task of tasks) {
    if (!task.operators.length) continue;
    const name = task.operators.map((each) => each.operator_id).join(" → ");
    const chain = found.get(name) ?? { name, operators: task.operators.map((each) => each.operator_id), subtasks: [], peers: [] };
    chain.subtasks.push(task);
    found.set(name, chain);
  }
  const all = [...found.values()];
  for (const chain of all) {
    const peers = new Set(chain.subtasks.flatMap((task) => task.peer_operator_ids));
    chain.peers = all.filter((other) => other !== chain && other.operators.some((id) => peers.has(id))).map((other) => other.name);
  }
  return all;
}

/** Returns the operators of a chain. The managed memory of an operator is the sum over all subtasks. */
export function quotas(chain) {
  return chain.operators.map((id) => {
    const all = chain.subtasks.flatMap((task) => task.operators.filter((each) => each.operator_id === id));
    const sum = (name) => all.reduce((total, each) => total + each[name], 0);
    return { id, quota_bytes: sum("quota_bytes"), used_bytes: sum("used_bytes") };
  });
}

/** Returns the typed settings of a group that differ from its present settings, or null if no setting differs or a value is wrong. */
export function groupChange(group, { weight, cpus }) {
  const found = {};
  const wanted = Number(weight);
  if (!(wanted > 0)) return null;
  if (wanted !== group.weight) found.weight = wanted;
  const before = group.maximum.cpu_milli ?? -1;
  const most = cpus.trim() ? Math.round(1000 * Number(cpus)) : -1;
  if (Number.isNaN(most)) return null;
  if (most !== before) found.maximum = { cpu_milli: most };
  return Object.keys(found).length ? found : null;
}
