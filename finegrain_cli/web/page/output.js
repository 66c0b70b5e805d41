// The tasks of a slot, and their output while they write it. The page keeps only the last part of the
// output. The page is never the holder of an output, so no task waits for a page.

import { useEffect, useRef, useState } from "./vendor/hooks.mjs";
import { get, lasting, stream } from "./api.js";
import { visible } from "./format.js";
import { Shown, Table, html, useData } from "./parts.js";
import { address, place, query, set } from "./place.js";
import { Tail } from "./tail.js";

const FLUSH_MS = 100;

const COLUMNS = [
  ["task", (task) => html`<button class="plain link" aria-pressed=${String(query.value.get("task") === task.task_id)}
    onClick=${() => set({ task: query.value.get("task") === task.task_id ? "" : task.task_id }, true)}>${task.task_id.slice(-8)}</button>`],
  ["state", (task) => ended(task)],
  ["command", (task) => html`<code>${task.argv.join(" ")}</code>`],
  ["pid", (task) => task.pid || "–"],
  ["operators", (task) => task.operators.map((each) => each.operator_id).join(", ") || "–"],
];

function ended({ state, result, reason, message }) {
  if (reason) return `${state}: ${reason} ${message}`;
  if (!result) return state;
  if (result.oom_killed) return `${state}: out of memory`;
  if (result.timed_out) return `${state}: timeout`;
  if (result.signal) return `${state}: signal ${result.signal}`;
  return `${state}: exit code ${result.exit_code}`;
}

/**
 * Says why this page shows no tasks, and which command opens this view with them. In a session, the
 * resource manager serves the page, and it never gets commands and outputs.
 */
export function NoTasks() {
  const view = address(place.value, query.value).replaceAll("'", "%27");
  return html`<p class="quiet">Executors send tasks and their output only to the owner of the job and to administrators, and not to the resource manager.
    To see them, open this view with: <code class="command">finegrain web --view '${view}'</code></p>`;
}

/** The tasks of a slot, and the output of the chosen task. */
export function Tasks({ slot }) {
  return lasting.value ? html`<${NoTasks} />` : html`<${TasksOf} slot=${slot} />`;
}

function TasksOf({ slot }) {
  const place = `executor_id=${encodeURIComponent(slot.executor_id)}&job_id=${encodeURIComponent(slot.job_id)}`;
  const found = useData(() => get(`/tasks?${place}`), `${place} ${slot.allocation_id}`);
  const chosen = query.value.get("task");
  return html`<${Shown} found=${found}>${({ items }) => {
    const tasks = items.filter((each) => each.allocation_id === slot.allocation_id);
    return html`<${Table} caption="Tasks of this slot" columns=${COLUMNS} rows=${tasks} empty="No task has run in this slot." />
      ${tasks.some((each) => each.task_id === chosen) && html`<${Output} key=${chosen} id=${chosen} place=${place} />`}`;
  }}<//>`;
}

function Output({ id, place }) {
  const ref = useRef(null);
  const follows = useRef(true);
  const [follow, setFollow] = useState(true);
  const [state, setState] = useState("connecting");
  useEffect(() => {
    const ending = new AbortController();
    const tail = new Tail();
    let timer = 0;
    let missing = 0;
    const paint = () => {
      timer = 0;
      const box = ref.current;
      if (!box) return;
      box.replaceChildren(...tail.pieces.map(([name, text]) => {
        const part = document.createElement("span");
        part.className = name;
        part.textContent = visible(text);
        return part;
      }));
      if (follows.current) box.scrollTop = box.scrollHeight;
      const cut = tail.dropped ? `${tail.dropped} earlier characters are not shown. ` : "";
      const lost = missing ? `${missing} bytes were dropped before they were read. ` : "";
      box.previousElementSibling.textContent = cut + lost;
    };
    const read = async () => {
      try {
        for await (const [name, data] of stream(`/tasks/${encodeURIComponent(id)}/output?${place}`, ending.signal)) {
          if (name === "output") {
            missing += data.missing_bytes;
            tail.add(data.stream, data.text);
            timer ||= setTimeout(paint, FLUSH_MS);
          } else if (name === "task") setState(ended(data));
          else setState(data.detail);
        }
      } catch (error) {
        if (!ending.signal.aborted) setState(error.message);
      }
    };
    read();
    return () => {
      ending.abort();
      clearTimeout(timer);
    };
  }, []);
  return html`<section class="output"><h3>Output of task ${id.slice(-8)}</h3>
    <p class="quiet"><span role="status">${state}</span> <label><input type="checkbox" checked=${follow}
      onChange=${(event) => { follows.current = event.target.checked; setFollow(event.target.checked); }} /> follow</label></p>
    <p class="quiet" /><pre ref=${ref} tabindex="0" role="region" aria-label=${`Output of task ${id}`} /></section>`;
}
