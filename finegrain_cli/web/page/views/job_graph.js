// The graph of a job: a box for each chain of operators, with its state and its subtasks. The data comes from the tasks of
// the job, which the executors list.

import { get, lasting } from "../api.js";
import { bytes, count, percent, visible } from "../format.js";
import { layout } from "../graph_layout.js";
import { jobGraph, quotas } from "../job_model.js";
import { NoTasks } from "../output.js";
import { Link, Shown, Table, html, useData } from "../parts.js";
import { executorPath, query, set } from "../place.js";

const HOSTS_MAX = 50; // maximum number of hosts whose tasks are read
const BOXES_MAX = 400;
const SUBTASKS_MAX = 200;
const SIZE = { width: 190, height: 74, across: 56, between: 16 };
const MARGIN = 6;
const LETTERS = 24; // maximum number of characters in a line of a box

/** The graph of a job with these slots. */
export function Graph({ id, slots }) {
  return lasting.value ? html`<${NoTasks} />` : html`<${GraphOf} id=${id} slots=${slots} />`;
}

function GraphOf({ id, slots }) {
  const hosts = [...new Set(slots.map((slot) => slot.executor_id))];
  const read = hosts.slice(0, HOSTS_MAX);
  const job = encodeURIComponent(id);
  const found = useData(async () => {
    const answers = await Promise.allSettled(read.map((host) => get(`/tasks?executor_id=${encodeURIComponent(host)}&job_id=${job}`)));
    const failed = answers.find((each) => each.status === "rejected");
    const tasks = answers.flatMap((each, at) => (each.value?.items ?? []).map((task) => ({ ...task, executor: read[at] })));
    return { tasks, error: failed?.reason.message };
  }, `tasks ${id} ${read.join(" ")}`, 10_000);
  return html`<${Shown} found=${found}>${({ tasks, error }) => {
    const own = tasks.filter((task) => task.job_id === id);
    const graph = jobGraph(own);
    const running = own.filter((task) => task.state === "RUNNING").length;
    return html`${error && html`<p class="bad">${error}</p>`}
      <p class="quiet">${count(own.length, "task")}, ${running} running${hosts.length > HOSTS_MAX ? `, on the first ${HOSTS_MAX} of ${hosts.length} hosts` : ""}. ${graph.chains.size ? "A box is a chain of operators. A dashed edge: the consumer starts when the producer has ended." : "The tasks run no operators of a job graph."}</p>
      ${graph.chains.size > 0 && html`<${Drawing} graph=${graph} /><${ChainTable} graph=${graph} />`}
      <${Subtasks} chain=${graph.chains.get(query.value.get("chain"))} />`;
  }}<//>`;
}

const names = (edges, end) => edges.map((edge) => edge[end]).join(", ");
const inputs = (graph, chain) => graph.edges.filter((edge) => edge.to === chain.name);
const outputs = (graph, chain) => graph.edges.filter((edge) => edge.from === chain.name);
const counts = (chain) => `${chain.running} of ${chain.parallelism} running`;

function state({ state, running, ended, parallelism }) {
  if (state === "running") return `${running} of ${parallelism} running`;
  if (state === "planned") return `planned, ${count(parallelism, "subtask")}`;
  return `${state}, ${running ? `${running} of ${parallelism} running` : `${ended} of ${parallelism} ended`}`;
}

/** What a screen reader says of a box. It begins with the lines of the box. */
function sentence(graph, chain) {
  const gets = names(inputs(graph, chain), "from");
  const gives = names(outputs(graph, chain), "to");
  const lines = linesOf(chain);
  const whole = lines[0] === visible(chain.name) ? "" : `; whole name ${chain.name}`;
  return `${lines.join(", ")}${whole}${gets && `; gets data from ${gets}`}${gives && `; gives data to ${gives}`}`;
}

const cut = (text) => {
  const shown = visible(text);
  return shown.length > LETTERS ? `${shown.slice(0, LETTERS - 1)}…` : shown;
};

/** The lines of a box. */
const linesOf = (chain) => [
  cut(chain.name), state(chain), cut(chain.group ? `group ${chain.group}` : chain.region ? `region ${chain.region}` : "group not known"),
];

const choose = (name) => set({ chain: query.value.get("chain") === name ? "" : name }, true);

