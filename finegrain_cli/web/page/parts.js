// Parts that several views use.

import { createElement } from "./vendor/preact.mjs";
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";
import { effect } from "./vendor/signals.mjs";
import { call, identity, news } from "./api.js";
import { dimension, percent, visible } from "./format.js";
import { go, set, setting } from "./place.js";

const shown = (value) => (typeof value === "string" ? visible(value) : value);

/** Creates an element. In its texts, hidden characters are replaced. `html` never reads a text as markup. */
function element(type, props, ...children) {
  if (typeof type === "string" && props) {
    for (const name of ["title", "aria-label"]) if (name in props) props[name] = shown(props[name]);
  }
  return createElement(type, props, ...children.map((each) => (Array.isArray(each) ? each.map(shown) : shown(each))));
}

export const html = htm.bind(element);

const PREVIEWED_MAX = 20;
const REST = 20;

/** True if the user is allowed to change something. Other users see no buttons. The resource manager checks the role in each case. */
export const mayChange = () => identity.value.startsWith("operator/");

/** A link to a view. */
export function Link({ to, children, ...more }) {
  const click = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(to);
  };
  return html`<a href=${to} onClick=${click} ...${more}>${children}</a>`;
}

/**
 * Reads data again after each event, and every `every` ms. Returns the data or an error.
 *
 * The pauses between reads are long enough that reads take at most one twentieth of the time. So a page
 * costs little in a busy cluster. A hidden page reads nothing.
 */
