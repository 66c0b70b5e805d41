// Converts jobs to plain data: timelines and graphs.

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

const exitedWell = ({ result }) => result && !(result.exit_code || result.signal || result.oom_killed || result.timed_out || result.cancelled || result.end_reason);

/** Returns the last task of each subtask, by its index. Tasks are in the order in which they were submitted. */
function latest(tasks) {
  const found = new Map();
  for (const task of tasks) {
    const before = found.get(task.subtask_index);
    if (!before || (task.start_time ?? "") >= (before.start_time ?? "")) found.set(task.subtask_index, task);
  }
  return [...found.values()].sort((a, b) => a.subtask_index - b.subtask_index);
}

/** Returns the state of a chain: "failed", "running", "finished", "ended in part" or "planned". */
export function stateOf({ subtasks, parallelism }) {
  const failed = subtasks.filter((task) => task.state === "FAILED" || (task.state === "EXITED" && !exitedWell(task)));
  const running = subtasks.filter((task) => task.state === "RUNNING" || task.state === "STARTING");
  if (failed.length) return "failed";
  if (running.length) return "running";
  if (!subtasks.length) return "planned";
  return subtasks.length >= parallelism ? "finished" : "ended in part";
}

/**
 * Returns the graph of a job, computed from its tasks: `chains` by name, and `edges` between them. Tasks with
 * the same chain are subtasks of it. A chain that no task runs is known from the edges of its neighbors.
 */
export function jobGraph(tasks) {
  const chains = new Map();
  const edges = new Map();
  const chain = (name, parallelism) => {
    if (!chains.has(name)) chains.set(name, { name, parallelism, operators: [], group: "", region: 0, tasks: [] });
    return chains.get(name);
  };
  for (const task of tasks) {
    if (!task.operators.length) continue;
    const { place } = task;
    const found = chain(place?.chain ?? task.operators.map((each) => each.operator_id).join("+"), task.parallelism);
    found.parallelism = Math.max(found.parallelism, task.parallelism, 1);
    if (!found.operators.length) found.operators = task.operators.map((each) => each.operator_id);
    found.group ||= place?.slot_sharing_group ?? "";
    found.region ||= place?.region ?? 0;
    found.tasks.push(task);
    for (const edge of place?.edges ?? []) {
      chain(edge.chain, edge.parallelism);
      const [from, to] = edge.is_input ? [edge.chain, found.name] : [found.name, edge.chain];
      edges.set(JSON.stringify([from, to]), { from, to, isBlocking: edge.is_blocking });
    }
  }
  for (const each of chains.values()) {
    each.subtasks = latest(each.tasks);
    each.running = each.subtasks.filter((task) => task.state === "RUNNING").length;
    each.ended = each.subtasks.filter((task) => task.state === "EXITED" || task.state === "FAILED").length;
    each.state = stateOf(each);
  }
  return { chains, edges: [...edges.values()] };
}

/** Returns the operators of a chain. The managed memory of an operator is the sum over all subtasks. */
export function quotas(chain) {
  return chain.operators.map((id) => {
    const all = chain.subtasks.flatMap((task) => task.operators.filter((each) => each.operator_id === id));
    const sum = (name) => all.reduce((total, each) => total + each[name], 0);
    return { id, quota_bytes: sum("quota_bytes"), used_bytes: sum("used_bytes") };
  });
}