/** The picture. Each box is a link that opens the subtasks of its chain, and its label says what the picture shows. */
function Drawing({ graph }) {
  const chains = [...graph.chains.values()].slice(0, BOXES_MAX);
  const shown = new Set(chains.map((chain) => chain.name));
  const edges = graph.edges.filter((edge) => shown.has(edge.from) && shown.has(edge.to));
  const plan = layout([...shown], edges, SIZE);
  const blocking = new Set(edges.filter((edge) => edge.isBlocking).map((edge) => JSON.stringify([edge.from, edge.to])));
  // Tab visits the boxes from sources to sinks.
  const order = chains.sort((a, b) => plan.boxes.get(a.name).x - plan.boxes.get(b.name).x || plan.boxes.get(a.name).y - plan.boxes.get(b.name).y);
  const width = plan.width + 2 * MARGIN;
  const height = plan.height + 2 * MARGIN;
  const text = `Graph of ${count(chains.length, "chain")} and ${count(edges.length, "edge")}`;
  return html`${graph.chains.size > BOXES_MAX && html`<p class="quiet">The picture has the first ${BOXES_MAX} of ${graph.chains.size} chains.</p>`}
    <div class="scrolls picture" tabindex="0" role="region" aria-label=${text}>
    <svg class="graph" role="group" aria-label=${text} width=${width} height=${height} viewBox=${`${-MARGIN} ${-MARGIN} ${width} ${height}`}>
      <defs aria-hidden="true"><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" /></marker></defs>
      ${plan.lines.map((line) => html`<path key=${`${line.from} ${line.to}`} aria-hidden="true" class=${blocking.has(JSON.stringify([line.from, line.to])) ? "edge blocking" : "edge"} d=${curve(line.points)} marker-end="url(#arrow)" />`)}
      ${order.map((chain) => html`<${Box} key=${chain.name} chain=${chain} at=${plan.boxes.get(chain.name)} text=${sentence(graph, chain)} />`)}
    </svg></div>`;
}

/** A path through points, which leaves and reaches each box horizontally. */
function curve([first, ...rest]) {
  let from = first;
  let path = `M${first.x},${first.y}`;
  for (const to of rest) {
    const middle = (from.x + to.x) / 2;
    path += ` C${middle},${from.y} ${middle},${to.y} ${to.x},${to.y}`;
    from = to;
  }
  return path;
}

function Box({ chain, at, text }) {
  const { width, height } = SIZE;
  const part = (number) => (width * percent(number, chain.parallelism)) / 100;
  const [name, progress, group] = linesOf(chain);
  const isChosen = query.value.get("chain") === chain.name;
  const click = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    choose(chain.name);
  };
  return html`<a href=${`?chain=${encodeURIComponent(chain.name)}`} class=${`box ${chain.state.split(" ")[0]}`} aria-label=${text} aria-expanded=${String(isChosen)} onClick=${click}>
    <rect class="frame" x=${at.x} y=${at.y} width=${width} height=${height} rx="5" />
    <rect class="bar-ended" x=${at.x} y=${at.y + height - 8} width=${part(chain.ended)} height="8" />
    <rect class="bar-running" x=${at.x + part(chain.ended)} y=${at.y + height - 8} width=${part(chain.running)} height="8" />
    <text x=${at.x + 8} y=${at.y + 19} class="name">${`${name} `}</text>
    <text x=${at.x + 8} y=${at.y + 37}>${`${progress} `}</text>
    <text x=${at.x + 8} y=${at.y + 54} class="quiet">${group}</text>
  </a>`;
}

function ChainTable({ graph }) {
  const columns = [
    ["chain", (chain) => html`<button class="plain link" aria-pressed=${String(query.value.get("chain") === chain.name)} onClick=${() => choose(chain.name)}>${chain.name}</button>`],
    ["state", (chain) => chain.state],
    ["subtasks", (chain) => `${counts(chain)}, ${chain.ended} ended`],
    ["group", (chain) => chain.group || "–"],
    ["region", (chain) => chain.region || "–"],
    ["gets data from", (chain) => names(inputs(graph, chain), "from") || "–"],
  ];
  return html`<details><summary>The graph as a table</summary>
    <${Table} caption=${count(graph.chains.size, "chain")} columns=${columns} rows=${[...graph.chains.values()].slice(0, BOXES_MAX)} empty="" id="name" /></details>`;
}

/** The subtasks of the chosen chain, with links to their slots and output. */
function Subtasks({ chain }) {
  if (!chain) return null;
  const columns = [
    ["subtask", (task) => task.subtask_index],
    ["task", (task) => html`<${Link} to=${`${executorPath(task.executor)}?slot=${encodeURIComponent(task.allocation_id)}&task=${encodeURIComponent(task.task_id)}`}>${task.task_id.slice(-8)}<//>`],
    ["executor", (task) => html`<${Link} to=${executorPath(task.executor)}>${task.executor}<//>`],
    ["state", (task) => task.state],
    ["command", (task) => html`<code>${task.argv.join(" ")}</code>`],
  ];
  return html`<section class="panel" aria-label=${`Chain ${chain.name}`}><h3>Chain ${chain.name}</h3>
    <ul>${quotas(chain).map((each) => html`<li key=${each.id}>${each.id}: managed memory ${bytes(each.used_bytes)} used of ${bytes(each.quota_bytes)}</li>`)}</ul>
    <${Table} caption=${chain.subtasks.length > SUBTASKS_MAX ? `The first ${SUBTASKS_MAX} of ${chain.subtasks.length} subtasks` : count(chain.subtasks.length, "subtask")} columns=${columns} rows=${chain.subtasks.slice(0, SUBTASKS_MAX)} empty="No task of this chain is known." id="task_id" /></section>`;
}