export function useData(read, key, every = 5000) {
  const [found, set] = useState({ data: null, error: null });
  const latest = useRef(read);
  latest.current = read;
  useEffect(() => {
    let gone = false;
    let timer = 0;
    let reading = false;
    let changed = false;
    let next = 0; // time of the next read after an event, at the earliest
    const plan = () => {
      clearTimeout(timer);
      const wait = changed ? next - performance.now() : every;
      if (!gone) timer = setTimeout(again, Math.max(0, wait));
    };
    const again = async () => {
      if (document.hidden) return;
      changed = false;
      reading = true;
      const began = performance.now();
      try {
        const data = await latest.current();
        if (!gone) set({ data, error: null });
      } catch (error) {
        if (!gone) set((old) => ({ data: old.data, error }));
      }
      reading = false;
      next = performance.now() + Math.min(every, REST * (performance.now() - began));
      plan();
    };
    const note = () => {
      changed = true;
      if (!reading) plan();
    };
    let isFirst = true;
    const unsubscribe = effect(() => {
      if (news.value >= 0 && !isFirst) note();
      isFirst = false;
    });
    const seen = () => document.hidden || note();
    document.addEventListener("visibilitychange", seen);
    again();
    return () => {
      gone = true;
      clearTimeout(timer);
      unsubscribe();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [key]);
  return found;
}

/** The content of a view, or the reason why the content cannot be shown. */
export function Shown({ found, children }) {
  if (found.error && !found.data) return html`<p class="bad" role="alert">${found.error.message}</p>`;
  if (!found.data) return html`<p class="quiet">Loading …</p>`;
  return children(found.data);
}

/** The patterns of bars. The page contains this element once. */
export const Patterns = () => html`<svg class="patterns" aria-hidden="true"><defs>
  <pattern id="dots" width="4" height="4" patternUnits="userSpaceOnUse"><rect class="dot" x="1" y="1" width="1.5" height="1.5" /></pattern>
  <pattern id="stripes" width="5" height="5" patternUnits="userSpaceOnUse"><rect class="pale" width="5" height="5" /><path class="stripe" d="M-1,6 L6,-1 M-1,1 L1,-1 M4,6 L6,4" /></pattern>
</defs></svg>`;

/** A bar with three parts of a whole: the reserved (dots), the allocated (stripes) and the used part (solid). */
export function Meter({ label, total, reserved = 0, allocated, used, write }) {
  const whole = total + reserved;
  const text = `${label}: ${write(allocated)} allocated and ${write(used)} used of ${write(total)}; ${write(reserved)} reserved for the system`;
  const kept = percent(reserved, whole);
  return html`<div class="bar" role="img" aria-label=${text} title=${text}><span aria-hidden="true">${label}</span>
    <svg aria-hidden="true"><rect class="free" width="100%" height="100%" />
      <rect fill="url(#dots)" width=${`${kept}%`} height="100%" />
      <rect fill="url(#stripes)" x=${`${kept}%`} width=${`${percent(allocated, whole)}%`} height="100%" />
      <rect class="used" x=${`${kept}%`} y="45%" width=${`${percent(used, whole)}%`} height="55%" /></svg>
  </div>`;
}

/** Explains the patterns of bars. */
export const Legend = () => html`<ul class="legend" aria-label="Patterns">
  ${[["solid", "used"], ["stripes", "allocated, not used"], ["dots", "reserved for the system"], ["empty", "free"]].map(([kind, name]) => html`
    <li key=${kind}><svg aria-hidden="true"><rect class=${kind === "solid" ? "used" : "free"} width="100%" height="100%" />
      ${kind !== "solid" && kind !== "empty" && html`<rect fill=${`url(#${kind})`} width="100%" height="100%" />`}</svg> ${name}</li>`)}
</ul>`;

/** A selection box. The address of the page keeps the chosen value. */
export function Choice({ name, label, values, words = {} }) {
  const chosen = setting(name, values);
  return html`<label>${label} <select value=${chosen} onChange=${(event) => set({ [name]: event.target.value === values[0] ? "" : event.target.value })}>
    ${values.map((value) => html`<option key=${value} value=${value} selected=${value === chosen}>${words[value] ?? value}</option>`)}</select></label>`;
}

/** A search field. The address of the page keeps the text. */
export function Search({ name, label }) {
  return html`<label>${label} <input type="search" value=${setting(name)} maxlength="100" onInput=${(event) => set({ [name]: event.target.value.trim() })} /></label>`;
}

/** A table. Each of `columns` is [heading, function that returns the cell of a row]. `id` is the field that identifies a row. */
export function Table({ caption, columns, rows, empty, id = "" }) {
  if (!rows.length) return html`<p class="quiet">${empty}</p>`;
  return html`<div class="scrolls" tabindex="0" role="region" aria-label=${caption}><table>
    <caption>${caption}</caption>
    <thead><tr>${columns.map(([name]) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row, at) => html`<tr key=${id ? row[id] : at}>${columns.map(([, cell]) => html`<td>${cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** A dialog. Tab stays in the dialog, and Escape closes the dialog. Then the element that had the focus before gets it again. */
export function Dialog({ title, close, children }) {
  const ref = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    ref.current.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  return html`<dialog ref=${ref} aria-label=${title} onClose=${close}>
    <header><h2>${title}</h2><button onClick=${() => ref.current.close()}>Close</button></header>
    <div class="inside">${children}</div></dialog>`;
}

/** The slots and jobs that an action would change, as the resource manager predicts now. */
function Preview({ action }) {
  const [found, set] = useState({ data: null, error: null });
  useEffect(() => {
    call("POST", "/v1/preview", action).then((data) => set({ data, error: null }), (error) => set({ data: null, error }));
  }, []);
  const columns = [
    ["slot", (slot) => slot.allocation_id],
    ["job", (slot) => slot.job_name || slot.job_id],
    ["group", (slot) => slot.group],
    ["room elsewhere", (slot) => slot.other_executor_id || "none now"],
  ];
  const shares = [
    ["group", (each) => each.group],
    ["share now", (each) => part(each.share_now)],
    ["entitled before", (each) => part(each.before)],
    ["entitled after", (each) => part(each.after)],
    ["more than the new maximum", (each) => each.exceeded.map(dimension).join(", ") || "no"],
    ["less than the new minimum", (each) => each.below_minimum.map(dimension).join(", ") || "no"],
  ];
  const settings = [
    ["setting", (each) => each.name.replaceAll("_", " ")],
    ["before", (each) => each.before || "none"],
    ["after", (each) => each.after || "none"],
    ["executors", (each) => each.executors],
  ];
  if (found.error?.status === 404) return null; // an older resource manager has no previews
  return html`<${Shown} found=${found}>${(data) => html`<p>${data.summary}</p>
    ${data.slots.length > 0 && html`<${Table} caption=${`The first ${Math.min(data.slots.length, PREVIEWED_MAX)} of ${data.slots_total} slots`} columns=${columns} rows=${data.slots.slice(0, PREVIEWED_MAX)} empty="" />`}
    ${(data.settings ?? []).length > 0 && html`<${Table} caption="Settings in effect" columns=${settings} rows=${data.settings} empty="" />`}
    ${data.shares.length > 0 && html`<${Table} caption="Shares of groups" columns=${shares} rows=${data.shares} empty="" />`}`}<//>`;
}

const part = (share) => `${(100 * share).toFixed(1)} %`;

/**
 * A button that asks before it changes something, and shows the error of a refused change. `preview`
 * is the action in the form that `/v1/preview` accepts.
 */
export function Action({ label, question, method, path, body, preview }) {
  const [state, set] = useState({ asks: false, error: "" });
  const run = async () => {
    try {
      await call(method, path, body ?? {});
      set({ asks: false, error: "" });
    } catch (error) {
      set({ asks: true, error: error.message });
    }
  };
  const close = () => set({ asks: false, error: "" });
  if (!mayChange()) return null;
  return html`<span><button aria-haspopup="dialog" onClick=${() => set({ asks: true, error: "" })}>${label}</button>
    ${state.asks && html`<${Dialog} title=${label} close=${close}>
      <p>${question}</p>${preview && html`<${Preview} action=${preview} />`}
      ${state.error && html`<p class="bad" role="alert">${state.error}</p>`}
      <p class="asks"><button class="danger" onClick=${run}>${label}</button> <button onClick=${close}>Back</button></p><//>`}</span>`;
}
