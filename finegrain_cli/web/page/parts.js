// Parts that several views use.

import { createElement as h } from "./vendor/preact.mjs";
import { useEffect, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";
import { signal } from "./vendor/signals.mjs";
import { call, news } from "./api.js";
import { percent } from "./format.js";

export const html = htm.bind(h);

/** The address of the view that is shown. */
export const place = signal(location.pathname);

addEventListener("popstate", () => {
  place.value = location.pathname;
});

/** Shows the view of an address. */
export function go(path) {
  history.pushState(null, "", path);
  place.value = path;
  document.getElementById("view")?.focus();
}

/** A link to a view. */
export function Link({ to, children, ...more }) {
  const click = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(to);
  };
  return html`<a href=${to} onClick=${click} ...${more}>${children}</a>`;
}

/** Reads data again at each event, and every `every` ms. Returns the data or an error. */
export function useData(read, key, every = 5000) {
  const [found, set] = useState({ data: null, error: null });
  const version = news.value;
  useEffect(() => {
    let gone = false;
    const again = () =>
      read().then(
        (data) => gone || set({ data, error: null }),
        (error) => gone || set((old) => ({ data: old.data, error })),
      );
    again();
    const timer = setInterval(again, every);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [key, version]);
  return found;
}

/** The content of a view, or why it cannot be shown. */
export function Shown({ found, children }) {
  if (found.error && !found.data) return html`<p class="bad" role="alert">${found.error.message}</p>`;
  if (!found.data) return html`<p class="quiet">Loading …</p>`;
  return children(found.data);
}

/** A bar with the allocated part, and a mark for the part that is really used. */
export function Bar({ label, allocated, used, total, text }) {
  const part = percent(allocated, total);
  const mark = percent(used, total);
  return html`<div class="bar" role="img" aria-label=${`${label}: ${text}`} title=${`${label}: ${text}`}>
    <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <rect class="free" width="100" height="10" />
      <rect class="allocated" width=${part} height="10" />
      <rect class="used" y="7" width=${mark} height="3" />
    </svg>
  </div>`;
}

/** A table with a heading for each column: [heading, function of the row]. */
export function Table({ caption, columns, rows, empty }) {
  if (!rows.length) return html`<p class="quiet">${empty}</p>`;
  return html`<div class="scrolls"><table>
    <caption>${caption}</caption>
    <thead><tr>${columns.map(([name]) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${columns.map(([, cell]) => html`<td>${cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** A button that asks before it changes something, and shows the error of a refused change. */
export function Action({ label, question, method, path, body, after }) {
  const [state, set] = useState({ asks: false, error: "" });
  const run = async () => {
    try {
      await call(method, path, body ?? {});
      set({ asks: false, error: "" });
      after?.();
    } catch (error) {
      set({ asks: false, error: error.message });
    }
  };
  if (state.asks) {
    return html`<span class="asks" role="group" aria-label=${question}>${question}
      <button class="danger" onClick=${run}>${label}</button>
      <button onClick=${() => set({ asks: false, error: "" })}>Cancel</button></span>`;
  }
  return html`<span><button onClick=${() => set({ asks: true, error: "" })}>${label}</button>
    ${state.error && html`<span class="bad" role="alert">${state.error}</span>`}</span>`;
}
